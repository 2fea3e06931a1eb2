"""The experiments ``overlap`` and ``weak-scaling``: exposed time of communication in data-parallel training.

The first measures all numbers of buckets and all algorithms in one launch. The second gives every
worker the same work, on more and more workers. Beside each row is what the model of
`collectives.simulator.overlap` says of it, where the links are known.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from itertools import groupby, product
from operator import itemgetter
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from collectives.algorithms import build
from collectives.autotune import choose
from collectives.backends import BACKENDS, backend
from collectives.bench import OURS, Row, Settings
from collectives.bench.sweep import Keep
from collectives.config import Rate, Seconds
from collectives.emulator import MAX_HOSTS
from collectives.launch import links
from collectives.launch.where import CLUSTER, parse_where
from collectives.machine import Link, Machine, machine
from collectives.simulator import overlap
from collectives.simulator.simulation import simulate
from collectives.units import format_rate, format_seconds
from collectives_book.experiment import (
    Algorithm,
    Distinct,
    Latency,
    RankExperiment,
    Repetitions,
    Size,
    Some,
    placed,
)
from collectives_book.overlap.layers import BACKWARD, widths_of

HOOKED = tuple(name for name in BACKENDS if backend(name).launcher is None)


# The end of a step's interval that is this end of the interval of samples per second.
ENDS = {
    "per_second": "step_median_us",
    "low_per_second": "step_high_us",
    "high_per_second": "step_low_us",
}

Count = Annotated[int, Field(ge=1, le=1000)]


class LayersExperiment(RankExperiment):
    """A stack of equal layers whose gradients are averaged in buckets, with what is the same on any machine."""

    TASK: ClassVar[str] = "collectives_book.overlap.ranks"
    SHOWN: ClassVar[tuple[str, ...]] = (
        "ranks",
        "buckets",
        "algorithm",
        "predicted_us",
    )

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
                raise ValueError(
                    f"buckets: got {number} for {self.layers} layers, expected a divisor"
                )
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
        same = self.model_dump(include={"where", "backend", "repetitions"}) | {
            "algorithms": names,
            "buckets": buckets,
        }
        return same | {
            "widths": widths_of(self.layers, gradients),
            "seconds": waiting / self.layers,
            "batch": batch,
        }


class Overlap(LayersExperiment):
    """Layers that compute, buckets of their gradients, and the algorithms that average them.

    ``waiting`` is how long the computing of a step waits in all; 0s on GPUs, which compute for
    real.
    """

    algorithms: Distinct[Algorithm]
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


class WeakScaling(LayersExperiment):
    """Workers, their machine, and what each of them does in a step.

    With ``where="cluster"`` a worker is an emulated host and a node is a rack, whose hosts share
    the link to other racks. Gradients and rates are ``shrink`` times smaller than those asked for,
    so that bytes over rate stay; then everything, computing included, is ``slower`` by another
    factor, so that this machine's cores keep up. ``ranks`` are the most workers; fewer are
    measured, too (`workers`). ``computing`` is how long a step's computing waits; with 0s the
    layers compute for real, as GPUs should.
    """

    ranks_per_node: Annotated[int, Field(ge=1, le=MAX_HOSTS)]
    latency: Latency
    inside: Rate
    network: Rate
    algorithm: Algorithm
    computing: Seconds
    shrink: Annotated[int, Field(ge=1, le=10**6)]
    slower: Annotated[float, Field(ge=0.01, le=1000)]

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        for ranks in self.workers():
            if ranks > self.ranks_per_node and ranks % self.ranks_per_node:
                raise ValueError(
                    f"ranks: got {ranks}, expected a multiple of {self.ranks_per_node}, whole nodes"
                )
        if parse_where(self.where).options:
            raise ValueError(
                f"where: got {self.where!r}, expected {CLUSTER!r}: latency and rates are parameters"
            )
        return self

    def names(self) -> list[str]:
        """Return the one algorithm."""
        return [self.algorithm]

    def measurements(self) -> list[Settings]:
        """Return what ranks need, of each number of workers."""
        return [placed(self.where, ranks, [self.backend]) for ranks in self.workers()]

    def workers(self) -> list[int]:
        """Return the numbers of workers to measure: powers of two, and the most.

        >>> WeakScaling.model_construct(ranks=40).workers()
        [1, 2, 4, 8, 16, 32, 40]
        """
        return [
            *(1 << power for power in range((self.ranks - 1).bit_length())),
            self.ranks,
        ]

    def wanted(self) -> list[tuple[int, int]]:
        """Return each number of workers with each number of buckets."""
        return list(product(self.workers(), self.buckets))

    def job(self, left: Sequence[int]) -> Row:
        """Return what each rank is told, to measure these numbers of buckets."""
        batch = 1 if self.computing else self.batch  # layers that only wait need no work beside it
        gradients = self.gradients // self.shrink
        waiting = self.computing * self.slower
        return self.told(left, gradients, waiting, batch)

    def machine(self, ranks: int) -> Machine:
        """Return the emulated machine for the simulator.

        Leaving a rack takes the latency once more.
        """
        by = self.shrink * self.slower
        inside = Link(latency=self.latency, rate=self.inside / by)
        network = Link(latency=2 * self.latency, rate=self.network / by)
        node = min(ranks, self.ranks_per_node)
        return Machine(
            name="racks",
            ranks_per_node=node,
            ports_per_node=1,
            inside=inside,
            network=network,
        )

    def measure(self, left: Sequence[Any], keep: Keep) -> None:
        """Launch the ranks of each number of workers."""
        for ranks, cases in groupby(left, itemgetter(0)):
            job = self.job([buckets for _, buckets in cases])
            if self.where == CLUSTER:
                self._launch_on_racks(job, ranks, keep)
            else:
                self.launch_ranks(job, ranks, keep)

    def _launch_on_racks(self, job: Row, ranks: int, keep: Keep) -> None:
        on = self.machine(ranks)
        racks = -(-ranks // self.ranks_per_node)
        hosts = {
            "hosts": ranks,
            "latency": format_seconds(self.latency),
            "racks": racks,
        }
        uplink = format_rate(on.network.rate) if racks > 1 else None
        self.launch_on_hosts(
            job,
            keep,
            hosts
            | {
                "rate": format_rate((on.inside or on.network).rate),
                "uplink": uplink,
            },
        )

    def row(self, row: Row) -> Row:
        """Return the row with the factors, samples per second on their own scale, and the model's prediction."""
        waiting = self.computing * self.slower
        said = predicted(
            row,
            waiting,
            self.machine(row["ranks"]) if self.where == CLUSTER else None,
        )
        step_us = waiting * 1e6 + said["predicted_us"] if said["predicted_us"] is not None else None
        samples = row["ranks"] * self.batch * self.slower * 1e6
        known = {
            "batch": self.batch,
            "shrink": self.shrink,
            "slower": self.slower,
            "spans": [],
        }
        rates = {name: samples / row[step] for name, step in ENDS.items()}
        return row | known | said | rates | {"predicted_per_second": step_us and samples / step_us}


def predicted(row: Row, waiting: float, on: Machine | None) -> Row:
    """Return what the model says: the algorithm that "auto" takes, a bucket's all-reduce, and the exposed time.

    None where the links are not known, where computing does not only wait, and for a library's own
    choice.
    """
    if on is None or not waiting or row["backend"] not in OURS:
        return {"chosen": None, "bucket_us": None, "predicted_us": None}
    nbytes = row["bytes"] // row["buckets"]
    choice = choose("all_reduce", row["ranks"], nbytes, row["algorithm"], on=on)
    schedule = build("all_reduce", choice.algorithm, row["ranks"], segments=choice.segments)
    seconds = simulate(schedule, on, nbytes, choice.algorithm).seconds
    ready = overlap.ready_times(row["buckets"], BACKWARD * waiting)
    exposed = overlap.exposed(ready, [seconds] * row["buckets"])
    return {
        "chosen": choice.algorithm,
        "bucket_us": round(seconds * 1e6, 3),
        "predicted_us": round(exposed * 1e6, 3),
    }
