"""A measurement of a ring whose last step is missing: for test_bench.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from collectives.algorithms import ALGORITHMS, ring
from collectives.bench import measure
from collectives.schedule import Schedule


def run(settings: dict[str, Any], report: Callable[[dict[str, Any]], None]) -> None:
    ALGORITHMS["all_reduce", "ring"] = short_of_a_step
    measure.run(settings, report)


def short_of_a_step(p: int) -> Schedule:
    whole = ring.all_reduce(p)
    return replace(whole, nsteps=whole.nsteps - 1)
