"""A measurement in which the executor forgets the last step of a ring: for test_bench.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from collectives.algorithms import build
from collectives.bench import measure
from collectives.core.schedule import Schedule
from collectives.engine import compiled_call


def run(settings: dict[str, Any], report: Callable[[dict[str, Any]], None]) -> None:
    compiled_call.build = short_of_a_step
    measure.run(settings, report)


def short_of_a_step(
    collective: str, algorithm: str, p: int, **options: int | str | None
) -> Schedule:
    whole = build(collective, algorithm, p, **options)
    return replace(whole, nsteps=whole.nsteps - 1) if algorithm == "ring" else whole
