"""Average the gradients of DistributedDataParallel by an algorithm of ours, in any process group."""

# No `from __future__ import annotations`: torch compares the hook's annotations with its own types.
from collections.abc import Callable

import torch
from torch import distributed as dist
from torch._C._distributed_c10d import GradBucket  # dist.GradBucket, which mypy does not find there

from collectives.api import all_reduce

Gradients = torch.futures.Future[torch.Tensor]


def hook(
    algorithm: str = "auto", segments: int | None = None
) -> Callable[[dist.ProcessGroup | None, GradBucket], Gradients]:
    """Return a hook for `torch.nn.parallel.DistributedDataParallel.register_comm_hook`.

    ::

        ddp.register_comm_hook(None, hook("two_tree"))

    The state is the process group, None for the default one: the model's own. Each bucket of
    gradients is averaged by `collectives.all_reduce`, in the background while the backward pass
    goes on: it equals ``for r in ranks: bucket[r][:] = sum(bucket) / p``. Over NCCL the current
    stream does it.

    A collective that fails raises RuntimeError in ``backward()``, which names the bucket. An
    algorithm that `collectives list` does not have raises ValueError there.
    """

    def average(state: dist.ProcessGroup | None, bucket: GradBucket) -> Gradients:
        gradients, which = bucket.buffer(), bucket.index()
        if gradients.is_cuda:
            all_reduce(gradients, dist.ReduceOp.AVG, state, algorithm=algorithm, segments=segments)
            return _done(gradients)
        work = all_reduce(
            gradients, dist.ReduceOp.AVG, state, True, algorithm=algorithm, segments=segments
        )
        if work is None:
            raise RuntimeError(
                f"bucket {which}: this process is not a member of the hook's process group"
            )
        return work.get_future().then(lambda future: _gradients(future, which))

    return average


def _gradients(future: torch.futures.Future[list[torch.Tensor]], which: int) -> torch.Tensor:
    try:
        return future.value()[0]
    except RuntimeError as error:
        raise RuntimeError(f"bucket {which}: {error}") from error


def _done(gradients: torch.Tensor) -> Gradients:
    """Return a future that waits for what the current stream of a GPU holds so far."""
    future: Gradients = torch.futures.Future(devices=[gradients.device])
    future.set_result(gradients)
    return future
