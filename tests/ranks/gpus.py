"""Ranks that tell which GPU they take of those that Slurm shows them, on a machine without any: for test_slurm.py."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed as dist

from collectives.backends import nccl


def run(settings: dict[str, Any], report: Callable[[dict[str, Any]], None]) -> None:
    del settings
    visible = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
    torch.cuda.device_count = lambda: len(visible)
    torch.cuda.set_device = lambda _: None
    taken: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(taken, f"{os.environ['SLURMD_NODENAME']} {visible[nccl.device().index]}")
    report({"taken": taken})
