"""A parameter server: every gradient counts once, nobody is staler than the bound, and bound 0 is one process."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn.utils import parameters_to_vector

from collectives.launch import RankError, launch
from collectives_book.asynchronous.parameter_server import STOP, Server
from collectives_book.asynchronous.ranks import Gradient
from collectives_book.digits import digits, perceptron
from collectives_book.training.replicas import alone
from collectives_book.training.step import Training
from collectives_book.training.train import train as descent
from places import PATIENCE
from sweep import each

Compute = Callable[[int, torch.Tensor, int], torch.Tensor]

STEPS = 12


def train(server: Server, workers: int, gradient: Compute, seed: int) -> None:
    """Without processes: workers read and finish in an order that chance decides, some of them more often."""
    chance, computing = random.Random(seed), dict[int, tuple[int, torch.Tensor]]()
    waiting, weights = set(range(workers)), [1 + 9 * (worker % 2) for worker in range(workers)]
    while waiting or computing:
        for worker in sorted(waiting):
            if server.may_read(worker):
                waiting.discard(worker)
                step = server.read(worker)
                if step != STOP:
                    computing[worker] = step, server.parameters.clone()
        assert computing or not waiting, "all wait for each other"
        if computing:
            (worker,) = chance.choices(
                sorted(computing), [weights[each] for each in sorted(computing)]
            )
            step, seen = computing.pop(worker)
            server.subtract(worker, step, gradient(worker, seen, step))
            waiting.add(worker)


def distinct(worker: int, parameters: torch.Tensor, step: int) -> torch.Tensor:
    """A number for each worker and step that no sum of others equals by chance.

    Float64 has it exactly.
    """
    return torch.full_like(parameters, float(1 + worker + 16 * step * step))


def need_order(server: Server, workers: int, bound: int | None) -> None:
    """Each worker's steps are there once, and no reader was further ahead than the bound."""
    for worker in range(workers):
        steps = [update.step for update in server.updates if update.worker == worker]
        assert steps == list(range(len(steps)))
    assert len(server.updates) == workers * STEPS
    total = sum(1 + update.worker + 16 * update.step**2 for update in server.updates)
    assert server.parameters.tolist() == [-float(total)] * 3
    if bound is not None:
        assert max(update.staleness for update in server.updates) <= bound


@pytest.mark.parametrize("workers", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("bound", [0, 1, 3, None])
def test_every_gradient_counts_once_and_no_reader_is_staler_than_the_bound(
    workers: int, bound: int | None
) -> None:
    for seed in range(5):
        server = Server(
            torch.zeros(3, dtype=torch.float64), workers, workers * STEPS, bound, rate=1.0
        )
        train(server, workers, distinct, seed)
        need_order(server, workers, bound)


def test_a_stale_worker_uses_its_lead_and_an_asynchronous_one_passes_any_bound() -> None:
    largest = {}
    for bound in (3, None):
        server = Server(torch.zeros(3, dtype=torch.float64), 5, 5 * STEPS, bound, rate=1.0)
        train(server, 5, distinct, seed=1)
        largest[bound] = max(update.staleness for update in server.updates)
    assert largest[3] == 3
    assert largest[None] > 3


class Hasty(Server):
    """Lets everybody read at once, as if nobody had to wait."""

    def may_read(self, worker: int) -> bool:
        return True


class Twice(Server):
    """Counts one gradient again."""

    def subtract(self, worker: int, step: int, gradient: torch.Tensor) -> None:
        super().subtract(worker, step, gradient * (2 if (worker, step) == (1, 2) else 1))


@pytest.mark.parametrize("wrong", [Hasty, Twice])
def test_planted_faults_are_caught(wrong: type[Server]) -> None:
    server = wrong(torch.zeros(3, dtype=torch.float64), 3, 3 * STEPS, 2, rate=1.0)
    train(server, 3, distinct, seed=0)
    with pytest.raises(AssertionError):
        need_order(server, 3, bound=2)


def test_a_step_that_was_not_given_is_refused() -> None:
    server = Server(torch.zeros(1), workers=2, steps=4, bound=None, rate=1.0)
    with pytest.raises(ValueError, match="step of worker 1: got 0, expected none"):
        server.subtract(1, 0, torch.ones(1))
    server.read(1)
    with pytest.raises(ValueError, match="step of worker 1: got 2, expected 0"):
        server.subtract(1, 2, torch.ones(1))
    with pytest.raises(
        ValueError, match="synchronous steps: got 5, expected a multiple of 2 workers"
    ):
        Server(torch.zeros(1), workers=2, steps=5, bound=0, rate=1.0)


def one_process(batch: int, steps: int, rate: float) -> torch.Tensor:
    """The parameters after as many steps of plain gradient descent with whole batches."""
    model = descent(Training(steps, batch, rate, momentum=0.0), alone()).model
    return parameters_to_vector(model.parameters()).detach()


SETTINGS = {
    "backend": "gloo",
    "batch": 400,
    "compute": 0.0,
    "factor": 1,
    "slow_worker": 0,
    "rate": 0.25,
}


@pytest.mark.integration  # seconds
@pytest.mark.parametrize("workers", each([1, 3, 7], few=[7]))
def test_synchronous_workers_together_are_one_process_and_equal_to_the_bit_in_any_order(
    workers: int,
) -> None:
    """An epoch is three batches of 400 images and one of 300: parts are uneven."""
    (learned, _), steps = digits(), 9
    settings = SETTINGS | {"workers": workers}
    made = [Gradient(settings, worker, "nobody", learned) for worker in range(workers)]
    results = []
    for seed in (0, 1):
        start = parameters_to_vector(perceptron().parameters()).detach()
        server = Server(start, workers, workers * steps, bound=0, rate=0.25)
        train(
            server, workers, lambda worker, parameters, step: made[worker](parameters, step), seed
        )
        results.append(server.parameters)
    assert torch.equal(*results)
    torch.testing.assert_close(results[0], one_process(400, steps, 0.25), rtol=1e-4, atol=1e-6)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("leave", "RuntimeError: receiving step 1 of worker 1: Connection closed by peer"),
        ("mute", "RuntimeError: receiving step 1 of worker 1: got nothing within 4 s"),
        ("lie", "ValueError: step of worker 1: got 7, expected 1"),
    ],
)
def test_a_worker_that_fails_ends_the_run_and_is_named(
    how: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(RankError):
        launch("late_workers", {"how": how, "folder": str(tmp_path)}, 3, timeout=PATIENCE)
    server, worker = ((tmp_path / name).read_text() for name in "01")
    assert server.startswith(message)
    assert (
        worker
        == "RuntimeError: the server gave up, because worker 1 failed; its own error says how"
    )
