"""What every rank does for test_measured.py: calls by "auto" where no machine is named, and what each rank chose by.

`run` reports one event per case: {"case": …, "seen": [what rank 0 saw, what rank 1 saw, …]}.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed as dist

from collectives.autotune import VARIABLE
from collectives.backends import backend
from collectives.engine import group as engine_group
from collectives.engine import transport
from collectives.engine.call import Call

N = 1024


def run(settings: dict[str, Any], report: Callable[[dict[str, Any]], None]) -> None:
    del settings
    torch.set_num_threads(1)
    group = dist.new_group()
    # However many cores there are for the ranks of a group.
    transport.spins = lambda *_: transport.FEW_SPINS
    measured, measure = list[int](), engine_group.measure_machine

    def counted(*over: Any) -> Any:
        measured.append(1)
        return measure(*over)

    engine_group.measure_machine = counted
    for case in ("first", "again"):
        report({"case": case, "seen": everyone(summed(group))})
    p = dist.get_world_size()
    # Rank 1 tells the part.
    for case, ranks in (("later", list(range(p))), ("part", list(range(1, p)) or [0])):
        other = dist.new_group(ranks)
        seen = summed(other) if dist.get_rank() in ranks else None
        report({"case": case, "seen": everyone(seen)})
    report({"case": "measured", "seen": everyone(len(measured))})
    if dist.get_rank() == 0:
        os.environ[VARIABLE] = "textbook"
    report({"case": "named", "seen": everyone(summed(dist.new_group()))})
    if dist.get_rank() == 0:
        os.environ.pop(VARIABLE)


def summed(group: dist.ProcessGroup) -> dict[str, Any]:
    """What an all-reduce chose, by which machine, and whether it was right."""
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    x = torch.arange(N, dtype=torch.float32) * (rank + 1)
    did = backend("p2p").perform(Call("all_reduce", x, x, dist.ReduceOp.SUM, None, group))
    right = torch.equal(x, torch.arange(N, dtype=torch.float32) * (p * (p + 1) // 2))
    machine = did.machine and did.machine.model_dump(mode="json")
    return {"chosen": [did.algorithm, did.segments], "machine": machine, "right": right}


def everyone(mine: Any) -> list[Any]:
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, mine)
    return told
