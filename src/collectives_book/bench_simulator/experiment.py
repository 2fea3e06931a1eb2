"""The experiment ``bench-simulator``: how fast the simulator is on this machine."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from collectives.bench.sweep import Keep
from collectives.simulator.speed import benchmark, goals, lines
from collectives_book import parameters as base
from collectives_book.parameters import resume


class Parameters(base.Parameters):
    """The parameter of ``bench-simulator``: how many cases, the first ones of `collectives.simulator.speed.goals`."""

    cases: Annotated[int, Field(ge=1, le=len(goals()))]


def run(parameters: Parameters) -> None:
    """Measure the cases, and write rows and record (`resume`)."""
    wanted = {goal.what: goal for goal in goals()[: parameters.cases]}

    def measure(left: Sequence[str], keep: Keep) -> None:
        benchmark(lambda row: keep({"rows": [row]}), [wanted[what] for what in left])

    resume(parameters, parameters.model_dump(), list(wanted), measure, dict, lines)
