"""The task of every rank that trains in step and out of step: a parameter server with three bounds, and an all-reduce.

Rank 0 is the server, rank w + 1 is worker w. Every run begins with the same model and takes the
same batches. A worker computes its gradient for real and then waits until ``compute`` seconds are
over, as for a larger model. One that is slow does both ``factor`` times.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from collectives.backends import backend
from collectives.bench.report import report_rows
from collectives.bench.settings import Row
from collectives_book.asynchronous.parameter_server import Server, Update
from collectives_book.asynchronous.push_pull import serve, work
from collectives_book.digits import Samples, accuracy, batches, digits, perceptron
from collectives_book.training.clock import at_least
from collectives_book.training.replicas import over
from collectives_book.training.step import part_of_loss

ALL_REDUCE = "all_reduce"


class TrainingRun(NamedTuple):
    """The result of a run, on rank 0: its updates, and the parameters after each round, an update for each worker."""

    updates: list[Update]
    snapshots: list[torch.Tensor]


def run(settings: Row, report: Callable[[Row], None]) -> None:
    """Train once for each repetition, slowness and mode under "cases".

    Rank 0 reports the environment and their rows.

    The event "slow" comes before the run it holds for. With `cluster.launch_on` the report returns
    when the launcher has set the links.
    """
    launched = {"where": settings["where"], "backends": [settings["backend"]]}
    report_rows(launched, report, _rows(settings, report))


def _rows(settings: Row, report: Callable[[Row], None]) -> Iterator[list[Row]]:
    """Train each case, and return its row; none on ranks other than the server's."""
    learned, tested = digits()
    for repetition, slow, mode in settings["cases"]:
        report({"slow": slow})
        dist.barrier()  # no worker begins before the links are set
        trained = _train(settings, mode, slow, learned)
        row = {"mode": mode, "slow": slow, "repetition": repetition}
        yield [row | _row(trained, learned, tested)] if trained else []


def _train(settings: Row, mode: str, slow: str, learned: Samples) -> TrainingRun | None:
    """Train once; return None on ranks other than the server's."""
    start = parameters_to_vector(perceptron().parameters()).detach()
    worker = dist.get_rank() - 1
    gradient = Gradient(settings, worker, slow, learned)
    if mode == ALL_REDUCE:
        return _by_all_reduce(settings, gradient, start)
    if worker >= 0:
        work(gradient, start.numel(), settings["limit"])
        return None
    bound = {"synchronous": 0, "stale": settings["bound"], "asynchronous": None}[mode]
    server = Server(
        start,
        settings["workers"],
        settings["workers"] * settings["steps"],
        bound,
        settings["rate"],
    )
    snapshots = [start.clone()]

    def keep() -> None:
        if len(server.updates) == len(snapshots) * settings["workers"]:
            snapshots.append(server.parameters.clone())

    serve(server, settings["limit"], keep)
    return TrainingRun(server.updates, snapshots)


class Gradient:
    """The gradient of a worker's share of a step's batch, as a function of the parameters.

    It takes its time.

    The sum over the shares of all workers is the gradient of the mean loss of the batch.
    """

    def __init__(self, settings: Row, worker: int, slow: str, learned: Samples) -> None:
        self.settings, self.worker, self.slow = settings, worker, slow
        self.device = backend(settings["backend"]).device()
        self.model = perceptron().to(self.device)
        self.learned = learned.to(self.device)

    def __call__(self, parameters: torch.Tensor, step: int) -> torch.Tensor:
        """Return the worker's part of the gradient at these parameters, on the CPU, when its time is over."""
        for _ in range(times(self.settings, self.worker, self.slow, step)):
            with at_least(self.settings["compute"]):
                gradient = self._compute(parameters.to(self.device), step).cpu()
        return gradient

    def _compute(self, parameters: torch.Tensor, step: int) -> torch.Tensor:
        which = next(batches(len(self.learned.labels), self.settings["batch"], first=step))
        vector_to_parameters(parameters, self.model.parameters())
        batch = self.learned.take(which)
        workers = self.settings["workers"]
        loss = part_of_loss(self.model, batch, self.worker, workers)
        return parameters_to_vector(torch.autograd.grad(loss, list(self.model.parameters())))


def times(settings: Row, worker: int, slow: str, step: int) -> int:
    """Return the number of times that a worker computes a step: more than once if it is slow.

    With "compute" one worker is always slow. With "turns" each is slow in one of ``workers`` steps
    on average, by chance, but in the same steps in every run: as many slow steps as with "compute",
    spread over all.
    """
    chance = np.random.default_rng([worker, step]).random() if slow == "turns" else 1.0
    is_slow = chance < 1 / settings["workers"] or (
        slow == "compute" and worker == settings["slow_worker"]
    )
    return int(settings["factor"]) if is_slow else 1


def _by_all_reduce(
    settings: Row, gradient: Gradient, parameters: torch.Tensor
) -> TrainingRun | None:
    """Train with the parameters on every worker: an all-reduce sums the gradients.

    Rank 0 adds zeros, and watches.
    """
    replicas = over(settings["backend"], settings["algorithm"])
    watches = gradient.worker < 0
    began = time.monotonic()
    trained = TrainingRun([], [parameters.clone()])
    for step in range(settings["steps"]):
        own = torch.zeros_like(parameters) if watches else gradient(parameters, step)
        total = own.to(replicas.device)
        replicas.sum(total)
        parameters.add_(total.cpu(), alpha=-settings["rate"])
        if watches:
            now = time.monotonic() - began
            for worker in range(settings["workers"]):
                trained.updates.append(Update(worker, step, now, 0, 0))
            trained.snapshots.append(parameters.clone())
    return trained if watches else None


def _row(trained: TrainingRun, learned: Samples, tested: Samples) -> Row:
    """Return the row of a run.

    Losses are those of all samples to learn from, after each round of updates.
    """
    updates = trained.updates
    model = perceptron()
    losses = []
    for parameters in trained.snapshots:
        vector_to_parameters(parameters, model.parameters())
        with torch.no_grad():
            losses.append(round(cross_entropy(model(learned.images), learned.labels).item(), 6))
    by_worker = np.bincount([update.worker for update in updates]).tolist()
    return {
        "updates": len(updates),
        "seconds": round(updates[-1].seconds, 6),
        # How often each value occurs, from 0 to the largest.
        "staleness": np.bincount([update.staleness for update in updates]).tolist(),
        "delay": np.bincount([update.delay for update in updates]).tolist(),
        "by_worker": by_worker,
        "at": [
            0.0,
            *(round(update.seconds, 6) for update in updates[len(by_worker) - 1 :: len(by_worker)]),
        ],
        "losses": losses,
        "accuracy": accuracy(model, tested),
        "digest": hashlib.sha256(trained.snapshots[-1].numpy().tobytes()).hexdigest()[:16],
    }
