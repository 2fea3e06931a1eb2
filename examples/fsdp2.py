"""FSDP2 (``fully_shard``) on our algorithms, checked against gloo and against one process.

    torchrun --standalone --nproc-per-node 4 examples/fsdp2.py --algorithm ring
    COLLECTIVES_ALGORITHM=two_tree torchrun --standalone --nproc-per-node 4 examples/fsdp2.py
    collectives cluster --hosts 8 -- python examples/fsdp2.py --algorithm ring

Two lines differ from a program on gloo: the import, and the back end's name. All else is there for
the check: the same training over gloo, and in one process on the whole batch. FSDP2 gathers each
layer's parameters, and reduces and scatters its gradients; two_tree has neither, so there "auto"
chooses. Prints the losses and how far apart the parameters are, and exits with 1 where that is more
than rounding.
"""

import argparse
import os
import sys
from collections.abc import Callable

import torch
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

import collectives.torch_backend

STEPS, BATCH = 10, 64
ROUNDING = 1e-5


def model() -> torch.nn.Sequential:
    torch.manual_seed(7)
    return torch.nn.Sequential(
        torch.nn.Linear(32, 128),
        torch.nn.ReLU(),
        torch.nn.Linear(128, 128),
        torch.nn.ReLU(),
        torch.nn.Linear(128, 8),
    )


def sharded(whole: torch.nn.Sequential, group: dist.ProcessGroup) -> torch.nn.Module:
    """The same model, of whose parameters each rank of the group keeps a part."""
    mesh = DeviceMesh.from_group(group, "cpu")
    for layer in whole:
        fully_shard(layer, mesh=mesh)
    fully_shard(whole, mesh=mesh)
    return whole


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(step)
    rows = torch.randn(BATCH, 32, generator=made)
    return rows, rows[:, :8].tanh()


def train(
    trained: torch.nn.Module, mine: slice, mean: Callable[[torch.Tensor], torch.Tensor]
) -> list[float]:
    """The loss of each step, on these rows of each batch; ``mean`` averages it over ranks."""
    optimizer, losses = torch.optim.AdamW(trained.parameters(), lr=1e-3), []
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


def parameters(trained: torch.nn.Module) -> list[torch.Tensor]:
    """All of them whole; every rank calls it."""
    return [
        each.full_tensor() if hasattr(each, "full_tensor") else each
        for each in trained.parameters()
    ]


def distance(one: torch.nn.Module, other: torch.nn.Module) -> float:
    pairs = zip(parameters(one), parameters(other), strict=True)
    return max((mine - theirs).abs().max().item() for mine, theirs in pairs)


def main() -> bool:
    arguments = argparse.ArgumentParser(description="FSDP2, checked against gloo and one process")
    arguments.add_argument(
        "--algorithm", help="of `collectives list`; by default COLLECTIVES_ALGORITHM, or auto"
    )
    chosen = arguments.parse_args().algorithm
    options = collectives.torch_backend.Options(chosen) if chosen else None
    dist.init_process_group("collectives", pg_options=options)
    rank, p = dist.get_rank(), dist.get_world_size()
    mine = slice(BATCH * rank // p, BATCH * (rank + 1) // p)

    ours = sharded(model(), dist.group.WORLD)
    losses = train(ours, mine, averaged)

    theirs = sharded(model(), dist.new_group(backend="gloo"))
    train(theirs, mine, averaged)
    alone = model()
    train(alone, slice(None), lambda loss: loss)
    apart = distance(ours, theirs), distance(ours, alone)
    if rank == 0:
        name = chosen or os.environ.get("COLLECTIVES_ALGORITHM", "auto")
        print(f"FSDP2 on {p} ranks by {name}: losses", *(f"{loss:.6f}" for loss in losses))
        print(
            f"parameters differ from gloo's by {apart[0]:.1e}, from one process's by {apart[1]:.1e}"
        )
    dist.destroy_process_group()
    return max(apart) <= ROUNDING


if __name__ == "__main__":
    sys.exit(not main())
