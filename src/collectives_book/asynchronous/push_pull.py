"""Push and pull: a parameter server and its workers as ranks, which send each other gradients and parameters.

The server (rank 0) sends a worker the parameters, the worker computes the gradient of its next step
and sends it back. A message has one number more than the parameters, the step. It travels by gloo,
straight between two ranks, and every wait for one has a limit.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import NamedTuple

import torch
from torch import distributed as dist

from collectives_book.asynchronous.parameter_server import STOP, Server

SERVER = 0
# This or less in place of a step: the server gave up because of a worker.
GAVE_UP = STOP - 1
NOTICE_SECONDS = 1.0
# How often the server looks whether a worker is late.
NAP_SECONDS = 0.1


class _Shared(NamedTuple):
    """Everything that the threads of `serve` have in common."""

    server: Server
    seconds: float
    on_update: Callable[[], None]
    changed: threading.Condition
    # Of a worker that computes: its step, and until when it has to come.
    awaited: dict[int, tuple[int, float]]
    outcomes: SimpleQueue[tuple[int, Exception | None]]


def serve(server: Server, seconds: float, on_update: Callable[[], None] = lambda: None) -> None:
    """Serve, as rank 0, all other ranks until no step is left.

    Worker w is rank w + 1, and has a thread.

    ``on_update`` is called after each gradient, while the parameters stay as they are. Raises
    RuntimeError, naming the worker, if one dies or sends nothing for ``seconds``, and ValueError if
    one sends a wrong step. The other workers are told, and end with an error, too. The process
    group cannot be used afterwards.
    """
    shared = _Shared(server, seconds, on_update, threading.Condition(), {}, SimpleQueue())
    workers = range(dist.get_world_size() - 1)
    for worker in workers:
        threading.Thread(target=_serve_one, args=(shared, worker), daemon=True).start()
    for _ in workers:
        worker, error = _outcome(shared)
        if error:
            _give_up(server, worker)
            raise error


def _outcome(shared: _Shared) -> tuple[int, Exception | None]:
    """Return the next worker that is done, failed or late.

    A wait of gloo's own would close all connections when it is over.
    """
    while True:
        with suppress(Empty):
            return shared.outcomes.get(timeout=NAP_SECONDS)
        for worker, (step, until) in list(shared.awaited.items()):
            if time.monotonic() > until:
                return worker, RuntimeError(
                    f"receiving step {step} of worker {worker}: got nothing within {shared.seconds:g} s"
                )


def _serve_one(shared: _Shared, worker: int) -> None:
    outcome = None
    try:
        while _serve_step(shared, worker):
            pass
    except Exception as error:
        outcome = error
    shared.outcomes.put((worker, outcome))


def _serve_step(shared: _Shared, worker: int) -> bool:
    """Send a worker the parameters when it may read them, and take its gradient.

    False if there is no step left.
    """
    server = shared.server
    seconds = 2 * shared.seconds  # a slower worker is late before this
    with shared.changed:
        if not shared.changed.wait_for(lambda: server.may_read(worker), seconds):
            raise RuntimeError(
                f"worker {worker} waited for slower ones: got no turn within {seconds:g} s"
            )
        step = server.read(worker)
        message = _message(server.parameters, step)
    if step == STOP:
        _finish(dist.isend(message, worker + 1), f"sending to worker {worker}", seconds)
        return False
    gradient = torch.empty_like(message)
    shared.awaited[worker] = step, time.monotonic() + shared.seconds
    # Asked for before the worker can send it, so that it comes at once.
    coming = dist.irecv(gradient, worker + 1)
    _finish(
        dist.isend(message, worker + 1),
        f"sending step {step} to worker {worker}",
        seconds,
    )
    _finish(coming, f"receiving step {step} of worker {worker}", seconds)
    del shared.awaited[worker]
    with shared.changed:
        server.subtract(worker, int(gradient[-1]), gradient[:-1])
        shared.on_update()
        shared.changed.notify_all()
    return True


def _give_up(server: Server, failed: int) -> None:
    """Tell all other workers which one has failed; each has a moment to hear it."""
    for worker in range(dist.get_world_size() - 1):
        if worker != failed:
            with suppress(RuntimeError):  # it has failed, too
                notice = dist.isend(_message(server.parameters, GAVE_UP - failed), worker + 1)
                _finish(notice, f"sending to worker {worker}", NOTICE_SECONDS)


def work(
    gradient: Callable[[torch.Tensor, int], torch.Tensor],
    count: int,
    seconds: float,
) -> int:
    """Compute, as any other rank, ``gradient(parameters, step)`` of ``count`` numbers until the server says stop.

    Returns the number of steps. Raises RuntimeError if the server or another worker fails, or if
    the server sends nothing for twice ``seconds``, because the server may wait for a slower worker.
    """
    patience = 2 * seconds + NOTICE_SECONDS
    message = torch.empty(count + 1)  # the parameters, and the step or what stands in its place
    steps_done = 0
    coming = dist.irecv(message, SERVER)
    while True:
        _finish(coming, "receiving parameters from the server", patience)
        step = int(message[-1])
        if step <= GAVE_UP:
            worker = GAVE_UP - step
            raise RuntimeError(
                f"the server gave up, because worker {worker} failed; its own error says how"
            )
        if step == STOP:
            return steps_done
        answer = _message(gradient(message[:-1], step), step)
        # The answer is a copy, so the next parameters may overwrite these.
        coming = dist.irecv(message, SERVER)
        _finish(
            dist.isend(answer, SERVER),
            f"sending step {step} to the server",
            patience,
        )
        steps_done += 1


def _message(numbers: torch.Tensor, step: int) -> torch.Tensor:
    """Return the numbers and the step; a float counts exactly to 2^24."""
    return torch.cat([numbers, torch.tensor([float(step)])])


def _finish(pending: dist.Work | None, what: str, seconds: float) -> None:
    """Wait until a message has arrived or left."""
    if pending is None:
        raise RuntimeError(f"{what}: this rank is not a member of the process group")
    try:
        pending.wait(timedelta(seconds=seconds))
    except RuntimeError as error:
        # Without gloo's file and advice.
        reason = re.sub(r"^\[.*?\] ", "", str(error)).partition(". ")[0]
        raise RuntimeError(f"{what}: {reason}") from error
