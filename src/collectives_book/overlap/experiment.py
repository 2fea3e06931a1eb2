"""The experiment ``overlap``: exposed time of communication in data-parallel training.

One launch measures all numbers of buckets and all algorithms. Beside each row is what the model of
`collectives.simulator.overlap` says of it, where the links are known.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from itertools import product
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from collectives.algorithms import build
from collectives.autotune import choose
from collectives.backends import BACKENDS, backend
from collectives.bench import OURS, Row
from collectives.config import Seconds
from collectives.launch import links
from collectives.machine import Machine, machine
from collectives.simulator import overlap
from collectives.simulator.simulation import simulate
from collectives_book.experiment import Distinct, Name, RankExperiment, Repetitions, Size, Some
from collectives_book.overlap.layers import BACKWARD, widths_of

HOOKED = tuple(name for name in BACKENDS if backend(name).launcher is None)

Count = Annotated[int, Field(ge=1, le=1000)]


class LayersExperiment(RankExperiment):
    """A stack of equal layers whose gradients are averaged in buckets, with what is the same on any machine."""

    TASK: ClassVar[str] = "collectives_book.overlap.ranks"
    SHOWN: ClassVar[tuple[str, ...]] = ("ranks", "buckets", "algorithm", "predicted_us")

    layers: Count
    gradients: Size
    batch: Annotated[int, Field(ge=1, le=1 << 20)]
    buckets: Some[Count]
    repetitions: Repetitions

    @abstractmethod
    def names(self) -> list[str]:
        """Return the algorithms of ours; a library chooses its own."""

    @model_validator(mode="after")
    def _fits_layers(self) -> Self:
        for number in self.buckets:
            if self.layers % number:
                raise ValueError(f"buckets: got {number} for {self.layers} layers, expected a divisor")
        if self.backend not in HOOKED:
            raise ValueError(
                f"backend: got {self.backend!r}, expected one of {', '.join(HOOKED)}: "
                "DistributedDataParallel's hook works in a process group of torch"
            )
        if self.backend in OURS and not self.names():
            raise ValueError(f"algorithms: got none, expected one or more for {self.backend}")
        for name, one in product(self.names(), self.measurements()):
            if name != "auto":
                build("all_reduce", name, one.ranks)
        return self

    def told(self, buckets: Sequence[int], gradients: int, waiting: float, batch: int) -> Row:
        """Return what ranks are told; ``waiting`` is that of all layers together."""
        names = self.names() if self.backend in OURS else ["default"]
        same = self.model_dump(include={"where", "backend", "repetitions"}) | {"algorithms": names, "buckets": buckets}
        return same | {"widths": widths_of(self.layers, gradients), "seconds": waiting / self.layers, "batch": batch}


class Overlap(LayersExperiment):
    """How the layers compute, and how their gradients are averaged.

    ``waiting`` is how long the computing of a step waits in all; 0s on GPUs, which compute for real.
    """

    algorithms: Distinct[Name]
    waiting: Seconds

    def names(self) -> list[str]:
        """Return the algorithms that were asked for."""
        return self.algorithms

    def wanted(self) -> list[int]:
        """Return the numbers of buckets."""
        return self.buckets

    def job(self, left: Sequence[int]) -> Row:
        """Return what each rank is told, to measure these numbers of buckets."""
        return self.told(left, self.gradients, self.waiting, self.batch)

    def row(self, row: Row) -> Row:
        """Return the row with the model's prediction."""
        network = links(self.where, self.ranks)
        return row | predicted(row, self.waiting, machine(network) if network else None)


def predicted(row: Row, waiting: float, on: Machine | None) -> Row:
    """Return what the model says: the algorithm that "auto" takes, a bucket's all-reduce, and the exposed time.

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
