"""The experiment ``asynchronous``: workers in step and out of step, while somebody is slow.

One launch trains in every mode and with every slowness, again and again. On emulated hosts it also
slows one link down.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import product
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from collectives.algorithms import build
from collectives.backends import backend
from collectives.bench import Row
from collectives.bench.sweep import Keep
from collectives.config import Seconds
from collectives.emulator import Cluster
from collectives.launch import links
from collectives.launch.cluster import parse
from collectives.launch.where import parse_where
from collectives.units import format_rate
from collectives_book.data_parallel.experiment import need_joining
from collectives_book.experiment import (
    Algorithm,
    RankExperiment,
    Ranks,
    Repetitions,
    Some,
)

# Seconds that a rank waits for another; a slow worker's step takes a fraction of a second.
LIMIT = 60.0

# Parameters that every row has, too.
COLUMNS = {
    "ranks",
    "where",
    "backend",
    "slow_worker",
    "factor",
    "link_factor",
    "bound",
    "compute",
    "rate",
}

Factor = Annotated[int, Field(ge=1, le=1000)]


class Asynchronous(RankExperiment):
    """Workers that are slow, by how much, and the modes in which they train.

    One rank is the server, all others are workers.
    """

    TASK: ClassVar[str] = "collectives_book.asynchronous.ranks"
    SHOWN: ClassVar[tuple[str, ...]] = ("slow", "mode", "updates", "accuracy")

    ranks: Annotated[Ranks, Field(ge=3)]
    algorithm: Algorithm
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
        need_joining(self.backend)
        if backend(self.backend).takes_schedules:
            build("all_reduce", self.algorithm, self.ranks)
        if not 0 <= self.slow_worker < self.workers:
            raise ValueError(
                f"slow_worker: got {self.slow_worker}, expected 0 to {self.workers - 1}"
            )
        if self.batch < self.workers:
            raise ValueError(
                f"batch: got {self.batch}, expected a sample or more for each of {self.workers} workers"
            )
        if "link" in self.slow and not links(self.where, self.ranks):
            raise ValueError(
                f"slow: got 'link' with where {self.where!r}, expected cluster:LATENCY,RATE"
            )
        return self

    @property
    def workers(self) -> int:
        """All ranks but the server."""
        return self.ranks - 1

    def wanted(self) -> list[tuple[int, str, str]]:
        """Return every slowness and mode, again in each repetition."""
        return list(product(range(self.repetitions), self.slow, self.modes))

    def job(self, left: Sequence[Any]) -> Row:
        """Return the parameters and the cases, for every rank."""
        return self.model_dump(exclude={"output"}) | {
            "workers": self.workers,
            "limit": LIMIT,
            "cases": left,
        }

    def measure(self, left: Sequence[Any], keep: Keep) -> None:
        """Launch the ranks once, on emulated hosts with links that change."""
        if not links(self.where, self.ranks):
            super().measure(left, keep)
            return
        options = parse(parse_where(self.where).options, self.ranks)
        hosts = {
            "hosts": self.ranks,
            "latency": options.latency,
            "rate": options.rate,
        }
        self.launch_on_hosts(self.job(left), keep, hosts)

    def slow_down(self, hosts: Cluster, slow: str) -> None:
        """Set the slow worker's link, slower by the factor or as all others."""
        factor = self.link_factor if slow == "link" else 1
        hosts.set(self.slow_worker + 1, rate=format_rate(hosts.rate / factor))

    def row(self, row: Row) -> Row:
        """Return the row with its parameters, and how busy this machine was."""
        common = self.model_dump(include=COLUMNS) | {"workers": self.workers}
        return common | row | {"load": os.getloadavg()[0]}
