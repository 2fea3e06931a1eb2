"""The network that you train, and its batches.

You need not edit this file; the grader uses its own copy.

Every layer asks the simulated machine to compute it, so the rank's clock goes on. In the backward
pass it does so just before the gradients of its parameters appear.
"""

from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import nn


class Batch(NamedTuple):
    """A rank's samples of one batch: a row of ``x`` and of ``y`` for each. It may have none.

    ``samples`` is the size of the whole batch, over all ranks; ``skip`` are the layers that this
    rank skips.
    """

    x: torch.Tensor
    y: torch.Tensor
    samples: int
    skip: tuple[int, ...] = ()


class Network(nn.Module):
    """Linear layers with tanh between them, in float64.

    A layer in ``frozen`` is not trained: its parameters have requires_grad False. A pair (i, j) in
    ``tied`` makes layer i use the weight and the bias of layer j.
    """

    def __init__(self, comm, widths, parameters, frozen=(), tied=()):
        super().__init__()
        self.comm = comm
        self.layers = nn.ModuleList(
            nn.Linear(*each, dtype=torch.float64) for each in pairwise(widths)
        )
        for i, j in tied:
            self.layers[i].weight, self.layers[i].bias = self.layers[j].weight, self.layers[j].bias
        for parameter, values in zip(self.parameters(), parameters, strict=True):
            parameter.data = torch.tensor(values)
        for layer in frozen:
            self.layers[layer].requires_grad_(False)

    def forward(self, x, skip=()):
        """The last layer's output, without the layers in ``skip``."""
        x = x.detach().requires_grad_()
        last = len(self.layers) - 1
        for number, layer in enumerate(self.layers):
            if number not in skip:
                x = _Computed.apply(layer(x), self.comm, number)
                x = x if number == last else torch.tanh(x)
        return x

    def loss(self, batch):
        """The *sum* of the losses of this rank's samples."""
        return ((self(batch.x, batch.skip) - batch.y) ** 2).sum() / 2

    def numbers(self):
        """The parameters' values, as arrays."""
        return [parameter.detach().numpy().copy() for parameter in self.parameters()]


class _Computed(torch.autograd.Function):
    """The identity after a layer: the machine computes the layer, forward and on the way back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, comm: Any, layer: int) -> torch.Tensor:
        ctx.comm, ctx.layer = comm, layer
        comm.compute(layer, "forward")
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return gradients[0] * ctx.comm.compute(ctx.layer, "backward"), None, None
