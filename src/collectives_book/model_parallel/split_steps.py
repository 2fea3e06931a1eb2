"""Training steps of one small model, divided in two ways: the batch (data parallel) or each block (tensor parallel)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache
from math import sqrt
from typing import cast

import torch
from torch import distributed as dist

from collectives.algorithms import build
from collectives.backends import Call, Performed, backend
from collectives.schedule import cut
from collectives.traffic import traffic
from collectives_book.model_parallel.tensor_parallel import AllReduce, Block, block, shard
from collectives_book.model_parallel.volume import HIDDEN

Tensors = list[torch.Tensor]


class MeteredAllReduce:
    """The all-reduce of a back end, as a function; it keeps what was asked for and how long the calls took."""

    def __init__(self, name: str, algorithm: str) -> None:
        self.backend, self.algorithm = backend(name), algorithm
        self.calls: list[tuple[Performed, int]] = []  # what was performed, and on how many elements
        self.seconds = 0.0

    def __call__(self, x: torch.Tensor) -> None:
        """Sum over all ranks, in place."""
        began = time.perf_counter()
        group = self.backend.group()
        did = self.backend.perform(Call("all_reduce", x, x, dist.ReduceOp.SUM, None, group, self.algorithm))
        if x.is_cuda:
            torch.cuda.synchronize()
        self.seconds += time.perf_counter() - began
        self.calls.append((did, x.numel()))

    def elements_sent(self, p: int) -> float | None:
        """Elements that a rank has sent, averaged over the ranks: counted in the schedules that were performed.

        None for a library's own algorithms, whose messages we do not know.
        """
        if not self.backend.takes_schedules:
            return None
        return sum(_sent(p, did, n) for did, n in self.calls) / p


@cache
def _sent(p: int, did: Performed, n: int) -> int:
    return int(traffic(build("all_reduce", did.algorithm, p, segments=did.segments), n).sent.sum())


def model(width: int, blocks: int, device: torch.device) -> list[Block]:
    """The weights of all blocks, the same numbers on every rank."""
    source, hidden = torch.Generator().manual_seed(1), HIDDEN * width

    def weights(*shape: int) -> torch.Tensor:
        return (torch.randn(shape, generator=source) / sqrt(shape[0])).to(device)

    return [
        Block(weights(width, hidden), weights(hidden), weights(hidden, width), weights(width)) for _ in range(blocks)
    ]


def samples(width: int, batch: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets, the same numbers on every rank."""
    source = torch.Generator().manual_seed(2)
    x, target = (torch.randn(batch, width, generator=source).to(device) for _ in range(2))
    return x, target


def through(x: torch.Tensor, blocks: Sequence[Block], all_reduce: AllReduce = lambda _: None) -> torch.Tensor:
    """The output of the blocks, one after the other."""
    for part in blocks:
        x = block(x, part, all_reduce)
    return x


def loss(y: torch.Tensor, target: torch.Tensor, elements: int) -> torch.Tensor:
    """The squared error of some samples, as their share of the mean over all ``elements`` of the batch's targets."""
    return torch.sum((y - target) ** 2) / elements


def data_step(x: torch.Tensor, target: torch.Tensor, whole: Sequence[Block], all_reduce: AllReduce) -> list[Tensors]:
    """Each rank has the whole model and a share of the batch; returns the gradients of all weights, block by block.

    The gradients of a block are summed in one all-reduce. They add up to the batch's, because its loss is the sum of
    the shares' losses.
    """
    replica = [shard(each, 0, 1) for each in whole]
    own = _own(len(x))
    loss(through(x[own], replica), target[own], target.numel()).backward()  # type: ignore[no-untyped-call]
    return [_summed(gradients(each), all_reduce) for each in replica]


def tensor_step(x: torch.Tensor, target: torch.Tensor, parts: Sequence[Block], all_reduce: AllReduce) -> list[Tensors]:
    """Each rank has a part of every block and the whole batch; returns the gradients of its parts, and of ``x`` last.

    The gradient of ``x`` is what layers before these blocks would need.
    """
    x = x.detach().clone().requires_grad_()
    loss(through(x, parts, all_reduce), target, target.numel()).backward()  # type: ignore[no-untyped-call]
    return [*(gradients(part) for part in parts), [cast(torch.Tensor, x.grad)]]


def forget(parts: Sequence[Block]) -> None:
    """Forget all gradients."""
    for part in parts:
        for weight in part:
            weight.grad = None


def difference(ours: Sequence[Tensors], expected: Sequence[Tensors]) -> float:
    """The largest difference of two lists of gradients, as a share of the largest expected element."""
    pairs = [pair for mine, theirs in zip(ours, expected, strict=True) for pair in zip(mine, theirs, strict=True)]
    largest = max((float(right.abs().max()) for _, right in pairs if right.numel()), default=1.0)
    return max(float((left - right).abs().max()) for left, right in pairs if right.numel()) / largest


def _own(batch: int) -> slice:
    edges = cut(batch, dist.get_world_size()).tolist()
    return slice(edges[dist.get_rank()], edges[dist.get_rank() + 1])


def gradients(part: Block) -> Tensors:
    """The gradients of a block's weights."""
    return [weight.grad for weight in part if weight.grad is not None]


def _summed(own: Tensors, all_reduce: AllReduce) -> Tensors:
    flat = torch.cat([gradient.reshape(-1) for gradient in own])
    all_reduce(flat)
    pieces = torch.split(flat, [gradient.numel() for gradient in own])
    return [piece.view_as(gradient) for piece, gradient in zip(pieces, own, strict=True)]
