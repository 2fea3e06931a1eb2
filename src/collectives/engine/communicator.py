"""One process in a process group: its rank, its connections, the machine that "auto" goes by, one caller at a time."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import NamedTuple
from weakref import WeakKeyDictionary, finalize, ref

import torch
from torch import distributed as dist

from collectives.autotune import decode_machine, encode_machine
from collectives.engine.call import Call
from collectives.engine.handshake import all_gather_bytes
from collectives.engine.mesh import Mesh
from collectives.engine.probe import measure_machine
from collectives.engine.transport import shared_memory_or_none
from collectives.engine.work import FORKED

SHARED = (
    "two threads use one process group at the same time, so nothing says which of their calls belong together: "
    "make a group for each thread, or use async_op"
)


class Membership(NamedTuple):
    """One rank's place in a group: what carries its messages ("gloo", "nccl"), and the machine as JSON.

    ``ranks_per_host`` ranks in a row share memory.
    """

    rank: int
    p: int
    over: str
    machine: bytes
    ranks_per_host: int = 1


class Exclusive:
    """Lets one thread at a time call; two at once fail both, because ranks may take them in different orders."""

    def __init__(self, give_up: Callable[[], None]) -> None:
        self._lock, self._is_shared, self._give_up, self._why = threading.Lock(), False, give_up, SHARED

    def __enter__(self) -> None:
        self._is_shared |= not self._lock.acquire(blocking=False)
        if self._is_shared:
            self._give_up()
            raise RuntimeError(self._why)

    def refuse(self, why: str) -> None:
        """Have every later call fail."""
        self._is_shared, self._why = True, why

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._lock.release()
        if self._is_shared and (error is None or isinstance(error, RuntimeError)):
            raise RuntimeError(SHARED) from error


class Communicator:
    """What one process keeps of a process group: its rank, its connections and the machine of "auto"."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.rank, self.p, self.over = group.rank(), group.size(), group.name()
        self._group = ref(group)
        # Of calls in the foreground, and in the background.
        self.callers = [Exclusive(partial(self.close, background)) for background in (False, True)]
        self.membership: Membership | None = None  # not before the group is first used
        self._meshes: dict[bool, Mesh] = {}
        finalize(group, self.close).atexit = False  # a group that was destroyed leaves no connection behind

    def meet(self, device: torch.device) -> Membership:
        """Have rank 0 tell the group its machine; every rank calls it when it first uses the group.

        If it names none, CPU ranks measure their links. Raises ValueError, on every rank, for one that is not there.
        """
        group, on_cpus = self._alive(), self.p > 1 and device.type == "cpu"
        told = all_gather_bytes(encode_machine() if self.rank == 0 else b"", group, device)[0]
        decode_machine(told)
        if not told and on_cpus:
            told = measure_machine(self.mesh(), group).model_dump_json().encode()
        sharing = self.mesh().ranks_per_host if on_cpus and self.mesh().segment else 1
        self.membership = Membership(self.rank, self.p, self.over, told, sharing)
        return self.membership

    def mesh(self, background: bool = False) -> Mesh:
        """The connections, others for calls in the background; all ranks make them together, at the first call."""
        return self._meshes.get(background) or self._connect(background)

    def _connect(self, background: bool) -> Mesh:
        made = self._meshes[background] = Mesh(self._alive(), background)
        if made.ranks_per_host > 1:
            made.segment = shared_memory_or_none().share(self._alive(), made)
        return made

    def _alive(self) -> dist.ProcessGroup:
        group = self._group()
        if group is None:
            raise RuntimeError("the process group was destroyed")
        return group

    def leave_to_parent(self) -> None:
        """In a process that was forked: close its copies of the connections, which stay the parent's."""
        for caller in self.callers:
            caller.refuse(FORKED)
        for mesh in self._meshes.values():
            mesh.release()

    def close(self, background: bool | None = None) -> None:
        """Close these connections, or all. A call that uses them fails, here and on the other ranks."""
        for which, mesh in self._meshes.items():
            if background in (None, which):
                mesh.close()


_communicators: WeakKeyDictionary[dist.ProcessGroup, Communicator] = WeakKeyDictionary()


def _forked() -> None:
    for each in list(_communicators.values()):
        each.leave_to_parent()


os.register_at_fork(after_in_child=_forked)


def communicator(group: dist.ProcessGroup) -> Communicator:
    """The communicator of this process in the group."""
    return _communicators.get(group) or _communicators.setdefault(group, Communicator(group))


def group_of(call: Call) -> dist.ProcessGroup:
    """The call's group, by default that of all ranks. Raises ValueError where there is none yet.

    For a group of `collectives.torch_backend` it is the plain group under it.
    """
    group = call.group or dist.group.WORLD
    if group is None:
        raise ValueError("no process group: call torch.distributed.init_process_group first")
    base: Callable[[str], dist.ProcessGroup] | None = getattr(group, "base", None)
    return base(call.any_tensor().device.type) if base else group
