"""Replicas of a model, and what joins them: a back end's all-reduce and broadcast, or its own optimizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import distributed as dist
from torch import nn
from torch.optim import Optimizer

from collectives.backends import Backend, backend
from collectives.engine.call import Call, Performed

Wrap = Callable[[Optimizer, nn.Module], Optimizer]


class Replicas(NamedTuple):
    """The replicas, seen from one of them: its number, how many there are, and how they exchange tensors in place.

    ``wrap`` makes of an optimizer the library's own, which sums the gradients itself; it is None
    where `sum_in_one_buffer` does.
    """

    rank: int
    ranks: int
    device: torch.device
    sum: Callable[[torch.Tensor], object]
    broadcast: Callable[[torch.Tensor], object]
    wrap: Wrap | None = None


def alone(device: str | torch.device = "cpu") -> Replicas:
    """Return one process with the whole batch: nothing to exchange."""
    return Replicas(0, 1, torch.device(device), lambda _: None, lambda _: None)


def over(name: str, algorithm: str = "auto") -> Replicas:
    """Return a replica on every rank, joined by a back end, and by an algorithm if that is ours."""
    library = backend(name)
    rank, ranks = library.place()

    def broadcast(tensor: torch.Tensor) -> Performed:
        return library.perform(Call("broadcast", tensor, tensor, root=0, group=library.group()))

    def wrap(optimizer: Optimizer, model: nn.Module) -> Optimizer:
        return library.wrap_optimizer(optimizer, model)

    return Replicas(
        rank,
        ranks,
        library.device(),
        all_reduce(library, algorithm),
        broadcast,
        wrap if library.wraps_optimizers else None,
    )


def all_reduce(library: Backend, algorithm: str) -> Callable[[torch.Tensor], Performed]:
    """Return what sums a tensor over all ranks in place, and says how the back end performed it."""

    def add(tensor: torch.Tensor) -> Performed:
        group = library.group()
        return library.perform(
            Call(
                "all_reduce",
                tensor,
                tensor,
                dist.ReduceOp.SUM,
                None,
                group,
                algorithm,
            )
        )

    return add


def sum_in_one_buffer(
    tensors: Sequence[torch.Tensor], add: Callable[[torch.Tensor], object]
) -> list[torch.Tensor]:
    """Return the sums of tensors over all ranks, by one call of ``add`` on one buffer with all of them.

    >>> one, other = sum_in_one_buffer([torch.ones(2), torch.ones(1, 2)], lambda buffer: buffer.mul_(3))
    >>> one.tolist(), other.tolist()
    ([3.0, 3.0], [[3.0, 3.0]])
    """
    buffer = torch.cat([tensor.reshape(-1) for tensor in tensors])
    add(buffer)
    pieces = torch.split(buffer, [tensor.numel() for tensor in tensors])
    return [piece.view_as(tensor) for piece, tensor in zip(pieces, tensors, strict=True)]
