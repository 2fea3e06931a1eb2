"""Tensor parallelism: x·W + b with W divided among ranks, by columns or by rows, after Megatron-LM.

Every rank holds all samples ``x`` and a part of W. Divided by columns, a rank computes its columns
of the result, and nothing travels forward; backward, the gradient of ``x`` is a sum over ranks.
Divided by rows, a rank knows only its columns of ``x``, and the result is a sum over ranks;
backward, nothing travels. By columns and then by rows, nothing has to be put together between the
two: a pair costs one all-reduce forward and one backward.

The sum is any function that adds a tensor over all ranks in place:

    all_reduce = functools.partial(collectives.all_reduce, algorithm="ring")
    y = block(x, shard(weights, rank, p), all_reduce)

Source: Shoeybi et al., "Megatron-LM", 2019, section 3; their f and g are `copied` and `summed`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch

from collectives.core.schedule import cut

# Sums a contiguous tensor over all ranks, in place; what it returns is not used.
AllReduce = Callable[[torch.Tensor], object]


class Block(NamedTuple):
    """The weights of relu(x·W₁ + b₁)·W₂ + b₂, or one rank's part of them.

    ``into`` is W₁ (width × hidden), ``out`` is W₂ (hidden × width). A rank's part has some of the
    hidden units: columns of W₁ and b₁, rows of W₂. Every rank has all of b₂.
    """

    into: torch.Tensor
    into_bias: torch.Tensor
    out: torch.Tensor
    out_bias: torch.Tensor


def shard(whole: Block, rank: int, p: int) -> Block:
    """Return one rank's part: a share of the hidden units, near-equal, the larger shares first.

    The parts are leaves.

    >>> whole = Block(torch.ones(2, 5), torch.ones(5), torch.ones(5, 2), torch.ones(2))
    >>> [tuple(shard(whole, rank, 3).into.shape) for rank in range(3)]
    [(2, 2), (2, 2), (2, 1)]
    """
    edges = cut(whole.into.shape[1], p).tolist()
    own = slice(edges[rank], edges[rank + 1])
    parts = whole.into[:, own], whole.into_bias[own], whole.out[own], whole.out_bias
    return Block(*(part.detach().clone().requires_grad_() for part in parts))


def block(x: torch.Tensor, part: Block, all_reduce: AllReduce) -> torch.Tensor:
    """Return relu(x·W₁ + b₁)·W₂ + b₂, of which this rank has a part.

    Every rank has all of ``x`` and of the result.

    It equals ``torch.relu(x @ W1 + b1) @ W2 + b2``, and so do the gradients of ``x``, of b₂ and of
    the rank's part. b₂ is added after the sum, once: inside it every rank would add its own. Cost:
    an all-reduce of the result, and one of the gradient of ``x`` if that is asked for.

    >>> whole = Block(torch.eye(2), torch.zeros(2), torch.eye(2), torch.ones(2))
    >>> block(torch.tensor([[3.0, -4.0]]), shard(whole, 0, 1), lambda _: None).tolist()
    [[4.0, 1.0]]
    """
    hidden = torch.relu(copied(x, all_reduce) @ part.into + part.into_bias)
    return summed(hidden @ part.out, all_reduce) + part.out_bias


def copied(x: torch.Tensor, all_reduce: AllReduce) -> torch.Tensor:
    """Return ``x``.

    Backward, its gradient is the sum of the ranks' gradients, because every rank has used ``x``.
    """
    return cast(torch.Tensor, _Copied.apply(x, all_reduce))  # type: ignore[no-untyped-call]


def summed(x: torch.Tensor, all_reduce: AllReduce) -> torch.Tensor:
    """Return the sum of the ranks' ``x``.

    Backward, each has the gradient of the sum, which all ranks know.
    """
    return cast(torch.Tensor, _Summed.apply(x, all_reduce))  # type: ignore[no-untyped-call]


class _Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, all_reduce: AllReduce) -> torch.Tensor:
        ctx.all_reduce = all_reduce
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _total(gradient, ctx.all_reduce), None


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, all_reduce: AllReduce) -> torch.Tensor:
        del ctx
        return _total(x, all_reduce)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        del ctx
        return gradient, None


def _total(x: torch.Tensor, all_reduce: AllReduce) -> torch.Tensor:
    """Return the sum in a tensor of its own, because others may still need ``x``."""
    total = x.detach().clone(memory_format=torch.contiguous_format)
    all_reduce(total)
    return total
