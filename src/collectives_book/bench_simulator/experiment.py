"""The experiment ``bench-simulator``: how fast the simulator is on this machine."""

import sys
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from collectives.simulator.scaling import Row
from collectives.simulator.speed import Goal, benchmark, goals, lines
from collectives_book import parameters as base
from collectives_book.resume import Keep, resume


class Parameters(base.Parameters):
    """The parameter of ``bench-simulator``: how many cases, the first ones of `collectives.simulator.speed.goals`."""

    cases: Annotated[int, Field(ge=1, le=len(goals()))]


def run(parameters: Parameters) -> None:
    """Measure the cases, and write rows and record (`resume`)."""

    def measure(left: Sequence[Goal], keep: Keep) -> None:
        benchmark(lambda row: keep({"rows": [row]}), left)

    resume(parameters, parameters.model_dump(), goals()[: parameters.cases], measure, dict, _say)


def _say(row: Row) -> None:
    print(lines(row), file=sys.stderr, flush=True)
