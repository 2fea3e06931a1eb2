"""The tasks that a launcher may give a rank: each is a module with a function ``run``.

A launcher names a task and a rank looks the module up in its own table. Installed packages add tasks by entry points of
the group ``collectives.tasks``. COLLECTIVES_TASKS adds modules of your own, separated by commas; each is a task of the
same name.
"""

from __future__ import annotations

import os
from functools import cache
from importlib.metadata import entry_points

TASKS = {
    "bench": "collectives.bench.measure",
    "ping_pong": "collectives.bench.ping_pong",
    "gpu_check": "collectives.bench.gpu_check",
}
GROUP = "collectives.tasks"
VARIABLE = "COLLECTIVES_TASKS"


def module_of(task: str) -> str:
    """The module that a task runs. Raises ValueError for a task that is not registered here.

    >>> module_of("bench")
    'collectives.bench.measure'
    """
    if task not in _table():
        raise ValueError(f"unknown task: got {task!r}, expected one of {', '.join(_table())}; {VARIABLE} adds modules")
    return _table()[task]


def name_of(module: str) -> str:
    """The task that runs a module. Raises ValueError for a module that is not registered here."""
    for task, registered in _table().items():
        if registered == module:
            return task
    known = ", ".join(_table().values())
    raise ValueError(f"unregistered module: got {module!r}, expected one of {known}; {VARIABLE} adds modules")


def _table() -> dict[str, str]:
    return TASKS | _installed() | {name: name for name in os.environ.get(VARIABLE, "").split(",") if name}


@cache
def _installed() -> dict[str, str]:
    return {each.name: each.value for each in sorted(entry_points(group=GROUP))}
