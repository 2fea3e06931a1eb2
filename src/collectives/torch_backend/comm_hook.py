"""Average the gradients of DistributedDataParallel by an algorithm of ours, in any process group."""

# No `from __future__ import annotations`: torch compares the hook's annotations with its own types.
from collections.abc import Callable

import torch
from torch import distributed as dist
from torch._C._distributed_c10d import GradBucket  # dist.GradBucket, which mypy does not find there

from collectives.api import all_reduce
from collectives.codecs import split
from collectives.engine.codec import rounded

Gradients = torch.futures.Future[torch.Tensor]


def hook(
    algorithm: str = "auto", segments: int | None = None, *, error_feedback: bool = False
) -> Callable[[dist.ProcessGroup | None, GradBucket], Gradients]:
    """Return a hook for `torch.nn.parallel.DistributedDataParallel.register_comm_hook`.

    ::

        ddp.register_comm_hook(None, hook("two_tree"))
        ddp.register_comm_hook(None, hook("two_shot/mxfp4", error_feedback=True))

    The state is the process group, None for the default one: the model's own. Each bucket of
    gradients is averaged by `collectives.all_reduce`, in the background while the backward pass
    goes on: it equals ``for r in ranks: bucket[r][:] = sum(bucket) / p``. Over NCCL the current
    stream does it.

    With ``error_feedback`` each rank adds the quantization error of its previous gradients to its
    next ones (Seide et al. 2014; Karimireddy et al. 2019, algorithm 2). The residual is float32, as
    large as the gradients. Quantization errors of sums are not fed back.

    A collective that fails raises RuntimeError in ``backward()``, which names the bucket. An
    algorithm that `collectives list` does not have raises ValueError there. Error feedback without
    a codec raises ValueError here.
    """
    codec, residuals = split(algorithm)[1], Residuals()
    if error_feedback and codec is None:
        raise ValueError(
            f"algorithm with error feedback: got {algorithm}, expected one with a codec, as in ring/mxint8"
        )

    def average(state: dist.ProcessGroup | None, bucket: GradBucket) -> Gradients:
        gradients, which = bucket.buffer(), bucket.index()
        if gradients.is_cuda:
            all_reduce(gradients, dist.ReduceOp.AVG, state, algorithm=algorithm, segments=segments)
            return _done(gradients)
        if error_feedback and codec:
            residuals.add(
                which, [each.data_ptr() for each in bucket.parameters()], gradients, codec
            )
        work = all_reduce(
            gradients, dist.ReduceOp.AVG, state, True, algorithm=algorithm, segments=segments
        )
        if work is None:
            raise RuntimeError(
                f"bucket {which}: this process is not a member of the hook's process group"
            )
        return work.get_future().then(lambda future: _gradients(future, which))

    return average


class Residuals:
    """The quantization error of each bucket's gradients that this rank has not sent yet."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[list[int], torch.Tensor]] = {}

    def add(self, which: int, parameters: list[int], gradients: torch.Tensor, codec: str) -> None:
        """Add the bucket's residual to the gradients, round the sum to the codec, and keep the error.

        The residual of a bucket is reset if its parameters change: DistributedDataParallel rebuilds
        buckets once.
        """
        before, residual = self._kept.get(which, ([], gradients))
        wanted = gradients.float() + residual if before == parameters else gradients.float().clone()
        gradients.copy_(rounded(codec, wanted))
        self._kept[which] = parameters, wanted - gradients.float()


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
