"""Ranks whose schedule of one name differs, for test_own.py: every rank reports what a call with it gave or said."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

import collectives
from collectives.algorithms import build
from collectives_interop import msccl

FILE = "own_schedules_whose_name_alone_is_longer_than_what_a_message_carries.py"
RING = """
from collectives.algorithms import build

def my_all_reduce(p):
    return build("all_reduce", "ring", p)
"""
# Right as well, but rank r begins with the chunk after the ring's.
TURNED = """
from dataclasses import replace
from collectives import Step
from collectives.algorithms import build

def my_all_reduce(p):
    ring = build("all_reduce", "ring", p)

    def make(t):
        step = ring.step(t)
        return Step(step.src, step.dst, (step.chunk + 1) % p, step.count, step.add)

    return replace(ring, make=make)
"""


def run(settings: dict[str, Any], report: Callable[[dict[str, Any]], None]) -> None:
    rank, p = dist.get_rank(), dist.get_world_size()
    folder = Path(settings["folder"]) / ("" if settings["is_one_path"] else f"rank-{rank}")
    folder.mkdir(exist_ok=True)
    if settings["is_program"]:
        path = folder / "own.xml"
        path.write_text(
            msccl.text(build("all_reduce", "recursive_doubling" if rank == 1 else "ring", p), "own")
        )
        name = str(path)
    else:
        path = folder / FILE
        path.write_text(TURNED if rank == 1 else RING)
        name = f"{path}:my_all_reduce"
    x = torch.arange(6.0) + 10 * rank
    try:
        collectives.all_reduce(
            x, group=dist.new_group(timeout=timedelta(seconds=20)), algorithm=name
        )
        said: Any = x.tolist()
    except RuntimeError as error:
        said = str(error)
    everyone: list[Any] = [None] * p
    dist.all_gather_object(everyone, said)
    report({"said": everyone})
