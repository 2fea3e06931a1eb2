"""DistributedDataParallel on our algorithms, checked against gloo and against one process.

    torchrun --standalone --nproc-per-node 4 examples/ddp.py --algorithm two_tree
    COLLECTIVES_ALGORITHM=ring torchrun --standalone --nproc-per-node 4 examples/ddp.py
    collectives cluster --hosts 8 -- python examples/ddp.py --algorithm two_tree

Two lines differ from a program on gloo: the import, and the back end's name. All else is there for
the check: the same training over gloo, and in one process on the whole batch. Prints the losses and
how far apart the parameters are, and exits with 1 where that is more than rounding.
"""

import argparse
import os
import sys
from collections.abc import Callable

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

import collectives.torch_backend

STEPS, BATCH = 10, 64
ROUNDING = 1e-5


def model() -> torch.nn.Module:
    torch.manual_seed(7)
    return torch.nn.Sequential(
        torch.nn.Linear(32, 128),
        torch.nn.ReLU(),
        torch.nn.Linear(128, 128),
        torch.nn.ReLU(),
        torch.nn.Linear(128, 8),
    )


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(step)
    rows = torch.randn(BATCH, 32, generator=made)
    return rows, rows[:, :8].tanh()


def train(
    trained: torch.nn.Module, mine: slice, mean: Callable[[torch.Tensor], torch.Tensor]
) -> list[float]:
    """The loss of each step, on these rows of each batch; ``mean`` averages it over ranks."""
    optimizer, losses = torch.optim.SGD(trained.parameters(), lr=0.1, momentum=0.9), []
    for step in range(STEPS):
        rows, wanted = batch(step)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(trained(rows[mine]), wanted[mine])
        loss.backward()
        optimizer.step()
        losses.append(mean(loss.detach()).item())
    return losses


def averaged(loss: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(loss, dist.ReduceOp.AVG)
    return loss


def distance(one: torch.nn.Module, other: torch.nn.Module) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max((mine - theirs).abs().max().item() for mine, theirs in pairs)


def main() -> bool:
    arguments = argparse.ArgumentParser(
        description="DistributedDataParallel, checked against gloo and one process"
    )
    arguments.add_argument(
        "--algorithm", help="of `collectives list`; by default COLLECTIVES_ALGORITHM, or auto"
    )
    chosen = arguments.parse_args().algorithm
    options = collectives.torch_backend.Options(chosen) if chosen else None
    dist.init_process_group("collectives", pg_options=options)
    rank, p = dist.get_rank(), dist.get_world_size()
    mine = slice(BATCH * rank // p, BATCH * (rank + 1) // p)

    ours = DistributedDataParallel(model(), bucket_cap_mb=0.05)
    losses = train(ours, mine, averaged)

    theirs = DistributedDataParallel(
        model(), bucket_cap_mb=0.05, process_group=dist.new_group(backend="gloo")
    )
    train(theirs, mine, averaged)
    alone = model()
    train(alone, slice(None), lambda loss: loss)
    apart = distance(ours, theirs), distance(ours, alone)
    if rank == 0:
        name = chosen or os.environ.get("COLLECTIVES_ALGORITHM", "auto")
        print(
            f"DistributedDataParallel on {p} ranks by {name}: losses",
            *(f"{loss:.6f}" for loss in losses),
        )
        print(
            f"parameters differ from gloo's by {apart[0]:.1e}, from one process's by {apart[1]:.1e}"
        )
    dist.destroy_process_group()
    return max(apart) <= ROUNDING


if __name__ == "__main__":
    sys.exit(not main())
