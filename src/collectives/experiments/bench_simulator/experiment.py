"""The experiment ``bench-simulator``: how fast the simulator is on this machine."""

import sys
from typing import Annotated

from pydantic import Field

from collectives.bench.environment import record
from collectives.bench.results import write
from collectives.experiments import parameters as base
from collectives.simulator.scaling import Row
from collectives.simulator.speed import benchmark, goals, lines


class Parameters(base.Parameters):
    """The parameter of ``bench-simulator``: how many cases, the first ones of `collectives.simulator.speed.goals`."""

    cases: Annotated[int, Field(ge=1, le=len(goals()))]


def run(parameters: Parameters) -> list[Row]:
    """Measure the cases, and write rows and record."""
    found = benchmark(lambda row: print(lines(row), file=sys.stderr, flush=True), parameters.cases)
    write(parameters.output, found, {"environment": [record()]})
    return found
