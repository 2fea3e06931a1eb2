"""The experiment ``bench-simulator``: how fast the simulator is on this machine."""

import sys

from collectives.bench.environment import record
from collectives.bench.results import write
from collectives.experiments.parameters import Parameters
from collectives.simulator.scaling import Row
from collectives.simulator.speed import benchmark, lines

__all__ = ["Parameters", "run"]


def run(parameters: Parameters) -> list[Row]:
    """Measure every case (`collectives.simulator.speed.goals`), and write rows and record."""
    found = benchmark(lambda row: print(lines(row), file=sys.stderr, flush=True))
    write(parameters.output, found, {"environment": [record()]})
    return found
