"""The experiment ``straggler``: one host's link is slower than the others'.

Every point is a host and a factor. One launch measures all of them: the links change while its
ranks wait. Every point is measured at each size.
"""

import os
from collections.abc import Sequence
from itertools import product
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from collectives.algorithms import build
from collectives.bench import Row, Settings
from collectives.bench.sweep import Keep
from collectives.config import Rate
from collectives.emulator import MAX_HOSTS, Cluster
from collectives.machine import Link, Machine
from collectives.simulator.simulation import simulate
from collectives.units import format_rate, format_seconds
from collectives_book.experiment import (
    Algorithm,
    Distinct,
    Experiment,
    Latency,
    Repetitions,
    Size,
    Some,
)

SEGMENTS = 1  # trees send their buffer whole, so that measured and simulated are the same schedule
WARMUPS = 1

Factor = Annotated[int, Field(ge=1, le=1000)]


class Straggler(Experiment):
    """A cluster, its slow hosts and factors, and what is measured meanwhile."""

    TASK: ClassVar[str] = "collectives_book.straggler.ranks"
    SHOWN: ClassVar[tuple[str, ...]] = (
        "slow_host",
        "factor",
        "bytes",
        "algorithm",
        "simulated_us",
    )

    hosts: Annotated[int, Field(ge=2, le=MAX_HOSTS)]
    latency: Latency
    rate: Rate
    slow_host: int
    factors: Some[Factor]
    positions: Distinct[int]
    position_factor: Factor
    sizes: Some[Size]
    algorithms: Some[Algorithm]
    repetitions: Repetitions

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if "auto" in self.algorithms:
            raise ValueError(
                "algorithms: got 'auto', expected names only: it may choose one of the others"
            )
        for host in (self.slow_host, *self.positions):
            if not 0 <= host < self.hosts:
                raise ValueError(f"slow host: got {host}, expected 0 to {self.hosts - 1}")
        return self

    def measurements(self) -> list[Settings]:
        """Return what is measured at every point.

        Raises ValueError where the parameters do not fit together.
        """
        once = Settings(
            algorithms=self.algorithms,
            ranks=self.hosts,
            where=f"cluster:{format_seconds(self.latency)},{format_rate(self.rate)}",
            bytes=self.sizes,
            segments=SEGMENTS,
            repetitions=self.repetitions,
            warmups=WARMUPS,
            timeout=self.TIMEOUT,
        )
        return [once]

    def settings(self) -> list[Row]:
        """Return the settings of the measurement, as the record has them."""
        return [self.measurements()[0].model_dump()]

    def points(self) -> list[tuple[int, int]]:
        """Return (host, factor), each once: the one host by all factors, then all positions by one."""
        by_factor = [(self.slow_host, factor) for factor in self.factors]
        return list(
            dict.fromkeys(
                [
                    *by_factor,
                    *((host, self.position_factor) for host in self.positions),
                ]
            )
        )

    def wanted(self) -> list[tuple[tuple[int, int], int]]:
        """Return every point at each size."""
        return list(product(self.points(), self.sizes))

    def measure(self, left: Sequence[Any], keep: Keep) -> None:
        """Launch ranks on emulated hosts, once for all points."""
        hosts = {
            "hosts": self.hosts,
            "latency": format_seconds(self.latency),
            "rate": format_rate(self.rate),
        }
        self.launch_on_hosts({"cases": left, "measure": self.settings()[0]}, keep, hosts)

    def slow_down(self, hosts: Cluster, slow: tuple[int, int]) -> None:
        """Divide the rate of this host's link by the factor; all others have the full rate."""
        for host in range(self.hosts):
            hosts.set(
                host,
                rate=format_rate(self.rate / (slow[1] if host == slow[0] else 1)),
            )

    def machine(self, host: int, factor: int) -> Machine:
        """Return the same cluster for the simulator."""
        link = Link(latency=self.latency, rate=self.rate)
        return Machine(name="cluster", network=link, slower={host: factor})

    def row(self, row: Row) -> Row:
        """Return the row with its slow host and factor, the simulated time, and how busy this machine was."""
        slow, factor = row.pop("point")
        schedule = build("all_reduce", row["algorithm"], self.hosts, segments=SEGMENTS)
        seconds = simulate(
            schedule, self.machine(slow, factor), row["bytes"], row["algorithm"]
        ).seconds
        own = {
            "slow_host": slow,
            "factor": factor,
            "simulated_us": round(seconds * 1e6, 3),
        }
        return row | own | {"load": os.getloadavg()[0]}
