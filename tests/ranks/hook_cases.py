"""What every rank does for test_comm_hook.py: a model trained with the hook, beside one that sees the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from collectives.torch_backend import hook

ROWS = 6  # of each rank's part of the batch


def run(settings: dict[str, Any], report: Callable[[dict[str, Any]], None]) -> None:
    torch.set_num_threads(1)
    rank, p = dist.get_rank(), dist.get_world_size()
    for algorithm in ("auto", "two_tree", "ring"):
        apart = torch.tensor(distance(algorithm, rank, p))
        dist.all_reduce(apart, op=dist.ReduceOp.MAX)
        report({"case": algorithm, "apart": apart.item()})
    report({"case": "rnig", "said": refused(rank)})


def model() -> torch.nn.Sequential:
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(5, 32), torch.nn.Tanh(), torch.nn.Linear(32, 3))


def batch(step: int, p: int) -> torch.Tensor:
    return torch.randn(ROWS * p, 5, generator=torch.Generator().manual_seed(step))


def distance(algorithm: str, rank: int, p: int) -> float:
    """How far apart the parameters are after three steps, with many small buckets."""
    alone, ours = model(), DistributedDataParallel(model(), bucket_cap_mb=1e-4)  # type: ignore[arg-type]
    ours.register_comm_hook(None, hook(algorithm))
    for step in range(3):
        for trained, rows in (
            (alone, batch(step, p)),
            (ours, batch(step, p)[rank * ROWS : (rank + 1) * ROWS]),
        ):
            optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
            optimizer.zero_grad()
            trained(rows).square().mean().backward()
            optimizer.step()
    pairs = zip(alone.parameters(), ours.parameters(), strict=True)
    return max(float((one - other).abs().max()) for one, other in pairs)


def refused(rank: int) -> str:
    """What an unknown algorithm says, and of which bucket."""
    ours = DistributedDataParallel(model(), bucket_cap_mb=1e-4)  # type: ignore[arg-type]
    ours.register_comm_hook(None, hook("rnig"))
    try:
        ours(torch.ones(2, 5)).sum().backward()
    except RuntimeError as error:
        return str(error)
    return "nothing"
