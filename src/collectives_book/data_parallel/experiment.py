"""The experiment ``data-parallel``: parameters, the launches of the ranks, and rows.

Rows are of three parts. "training": one row for each back end and algorithm, and one for the same training in one
process. "resumed": a rank was killed, and other ranks went on from the checkpoint. "rates": batch sizes and learning
rates.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Annotated, NamedTuple, Self

from pydantic import Field, model_validator

from collectives.algorithms import build
from collectives.autotune import VARIABLE, choose
from collectives.backends import need
from collectives.bench import OURS, Row, needed_here
from collectives.bench.settings import starter
from collectives.bench.sweep import Keep
from collectives.config import Bytes
from collectives.launch import RankError, launch, links
from collectives.machine import machine
from collectives.simulator.simulation import simulate
from collectives.units import duration
from collectives_book import parameters as base
from collectives_book.data_parallel.ranks import ONE_PROCESS, RATES
from collectives_book.data_parallel.training import Training
from collectives_book.parameters import Distinct, Name, Ranks, Some, need_place, resume

TASK = "collectives_book.data_parallel.ranks"
JOINING = ("p2p", "gloo", "horovod", "nccl", "p2p_nccl")
FUSION = "HOROVOD_FUSION_THRESHOLD"
TIMEOUT = 900.0
# The killed training has to end within this time, whatever the others wait for.
KILLED_SECONDS = 120.0

Count = Annotated[int, Field(ge=1, le=10_000)]


class Parameters(base.Parameters):
    """The parameters of ``data-parallel``: replicas, what joins them, one training run, and its comparisons."""

    ranks: Ranks
    batch: Count
    steps: Annotated[int, Field(ge=5, le=10_000)]
    rate: Annotated[float, Field(gt=0, le=100)]
    backend: Name
    beside: Distinct[Name]
    algorithms: Some[Name]
    fusion: Distinct[Bytes]
    killed_at: Annotated[int, Field(ge=0)]
    every: Count
    batches: Distinct[Count]
    base_rate: Annotated[float, Field(gt=0, le=100)]
    epochs: Count
    seeds: Count
    where: Name

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        need_place(self.where, self.ranks)
        for name in (self.backend, *self.beside):
            if name not in JOINING:
                raise ValueError(f"unknown backend: got {name!r}, expected one of {', '.join(JOINING)}")
        if self.backend in self.beside:
            raise ValueError(f"beside: got {self.backend!r}, which is the backend, expected others only")
        for name in self.algorithms:
            if name != "auto":
                build("all_reduce", name, self.ranks)
        if self.killed_at >= self.steps or (self.killed_at and self.ranks < 2):
            raise ValueError(
                f"killed_at: got {self.killed_at} on {self.ranks} ranks, expected 0, or less than "
                f"{self.steps} on 2 ranks or more"
            )
        if "horovod" in (self.backend, *self.beside) and not self.fusion:
            raise ValueError("fusion: got none, expected a threshold or more for horovod")
        return self

    def training(self) -> Training:
        """What every row of the part "training" trains."""
        return Training(self.steps, self.batch, self.rate)

    def launches(self) -> list[Launch]:
        """What the ranks of each launch do, one after the other: they are started alike, in the same environment."""
        together: dict[tuple[str, str | None], list[tuple[str, str]]] = {}
        for name in (self.backend, *self.beside):
            for variant, algorithm in self._variants(name):
                together.setdefault((starter(name, self.where), variant), []).append((name, algorithm))
        return [Launch(where, fusion, joined) for (where, fusion), joined in together.items()]

    def cases(self) -> list[tuple[int, tuple[str, str]]]:
        """What is measured, each with the number of its launch; the killed rank comes last, by launches of its own."""
        first, *others = (each.joined for each in self.launches())
        tried = [(RATES, "")] if self.batches else []
        joined = [[(ONE_PROCESS, ""), *first, *tried], *others, [("killed", "")] if self.killed_at else []]
        return [(nth, case) for nth, cases in enumerate(joined) for case in cases]

    def need_here(self) -> None:
        """Raise ImportError where a back end is absent of those whose ranks would be on this machine."""
        for name in (self.backend, *self.beside):
            if needed_here(starter(name, self.where), name):
                need(name)

    def _variants(self, name: str) -> Iterator[tuple[str | None, str]]:
        if name == "horovod":
            yield from ((str(threshold), "default") for threshold in self.fusion)
        else:
            yield from ((None, algorithm) for algorithm in (self.algorithms if name in OURS else ["default"]))


class Launch(NamedTuple):
    """Ranks that are started together: by what, with which fusion threshold, and what joins them in turn."""

    where: str
    fusion: str | None
    joined: list[tuple[str, str]]


def run(parameters: Parameters) -> None:
    """Train, kill and resume, try rates; write rows and record (`resume`).

    Raises ImportError with the reason where a back end is absent, RankError where a rank fails that should not.
    """
    parameters.need_here()
    launches = parameters.launches()

    def measure(left: Sequence[tuple[int, tuple[str, str]]], keep: Keep) -> None:
        for nth, cases in groupby(left, itemgetter(0)):
            joined = [case for _, case in cases]
            if nth == len(launches):
                keep({"rows": [_killed_and_resumed(parameters)]})
            else:
                _train(parameters, launches[nth], joined, keep)

    settings = {**parameters.model_dump(mode="json"), "training": asdict(parameters.training())}
    resume(parameters, settings, parameters.cases(), measure, dict, _line)


def _settings(parameters: Parameters, each: Launch, joined: list[tuple[str, str]]) -> Row:
    """What a launch's ranks are told; `run` of the task reads it."""
    tried = {"batches": parameters.batches, "rate": parameters.base_rate}
    tried |= {"epochs": parameters.epochs, "seeds": parameters.seeds}
    names = list(dict.fromkeys(name for name, _ in each.joined))
    told = {"training": asdict(parameters.training()), "where": each.where, "backends": names}
    return told | {"joined": joined, "rates": tried}


def _environment(parameters: Parameters, each: Launch) -> dict[str, str]:
    """Variables for the ranks: the links, by which "auto" chooses, and Horovod's threshold."""
    network = links(each.where, parameters.ranks)
    return ({VARIABLE: network} if network else {}) | ({FUSION: each.fusion} if each.fusion is not None else {})


def _train(parameters: Parameters, each: Launch, joined: list[tuple[str, str]], keep: Keep) -> None:
    def on_event(event: Row) -> None:
        keep({"rows": [_row(parameters, each, row) for row in event["rows"]]} if "rows" in event else event)

    _launched(parameters, each, _settings(parameters, each, joined), on_event, TIMEOUT)


def _row(parameters: Parameters, each: Launch, row: Row) -> Row:
    """The row with Horovod's threshold, and on known links with what the simulator says of our all-reduce."""
    network = links(each.where, parameters.ranks)
    if row["part"] == "training" and row["backend"] in OURS and network:
        on = machine(network)
        chosen = choose("all_reduce", parameters.ranks, row["bytes"], row["algorithm"], on=on)
        schedule = build("all_reduce", chosen.algorithm, parameters.ranks, segments=chosen.segments)
        seconds = simulate(schedule, on, row["bytes"], chosen.algorithm).seconds
        row |= {"simulated_us": round(seconds * 1e6, 3), "chosen": chosen.algorithm}
    return row | ({"fusion": int(each.fusion)} if each.fusion is not None else {})


def _killed_and_resumed(parameters: Parameters) -> Row:
    """Kill a rank, then start all ranks again, which go on from the checkpoint; one row about both."""
    first = parameters.launches()[0]
    file = Path(f"{parameters.output}.checkpoint.pt")
    file.unlink(missing_ok=True)
    again = _settings(parameters, first, first.joined[:1]) | {"file": str(file.absolute()), "every": parameters.every}
    try:
        death = _killed(parameters, first, again | {"killed_at": parameters.killed_at})
        events = _launched(parameters, first, again, lambda _: None, KILLED_SECONDS)
    finally:
        file.unlink(missing_ok=True)
    row: Row = next(event["rows"][0] for event in events if "rows" in event)
    kept = (parameters.killed_at - 1) // parameters.every * parameters.every
    return row | death | {"part": "resumed", "killed_at": parameters.killed_at, "resumed_after": kept}


def _killed(parameters: Parameters, each: Launch, settings: Row) -> Row:
    """The losses of a run until its last rank is killed, what the launcher says then, and how long after that."""
    last: list[tuple[float, list[float]]] = []

    def on_event(event: Row) -> None:
        if "killed_at" in event:
            last.append((time.monotonic(), event["losses"]))

    try:
        _launched(parameters, each, settings, on_event, KILLED_SECONDS)
    except RankError as error:
        if not last:
            raise
        (when, losses), said = last[0], str(error).splitlines()[0].partition(";")[0]
        return {"before": losses, "said": said, "seconds": round(time.monotonic() - when, 3)}
    raise RuntimeError("a rank was killed: got a training run that ended well, expected RankError")


def _launched(
    parameters: Parameters, each: Launch, settings: Row, on_event: Callable[[Row], None], timeout: float
) -> list[Row]:
    return launch(
        TASK,
        settings,
        parameters.ranks,
        where=each.where,
        timeout=timeout,
        environment=_environment(parameters, each),
        on_event=on_event,
    )


def _line(row: Row) -> str:
    if row["part"] != "training" or "median_us" not in row:
        return ""
    what = f"{row['backend']} {row['algorithm']}" if row["ranks"] > 1 else "one process"
    return f"{what}: a step takes {duration(row['median_us'] * 1e-6)}"
