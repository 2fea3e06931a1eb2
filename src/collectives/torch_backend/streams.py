"""Calls on CUDA tensors: on a stream of the group's own, between what the caller's stream holds and what follows.

On one H200 that two ranks shared, DistributedDataParallel left the same bits as over NCCL's group (`make gpu-check`).
Several GPUs have not been tried.
"""

from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta

import torch

from collectives.engine.work import Tensors, Work


class StreamWork(Work):
    """A call whose kernels may still run when it is done: `wait` makes the current stream wait for them."""

    def __init__(self, job: Future[Tensors], collective: str, done: torch.cuda.Event, device: torch.device) -> None:
        super().__init__(job, collective)
        self._done, self._device = done, device

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the call is enqueued, and make the current stream wait for its end."""
        super().wait(timeout)
        torch.cuda.current_stream(self._device).wait_event(self._done)
        return True

    def _future(self) -> torch.futures.Future[Tensors]:
        return torch.futures.Future(devices=[self._device])

    def _tell(self, future: torch.futures.Future[Tensors]) -> None:
        """Set the future, which records events on the current streams of the devices that its tensors are on."""
        with torch.cuda.stream(own_stream(self._device)):
            torch.cuda.current_stream(self._device).wait_event(self._done)
            super()._tell(future)


def own_stream(device: torch.device) -> torch.cuda.Stream:
    """A stream on which nothing runs yet."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def on_stream(
    run: Callable[[], Tensors], stream: torch.cuda.Stream, done: torch.cuda.Event, used: Tensors
) -> Callable[[], Tensors]:
    """The same job on this stream; ``done`` is when its kernels have run, ``used`` what they read and write."""
    ready = torch.cuda.current_stream(stream.device).record_event()

    def later() -> Tensors:
        with torch.cuda.stream(stream):
            stream.wait_event(ready)
            try:
                return run()
            finally:
                for tensor in used:
                    tensor.record_stream(stream)
                done.record(stream)

    return later
