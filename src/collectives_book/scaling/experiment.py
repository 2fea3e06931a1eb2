"""The experiment ``scaling``: all-reduces on 2, 4, 8 … emulated hosts, beside the libraries and the simulator.

Links are calibrated first; "auto" and the simulator go by that machine. On the most hosts the libraries' selectable
algorithms are measured, too, and "auto" once more in deeper slow motion, where this machine's cores matter less.
"""

import sys
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from collectives.algorithms import build
from collectives.autotune import bound
from collectives.backends import named, presence
from collectives.bench import OURS, Settings
from collectives.bench.calibration import machine_of, measured, save
from collectives.bench.results import read
from collectives.bench.sweep import sweep
from collectives.config import Rate
from collectives.emulator import MOST_HOSTS, allowed
from collectives.machine import Machine, machine, text
from collectives.simulator.simulation import simulate
from collectives.units import format_rate, format_seconds
from collectives_book import parameters as base
from collectives_book.figures.statements import Rows
from collectives_book.parameters import Distinct, Latency, Name, Repetitions, Size, Some, distinct

# Messages from whose times links are calibrated: of these rates larger ones would take seconds.
MESSAGES = (8, 1 << 10, 8 << 10, 64 << 10, 256 << 10)
MESSAGE_REPETITIONS = 9
WARMUPS = 1
TIMEOUT = 1800.0
MOST_SLOWER = 1000


class Parameters(base.Parameters):
    """The parameters of ``scaling``: emulated hosts and their links, and what is measured on them."""

    hosts: Some[Annotated[int, Field(ge=2, le=MOST_HOSTS)]]
    latency: Latency
    rate: Rate
    slower: Annotated[int, Field(ge=1, le=MOST_SLOWER)]
    sizes: Some[Size]
    algorithms: Some[Name]
    backends: Distinct[Name]
    selectable: Distinct[Name]
    repetitions: Repetitions

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        distinct(["auto", *self.algorithms]), distinct(["p2p", *self.backends, *self.selectable])
        self.settings()
        return self

    def networks(self) -> list[str]:
        """The networks to measure: links as asked for and, if ``slower`` is above 1, links slower by that factor."""
        links = [(self.latency, self.rate), (self.latency * self.slower, self.rate / self.slower)]
        return [f"cluster:{_typed(*link)}" for link in links[: 1 + (self.slower > 1)]]

    def machine_file(self, where: str) -> str:
        """The path of a network's calibrated machine, beside the rows."""
        return f"{self.output}.{where.partition(':')[2].replace('/', '-per-')}.yaml"

    def settings(self, calibrated: bool = False) -> list[Settings]:
        """What to measure, by the calibrated machines if they are there."""
        where, *deeper = self.networks()
        most = max(self.hosts)
        plain = [self._on(ranks, where, ["p2p", *self.backends], calibrated) for ranks in self.hosts if ranks < most]
        full = self._on(most, where, ["p2p", *self.backends, *self.selectable], calibrated)
        slow = [self._on(most, each, ["p2p"], calibrated, ["auto"]) for each in deeper]
        return [*plain, full, *slow]

    def _on(
        self, ranks: int, where: str, backends: list[str], calibrated: bool, algorithms: list[str] | None = None
    ) -> Settings:
        return Settings(
            ranks=ranks,
            where=where,
            bytes=self.sizes,
            algorithms=algorithms or ["auto", *self.algorithms],
            backends=backends,
            machine=self.machine_file(where) if calibrated else None,
            repetitions=self.repetitions,
            warmups=WARMUPS,
            timeout=TIMEOUT,
        )


def _typed(latency: float, rate: float) -> str:
    """A link as LATENCY,RATE, to six digits.

    >>> _typed(4 * 0.005, 25e6 / 4)
    '20ms,6.25MB/s'
    """
    return f"{format_seconds(float(f'{latency:.6g}'))},{format_rate(float(f'{rate:.6g}'))}"


def lacking(parameters: Parameters) -> str | None:
    """Why it cannot be measured here, in one line; None if it can."""
    names = dict.fromkeys(named(backend)[0] for backend in (*parameters.backends, *parameters.selectable))
    return allowed() or next((f"{name} is absent: {why}" for name in names if (why := presence(name).absent)), None)


def run(parameters: Parameters) -> None:
    """Calibrate links without a machine file, then measure the rest (`collectives.bench.sweep`)."""
    for where in parameters.networks():
        path = Path(parameters.machine_file(where))
        if not path.exists():
            rows = measured(where, 2, MESSAGES, MESSAGE_REPETITIONS, TIMEOUT)
            save(fitted := machine_of(rows, where, where), path)
            print(text(fitted), file=sys.stderr)
    sweep(parameters.settings(calibrated=True), parameters.output)


def calibrated(stem: str | Path) -> dict[str, Machine]:
    """The machines that rows were measured by, by their network."""
    return {machine(str(path)).name: machine(str(path)) for path in Path(stem).parent.glob(f"{Path(stem).name}.*.yaml")}


def results(stem: str | Path) -> tuple[Rows, dict[str, Any]]:
    """Rows and record of an output; by the calibrated machine each has its bound, and ours what the simulator says.

    Both in microseconds, and as today's code has them, whatever the bound was when the rows were measured.
    """
    rows, record = read(stem)
    return _computed(rows[rows.error.isna()].copy(), calibrated(stem)), record


def _computed(rows: Rows, machines: dict[str, Machine]) -> Rows:
    rows["simulated_us"] = [_simulated(row, machines[str(row.where)]) for row in rows.itertuples()]
    rows["bound_us"] = [_bound(row, machines[str(row.where)]) for row in rows.itertuples()]
    return rows


def _bound(row: Any, on: Machine) -> float:
    return bound(on, row.collective, row.ranks, row.bytes) * 1e6


def _simulated(row: Any, on: Machine) -> float | None:
    """Microseconds; None for what has no schedule of ours."""
    if row.backend not in OURS:
        return None
    schedule = build(row.collective, row.algorithm, row.ranks, segments=int(row.segments))
    return simulate(schedule, on, row.bytes, row.algorithm).seconds * 1e6
