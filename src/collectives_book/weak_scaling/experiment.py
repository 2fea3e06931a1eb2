"""The experiment ``weak-scaling``: the same work for every worker, on more and more of them; parameters and rows.

With ``where="cluster"`` a worker is an emulated host and a node is a rack, whose hosts share the link to other racks.
Gradients and rates are ``shrink`` times smaller than those asked for, so that bytes over rate stay; then everything,
computing included, is ``slower`` by another factor, so that this machine's cores keep up.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, product
from operator import itemgetter
from typing import Annotated, Self

from pydantic import Field, model_validator

from collectives.bench import Row
from collectives.bench.sweep import Keep
from collectives.config import Rate, Seconds
from collectives.emulator import MOST_HOSTS, cluster
from collectives.launch.cluster import launch_on
from collectives.machine import Link, Machine
from collectives.units import duration, format_rate, format_seconds
from collectives_book import parameters as base
from collectives_book.overlap.experiment import (
    TASK,
    TIMEOUT,
    Count,
    measured,
    need_buckets,
    need_names,
    predicted,
    stack,
)
from collectives_book.parameters import Latency, Name, Ranks, Repetitions, Size, Some, need_place, resume

EMULATED = "cluster"

# The end of a step's interval that is this end of the interval of samples per second.
ENDS = {"per_second": "step_median_us", "low_per_second": "step_high_us", "high_per_second": "step_low_us"}


class Parameters(base.Parameters):
    """The parameters of ``weak-scaling``: workers, their machine, and what each of them does in a step.

    ``ranks`` are the most workers; fewer are measured, too (`workers`). ``computing`` is how long a step's computing
    waits; with 0s the layers compute for real, as GPUs should.
    """

    ranks: Ranks
    ranks_per_node: Annotated[int, Field(ge=1, le=MOST_HOSTS)]
    where: Name
    latency: Latency
    inside: Rate
    network: Rate
    backend: Name
    algorithm: Name
    layers: Count
    gradients: Size
    computing: Seconds
    batch: Annotated[int, Field(ge=1, le=1 << 20)]
    shrink: Annotated[int, Field(ge=1, le=10**6)]
    slower: Annotated[float, Field(ge=0.01, le=1000)]
    buckets: Some[Count]
    repetitions: Repetitions

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        need_buckets(self.buckets, self.layers)
        for ranks in self.workers():
            need_place(self.where, ranks)
            need_names(self.backend, [self.algorithm], ranks)
            if ranks > self.ranks_per_node and ranks % self.ranks_per_node:
                raise ValueError(f"ranks: got {ranks}, expected a multiple of {self.ranks_per_node}, whole nodes")
        if self.where.startswith(f"{EMULATED}:"):
            raise ValueError(f"where: got {self.where!r}, expected {EMULATED!r}: latency and rates are parameters")
        return self

    def workers(self) -> list[int]:
        """The numbers of workers to measure: powers of two, and the most.

        >>> Parameters.model_construct(ranks=40).workers()
        [1, 2, 4, 8, 16, 32, 40]
        """
        return [*(1 << power for power in range((self.ranks - 1).bit_length())), self.ranks]

    def job(self, buckets: Sequence[int]) -> Row:
        """What each rank is told, to measure these numbers of buckets."""
        batch = 1 if self.computing else self.batch  # layers that only wait need no work beside it
        told = self.model_dump(include={"where", "backend", "repetitions"}) | {"buckets": buckets}
        layers = stack(self.layers, self.gradients // self.shrink, self.computing * self.slower, batch)
        return told | {"algorithms": [self.algorithm]} | layers

    def machine(self, ranks: int) -> Machine:
        """The emulated machine for the simulator; leaving a rack takes the latency once more."""
        by = self.shrink * self.slower
        inside = Link(latency=self.latency, rate=self.inside / by)
        network = Link(latency=2 * self.latency, rate=self.network / by)
        node = min(ranks, self.ranks_per_node)
        return Machine(name="racks", ranks_per_node=node, ports_per_node=1, inside=inside, network=network)


def run(parameters: Parameters) -> None:
    """Measure on each number of workers, and write rows and record (`resume`).

    Raises ImportError where the back end is absent, ClusterError where this system allows no emulated hosts, and
    RankError where a rank fails.
    """

    def measure(left: Sequence[tuple[int, int]], keep: Keep) -> None:
        for ranks, cases in groupby(left, itemgetter(0)):
            _measure(parameters, ranks, [buckets for _, buckets in cases], keep)

    def completed(row: Row) -> Row:
        return row | _more(parameters, row)

    cases = list(product(parameters.workers(), parameters.buckets))
    resume(parameters, parameters.model_dump(), cases, measure, completed, _line)


def _measure(parameters: Parameters, ranks: int, buckets: list[int], keep: Keep) -> None:
    job = parameters.job(buckets)
    if parameters.where != EMULATED:
        measured(job, ranks, None, keep)
        return
    on, racks = parameters.machine(ranks), -(-ranks // parameters.ranks_per_node)
    inside = (on.inside or on.network).rate
    uplink = format_rate(on.network.rate) if racks > 1 else None
    with cluster(ranks, format_seconds(parameters.latency), format_rate(inside), racks=racks, uplink=uplink) as hosts:
        launch_on(hosts, TASK, job, timeout=TIMEOUT, on_event=keep)


def _more(parameters: Parameters, row: Row) -> Row:
    """What a row has beside: the factors, samples per second on their own scale, and the model's prediction."""
    on = parameters.machine(row["ranks"]) if parameters.where == EMULATED else None
    said = predicted(row, parameters.computing * parameters.slower, on)
    waited = parameters.computing * parameters.slower * 1e6
    step_us = waited + said["predicted_us"] if said["predicted_us"] is not None else None
    samples = row["ranks"] * parameters.batch * parameters.slower * 1e6
    known = {"batch": parameters.batch, "shrink": parameters.shrink, "slower": parameters.slower, "spans": []}
    rates = {name: samples / row[step] for name, step in ENDS.items()}
    return known | said | rates | {"predicted_per_second": step_us and samples / step_us}


def _line(row: Row) -> str:
    return (
        f"{row['ranks']} workers, {row['buckets']} buckets: {row['per_second']:.0f} samples/s, "
        f"{duration(row['median_us'] * 1e-6)} exposed"
    )
