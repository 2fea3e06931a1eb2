"""The experiment ``weak-scaling``: the same work for every worker, on more and more of them.

With ``where="cluster"`` a worker is an emulated host and a node is a rack, whose hosts share the link to other racks.
Gradients and rates are ``shrink`` times smaller than those asked for, so that bytes over rate stay; then everything,
computing included, is ``slower`` by another factor, so that this machine's cores keep up.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, product
from operator import itemgetter
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from collectives.bench import Row, Settings
from collectives.bench.sweep import Keep
from collectives.config import Rate, Seconds
from collectives.emulator import MOST_HOSTS
from collectives.machine import Link, Machine
from collectives.units import format_rate, format_seconds
from collectives_book.experiment import Latency, Name, placed
from collectives_book.overlap.experiment import LayersExperiment, predicted

EMULATED = "cluster"

# The end of a step's interval that is this end of the interval of samples per second.
ENDS = {"per_second": "step_median_us", "low_per_second": "step_high_us", "high_per_second": "step_low_us"}


class WeakScaling(LayersExperiment):
    """Workers, their machine, and what each of them does in a step.

    ``ranks`` are the most workers; fewer are measured, too (`workers`). ``computing`` is how long a step's computing
    waits; with 0s the layers compute for real, as GPUs should.
    """

    ranks_per_node: Annotated[int, Field(ge=1, le=MOST_HOSTS)]
    latency: Latency
    inside: Rate
    network: Rate
    algorithm: Name
    computing: Seconds
    shrink: Annotated[int, Field(ge=1, le=10**6)]
    slower: Annotated[float, Field(ge=0.01, le=1000)]

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        for ranks in self.workers():
            if ranks > self.ranks_per_node and ranks % self.ranks_per_node:
                raise ValueError(f"ranks: got {ranks}, expected a multiple of {self.ranks_per_node}, whole nodes")
        if self.where.startswith(f"{EMULATED}:"):
            raise ValueError(f"where: got {self.where!r}, expected {EMULATED!r}: latency and rates are parameters")
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
        return [*(1 << power for power in range((self.ranks - 1).bit_length())), self.ranks]

    def wanted(self) -> list[tuple[int, int]]:
        """Return each number of workers with each number of buckets."""
        return list(product(self.workers(), self.buckets))

    def job(self, left: Sequence[int]) -> Row:
        """Return what each rank is told, to measure these numbers of buckets."""
        batch = 1 if self.computing else self.batch  # layers that only wait need no work beside it
        gradients, waiting = self.gradients // self.shrink, self.computing * self.slower
        return self.told(left, gradients, waiting, batch)

    def machine(self, ranks: int) -> Machine:
        """Return the emulated machine for the simulator; leaving a rack takes the latency once more."""
        by = self.shrink * self.slower
        inside = Link(latency=self.latency, rate=self.inside / by)
        network = Link(latency=2 * self.latency, rate=self.network / by)
        node = min(ranks, self.ranks_per_node)
        return Machine(name="racks", ranks_per_node=node, ports_per_node=1, inside=inside, network=network)

    def measure(self, left: Sequence[Any], keep: Keep) -> None:
        """Launch the ranks of each number of workers."""
        for ranks, cases in groupby(left, itemgetter(0)):
            job = self.job([buckets for _, buckets in cases])
            if self.where == EMULATED:
                self._launch_on_racks(job, ranks, keep)
            else:
                self.launch_ranks(job, ranks, keep)

    def _launch_on_racks(self, job: Row, ranks: int, keep: Keep) -> None:
        on, racks = self.machine(ranks), -(-ranks // self.ranks_per_node)
        hosts = {"hosts": ranks, "latency": format_seconds(self.latency), "racks": racks}
        uplink = format_rate(on.network.rate) if racks > 1 else None
        self.launch_on_hosts(job, keep, hosts | {"rate": format_rate((on.inside or on.network).rate), "uplink": uplink})

    def row(self, row: Row) -> Row:
        """Return the row with the factors, samples per second on their own scale, and the model's prediction."""
        waiting = self.computing * self.slower
        said = predicted(row, waiting, self.machine(row["ranks"]) if self.where == EMULATED else None)
        step_us = waiting * 1e6 + said["predicted_us"] if said["predicted_us"] is not None else None
        samples = row["ranks"] * self.batch * self.slower * 1e6
        known = {"batch": self.batch, "shrink": self.shrink, "slower": self.slower, "spans": []}
        rates = {name: samples / row[step] for name, step in ENDS.items()}
        return row | known | said | rates | {"predicted_per_second": step_us and samples / step_us}
