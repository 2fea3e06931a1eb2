"""Ranks that do what ranks should not: for test_loopback.py."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

from torch import distributed as dist


def run(settings: dict[str, Any], report: Callable[[dict[str, Any]], None]) -> None:
    me = dist.get_rank() == settings.get("rank")
    everyone: list[int | None] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, os.getpid())
    report({"pids": everyone})
    match settings["do"]:
        case "raise" if me:
            raise ValueError("a bug on purpose")
        case "killed" if me:
            os.kill(os.getpid(), signal.SIGKILL)
        case "sleep":
            child = subprocess.Popen(["sleep", "600"])
            report({"child": child.pid})
            print("going to sleep", flush=True)
            time.sleep(600)
    dist.barrier()
