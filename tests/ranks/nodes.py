"""Ranks that tell which of Slurm's nodes they are on, one of which may die: for test_slurm.py."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from torch import distributed as dist


def run(settings: dict[str, Any], report: Callable[[dict[str, Any]], None]) -> None:
    nodes: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(nodes, os.environ["SLURMD_NODENAME"])
    report({"nodes": nodes})
    if settings.get("do") == "killed" and dist.get_rank() == settings["rank"]:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
