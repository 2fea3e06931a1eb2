"""Stochastic gradient descent with momentum, in the form of torch's optimizers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import torch


class Optimizer(Protocol):
    """What training needs of an optimizer; torch's have it, too."""

    def zero_grad(self) -> None:
        """Forget all gradients."""

    def step(self) -> Any:
        """Change every parameter by its gradient."""

    def state_dict(self) -> dict[str, Any]:
        """What the next steps depend on beside the parameters."""

    def load_state_dict(self, state: dict[str, Any]) -> Any:
        """Go on with what `state_dict` returned."""


class Momentum:
    """The steps of ``torch.optim.SGD``, whose import takes every rank as long as that of torch itself.

    In each step ``velocity = momentum * velocity + gradient`` and ``parameter -= rate * velocity``.

    >>> weight = torch.tensor([1.0], requires_grad=True)
    >>> optimizer = Momentum([weight], rate=0.1, momentum=0.5)
    >>> for _ in range(2):
    ...     weight.grad = torch.ones(1)
    ...     optimizer.step()
    >>> round(weight.item(), 6)  # 1 - 0.1 * 1 - 0.1 * 1.5
    0.75
    """

    def __init__(self, parameters: Iterable[torch.Tensor], rate: float, momentum: float) -> None:
        self.parameters, self.rate, self.momentum = list(parameters), rate, momentum
        self.velocities = [torch.zeros_like(parameter, requires_grad=False) for parameter in self.parameters]

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Change every parameter by its gradient and those of the steps before."""
        for parameter, velocity in zip(self.parameters, self.velocities, strict=True):
            if parameter.grad is not None:
                velocity.mul_(self.momentum).add_(parameter.grad)
                parameter.sub_(velocity, alpha=self.rate)

    def state_dict(self) -> dict[str, Any]:
        """The velocities."""
        return {"velocities": self.velocities}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with these velocities."""
        for velocity, saved in zip(self.velocities, state["velocities"], strict=True):
            velocity.copy_(saved)
