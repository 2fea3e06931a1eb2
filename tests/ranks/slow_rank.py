"""A measurement in which rank 1 takes a second longer than it does: for test_bench.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import distributed as dist

from collectives.bench import clocks, measure

clock = clocks.CLOCKS["met"]


def run(settings: dict[str, Any], report: Callable[[dict[str, Any]], None]) -> None:
    clocks.CLOCKS["met"] = lambda *of: clock(*of) + float(dist.get_rank() == 1)
    measure.run(settings, report)
