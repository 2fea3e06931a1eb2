"""DistributedDataParallel over our back end beside one over the library's: on two ranks every parameter is the same."""

from __future__ import annotations

import os

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

import collectives.torch_backend  # noqa: F401  torch knows the name from now on

RANKS = 2  # a sum of two numbers has one value in either order, so equal means bit for bit
STEPS = 12


def share_gpus(rank: int, gpus: int) -> None:
    """Have ranks share a GPU where there are fewer than ranks; a rank calls it before it uses one.

    NCCL refuses two ranks of one host on one GPU. With a host's name for each rank it takes them for two hosts, which
    talk by sockets.
    """
    if gpus < RANKS:
        alone = {"NCCL_HOSTID": f"gpu-check-{rank}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
        os.environ.update(alone, LOCAL_RANK="0")


def differing(over: str, device: torch.device) -> int:
    """Return the number of parameters that differ after training over ours and over "nccl" or, on CPUs, "gloo"."""
    ours, theirs = (_trained(name, device) for name in ("collectives", over))
    return sum(int((mine != other).sum()) for mine, other in zip(ours, theirs, strict=True))


def _trained(over: str, device: torch.device) -> list[torch.Tensor]:
    """Train a model in a group of its own; its buckets are small, so that reductions overlap with the backward pass."""
    group = dist.new_group(backend=over)
    torch.manual_seed(7)
    layers = torch.nn.Linear(64, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024), torch.nn.Linear(1024, 8)
    model = DistributedDataParallel(torch.nn.Sequential(*layers).to(device), process_group=group, bucket_cap_mb=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    random = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(64, 64, generator=random).to(device)).square().mean().backward()
        optimizer.step()
    trained = [each.detach().cpu() for each in model.parameters()]
    del model, optimizer
    dist.destroy_process_group(group)
    return trained
