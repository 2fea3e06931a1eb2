"""The experiment ``asynchronous``: workers in step and out of step, while somebody is slow; parameters and rows.

One launch trains in every mode and with every slowness, again and again. On emulated hosts it also slows one link down.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import product
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from collectives.algorithms import build
from collectives.backends import backend, need
from collectives.bench import Row, needed_here
from collectives.bench.settings import starter
from collectives.bench.sweep import Keep
from collectives.config import Seconds
from collectives.emulator import Cluster, cluster
from collectives.launch import launch, links
from collectives.launch.cluster import launch_on, parse
from collectives.units import format_rate
from collectives_book import parameters as base
from collectives_book.data_parallel.experiment import JOINING
from collectives_book.parameters import Name, Ranks, Repetitions, Some, need_place, resume

TIMEOUT = 1800.0
# Seconds that a rank waits for another; a slow worker's step takes a fraction of a second.
LIMIT = 60.0

TASK = "collectives_book.asynchronous.ranks"
# Parameters that every row has, too.
COLUMNS = {"ranks", "where", "backend", "slow_worker", "factor", "link_factor", "bound", "compute", "rate"}

Factor = Annotated[int, Field(ge=1, le=1000)]


class Parameters(base.Parameters):
    """The parameters of ``asynchronous``: ranks, who is slow and how much, and how they train.

    One rank is the server, all others are workers.
    """

    ranks: Annotated[Ranks, Field(ge=3)]
    where: Name
    backend: Name
    algorithm: Name
    modes: Some[Literal["all_reduce", "synchronous", "stale", "asynchronous"]]
    bound: Annotated[int, Field(ge=1, le=1000)]
    slow: Some[Literal["nobody", "compute", "link", "turns"]]
    slow_worker: int
    factor: Factor
    link_factor: Factor
    compute: Annotated[Seconds, Field(le=10)]
    batch: Annotated[int, Field(ge=1, le=1500)]
    rate: Annotated[float, Field(gt=0, le=100)]
    steps: Annotated[int, Field(ge=1, le=10_000)]
    repetitions: Repetitions

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        need_place(self.where, self.ranks)
        if self.backend not in JOINING:
            raise ValueError(f"unknown backend: got {self.backend!r}, expected one of {', '.join(JOINING)}")
        if backend(self.backend).takes_schedules:
            build("all_reduce", self.algorithm, self.ranks)
        if not 0 <= self.slow_worker < self.workers:
            raise ValueError(f"slow_worker: got {self.slow_worker}, expected 0 to {self.workers - 1}")
        if self.batch < self.workers:
            raise ValueError(f"batch: got {self.batch}, expected a sample or more for each of {self.workers} workers")
        if "link" in self.slow and not links(self.where, self.ranks):
            raise ValueError(f"slow: got 'link' with where {self.where!r}, expected cluster:LATENCY,RATE")
        return self

    @property
    def workers(self) -> int:
        """All ranks but the server."""
        return self.ranks - 1

    def need_here(self) -> None:
        """Raise ImportError where the back end is absent, if its ranks would be on this machine."""
        if needed_here(starter(self.backend, self.where), self.backend):
            need(self.backend)


def run(parameters: Parameters) -> None:
    """Train in every mode, and write rows and record (`resume`).

    Raises ImportError where the back end is absent, ClusterError where no hosts can be emulated, RankError where a
    rank fails: the others have ended by then.
    """
    parameters.need_here()
    common = parameters.model_dump(include=COLUMNS) | {"workers": parameters.workers}

    def measure(left: Sequence[tuple[int, str, str]], keep: Keep) -> None:
        job = _job(parameters) | {"cases": left}
        if links(parameters.where, parameters.ranks):
            _on_a_cluster(parameters, job, keep)
        else:
            where = starter(parameters.backend, parameters.where)
            launch(TASK, job, parameters.ranks, where=where, timeout=TIMEOUT, on_event=keep)

    def completed(row: Row) -> Row:
        return common | row | {"load": os.getloadavg()[0]}

    cases = list(product(range(parameters.repetitions), parameters.slow, parameters.modes))
    resume(parameters, parameters.model_dump(mode="json"), cases, measure, completed, _line)


def _job(parameters: Parameters) -> Row:
    return parameters.model_dump(exclude={"output"}) | {"workers": parameters.workers, "limit": LIMIT}


def _on_a_cluster(parameters: Parameters, job: Row, keep: Keep) -> None:
    options = parse(parameters.where.partition(":")[2], parameters.ranks)
    with cluster(parameters.ranks // options.ranks_per_host, options.latency, options.rate) as hosts:

        def heard(event: Row) -> None:
            if "slow" in event:
                _set_link(hosts, parameters, event["slow"], options.ranks_per_host)
            keep(event)

        launch_on(hosts, TASK, job, options.ranks_per_host, timeout=TIMEOUT, on_event=heard)


def _set_link(hosts: Cluster, parameters: Parameters, slow: str, ranks_per_host: int) -> None:
    """The slow worker's link, slower by the factor or as all others."""
    factor = parameters.link_factor if slow == "link" else 1
    hosts.set((parameters.slow_worker + 1) // ranks_per_host, rate=format_rate(hosts.rate / factor))


def _line(row: Row) -> str:
    return (
        f"{row['mode']}, slow: {row['slow']}: {row['updates'] / row['seconds']:.0f} updates per second, "
        f"loss {row['losses'][-1]:.3f} after {row['seconds']:.1f} s"
    )
