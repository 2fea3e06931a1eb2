"""What every rank does in the experiment ``data-parallel``: train with each back end, and report losses and times."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from itertools import chain, product

import torch
from torch import distributed as dist
from torch.nn.functional import cross_entropy

from collectives.backends import backend
from collectives.bench.report import gathered, report_rows
from collectives.bench.settings import Row
from collectives.statistics import interval_us, microseconds
from collectives_book.digits import Samples, accuracy, digits
from collectives_book.training.clock import slowest, timed
from collectives_book.training.replicas import Replicas, alone, over
from collectives_book.training.step import State, Step, Training, step
from collectives_book.training.train import train

# Cases that no back end joins: the same training in one process, and batch sizes with their
# learning rates.
ONE_PROCESS, RATES = "one process", "rates"
# Steps that no time is kept of: in the first ones connections and buffers are made.
WARMUPS = 3


def run(settings: Row, report: Callable[[Row], None]) -> None:
    """Train once for each back end and algorithm under "joined".

    `ONE_PROCESS` and `RATES` stand among them.
    """
    report_rows(settings, report, _rows(settings, report))


def _rows(settings: Row, report: Callable[[Row], None]) -> Iterator[list[Row]]:
    training = Training(**settings["training"])
    device = backend(settings["backends"][0]).device()
    for name, algorithm in settings["joined"]:
        if name == RATES:
            yield rates(**settings["rates"], device=device)
        elif name == ONE_PROCESS:
            yield [one_process(training, device)]
        else:
            yield [replicated(training, name, algorithm, settings, report)]


def one_process(training: Training, device: torch.device) -> Row:
    """The same training in one process, on rank 0 while the others wait."""
    times: list[float] = []
    row: Row = {}
    if dist.get_rank() == 0:
        state = train(training, alone(device), timed(step, times))
        row = summary(ONE_PROCESS, training, state, times) | {
            "backend": ONE_PROCESS,
            "ranks": 1,
        }
    dist.barrier()
    return row


def replicated(
    training: Training,
    name: str,
    algorithm: str,
    settings: Row,
    report: Callable[[Row], None],
) -> Row:
    """A replica on every rank, joined by this back end."""
    steps: list[float] = []
    sums: list[float] = []
    replicas = over(name, algorithm)
    take_step: Step = step
    killed_at = settings.get("killed_at")
    if killed_at:
        take_step = with_injected_kill(step, killed_at, report)
    state = train(
        training,
        replicas._replace(sum=timed(replicas.sum, sums)),
        timed(take_step, steps),
        file=settings.get("file"),
        every=settings.get("every", 1),
    )
    row = summary(algorithm, training, state, slowest(steps))
    # On a GPU a call returns before it is done, and a library's own optimizer sums elsewhere.
    if sums and replicas.device.type == "cpu" and replicas.wrap is None:
        row["reduce_us"] = interval_us(slowest(sums)[WARMUPS:])["median_us"]
    return row | {
        "backend": name,
        "ranks": replicas.ranks,
        "where": settings["where"],
    }


def with_injected_kill(take_step: Step, at: int, report: Callable[[Row], None]) -> Step:
    """The same step.

    But the last rank is killed in step ``at``, after its backward pass and before the sum.
    """

    def one(state: State, batch: Samples, replicas: Replicas) -> float:
        if len(state.losses) + 1 == at:
            report({"killed_at": at, "losses": state.losses})
            if replicas.rank == replicas.ranks - 1:
                os.kill(os.getpid(), signal.SIGKILL)
        return take_step(state, batch, replicas)

    return one


def summary(algorithm: str, training: Training, state: State, seconds: list[float]) -> Row:
    """A row: what was trained, all losses, and the time of a step."""
    parameters = sum(parameter.numel() for parameter in state.model.parameters())
    row: Row = {
        "part": "training",
        "algorithm": algorithm,
        "batch": training.batch,
        "steps": training.steps,
    }
    row |= {
        "parameters": parameters,
        "bytes": 4 * (parameters + 1),
        "losses": state.losses,
    }
    kept = seconds[WARMUPS:]
    if kept:
        row |= {"samples": microseconds(kept), **interval_us(kept)}
    return row


def rates(
    batches: list[int], rate: float, epochs: int, seeds: int, device: torch.device
) -> list[Row]:
    """Train on batches of several sizes, at the same rate and at one that grows with the batch.

    Every rank some.

    One process trains for each, because p replicas take the same steps.
    """
    wanted = list(product(batches, ("same", "linear"), range(seeds)))
    own = wanted[dist.get_rank() :: dist.get_world_size()]
    mine = list(tried(own, batches[0], rate, epochs, device))
    return list(chain(*gathered(mine)))


def tried(
    wanted: list[tuple[int, str, int]],
    base: int,
    rate: float,
    epochs: int,
    device: torch.device,
) -> Iterator[Row]:
    """A row for each training: how well the model reads the digits it has learned from, and the others."""
    learned, tested = (samples.to(device) for samples in digits())
    for size, rule, seed in wanted:
        scaled = rate * size / base if rule == "linear" else rate
        steps = epochs * -(-len(learned.labels) // size)
        state = train(Training(steps=steps, batch=size, rate=scaled, seed=seed), alone(device))
        with torch.no_grad():
            loss = float(cross_entropy(state.model(learned.images), learned.labels))
        row = {
            "part": "rates",
            "batch": size,
            "rule": rule,
            "seed": seed,
            "rate": scaled,
            "steps": steps,
        }
        yield row | {"loss": loss, "accuracy": accuracy(state.model, tested)}
