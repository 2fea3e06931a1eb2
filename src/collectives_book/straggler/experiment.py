"""The experiment ``straggler``: one host's link is slower than the others'; parameters, measurement and rows.

Every point is a host and a factor. One launch measures all of them: the links change while its ranks wait. Every point
is measured at each size.
"""

import os
from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Annotated, Self

from pydantic import Field, model_validator

from collectives.algorithms import build
from collectives.bench import Row, Settings
from collectives.bench.sweep import Keep
from collectives.config import Rate
from collectives.emulator import MOST_HOSTS, Cluster, cluster
from collectives.launch.cluster import launch_on
from collectives.machine import Link, Machine
from collectives.simulator.simulation import simulate
from collectives.units import duration, format_bytes, format_rate, format_seconds
from collectives_book import parameters as base
from collectives_book.parameters import Distinct, Latency, Name, Repetitions, Size, Some, resume

SEGMENTS = 1  # trees send their buffer whole, so that measured and simulated are the same schedule
WARMUPS = 1
TIMEOUT = 1800.0

Factor = Annotated[int, Field(ge=1, le=1000)]


class Parameters(base.Parameters):
    """The parameters of ``straggler``: a cluster, its slow hosts and factors, and what is measured meanwhile."""

    hosts: Annotated[int, Field(ge=2, le=MOST_HOSTS)]
    latency: Latency
    rate: Rate
    slow_host: int
    factors: Some[Factor]
    positions: Distinct[int]
    position_factor: Factor
    sizes: Some[Size]
    algorithms: Some[Name]
    repetitions: Repetitions

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        self.settings()
        if "auto" in self.algorithms:
            raise ValueError("algorithms: got 'auto', expected names only: it may choose one of the others")
        for host in (self.slow_host, *self.positions):
            if not 0 <= host < self.hosts:
                raise ValueError(f"slow host: got {host}, expected 0 to {self.hosts - 1}")
        return self

    def settings(self) -> Settings:
        """What is measured at every point; raises ValueError where the parameters do not fit together."""
        return Settings(
            algorithms=self.algorithms,
            ranks=self.hosts,
            where=f"cluster:{format_seconds(self.latency)},{format_rate(self.rate)}",
            bytes=self.sizes,
            segments=SEGMENTS,
            repetitions=self.repetitions,
            warmups=WARMUPS,
            timeout=TIMEOUT,
        )

    def points(self) -> list[tuple[int, int]]:
        """(host, factor), each once: the one host by all factors, then all positions by one."""
        by_factor = [(self.slow_host, factor) for factor in self.factors]
        return list(dict.fromkeys([*by_factor, *((host, self.position_factor) for host in self.positions)]))

    def machine(self, host: int, factor: int) -> Machine:
        """The same cluster for the simulator."""
        link = Link(latency=self.latency, rate=self.rate)
        return Machine(name="cluster", network=link, slower={host: factor})


def run(parameters: Parameters) -> None:
    """Measure all points, and write rows and record (`resume`).

    Raises ClusterError where this system allows no hosts (`emulator.allowed`), RankError where a rank fails.
    """
    wanted = parameters.settings().model_dump()
    latency, rate = format_seconds(parameters.latency), format_rate(parameters.rate)

    def measure(left: Sequence[tuple[tuple[int, int], int]], keep: Keep) -> None:
        with cluster(parameters.hosts, latency, rate) as hosts:

            def on_event(event: Row) -> None:
                if "slow" in event:
                    _slow_down(hosts, parameters, *event["slow"])
                keep(event)

            job = {"cases": left, "measure": wanted}
            launch_on(hosts, "collectives_book.straggler.ranks", job, timeout=TIMEOUT, on_event=on_event)

    cases = list(product(parameters.points(), parameters.sizes))
    resume(parameters, wanted, cases, measure, partial(_row, parameters), _line)


def _slow_down(hosts: Cluster, parameters: Parameters, slow: int, factor: int) -> None:
    """Divide the rate of this host's link by the factor; all others have the full rate."""
    for host in range(hosts.hosts):
        hosts.set(host, rate=format_rate(parameters.rate / (factor if host == slow else 1)))


def _row(parameters: Parameters, row: Row) -> Row:
    """A measured row, which host was slow and by how much, the simulated time, and how busy this machine was."""
    slow, factor = row.pop("point")
    schedule = build("all_reduce", row["algorithm"], parameters.hosts, segments=SEGMENTS)
    simulated = simulate(schedule, parameters.machine(slow, factor), row["bytes"], row["algorithm"]).seconds
    own = {"slow_host": slow, "factor": factor, "simulated_us": round(simulated * 1e6, 3), "load": os.getloadavg()[0]}
    return row | own


def with_early_partners(p: int, nbytes: int, slow: Link) -> float:
    """Seconds of an all-reduce by halving and doubling for a rank whose link is so slow that all partners are early.

    In either half, what they send to it comes at the same time and shares its port evenly: the longest message, which
    it needs first while halving, is there last. ``p`` is a power of two. With messages in a queue it would be
    ``2 * (p - 1) / p * nbytes * slow.beta`` and the latencies, as if all links were slow.

    >>> round(with_early_partners(8, 1 << 20, Link(latency=0.005, rate=6.25e6)), 3)
    0.428
    """
    sizes = [nbytes >> step for step in range(1, p.bit_length())]
    halved = sum(sizes) + sum(sizes[1:])  # all have come before it can go on, and then it sends the rest
    sent = came = 0
    for size in reversed(sizes):
        sent = max(sent, came) + size
        came = sum(min(size, other) for other in sizes)
    return (halved + max(sent, came)) * slow.beta + 2 * len(sizes) * slow.alpha


def _line(row: Row) -> str:
    return (
        f"host {row['slow_host']} slower by {row['factor']}, {format_bytes(row['bytes'])} by {row['algorithm']}: "
        f"{duration(row['median_us'] * 1e-6)} (simulated {duration(row['simulated_us'] * 1e-6)})"
    )
