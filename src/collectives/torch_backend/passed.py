"""What gloo or NCCL does for us: torch's own `Work`, whose errors say which of our calls it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
from torch import distributed as dist

from collectives.torch_backend.flight import Call

NO_LIMIT = timedelta(0)  # by torch's convention: that of the group


class Passed(dist.Work):
    """A call that was passed on; ``failed`` begins the errors' text, ``kept`` is the recorder's entry."""

    def __init__(self, call: Callable[[], dist.Work], failed: str, kept: Call) -> None:
        super().__init__()
        self._failed, self._kept = failed, kept
        kept.__enter__()
        try:
            with self._named():
                self._work = call()
        except RuntimeError as error:
            kept.__exit__(type(error))
            raise

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise RuntimeError(f"{self._failed}: {error}") from error

    def wait(self, timeout: timedelta = NO_LIMIT) -> bool:
        """Wait until it is done."""
        with self._kept, self._named():
            return self._work.wait(timeout)

    def synchronize(self) -> None:
        """Wait until it is done."""
        with self._kept, self._named():
            self._work.synchronize()

    def is_completed(self) -> bool:
        """Whether it is done, well or not."""
        return self._work.is_completed()

    def is_success(self) -> bool:
        """Whether it is done, and well."""
        return self._work.is_success()

    def exception(self) -> BaseException | None:
        """What went wrong."""
        error: BaseException | None = self._work.exception()
        return error

    def result(self) -> list[torch.Tensor]:
        """The tensors."""
        return self._work.result()

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future of the tensors, where the library has one."""
        return self._work.get_future()

    def _source_rank(self) -> int:
        """The rank that sent it."""
        return self._work._source_rank()

    source_rank = _source_rank
