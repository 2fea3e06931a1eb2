"""Data parallelism by hand: every rank has a replica of the model, and one all-reduce a step keeps them equal.

Each replica computes the gradient of its shard of the batch. The sum over all replicas is the
gradient of the whole batch, so every replica takes the step that one process with the whole batch
would take.

A checkpoint is all that a run needs to resume, in one file that is complete or absent. Rank 0
writes it under another name and moves it to its place, so a rank that dies while it writes leaves
the last checkpoint as it was. Rank 0 reads it and sends its bytes to the others, which need no
common file system. They are loaded with torch's ``weights_only``, which builds tensors and plain
values and runs no code.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Optimizer

from collectives.backends import backend
from collectives.backends.horovod import started
from collectives.engine.call import Call
from collectives.files import replace
from collectives_book.digits import WIDTH, Samples, batches, digits, perceptron, shard

# A checkpoint's bytes travel as integers of this dtype, which every back end sends.
WORD = torch.int64


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


def over_horovod() -> Replicas:
    """Return a replica on every rank that horovodrun has started, or that meets in torch's default group."""
    hvd = started()

    def add(tensor: torch.Tensor) -> None:
        hvd.allreduce_(tensor, op=hvd.Sum)

    def copy(tensor: torch.Tensor) -> None:
        hvd.broadcast_(tensor, 0)

    return Replicas(hvd.rank(), hvd.size(), torch.device("cpu"), add, copy)


def joined(name: str, algorithm: str) -> tuple[Replicas, Step, Optimize]:
    """Return the replicas of a back end, how they take a step, and their optimizer."""
    if name == "horovod":
        return over_horovod(), horovod_step, horovod_optimizer
    return over(name, algorithm), step, descend


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
Optimize = Callable[[nn.Module, Training], Optimizer]


def step(state: State, batch: Samples, replicas: Replicas) -> float:
    """Take one step; returns the loss of the whole batch."""
    state.optimizer.zero_grad()
    loss = part_of_loss(state.model, batch, replicas)
    loss.backward()  # type: ignore[no-untyped-call]
    total = sum_gradients(state.model, loss, replicas)
    state.optimizer.step()
    return total


def part_of_loss(model: nn.Module, batch: Samples, replicas: Replicas) -> torch.Tensor:
    """Return the share of the batch's mean loss that this replica's shard has.

    A mean over the shard would give a sample of a small shard more weight.
    """
    size = len(batch.labels)
    mine = batch.take(shard(torch.arange(size), replicas.rank, replicas.ranks))
    return cross_entropy(model(mine.images), mine.labels, reduction="sum") / size


def sum_gradients(model: nn.Module, loss: torch.Tensor, replicas: Replicas) -> float:
    """Replace every gradient by its sum; returns the sum of the losses."""
    gradients = [each.grad for each in model.parameters() if each.grad is not None]
    flat = [gradient.view(-1) for gradient in gradients]
    buffer = torch.cat([*flat, loss.detach().view(1)])
    replicas.sum(buffer)
    start = 0
    for gradient in gradients:
        end = start + gradient.numel()
        gradient.copy_(buffer[start:end].view_as(gradient))
        start = end
    return float(buffer[-1])


def descend(model: nn.Module, training: Training) -> Optimizer:
    """The optimizer of a replica: descent with momentum."""
    return SGD(model.parameters(), lr=training.rate, momentum=training.momentum)


def horovod_optimizer(model: nn.Module, training: Training) -> Optimizer:
    """Return Horovod's optimizer around torch's.

    By default it averages, which is right for equal shards only: so it sums.
    """
    sgd, named = descend(model, training), model.named_parameters()
    wrapped: Optimizer = started().DistributedOptimizer(sgd, named, op=started().Sum)
    return wrapped


def horovod_step(state: State, batch: Samples, replicas: Replicas) -> float:
    """Take one step.

    The backward pass starts the sums of the gradients, and the optimizer waits for them.
    """
    hvd = started()
    state.optimizer.zero_grad()
    loss = part_of_loss(state.model, batch, replicas)
    loss.backward()  # type: ignore[no-untyped-call]
    total = hvd.allreduce_async(loss.detach(), op=hvd.Sum, name="loss")
    state.optimizer.step()
    return float(hvd.synchronize(total))


def train(
    training: Training,
    replicas: Replicas,
    take_step: Step = step,
    *,
    optimize: Optimize = descend,
    file: str | None = None,
    every: int = 10,
) -> State:
    """Train a replica; every rank calls it alike, and ends with the same model.

    With a ``file``, rank 0 writes a checkpoint whenever ``every`` steps are done, and after the
    last one. A run that finds one resumes from it, also on another number of ranks. ``optimize``
    makes the optimizer. Raises ValueError if the checkpoint was made with other parameters; only
    ``steps`` may differ.

    >>> losses = train(Training(steps=20), alone()).losses
    >>> losses[-1] < losses[0]
    True
    """
    learned = digits()[0].to(replicas.device)
    state = begin(training, replicas, optimize)
    if file:
        resume(state, training, replicas, file)
    first = len(state.losses)
    rest = batches(len(learned.labels), training.batch, training.seed, first)
    for done, which in enumerate(islice(rest, training.steps - first), first + 1):
        state.losses.append(take_step(state, learned.take(which), replicas))
        if file and replicas.rank == 0 and (done % every == 0 or done == training.steps):
            save(state, training, file)
    return state


def begin(training: Training, replicas: Replicas, optimize: Optimize) -> State:
    """A new replica, equal on every rank: rank 0's parameters are what all begin with."""
    model = perceptron(training.width, training.seed).to(replicas.device)
    for parameter in model.parameters():
        replicas.broadcast(parameter.data)
    return State(model, optimize(model, training), [])


def save(state: State, training: Training, file: str) -> None:
    """Write all that the next steps depend on: parameters, momentum, the steps so far and what is trained."""
    content = {"model": state.model.state_dict(), "optimizer": state.optimizer.state_dict()}
    write(file, content | {"losses": state.losses, "training": asdict(training)})


def write(path: str | Path, content: dict[str, Any]) -> None:
    """Write tensors and plain values to ``path``, over what was there.

    A reader sees the old file or the new one.
    """

    def put(partial: Path) -> None:
        # To a file on a full disk it raises what says nothing.
        torch.save(content, whole := io.BytesIO())
        with partial.open("wb") as file:
            file.write(whole.getbuffer())
            file.flush()
            os.fsync(file.fileno())  # the bytes are on the disk before the name is

    Path(path).parent.mkdir(parents=True, exist_ok=True)
    replace(Path(path), put)


def resume(state: State, training: Training, replicas: Replicas, file: str) -> None:
    """Resume from the file's checkpoint, if there is one.

    Only the number of steps may differ from its parameters.
    """
    found = load(file, replicas)
    if found is None:
        return
    for name, value in asdict(training).items():
        if name != "steps" and found["training"].get(name) != value:
            got = f"got {name}={found['training'].get(name)}, expected {name}={value}"
            raise ValueError(f"checkpoint {file} has other parameters: {got}")
    state.model.load_state_dict(found["model"])
    state.optimizer.load_state_dict(found["optimizer"])
    state.losses.extend(found["losses"])


def load(path: str | Path, replicas: Replicas) -> dict[str, Any] | None:
    """Return what rank 0 finds at ``path``, on every rank; None where there is no file.

    Every rank calls it.

    Raises ValueError, on every rank, for a file that is not a checkpoint.
    """
    is_here = replicas.rank == 0 and Path(path).exists()
    data = broadcast(Path(path).read_bytes() if is_here else b"", replicas)
    if not data:
        return None
    try:
        content: dict[str, Any] = torch.load(
            io.BytesIO(data), map_location=replicas.device, weights_only=True
        )
    except Exception as error:  # a damaged file fails in many ways
        raise ValueError(
            f"invalid checkpoint {path}: {' '.join(str(error).split())[:200]}"
        ) from None
    return content


def broadcast(data: bytes, replicas: Replicas) -> bytes:
    """Return the bytes of rank 0, on every rank: their number travels first, then the bytes, filled up to words."""
    size = torch.tensor([len(data)], dtype=WORD, device=replicas.device)
    replicas.broadcast(size)
    count = int(size)
    if not count:
        return b""
    words = -(-count // WORD.itemsize)
    buffer = torch.zeros(words, dtype=WORD)
    if replicas.rank == 0:
        buffer = torch.frombuffer(bytearray(data.ljust(words * WORD.itemsize, b"\0")), dtype=WORD)
    there = buffer.to(replicas.device)
    replicas.broadcast(there)
    return there.cpu().numpy().tobytes()[:count]
