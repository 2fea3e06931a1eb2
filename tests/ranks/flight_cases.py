"""What every rank does for test_recorder.py: calls that fail, each on a group of its own, and what is dumped then."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

from collectives.torch_backend import flight

LIMIT = 1.0
Group = Any


def run(settings: dict[str, Any], report: Callable[[dict[str, Any]], None]) -> None:
    torch.set_num_threads(1)
    rank, odd = dist.get_rank(), settings["odd"]
    for case in CASES:
        folder = Path(settings["folder"]) / case.__name__
        folder.mkdir(exist_ok=True)
        os.environ |= {"TORCH_FR_DUMP_TEMP_FILE": f"{folder}/rank_"}
        os.environ |= {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{settings['folder']}/of_"}
        flight._calls.clear()
        flight._count = itertools.count()
        group = dist.new_group(
            backend="collectives", timeout=timedelta(seconds=LIMIT), group_desc=case.__name__
        )
        for n in (3, 4):
            dist.all_reduce(torch.ones(n), group=group)
        dist.barrier()
        with suppress(RuntimeError):
            case(group, rank, odd)
        dist.barrier()
        report({"case": case.__name__})
        dist.destroy_process_group(group)
        dist.barrier()


def healthy(group: Group, rank: int, odd: int) -> None:
    """All that is recorded, and a dump that is asked for."""
    p = dist.get_world_size()
    x, parts = torch.ones(2, 3), torch.ones(2 * p, 3)
    dist.all_gather([torch.empty(2, 3) for _ in range(p)], x, group=group)
    dist.all_gather_single(parts, x, group=group)
    dist.reduce_scatter_single(x, parts, group=group)
    dist.all_to_all_single(parts, parts.clone(), group=group)
    dist.all_to_all(
        [torch.empty(4) for _ in range(p)], [torch.ones(4) for _ in range(p)], group=group
    )
    dist.gather(x, [torch.empty(2, 3) for _ in range(p)] if rank == 0 else None, 0, group=group)
    dist.scatter(x, [torch.empty(2, 3) for _ in range(p)] if rank == 0 else None, 0, group=group)
    dist.broadcast(x.bfloat16(), 0, group=group)
    dist.reduce(x, 0, group=group)
    dist.barrier(group)
    if rank < 2:
        (dist.send if rank == 0 else dist.recv)(x, 1 - rank, group=group)
    asked()


def asked() -> None:
    """Ask this rank for a dump, by its pipe, and wait for it."""
    rank = dist.get_rank()
    Path(f"{os.environ['TORCH_NCCL_DEBUG_INFO_PIPE_FILE']}{rank}.pipe").write_text("1")
    while not Path(f"{os.environ['TORCH_FR_DUMP_TEMP_FILE']}{rank}").exists():
        time.sleep(0.01)


def another_size(group: Group, rank: int, odd: int) -> None:
    dist.all_reduce(torch.ones(6 if rank == odd else 5), group=group)


def another_operation(group: Group, rank: int, odd: int) -> None:
    x = torch.ones(5)
    dist.broadcast(x, 0, group=group) if rank == odd else dist.all_reduce(x, group=group)


def late(group: Group, rank: int, odd: int) -> None:
    """What the others sent may still be there, and the late one's call may end well: it is asked for a dump."""
    time.sleep(2 * LIMIT if rank == odd else 0)
    try:
        dist.all_reduce(torch.ones(5), group=group)
    finally:
        if rank == odd:
            asked()


def gone(group: Group, rank: int, odd: int) -> None:
    if rank != odd:
        dist.all_reduce(torch.ones(5), group=group)


def gone_and_asked(group: Group, rank: int, odd: int) -> None:
    """The same; the rank that is elsewhere is asked for a dump."""
    if rank == odd:
        asked()
    else:
        dist.all_reduce(torch.ones(5), group=group)


def no_receive(group: Group, rank: int, odd: int) -> None:
    """The next rank receives from a rank that does not send."""
    if rank == odd:
        asked()
    elif rank == (odd + 1) % dist.get_world_size():
        dist.recv(torch.ones(5), odd, group=group)


CASES = [healthy, another_size, another_operation, late, gone, gone_and_asked, no_receive]
