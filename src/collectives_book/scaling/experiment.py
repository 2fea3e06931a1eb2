"""The experiment ``scaling``: all-reduces on 2, 4, 8 … emulated hosts, beside the libraries and the simulator.

Links are calibrated first; "auto" and the simulator go by that machine. On the most hosts the
libraries' selectable algorithms are measured, too, and "auto" once more in deeper slow motion,
where this machine's cores matter less.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from collectives.algorithms import build
from collectives.autotune import bound
from collectives.bench import OURS, Settings
from collectives.bench.calibration import machine_of, measured, save
from collectives.bench.results import Record, read
from collectives.config import Rate
from collectives.emulator import MAX_HOSTS
from collectives.launch.where import parse_where
from collectives.machine import Machine, machine, text
from collectives.simulator.simulation import simulate
from collectives.units import format_rate, format_seconds
from collectives_book.experiment import (
    Algorithm,
    Distinct,
    Latency,
    Name,
    Repetitions,
    Size,
    Some,
    SweepExperiment,
    distinct,
)

# Messages from whose times links are calibrated: of these rates larger ones would take seconds.
MESSAGES = (8, 1 << 10, 8 << 10, 64 << 10, 256 << 10)
MESSAGE_REPETITIONS = 9
WARMUPS = 1
MOST_SLOWER = 1000


class Scaling(SweepExperiment):
    """Emulated hosts and their links, and what is measured on them."""

    hosts: Some[Annotated[int, Field(ge=2, le=MAX_HOSTS)]]
    latency: Latency
    rate: Rate
    slower: Annotated[int, Field(ge=1, le=MOST_SLOWER)]
    sizes: Some[Size]
    algorithms: Some[Algorithm]
    backends: Distinct[Name]
    selectable: Distinct[Name]
    repetitions: Repetitions

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        ours = [name for name in self.backends if name in OURS]
        if len(ours) > 1:
            raise ValueError(f"backends: got {', '.join(ours)}, expected one of these at most")
        (
            distinct(["auto", *self.algorithms]),
            distinct([*self._libraries(), *self.selectable]),
        )
        return self

    def _libraries(self) -> list[str]:
        """Return the back end of ours, which is "p2p" unless the parameters name another, and the libraries."""
        ours = [name for name in self.backends if name in OURS] or ["p2p"]
        return [*ours, *(name for name in self.backends if name not in OURS)]

    def networks(self) -> list[str]:
        """Return the networks to measure: links as asked for and, if ``slower`` is above 1, slower ones."""
        links = [
            (self.latency, self.rate),
            (self.latency * self.slower, self.rate / self.slower),
        ]
        return [f"cluster:{_typed(*link)}" for link in links[: 1 + (self.slower > 1)]]

    def machine_file(self, where: str) -> str:
        """Return the path of a network's calibrated machine, beside the rows."""
        return f"{self.output}.{parse_where(where).options.replace('/', '-per-')}.yaml"

    def measurements(self) -> list[Settings]:
        """Return what to measure, by the calibrated machines, which may not be there yet."""
        where, *deeper = self.networks()
        most = max(self.hosts)
        libraries = self._libraries()
        plain = [self._on(ranks, where, libraries) for ranks in self.hosts if ranks < most]
        full = self._on(most, where, [*libraries, *self.selectable])
        slow = [self._on(most, each, libraries[:1], ["auto"]) for each in deeper]
        return [*plain, full, *slow]

    def _on(
        self,
        ranks: int,
        where: str,
        backends: list[str],
        algorithms: list[str] | None = None,
    ) -> Settings:
        once = Settings(
            ranks=ranks,
            where=where,
            bytes=self.sizes,
            algorithms=algorithms or ["auto", *self.algorithms],
            backends=backends,
            repetitions=self.repetitions,
            warmups=WARMUPS,
            timeout=self.TIMEOUT,
        )
        return once.model_copy(update={"machine": self.machine_file(where)})

    def measure_rest(self) -> None:
        """Calibrate links without a machine file, then measure the rest."""
        for where in self.networks():
            path = Path(self.machine_file(where))
            if not path.exists():
                rows = measured(where, 2, MESSAGES, MESSAGE_REPETITIONS, self.TIMEOUT)
                fitted = machine_of(rows, where, where)
                save(fitted, path)
                print(text(fitted), file=sys.stderr)
        super().measure_rest()

    def run(self) -> tuple[Any, Record]:
        """Measure what is missing; returns `results`."""
        super().run()
        return results(self.output)


def _typed(latency: float, rate: float) -> str:
    """Return a link as LATENCY,RATE, to six digits.

    >>> _typed(4 * 0.005, 25e6 / 4)
    '20ms,6.25MB/s'
    """
    return f"{format_seconds(float(f'{latency:.6g}'))},{format_rate(float(f'{rate:.6g}'))}"


def calibrated(stem: str | Path) -> dict[str, Machine]:
    """Return the machines that rows were measured by, by their network."""
    return {
        machine(str(path)).name: machine(str(path))
        for path in Path(stem).parent.glob(f"{Path(stem).name}.*.yaml")
    }


def results(stem: str | Path) -> tuple[Any, Record]:
    """Return rows and record of an output.

    Each has its bound by the calibrated machine, ours the simulated time, too.

    Both in microseconds, and as today's code has them, whatever the bound was when the rows were
    measured.
    """
    found, record = read(stem)
    rows: Any = found[found.error.isna()].copy()
    machines = calibrated(stem)
    rows["simulated_us"] = [_simulated(row, machines[str(row.where)]) for row in rows.itertuples()]
    rows["bound_us"] = [
        bound(machines[str(row.where)], row.collective, row.ranks, row.bytes) * 1e6
        for row in rows.itertuples()
    ]
    return rows, record


def _simulated(row: Any, on: Machine) -> float | None:
    """Return microseconds; None for what has no schedule of ours."""
    if row.backend not in OURS:
        return None
    schedule = build(row.collective, row.algorithm, row.ranks, segments=int(row.segments))
    return simulate(schedule, on, row.bytes, row.algorithm).seconds * 1e6
