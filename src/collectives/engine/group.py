"""One process in a process group: its rank, its connections, the machine that "auto" goes by, and its calls.

`perform` is the only entry for a call. What a call needs is compiled once and kept by its key, and
`prepare` keeps the tensors' addresses, too.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any
from weakref import finalize, ref

import torch
from torch import distributed as dist

from collectives.autotune import decode_machine, encode_machine
from collectives.engine.call import Call, CompiledCall, Performed
from collectives.engine.compiled_call import (
    DEVICES,
    BoundedCache,
    Membership,
    call_key,
    check,
    compile_call,
    named,
    nbytes_of,
)
from collectives.engine.handshake import MessageError, all_gather_bytes, global_ranks
from collectives.engine.nccl import Nccl
from collectives.engine.probe import known_machine, measure_machine
from collectives.engine.tcp.execute import Tcp
from collectives.engine.transport import Transport, shared_memory_or_none
from collectives.engine.work import DESTROYED, FORKED

CONCURRENT_USE = (
    "two threads use one process group at the same time, so nothing says which of their calls belong together: "
    "make a group for each thread, or use async_op"
)
NO_GROUP = "no process group: call torch.distributed.init_process_group first"


def _connect_cpus(group: dist.ProcessGroup, is_background: bool) -> Transport:
    memory = shared_memory_or_none()
    return (memory.SharedMemory if memory else Tcp).connect(group, is_background)


# How ranks of each kind of process group connect.
CONNECT: dict[str, Callable[[dist.ProcessGroup, bool], Transport]] = {
    "gloo": _connect_cpus,
    "nccl": Nccl.connect,
}


def perform(call: Call) -> Performed:
    """Perform the collective, and return its algorithm and segments.

    Every rank of the group makes the same call.

    The same is: the same collective, algorithm, segments, root, op, dtype and sizes. Over gloo a
    rank that receives a message of another call raises RuntimeError, which names the sender and
    what differs. A group is for one thread at a time; RuntimeError where two use it at once.
    ValueError for tensors, an op or an algorithm that we do not have.

    Floating-point sums are taken in the order that the schedule gives. Where that is one order for
    all ranks (`summation.is_alike`: every all-reduce but swing_doubling), all ranks end with the
    same bits. float16 and bfloat16 are added in float32 and rounded once per step: after h steps of
    adding, the result is within ``((1 + u)**h - 1) * sum(abs(x))`` of the exact sum, u = 2**-11 or
    2**-8, and h <= p - 1 always. AVG is the sum, divided once by the rank that completes it
    (integers towards zero).
    """
    return _caller(call).perform(call)


def prepare(call: Call) -> PreparedCall:
    """Return the call as an object that performs it each time it is called, on the same tensors, as MPI 4's requests.

    Every rank of the group prepares the same call, which may compile, connect and measure. Raises
    what `perform` does.
    """
    return _caller(call).prepare(call)


def connect(group: dist.ProcessGroup) -> None:
    """Make what calls in the background need, after all that takes all ranks together: the machine and connections.

    Raises ValueError for a group that is not gloo's.
    """
    me = communicator(group)
    if DEVICES.get(me.over) != "cpu":
        raise ValueError(f"async_op: got a group over {me.over}, expected one over gloo")
    if me.membership is None:
        me.join(torch.device("cpu"), is_background=True)
    me.transport(is_background=True)


class Communicator:
    """One process's side of a process group: its rank, the machine of "auto", and the callers of both kinds."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.rank, self.p, self.over = group.rank(), group.size(), group.name()
        self._group = ref(group)
        # Of calls in the foreground, and in the background.
        self.callers = Caller(self, False), Caller(self, True)
        self.membership: Membership | None = None  # not before the group is first used

    def group(self) -> dist.ProcessGroup:
        """Return the process group. Raises RuntimeError if it was destroyed."""
        group = self._group()
        if group is None:
            raise RuntimeError(DESTROYED)
        return group

    def join(self, device: torch.device, is_background: bool) -> Membership:
        """Have rank 0 tell the group its machine; every rank calls it when it first uses the group.

        If the environment names none, it is that of links which rank 0 has measured in groups
        before. If one of them is missing, CPU ranks measure them. Raises ValueError, on every rank,
        for a machine that is not there.
        """
        group, transport = self.group(), self.transport(is_background)
        mine = _machine_to_tell(transport) if self.rank == 0 else b""
        told = all_gather_bytes(mine, group, device)[0]
        decode_machine(told)
        if not told and self.p > 1 and isinstance(transport, Tcp):
            told = measure_machine(transport, group).model_dump_json().encode()
        self.membership = Membership(self.rank, self.p, self.over, told, transport.ranks_per_host)
        return self.membership

    def transport(self, is_background: bool = False) -> Transport:
        """Return the transport of calls in the foreground or in the background.

        All ranks connect together.
        """
        return self.callers[is_background].connect()

    def close(self) -> None:
        """Close all connections, because the group is destroyed: calls that have not ended fail, here and elsewhere."""
        for caller in self.callers:
            caller.refuse(DESTROYED)


def _machine_to_tell(transport: Transport) -> bytes:
    """Return the machine that the environment names, or that of links measured before, as JSON.

    Nothing without.
    """
    told = encode_machine()
    if told:
        return told
    known = known_machine(transport) if isinstance(transport, Tcp) else None
    return known.model_dump_json().encode() if known else b""


class Caller:
    """The calls that a rank makes in a group one after the other, in the foreground or in the background.

    They have a transport of their own. Two threads that call at once both fail, because ranks may
    take their calls in different orders.
    """

    def __init__(self, me: Communicator, is_background: bool) -> None:
        self._me, self._is_background = me, is_background
        self._transport: Transport | None = None
        self._lock, self._refusal = threading.Lock(), ""
        self._compiled: BoundedCache[CompiledCall] = BoundedCache(nbytes_of)

    def connect(self) -> Transport:
        """Return the transport; all ranks connect together, at the first call."""
        if self._transport is None:
            self._transport = CONNECT[self._me.over](self._me.group(), self._is_background)
        return self._transport

    def perform(self, call: Call, made: CompiledCall | None = None) -> Performed:
        """Perform a call, which may be compiled already; the function `perform` says how."""
        if self._refusal or not self._lock.acquire(False):
            raise RuntimeError(self._refused())
        try:
            if made is None:
                key = call_key(call)
                made = self._compiled.find(key) or self._compile(key)
            (self._transport or self.connect()).run(made, call)
        except RuntimeError as error:
            why = self._explain(error, call)
            if why:
                raise RuntimeError(why) from error
            raise
        finally:
            self._lock.release()
        if self._refusal:
            raise RuntimeError(self._refusal)
        return made.performed

    def prepare(self, call: Call) -> PreparedCall:
        """Compile a call that is performed later, again and again."""
        if self._refusal or not self._lock.acquire(False):
            raise RuntimeError(self._refused())
        try:
            return PreparedCall(self, call, self._compile(call_key(call)))
        finally:
            self._lock.release()

    def _refused(self) -> str:
        """Return why no call is possible.

        By default two threads call at once, and neither can go on.
        """
        if not self._refusal:
            self.refuse(CONCURRENT_USE)
        return self._refusal

    def _compile(self, key: tuple[Any, ...]) -> CompiledCall:
        me, wanted = self._me, named(key)
        if me.membership is None:
            check(me.over, wanted)  # before ranks talk
        membership = me.membership or me.join(wanted.kind.device, self._is_background)
        shares = self.connect().ranks_per_host > 1
        return self._compiled.get(key, lambda: compile_call(membership, wanted, shares))

    def _explain(self, error: RuntimeError, call: Call) -> str:
        """Return what a caller is told of a call that failed.

        Empty if the error says it already.
        """
        if self._refusal:
            return self._refusal
        if not isinstance(error, MessageError):
            return ""
        # A message knows its peer and bytes, and not whose call it belongs to.
        group, compiled = self._me.group(), self._compiled.find(call_key(call))
        algorithm = compiled.performed.algorithm if compiled else call.algorithm
        rank = global_ranks(group)[self._me.rank]
        return f"{call.collective} by {algorithm} failed on rank {rank}, {error}{_of(group)}"

    def refuse(self, why: str) -> None:
        """Have every call fail that has not ended, and close the connections, so that those of other ranks fail, too.

        A process that was forked closes its copies of them.
        """
        self._refusal = why
        if self._transport:
            self._transport.close(why)


class PreparedCall:
    """A call whose tensors, algorithm and options are fixed: each ``call()`` performs it once more."""

    def __init__(self, caller: Caller, call: Call, made: CompiledCall) -> None:
        self._perform, self._call, self._made, self.performed = (
            caller.perform,
            call,
            made,
            made.performed,
        )

    def __call__(self) -> None:
        """Perform the call. Raises what `perform` does."""
        self._perform(self._call, self._made)


def _of(group: dist.ProcessGroup) -> str:
    """Return the group's name for an error, if it has not all ranks."""
    if group.size() == dist.get_world_size():
        return ""
    named = group.group_name if group.group_desc == "undefined" else group.group_desc
    return f" (in process group {named} of {group.size()} ranks)"


_communicators: dict[int, Communicator] = {}  # by the number of their group


def _forked() -> None:
    for each in list(_communicators.values()):
        for caller in each.callers:
            caller.refuse(FORKED)


os.register_at_fork(after_in_child=_forked)


def communicator(group: dist.ProcessGroup) -> Communicator:
    """Return the communicator of this process in the group."""
    return _communicators.get(id(group)) or _new(group)


def _new(group: dist.ProcessGroup) -> Communicator:
    made = _communicators.setdefault(id(group), Communicator(group))
    # A group that was destroyed leaves no connection behind.
    finalize(group, _forget, id(group)).atexit = False
    return made


def _forget(number: int) -> None:
    _communicators.pop(number).close()


def _caller(call: Call) -> Caller:
    """Return the caller of a call. Raises ValueError if there is no process group yet."""
    group = call.group or dist.group.WORLD
    found = _communicators.get(id(group))
    return (found or communicator(group_of(call))).callers[call.background]


def group_of(call: Call) -> dist.ProcessGroup:
    """Return the call's group, by default that of all ranks.

    Raises ValueError where there is none yet.

    For a group of `collectives.torch_backend` it is the plain group under it.
    """
    group = call.group or dist.group.WORLD
    if group is None:
        raise ValueError(NO_GROUP)
    base: Callable[[str], dist.ProcessGroup] | None = getattr(group, "base", None)
    return base(call.any_tensor().device.type) if base else group


shared_memory_or_none()  # before ranks are forked, and not while others wait for this one
