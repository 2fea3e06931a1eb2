"""One process's membership of a process group: its rank, the machine that "auto" goes by, and one caller at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import distributed as dist

from collectives.autotune import encode_machine
from collectives.backends import Call
from collectives.backends.exchange import everyones
from collectives.backends.p2p.measured import measured
from collectives.backends.p2p.transport import transport

SHARED = (
    "two threads use one process group at the same time, so nothing says which of their calls belong together: "
    "make a group for each thread, or use async_op"
)


class Membership(NamedTuple):
    """One rank's place in a group: what carries its messages ("gloo", "nccl"), and the machine as JSON.

    ``shares`` says whether all ranks of the group share memory.
    """

    rank: int
    p: int
    over: str
    machine: bytes
    shares: bool = False


class Exclusive:
    """Lets one thread at a time call; two at once fail both, because ranks may take them in different orders."""

    def __init__(self) -> None:
        self._lock, self._is_shared = threading.Lock(), False

    def begin(self) -> bool:
        """Whether this thread may call, within a ``with``."""
        self._is_shared |= not self._lock.acquire(blocking=False)
        return not self._is_shared

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._lock.release()
        if self._is_shared and (error is None or isinstance(error, RuntimeError)):
            raise RuntimeError(SHARED) from error


class Member:
    """Our process in one group."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.rank, self.p, self.over = group.rank(), group.size(), group.name()
        self.callers = Exclusive(), Exclusive()  # of calls in the foreground, and in the background
        self.membership: Membership | None = None  # not before the group is first used

    def meet(self, group: dist.ProcessGroup, device: torch.device) -> Membership:
        """Have rank 0 tell the group its machine; every rank calls it when it first uses the group.

        If it names none, CPU ranks measure their links.
        """
        told = everyones(encode_machine() if self.rank == 0 else b"", group, device)[0]
        if not told and self.p > 1 and device.type == "cpu":
            told = measured(transport(group), group).model_dump_json().encode()
        shares = self.p > 1 and device.type == "cpu" and transport(group).segment is not None
        self.membership = Membership(self.rank, self.p, self.over, told, shares)
        return self.membership


_members: WeakKeyDictionary[dist.ProcessGroup, Member] = WeakKeyDictionary()


def member(group: dist.ProcessGroup) -> Member:
    """Our process in the group."""
    return _members.get(group) or _members.setdefault(group, Member(group))


def group_of(call: Call) -> dist.ProcessGroup:
    """The call's group, by default that of all ranks. Raises ValueError where there is none yet.

    For a group of `collectives.torch_backend` it is the plain group under it.
    """
    group = call.group or dist.group.WORLD
    if group is None:
        raise ValueError("no process group: call torch.distributed.init_process_group first")
    base: Callable[[str], dist.ProcessGroup] | None = getattr(group, "base", None)
    return base(call.any_tensor().device.type) if base else group
