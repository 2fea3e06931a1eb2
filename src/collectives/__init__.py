"""Collective communication, from broadcast to two-tree all-reduce: one schedule, proved, drawn and run.

Importing this needs numpy alone. The functions that move tensors import torch when they are first asked for.
"""

import importlib
from typing import TYPE_CHECKING, Any

from collectives.algorithms import ALGORITHMS
from collectives.grid import grid
from collectives.schedule import Schedule, ScheduleError, Step
from collectives.verify import verify

if TYPE_CHECKING:
    from collectives.api import (
        all_gather,
        all_gather_into_tensor,
        all_reduce,
        all_to_all,
        all_to_all_single,
        broadcast,
        gather,
        reduce,
        reduce_scatter,
        reduce_scatter_tensor,
        scatter,
    )

__all__ = [
    "ALGORITHMS",
    "Schedule",
    "ScheduleError",
    "Step",
    "all_gather",
    "all_gather_into_tensor",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "broadcast",
    "gather",
    "grid",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("collectives.api"), name)
