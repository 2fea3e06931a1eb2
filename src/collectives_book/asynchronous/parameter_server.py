"""A parameter server: what it does with gradients, and when a worker may read the parameters.

A worker reads the parameters, computes the gradient of its next step from them, and the server
subtracts it. A worker may be at most ``bound`` steps ahead of the slowest one; if it is further
ahead, it waits. With a bound of 0 nobody begins a step before all gradients of the last one are in:
the workers are synchronous, and together they do what one process would do with the whole batch.
Without a bound no worker waits. In between are stale synchronous parallel updates (Ho et al.,
2013).

`push_pull` has the messages.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import torch

# In place of a step: there is no further one.
STOP = -1


class Update(NamedTuple):
    """A gradient that the server has subtracted.

    ``seconds`` count from the server's start. ``staleness`` is how many steps the worker was ahead
    of the slowest one when it was sent the parameters: it may lack that many steps of it. ``delay``
    counts the updates of others between.
    """

    worker: int
    step: int
    seconds: float
    staleness: int
    delay: int


class Server:
    """The parameters, and which worker may read them.

    ``updates`` has every gradient once, in the order of use.

    Workers count from 0 to ``workers - 1``. All of them together get ``steps`` steps, so that a
    fast worker may take some of a slow one's; a synchronous one never does, because ``steps`` is a
    multiple of ``workers``.

    >>> server = Server(torch.tensor([10.0]), workers=2, steps=4, bound=0, rate=1.0)
    >>> server.read(0), server.read(1)
    (0, 0)
    >>> server.subtract(0, 0, torch.tensor([2.0]))
    >>> server.may_read(0), server.parameters  # worker 1 is behind, and nothing is seen of worker 0's step yet
    (False, tensor([10.]))
    >>> server.subtract(1, 0, torch.tensor([3.0]))
    >>> server.may_read(0), server.parameters
    (True, tensor([5.]))
    """

    def __init__(
        self,
        parameters: torch.Tensor,
        workers: int,
        steps: int,
        bound: int | None,
        rate: float,
    ) -> None:
        if bound == 0 and steps % workers:
            raise ValueError(
                f"synchronous steps: got {steps}, expected a multiple of {workers} workers"
            )
        self.parameters, self.bound, self.rate = parameters, bound, rate
        self.updates: list[Update] = []
        self._left = steps
        self._began = time.monotonic()
        self._next = [0] * workers  # the step that each worker computes, or will compute next
        # What a worker that computes was sent: staleness, updates in it.
        self._seen: dict[int, tuple[int, int]] = {}
        self._arrived: dict[int, torch.Tensor] = {}

    def may_read(self, worker: int) -> bool:
        """Return True if the worker may go on: it is near the slowest, or no step is left."""
        return not self._left or self.bound is None or self._ahead(worker) <= self.bound

    def read(self, worker: int) -> int:
        """Return the step to compute with the parameters, which the worker is sent now.

        STOP if none is left.
        """
        if not self._left:
            return STOP
        self._left -= 1
        self._seen[worker] = self._ahead(worker), len(self.updates)
        return self._next[worker]

    def subtract(self, worker: int, step: int, gradient: torch.Tensor) -> None:
        """Take the gradient of the step that the worker was given.

        Raises ValueError for any other step.

        Synchronous workers' gradients are subtracted when all are here, in the order of the
        workers, so that the result is the same to the bit however the messages arrive.
        """
        if worker not in self._seen or step != self._next[worker]:
            expected = (
                self._next[worker] if worker in self._seen else "none, because it was given none"
            )
            raise ValueError(f"step of worker {worker}: got {step}, expected {expected}")
        self._next[worker] += 1
        self._arrived[worker] = gradient
        if self.bound == 0 and len(self._arrived) < len(self._next):
            return
        for each in sorted(self._arrived):
            self._apply(each, self._arrived.pop(each))

    def _apply(self, worker: int, gradient: torch.Tensor) -> None:
        staleness, seen = self._seen.pop(worker)
        # Those of one round count as one.
        delay = 0 if self.bound == 0 else len(self.updates) - seen
        self.parameters.add_(gradient, alpha=-self.rate)
        seconds = time.monotonic() - self._began
        self.updates.append(Update(worker, self._next[worker] - 1, seconds, staleness, delay))

    def _ahead(self, worker: int) -> int:
        return self._next[worker] - min(self._next)
