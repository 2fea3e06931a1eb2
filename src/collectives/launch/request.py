"""A request to a launcher, the same for all of them, and the table of tasks that a rank may run.

A launcher names a task and a rank looks the module up in its own table. Installed packages add
tasks by entry points of the group ``collectives.tasks``. COLLECTIVES_TASKS adds modules of your
own, separated by commas; each is a task of the same name.
"""

import os
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import NamedTuple

from collectives.processes import Event

__all__ = ["TASKS", "TASKS_VARIABLE", "Event", "Request", "module_of", "task_of"]

TASKS = {
    "bench": "collectives.bench.measure",
    "calibrate": "collectives.bench.calibration",
}
TASKS_GROUP = "collectives.tasks"
TASKS_VARIABLE = "COLLECTIVES_TASKS"


class Request(NamedTuple):
    """Run ``module.run(settings, report)`` on ``ranks`` ranks, as `collectives.launch.launch` describes it."""

    module: str
    settings: Event
    ranks: int
    timeout: float  # seconds
    environment: Mapping[str, str]  # added to that of the ranks
    on_event: Callable[[Event], None]
    options: str = ""  # what follows the colon of ``where``
    share_gpus: bool = False  # among more ranks than there are


def module_of(task: str) -> str:
    """Return the module that a task runs. Raises ValueError for a task that is not registered here.

    >>> module_of("bench")
    'collectives.bench.measure'
    """
    if task not in _table():
        known = ", ".join(_table())
        raise ValueError(
            f"unknown task: got {task!r}, expected one of {known}; {TASKS_VARIABLE} adds modules"
        )
    return _table()[task]


def task_of(module: str) -> str:
    """Return the task that runs a module.

    Raises ValueError for a module that is not registered here.
    """
    for task, registered in _table().items():
        if registered == module:
            return task
    known = ", ".join(_table().values())
    raise ValueError(
        f"unregistered module: got {module!r}, expected one of {known}; {TASKS_VARIABLE} adds modules"
    )


def _table() -> dict[str, str]:
    return (
        TASKS
        | _installed_tasks()
        | {name: name for name in os.environ.get(TASKS_VARIABLE, "").split(",") if name}
    )


@cache
def _installed_tasks() -> dict[str, str]:
    return {each.name: each.value for each in sorted(entry_points(group=TASKS_GROUP))}
