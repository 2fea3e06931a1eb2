"""Collective communication, from broadcast to two-tree all-reduce: one schedule, proved, drawn, run and simulated.

Importing this needs numpy alone. The functions that move tensors import torch when they are first
asked for; `simulate` imports numba, and `Machine` pydantic.
"""

import importlib
from typing import TYPE_CHECKING, Any

from collectives.core.grid import grid, parse_grid
from collectives.core.schedule import Schedule, ScheduleError, Step
from collectives.core.verify import verify
from collectives.errors import with_extra

if TYPE_CHECKING:
    from collectives.algorithms import ALGORITHMS
    from collectives.api import (
        all_gather,
        all_gather_into_tensor,
        all_reduce,
        all_to_all,
        all_to_all_single,
        broadcast,
        gather,
        prepare,
        reduce,
        reduce_scatter,
        reduce_scatter_tensor,
        scatter,
    )
    from collectives.machine import Machine
    from collectives.simulator.simulation import simulate

__all__ = [
    "ALGORITHMS",
    "Machine",
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
    "parse_grid",
    "prepare",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "simulate",
    "verify",
]

# Imported on first use, and from which module, because a proof needs no algorithm, and the others
# more than numpy; all other names are `api`'s.
_LATER = {
    "ALGORITHMS": "collectives.algorithms",
    "Machine": "collectives.machine",
    "simulate": "collectives.simulator.simulation",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        found = globals()[name] = getattr(
            importlib.import_module(_LATER.get(name, "collectives.api")), name
        )
    except ModuleNotFoundError as error:
        raise with_extra(error, "simulate" if name in _LATER else "run") from None
    return found
