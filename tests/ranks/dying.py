"""A task whose rank 0 is killed when it has reported the rows of its first case: for test_resume.py."""

import importlib
import os
import signal
from collections.abc import Callable
from typing import Any

from torch import distributed as dist


def run(settings: dict[str, Any], report: Callable[[dict[str, Any]], None]) -> None:
    def reporting(event: dict[str, Any]) -> None:
        report(event)
        if settings["dies"] and "rows" in event and dist.get_rank() == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    importlib.import_module(settings["task"]).run(settings["settings"], reporting)
