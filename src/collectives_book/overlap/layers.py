"""A stack of linear layers that stands in for a network: its gradients are real, its computing may be waiting.

On a machine with fewer cores than ranks, ranks that compute would slow each other down, and
communication with them. Ranks that wait do neither. GPUs compute without the cores, so waiting is
nearer to them than computing here would be.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn

# A backward pass has two matrix products for each one of the forward pass: by the input, and by the
# weights.
FORWARD = 1 / 3
BACKWARD = 2 / 3

Clock = Callable[[], float]


class Stack(nn.Module):
    """Layers of ``widths[i]`` to ``widths[i + 1]`` numbers, each of which also waits for ``seconds`` in all.

    ``marks`` are the times of ``clock`` at which the last step began, passed from layer to layer,
    forward and then backward, and ended: 2 * (layers + 1) of them. A layer's gradient is complete
    when its waiting is over.
    """

    def __init__(
        self,
        widths: Sequence[int],
        seconds: float = 0.0,
        clock: Clock = time.monotonic,
    ) -> None:
        super().__init__()
        pairs = pairwise(widths)
        self.layers = nn.ModuleList(nn.Linear(before, after, bias=False) for before, after in pairs)
        self.seconds, self.clock = seconds, clock
        self.marks: list[float] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The last layer's output."""
        self.marks.clear()
        x = self._boundary(x, 0.0)
        for layer in self.layers:
            x = self._boundary(layer(x), self.seconds)
        return x

    def _boundary(self, x: torch.Tensor, seconds: float) -> torch.Tensor:
        passed: torch.Tensor = _Boundary.apply(x, self, seconds)  # type: ignore[no-untyped-call]
        return passed


class _Boundary(torch.autograd.Function):
    """The identity after a layer: waits for the layer's forward pass and, on the way back, for its backward pass."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, stack: Stack, seconds: float) -> torch.Tensor:
        """Wait, then note the time."""
        ctx.stack, ctx.seconds = stack, seconds
        _wait(FORWARD * seconds)
        stack.marks.append(stack.clock())
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """Note the time, then wait: the layer before this point computes its gradient next."""
        ctx.stack.marks.append(ctx.stack.clock())
        _wait(BACKWARD * ctx.seconds)
        return gradients[0], None, None


def _wait(seconds: float) -> None:
    if seconds:
        time.sleep(seconds)


def widths_of(layers: int, nbytes: int) -> list[int]:
    """Widths of equal layers whose float32 gradients have about ``nbytes`` bytes together.

    >>> widths_of(2, 8000)
    [32, 32, 32]
    """
    width = max(1, round((nbytes / 4 / layers) ** 0.5))
    return [width] * (layers + 1)
