"""A training step of a replica: the gradient of its share of the batch, the sum over replicas, the descent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Optimizer

from collectives_book.digits import WIDTH, Samples, perceptron, shard
from collectives_book.training.replicas import Replicas, sum_in_one_buffer


@dataclass(frozen=True)
class Training:
    """The length of a training, its batches and its learning rate."""

    steps: int = 50
    batch: int = 128
    rate: float = 0.1
    momentum: float = 0.9
    width: int = WIDTH
    seed: int = 0


@dataclass(frozen=True)
class State:
    """A replica: its model, its optimizer, and the loss of every step so far."""

    model: nn.Module
    optimizer: Optimizer
    losses: list[float]


Step = Callable[[State, Samples, Replicas], float]


def begin(training: Training, replicas: Replicas) -> State:
    """Return a new replica, equal on every rank: rank 0's parameters are what all begin with."""
    model = perceptron(training.width, training.seed).to(replicas.device)
    for parameter in model.parameters():
        replicas.broadcast(parameter.data)
    optimizer: Optimizer = SGD(model.parameters(), lr=training.rate, momentum=training.momentum)
    if replicas.wrap is not None:
        optimizer = replicas.wrap(optimizer, model)
    return State(model, optimizer, [])


def step(state: State, batch: Samples, replicas: Replicas) -> float:
    """Take one step; returns the loss of the whole batch."""
    state.optimizer.zero_grad()
    loss = part_of_loss(state.model, batch, replicas.rank, replicas.ranks)
    loss.backward()  # type: ignore[no-untyped-call]
    total = sum_gradients(state.model, loss, replicas)
    state.optimizer.step()
    return total


def part_of_loss(model: nn.Module, batch: Samples, rank: int, ranks: int) -> torch.Tensor:
    """Return the share of the batch's mean loss that a rank's shard has.

    A mean over the shard would give a sample of a small shard more weight.
    """
    size = len(batch.labels)
    mine = batch.take(shard(torch.arange(size), rank, ranks))
    return cross_entropy(model(mine.images), mine.labels, reduction="sum") / size


def sum_gradients(model: nn.Module, loss: torch.Tensor, replicas: Replicas) -> float:
    """Replace every gradient by its sum; returns the sum of the losses.

    The library's own optimizer has begun to sum gradients in the backward pass. Then only the loss
    is left.
    """
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    if replicas.wrap is not None:
        gradients = []
    *sums, total = sum_in_one_buffer([*gradients, loss.detach()], replicas.sum)
    for gradient, summed in zip(gradients, sums, strict=True):
        gradient.copy_(summed)
    return float(total)
