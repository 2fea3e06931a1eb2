"""The experiment ``data-parallel``: replicas joined by several back ends, a rank that is killed, larger batches.

Rows are of three parts. "training": one row for each back end and algorithm, and one for the same
training in one process. "resumed": a rank was killed, and other ranks went on from the checkpoint.
"rates": batch sizes and learning rates.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from collectives.algorithms import build
from collectives.autotune import choose
from collectives.backends import BACKENDS, backend
from collectives.bench import OURS, Row
from collectives.bench.settings import launcher_for
from collectives.bench.sweep import Keep
from collectives.config import Bytes
from collectives.launch import RankError, launch, links
from collectives.machine import machine
from collectives.simulator.simulation import simulate
from collectives_book.data_parallel.ranks import ONE_PROCESS, RATES
from collectives_book.experiment import (
    Algorithm,
    Distinct,
    Name,
    RankExperiment,
    Some,
)
from collectives_book.training.step import Training

JOINING = tuple(name for name in BACKENDS if backend(name).joins_group)
KILLED = "killed"  # in place of what starts ranks
# The killed training has to end within this time, whatever the others wait for.
KILLED_SECONDS = 120.0

Count = Annotated[int, Field(ge=1, le=10_000)]


def need_joining(name: str) -> None:
    """Raise ValueError for a back end that joins no replicas here."""
    if name not in JOINING:
        raise ValueError(f"unknown backend: got {name!r}, expected one of {', '.join(JOINING)}")


class DataParallel(RankExperiment):
    """Replicas, what joins them, one training run, and its comparisons."""

    TASK: ClassVar[str] = "collectives_book.data_parallel.ranks"
    TIMEOUT: ClassVar[float] = 900.0
    SHOWN: ClassVar[tuple[str, ...]] = ("backend", "algorithm", "fusion")

    batch: Count
    steps: Annotated[int, Field(ge=5, le=10_000)]
    rate: Annotated[float, Field(gt=0, le=100)]
    beside: Distinct[Name]
    algorithms: Some[Algorithm]
    fusion: Distinct[Bytes]
    killed_at: Annotated[int, Field(ge=0)]
    every: Count
    batches: Distinct[Count]
    base_rate: Annotated[float, Field(gt=0, le=100)]
    epochs: Count
    seeds: Count

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        for name in self.libraries():
            need_joining(name)
        if self.backend in self.beside:
            raise ValueError(
                f"beside: got {self.backend!r}, which is the backend, expected others only"
            )
        for name in self.algorithms:
            if name != "auto":
                build("all_reduce", name, self.ranks)
        if self.killed_at >= self.steps or (self.killed_at and self.ranks < 2):
            raise ValueError(
                f"killed_at: got {self.killed_at} on {self.ranks} ranks, expected 0, or less than "
                f"{self.steps} on 2 ranks or more"
            )
        for name in self.libraries():
            if backend(name).fusion_variable and not self.fusion:
                raise ValueError(f"fusion: got none, expected a threshold or more for {name}")
        return self

    def libraries(self) -> list[str]:
        """Return the back end and those beside it."""
        return [self.backend, *self.beside]

    def wanted(self) -> list[tuple[str, str | None, str, str]]:
        """Return the cases: what starts ranks, a threshold of fusion, a back end and its algorithm.

        Those that are started alike stand together: one launch measures them. The killed rank comes
        last.
        """
        joined = []
        for name in self.libraries():
            launcher = launcher_for(name, self.where)
            joined += [(launcher, *variant) for variant in self._variants(name)]
        first = joined[0]
        one = (*first[:2], ONE_PROCESS, "")
        tried = (*first[:2], RATES, "")
        cases = [one, *joined, *([tried] if self.batches else [])]
        together = [case[:2] for case in cases]
        cases.sort(key=lambda case: together.index(case[:2]))
        return [*cases, *([(KILLED, *first[1:])] if self.killed_at else [])]

    def _variants(self, name: str) -> list[tuple[str | None, str, str]]:
        if backend(name).fusion_variable:
            return [(str(threshold), name, "default") for threshold in self.fusion]
        algorithms = self.algorithms if name in OURS else ["default"]
        return [(None, name, algorithm) for algorithm in algorithms]

    def measure(self, left: Sequence[Any], keep: Keep) -> None:
        """Launch the ranks that are started alike, and at last those of which one is killed."""
        for (where, fusion), cases in groupby(left, itemgetter(0, 1)):
            joined = [case[2:] for case in cases]
            if where == KILLED:
                keep({"rows": [self._killed_and_resumed(fusion, joined)]})
            else:
                self._launched(where, fusion, self.job(joined), keep, self.TIMEOUT)

    def job(self, left: Sequence[Any]) -> Row:
        """Return what the ranks of one launch are told, to train with these."""
        tried = {
            "batches": self.batches,
            "rate": self.base_rate,
            "epochs": self.epochs,
            "seeds": self.seeds,
        }
        return {
            "training": asdict(Training(self.steps, self.batch, self.rate)),
            "joined": left,
            "rates": tried,
        }

    def _launched(
        self, where: str, fusion: str | None, job: Row, keep: Keep, timeout: float
    ) -> list[Row]:
        own = {} if fusion is None else {"fusion": int(fusion)}
        backends = [name for name in self.libraries() if launcher_for(name, self.where) == where]
        environment = self.variables()
        for name in backends:
            variable = backend(name).fusion_variable
            if variable and fusion is not None:
                environment[variable] = fusion

        def on_event(event: Row) -> None:
            keep({"rows": [row | own for row in event["rows"]]} if "rows" in event else event)

        return launch(
            self.TASK,
            job | {"where": where, "backends": backends},
            self.ranks,
            where=where,
            timeout=timeout,
            environment=environment,
            on_event=on_event,
        )

    def row(self, row: Row) -> Row:
        """Return the row, on known links with what the simulator says of our all-reduce."""
        network = links(self.where, self.ranks)
        if row["part"] != "training" or row["backend"] not in OURS or not network:
            return row
        on = machine(network)
        chosen = choose("all_reduce", self.ranks, row["bytes"], row["algorithm"], on=on)
        schedule = build("all_reduce", chosen.algorithm, self.ranks, segments=chosen.segments)
        seconds = simulate(schedule, on, row["bytes"], chosen.algorithm).seconds
        return row | {
            "simulated_us": round(seconds * 1e6, 3),
            "chosen": chosen.algorithm,
        }

    def _killed_and_resumed(self, fusion: str | None, joined: list[tuple[str, str]]) -> Row:
        """Kill a rank, then start all again, which go on from the checkpoint.

        Returns one row about both.
        """
        file = Path(f"{self.output}.checkpoint.pt")
        file.unlink(missing_ok=True)
        again = self.job(joined) | {
            "file": str(file.absolute()),
            "every": self.every,
        }
        try:
            death = self._killed(fusion, again | {"killed_at": self.killed_at})
            events = self._launched(
                launcher_for(self.backend, self.where),
                fusion,
                again,
                lambda _: None,
                KILLED_SECONDS,
            )
        finally:
            file.unlink(missing_ok=True)
        row: Row = next(event["rows"][0] for event in events if "rows" in event)
        kept = (self.killed_at - 1) // self.every * self.every
        return (
            row
            | death
            | {
                "part": "resumed",
                "killed_at": self.killed_at,
                "resumed_after": kept,
            }
        )

    def _killed(self, fusion: str | None, job: Row) -> Row:
        """Return the losses until the last rank is killed, what the launcher says then, and how long after that."""
        last: list[tuple[float, list[float]]] = []

        def on_event(event: Row) -> None:
            if "killed_at" in event:
                last.append((time.monotonic(), event["losses"]))

        try:
            self._launched(
                launcher_for(self.backend, self.where),
                fusion,
                job,
                on_event,
                KILLED_SECONDS,
            )
        except RankError as error:
            if not last:
                raise
            (when, losses) = last[0]
            said = str(error).splitlines()[0].partition(";")[0]
            return {
                "before": losses,
                "said": said,
                "seconds": round(time.monotonic() - when, 3),
            }
        raise RuntimeError(
            "a rank was killed: got a training run that ended well, expected RankError"
        )
