"""What a replica of a model knows of the others: how many there are, and how tensors are summed and broadcast."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import distributed as dist

from collectives.backends import Call, backend


class Replicas(NamedTuple):
    """The replicas, seen from one of them: its number, how many there are, and how they exchange tensors in place."""

    rank: int
    ranks: int
    device: torch.device
    sum: Callable[[torch.Tensor], None]
    broadcast: Callable[[torch.Tensor], None]


def alone(device: str | torch.device = "cpu") -> Replicas:
    """One process with the whole batch: nothing to exchange."""
    return Replicas(0, 1, torch.device(device), lambda _: None, lambda _: None)


def over(name: str, algorithm: str = "auto") -> Replicas:
    """A replica on every rank of torch's default group, joined by a back end, and by an algorithm if that is ours."""
    one = backend(name)
    group = one.group()

    def add(tensor: torch.Tensor) -> None:
        one.perform(Call("all_reduce", tensor, tensor, dist.ReduceOp.SUM, None, group, algorithm))

    def copy(tensor: torch.Tensor) -> None:
        one.perform(Call("broadcast", tensor, tensor, None, 0, group))

    return Replicas(dist.get_rank(), dist.get_world_size(), one.device(), add, copy)
