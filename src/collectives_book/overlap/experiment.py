"""The experiment ``overlap``: exposed time of communication in data-parallel training; parameters and rows.

One launch measures all numbers of buckets and all algorithms. Beside each row is what the model of
`collectives.simulator.overlap` says of it, where the links are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Self

from pydantic import Field, model_validator

from collectives.algorithms import build
from collectives.autotune import VARIABLE, choose
from collectives.backends import BACKENDS, backend, need
from collectives.bench import OURS, Row, needed_here
from collectives.bench.sweep import Keep
from collectives.config import Seconds
from collectives.emulator import allowed
from collectives.launch import launch, links
from collectives.machine import Machine, machine
from collectives.simulator import overlap
from collectives.simulator.simulation import simulate
from collectives.units import duration
from collectives_book import parameters as base
from collectives_book.overlap.layers import BACKWARD, widths_of
from collectives_book.parameters import Distinct, Name, Ranks, Repetitions, Size, Some, need_place, resume

TASK = "collectives_book.overlap.ranks"
HOOKED = tuple(name for name in BACKENDS if backend(name).launcher is None)
DEFAULT = "default"  # the algorithm of a library that chooses it itself
TIMEOUT = 1800.0

Count = Annotated[int, Field(ge=1, le=1000)]


class Parameters(base.Parameters):
    """The parameters of ``overlap``: a stack of equal layers, how it computes, and how its gradients are averaged.

    ``waiting`` is how long the computing of a step waits in all; 0s on GPUs, which compute for real.
    """

    ranks: Ranks
    where: Name
    backend: Name
    algorithms: Distinct[Name]
    layers: Count
    gradients: Size
    batch: Annotated[int, Field(ge=1, le=1 << 20)]
    waiting: Seconds
    buckets: Some[Count]
    repetitions: Repetitions

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        need_place(self.where, self.ranks)
        need_buckets(self.buckets, self.layers)
        need_names(self.backend, self.algorithms, self.ranks)
        return self

    def job(self, buckets: Sequence[int]) -> Row:
        """What each rank is told, to measure these numbers of buckets."""
        names = self.algorithms if self.backend in OURS else [DEFAULT]
        told = self.model_dump(include={"where", "backend", "repetitions"}) | {"algorithms": names, "buckets": buckets}
        return told | stack(self.layers, self.gradients, self.waiting, self.batch)


def stack(layers: int, gradients: int, waiting: float, batch: int) -> Row:
    """The part of a rank's job that is about its layers; ``waiting`` is that of all of them together."""
    return {"widths": widths_of(layers, gradients), "seconds": waiting / layers, "batch": batch}


def need_buckets(buckets: list[int], layers: int) -> None:
    """Raise ValueError for buckets that do not all hold the same number of layers."""
    for number in buckets:
        if layers % number:
            raise ValueError(f"buckets: got {number} for {layers} layers, expected a divisor")


def need_names(library: str, algorithms: list[str], ranks: int) -> None:
    """Raise ValueError for a back end that has no communication hook, and for an unknown algorithm."""
    if library not in HOOKED:
        raise ValueError(
            f"backend: got {library!r}, expected one of {', '.join(HOOKED)}: "
            "DistributedDataParallel's hook works in a process group of torch"
        )
    if library in OURS and not algorithms:
        raise ValueError(f"algorithms: got none, expected one or more for {library}")
    for name in algorithms:
        if name != "auto":
            build("all_reduce", name, ranks)


def lacking(where: str, library: str) -> str | None:
    """Why it cannot be measured here, in one line; None if it can."""
    if where.startswith("cluster") and (reason := allowed()):
        return reason
    absent = backend(library).available() if needed_here(where, library) else None
    return f"{library} is absent: {absent}" if absent else None


def run(parameters: Parameters) -> None:
    """Measure, and write rows and record (`resume`).

    Raises ImportError where the back end is absent, ClusterError where this system allows no emulated hosts, and
    RankError where a rank fails.
    """
    network = links(parameters.where, parameters.ranks)
    on = machine(network) if network else None

    def measure(left: Sequence[int], keep: Keep) -> None:
        measured(parameters.job(left), parameters.ranks, network, keep)

    def completed(row: Row) -> Row:
        return row | predicted(row, parameters.waiting, on)

    resume(parameters, parameters.model_dump(), parameters.buckets, measure, completed, _line)


def measured(job: Row, ranks: int, network: str | None, keep: Keep) -> None:
    """Launch the ranks, whose events go to ``keep``. "auto" goes by these links."""
    if needed_here(job["where"], job["backend"]):
        need(job["backend"])
    variables = {VARIABLE: network} if network else {}
    launch(TASK, job, ranks, where=job["where"], timeout=TIMEOUT, environment=variables, on_event=keep)


def predicted(row: Row, waiting: float, on: Machine | None) -> Row:
    """What the model says: which algorithm "auto" takes, seconds of a bucket's all-reduce, and the exposed time.

    None where the links are not known, where computing does not only wait, and for a library's own choice.
    """
    if on is None or not waiting or row["backend"] not in OURS:
        return {"chosen": None, "bucket_us": None, "predicted_us": None}
    nbytes = row["bytes"] // row["buckets"]
    choice = choose("all_reduce", row["ranks"], nbytes, row["algorithm"], on=on)
    schedule = build("all_reduce", choice.algorithm, row["ranks"], segments=choice.segments)
    seconds = simulate(schedule, on, nbytes, choice.algorithm).seconds
    ready = overlap.ready_times(row["buckets"], BACKWARD * waiting)
    exposed = overlap.exposed(ready, [seconds] * row["buckets"])
    return {"chosen": choice.algorithm, "bucket_us": round(seconds * 1e6, 3), "predicted_us": round(exposed * 1e6, 3)}


def _line(row: Row) -> str:
    said = f", {duration(row['predicted_us'] * 1e-6)} predicted" if row["predicted_us"] is not None else ""
    return (
        f"{row['buckets']} buckets by {row['algorithm']}: {duration(row['median_us'] * 1e-6)} exposed{said}, "
        f"{duration(row['counted_median_us'] * 1e-6)} by torch's counters"
    )
