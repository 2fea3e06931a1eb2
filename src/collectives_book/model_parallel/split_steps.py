"""Training steps of one small model, divided in two ways: the batch (data parallel) or each block (tensor parallel)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import chain, islice
from math import sqrt

import torch
from torch import distributed as dist

from collectives.algorithms import build
from collectives.backends import backend
from collectives.core.schedule import cut
from collectives.core.traffic import traffic
from collectives.engine.call import Performed
from collectives_book.model_parallel.tensor_parallel import AllReduce, Block, block
from collectives_book.model_parallel.volume import ELEMENT, HIDDEN
from collectives_book.training.clock import now
from collectives_book.training.replicas import all_reduce as all_reduce_of
from collectives_book.training.replicas import sum_in_one_buffer

Tensors = list[torch.Tensor]


class MeteredAllReduce:
    """The all-reduce of a back end, as a function.

    It keeps what was asked for and how long the calls took.
    """

    def __init__(self, name: str, algorithm: str) -> None:
        self.backend = backend(name)
        self.sum = all_reduce_of(self.backend, algorithm)
        self.calls: list[tuple[Performed, int]] = []  # what was performed, and on how many elements
        self.seconds = 0.0

    def __call__(self, x: torch.Tensor) -> None:
        """Sum over all ranks, in place."""
        began = now()
        performed = self.sum(x)
        self.seconds += now() - began
        self.calls.append((performed, x.numel()))

    def bytes_sent(self, p: int) -> float | None:
        """Return the bytes that a rank has sent, averaged over the ranks: counted in the performed schedules.

        Returns None for a library's own algorithms, whose messages we do not know.
        """
        if not self.backend.takes_schedules:
            return None
        return ELEMENT * sum(_sent(p, did, n) for did, n in self.calls) / p


@cache
def _sent(p: int, did: Performed, n: int) -> int:
    return int(traffic(build("all_reduce", did.algorithm, p, segments=did.segments), n).sent.sum())


def model(width: int, blocks: int, device: torch.device) -> list[Block]:
    """Return the weights of all blocks, the same numbers on every rank."""
    source = torch.Generator().manual_seed(1)
    hidden = HIDDEN * width

    def weights(*shape: int) -> torch.Tensor:
        return (torch.randn(shape, generator=source) / sqrt(shape[0])).to(device).requires_grad_()

    return [
        Block(
            weights(width, hidden),
            weights(hidden),
            weights(hidden, width),
            weights(width),
        )
        for _ in range(blocks)
    ]


def samples(width: int, batch: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and targets, the same numbers on every rank."""
    source = torch.Generator().manual_seed(2)
    x, target = (torch.randn(batch, width, generator=source).to(device) for _ in range(2))
    return x, target


def through(
    x: torch.Tensor, blocks: Sequence[Block], all_reduce: AllReduce = lambda _: None
) -> torch.Tensor:
    """Return the output of the blocks, one after the other."""
    for part in blocks:
        x = block(x, part, all_reduce)
    return x


def loss(y: torch.Tensor, target: torch.Tensor, elements: int) -> torch.Tensor:
    """Return the squared error of some samples, as their share of the mean over a batch with ``elements``."""
    return torch.sum((y - target) ** 2) / elements


def data_step(
    x: torch.Tensor,
    target: torch.Tensor,
    whole: Sequence[Block],
    all_reduce: AllReduce,
) -> list[Tensors]:
    """Return the gradients of all weights, block by block: each rank has the whole model and a share of the batch.

    The gradients of a block are summed in one all-reduce. They add up to the batch's, because its
    loss is the sum of the shares' losses.
    """
    edges = cut(len(x), dist.get_world_size()).tolist()
    own = slice(edges[dist.get_rank()], edges[dist.get_rank() + 1])
    share = loss(through(x[own], whole), target[own], target.numel())
    return [sum_in_one_buffer(own, all_reduce) for own in _gradients(share, whole)]


def tensor_step(
    x: torch.Tensor,
    target: torch.Tensor,
    parts: Sequence[Block],
    all_reduce: AllReduce,
) -> list[Tensors]:
    """Return the gradients of this rank's parts of the blocks, and of ``x`` last: each rank has the whole batch.

    The gradient of ``x`` is what layers before these blocks would need.
    """
    x = x.detach().requires_grad_()
    return _gradients(loss(through(x, parts, all_reduce), target, target.numel()), [*parts, [x]])


def _gradients(error: torch.Tensor, weights: Sequence[Sequence[torch.Tensor]]) -> list[Tensors]:
    found = iter(torch.autograd.grad(error, list(chain(*weights))))
    return [list(islice(found, len(each))) for each in weights]


def gradients(part: Block) -> Tensors:
    """Return the gradients that backward passes have added up in a block's weights."""
    return [weight.grad for weight in part if weight.grad is not None]


def difference(ours: Sequence[Tensors], expected: Sequence[Tensors]) -> float:
    """Return the largest difference of two lists of gradients, as a share of the largest expected element."""
    pairs = zip(chain(*ours), chain(*expected), strict=True)
    filled = [(own, right) for own, right in pairs if right.numel()]
    largest = max((float(right.abs().max()) for _, right in filled), default=1.0)
    worst = max(float((own - right).abs().max()) for own, right in filled)
    return worst / largest
