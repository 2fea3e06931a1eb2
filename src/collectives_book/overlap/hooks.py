"""A communication hook that lets others do its work, one of several at a time, and notes when each bucket was reduced.

hook = RecordingHook({"ring": collectives.torch_backend.hook("ring")})
ddp.register_comm_hook(None, hook.reduce)   # DistributedDataParallel takes one hook, and only once
hook.use("ring")                            # or NOTHING, for a step without communication
"""

# No `from __future__ import annotations`: torch compares the hook's annotations with its own types.
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # public, but not in the package's list
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from collectives.backends import Backend
from collectives.torch_backend.comm_hook import hook

Hook = Callable[[Any, GradBucket], torch.futures.Future[torch.Tensor]]

NOTHING = "nothing"  # no communication: gradients stay what this rank has computed


@dataclass
class Reduced:
    """One bucket's all-reduce: its bytes, when the bucket was ready, and when the result was there."""

    nth: int
    bytes: int
    ready: float
    done: float | None = None


class RecordingHook:
    """`reduce` is the hook.

    ``buckets`` are those of the last step on a CPU, in the order in which they were ready.
    """

    def __init__(
        self, hooks: Mapping[str, Hook], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.hooks = {NOTHING: noop_hook} | dict(hooks)
        self.clock = clock
        self.use(NOTHING)

    def use(self, name: str) -> None:
        """Begin a step whose buckets go to this hook."""
        self._hook = self.hooks[name]
        self.buckets: list[Reduced] = []

    def reduce(self, state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Hand on a bucket."""
        del state
        # A GPU has not computed what its rank has called for, so times would say nothing.
        if bucket.buffer().is_cuda:
            return self._hook(None, bucket)
        buffer = bucket.buffer()
        note = Reduced(bucket.index(), buffer.numel() * buffer.element_size(), self.clock())
        self.buckets.append(note)

        def done(future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
            note.done = self.clock()
            return future.value()

        return self._hook(None, bucket).then(done)


def hook_of(library: Backend, algorithm: str) -> Hook:
    """The hook that averages a bucket by this back end: by an algorithm of ours, or as torch's group does it."""
    group = library.group()
    if library.takes_schedules:
        ours = hook(algorithm)
        return lambda _, bucket: ours(group, bucket)
    return lambda _, bucket: allreduce_hook(group, bucket)  # type: ignore[arg-type]  # None is the default group
