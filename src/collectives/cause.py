"""Say why a rank's call failed, as data: ranks send it to each other, and to the launcher that watches them."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Kind(IntEnum):
    """What a rank knows of a failure; the numbers travel between ranks."""

    OWN = 1  # an error of its own
    LOST = 2  # a peer has gone, has given up, or calls differently
    TIMED_OUT = 3  # it waited until its time was over, and has heard of no error


class Cause(NamedTuple):
    """Why a call failed, and on which rank: all ranks are global ones.

    ``rank`` is the one that failed first; others pass its cause on. ``peer`` is the rank whose
    message it needed in ``step``, and ``silent`` are those that gave no sign until time was over.
    Only the rank itself knows these three; to others they are None and ().
    """

    kind: Kind
    rank: int
    text: str
    peer: int | None = None
    step: int | None = None
    silent: tuple[int, ...] = ()

    @property
    def is_own(self) -> bool:
        """Return True if the rank failed by itself, and not because of another one."""
        return self.kind == Kind.OWN and self.peer is None

    @property
    def blamed(self) -> tuple[int, ...]:
        """Return the ranks that it failed because of: silent ones, or the peer that it waited for."""
        if self.silent:
            return self.silent
        return () if self.peer is None else (self.peer,)


_noted: list[Cause] = []


def note(cause: Cause) -> None:
    """Keep the cause of this process's last failed call, which `noted` returns.

    An exception does not always carry it to the end of the program: torch's C++ code raises a new
    one with the same text where a backward pass waits for a call.
    """
    _noted[:] = [cause]


def noted() -> Cause | None:
    """Return the cause of the last call that failed in this process; None if none has.

    >>> note(Cause(Kind.LOST, 3, "rank 3 failed: rank 1 has gone", peer=1, step=0))
    >>> noted().blamed
    (1,)
    """
    return _noted[0] if _noted else None
