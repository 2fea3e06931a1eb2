"""A future of a call on CUDA tensors makes whoever waits for it wait for the collective: on a model of CUDA's futures.

No GPU is needed. The model follows `markCompleted`, `then` and `wait` of torch's
`ATen/core/ivalue_inl.h`: a future records events only for the devices of the storages in its value,
and a callback runs on a stream of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future as Job
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from collectives.engine.work import Tensors, Work

DEVICE = torch.device("cuda", 0)


class Stream:
    """A stream as the set of kernels that come before whatever is enqueued next."""

    device = DEVICE

    def __init__(self, device: object = DEVICE) -> None:
        self.before: frozenset[str] = frozenset()

    def wait_event(self, event: frozenset[str]) -> None:
        self.before |= event


class Streams:
    """The current stream of the only thread."""

    def __init__(self) -> None:
        self.now = Stream()

    def current(self, device: object = DEVICE) -> Stream:
        return self.now

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        outer, self.now = self.now, stream
        yield
        self.now = outer


def model_of_futures(streams: Streams) -> type:
    class CudaFuture:
        def __init__(self, *, devices: list[torch.device]) -> None:
            assert devices == [DEVICE]
            self.completed, self.error = False, None
            self.value_: Any = None
            self.events: list[frozenset[str]] = []
            self.callbacks: list[Callable[[], None]] = []

        def set_result(self, value: Any) -> None:
            self.value_ = value
            if any(isinstance(each, torch.Tensor) for each in value or ()):
                self.events.append(streams.now.before)
            self._complete()

        def then(self, callback: Callable[[Any], Any]) -> Any:
            child = CudaFuture(devices=[DEVICE])

            def invoke() -> None:
                with streams.on(Stream()):
                    self._synchronize()
                    try:
                        child.set_result(callback(self))
                    except Exception as error:
                        child.error = RuntimeError(str(error))
                        child._complete()

            invoke() if self.completed else self.callbacks.append(invoke)
            return child

        def wait(self) -> Any:
            assert self.completed
            self._synchronize()
            return self.value()

        def value(self) -> Any:
            if self.error:
                raise self.error
            return self.value_

        def _synchronize(self) -> None:
            for event in self.events:
                streams.now.wait_event(event)

        def _complete(self) -> None:
            self.completed = True
            for callback in self.callbacks:
                callback()

    return CudaFuture


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    made = Streams()
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", made.current)
    monkeypatch.setattr(torch.cuda, "stream", made.on)
    monkeypatch.setattr(torch.futures, "Future", model_of_futures(made))
    return made


@pytest.mark.parametrize("is_enqueued_first", [False, True])
def test_who_waits_for_a_future_waits_for_the_collective(
    streams: Streams, is_enqueued_first: bool
) -> None:
    job: Job[Tensors] = Job()
    work = Work(job, "all_reduce", frozenset({"all_reduce"}), DEVICE)  # type: ignore[arg-type]
    outputs = [torch.ones(3)]
    if is_enqueued_first:
        job.set_result(outputs)
    future = work.get_future()
    # A hook's callback, on its own stream.
    halved = future.then(lambda done: [*done.value(), *streams.now.before])
    if not is_enqueued_first:
        job.set_result(outputs)
    assert streams.now.before == frozenset()
    assert halved.value()[1:] == ["all_reduce"]
    # As DistributedDataParallel does before the optimizer reads the gradients.
    assert future.wait() is outputs
    assert streams.now.before == {"all_reduce"}


def test_an_error_reaches_the_future(streams: Streams) -> None:
    job: Job[Tensors] = Job()
    future = Work(job, "all_reduce", frozenset(), DEVICE).get_future()  # type: ignore[arg-type]
    job.set_exception(ValueError("no algorithm 'rnig'"))
    with pytest.raises(RuntimeError, match="rnig"):
        future.wait()
