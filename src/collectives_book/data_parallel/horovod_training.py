"""The same training with Horovod: its optimizer sums each gradient as soon as backward has computed it."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import Optimizer

from collectives.backends.horovod import started
from collectives_book.data_parallel.training import Replicas, State, Training, descend, part_of_loss
from collectives_book.digits import Samples


def replicas() -> Replicas:
    """A replica on every rank that horovodrun has started, or that meets in torch's default group."""
    hvd = started()

    def add(tensor: torch.Tensor) -> None:
        hvd.allreduce_(tensor, op=hvd.Sum)

    def copy(tensor: torch.Tensor) -> None:
        hvd.broadcast_(tensor, 0)

    return Replicas(hvd.rank(), hvd.size(), torch.device("cpu"), add, copy)


def optimize(model: nn.Module, training: Training) -> Optimizer:
    """Horovod's optimizer around torch's. By default it averages, which is right for equal shards only: so it sums."""
    sgd, named = descend(model, training), model.named_parameters()
    wrapped: Optimizer = started().DistributedOptimizer(sgd, named, op=started().Sum)
    return wrapped


def step(state: State, batch: Samples, replicas: Replicas) -> float:
    """`data_parallel.step`, without a call that sums gradients: backward starts it, and the optimizer waits for it."""
    hvd = started()
    state.optimizer.zero_grad()
    loss = part_of_loss(state.model, batch, replicas)
    loss.backward()  # type: ignore[no-untyped-call]
    total = hvd.allreduce_async(loss.detach(), op=hvd.Sum, name="loss")
    state.optimizer.step()
    return float(hvd.synchronize(total))
