"""Our own back end: runs a schedule on the ranks of a torch process group, over messages from rank to rank.

A plan is made once for each schedule and size and kept, and so is scratch memory.
"""

from __future__ import annotations

import threading
from functools import lru_cache
from types import TracebackType
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import distributed as dist

from collectives.algorithms import build
from collectives.autotune import STRAIGHT, Choice, choose, stated, statement
from collectives.backends import Call
from collectives.backends.exchange import everyones
from collectives.backends.p2p.batches import execute_in_batches
from collectives.backends.p2p.compile import compact, is_straight, plan
from collectives.backends.p2p.connection import MessageError
from collectives.backends.p2p.execute import execute
from collectives.backends.p2p.mesh import give_up, mesh
from collectives.backends.p2p.program import Plan
from collectives.backends.p2p.reduce import COMBINE, DTYPES
from collectives.backends.p2p.signature import signature
from collectives.schedule import Ints, Schedule

# Collectives that are played on the caller's own tensor, and those in which a rank holds but a part of the whole
# buffer and gets room for no more than that.
IN_PLACE = ("all_reduce", "broadcast", "reduce", "all_gather")
COMPACT = ("scatter", "gather", "all_to_all")

# What each kind of process group moves.
DEVICES = {"gloo": "cpu", "nccl": "cuda"}

# Plans kept: a training step uses a handful of sizes.
PLANS = 64

SHARED = (
    "two threads use one process group at the same time, so nothing says which of their calls belong together: "
    "make a group for each thread, or use async_op"
)


def perform(call: Call) -> Choice:
    """Perform the collective, and say by which algorithm and segments; every rank of the group calls it alike.

    Alike is: the same collective, algorithm, segments, root, op, dtype and sizes. Over gloo a rank that receives a
    message of another call raises RuntimeError, which names the sender and what differs. A group is for one thread at
    a time; RuntimeError where two use it at once.

    Floating-point sums are taken in the order that the schedule gives, the same on every rank, so all ranks end with
    the same bits. float16 and bfloat16 are added in float32 and rounded once per step: after h steps of adding, the
    result is within ``((1 + u)**h - 1) * sum(abs(x))`` of the exact sum, u = 2**-11 or 2**-8, and h <= p - 1 always.
    AVG is the sum, divided once by the rank that completes it (integers towards zero).
    """
    group, some = _group(call), call.some()
    member, kind = _member(group), _kind(some)
    _check(member.over, call.op, kind, None if call.input is None or call.input is some else _kind(call.input))
    turn = member.turns[call.background]
    if not turn.begin():
        give_up(group, call.background)
        raise RuntimeError(SHARED)
    with turn:
        return _perform(call, group, member, kind)


def prepare(call: Call) -> dist.ProcessGroup:
    """The group of a call that is to run in the background, and has all that takes all ranks together from now on.

    Raises ValueError for a group that is not gloo's.
    """
    group = _group(call)
    member = _member(group)
    if member.over != "gloo":
        raise ValueError(f"async_op: got a group over {member.over}, expected one over gloo")
    member.machine(group, torch.device("cpu"))
    mesh(group, background=True)
    return group


def _perform(call: Call, group: dist.ProcessGroup, member: _Member, kind: _Kind) -> Choice:
    rank, p, n = member.rank, member.p, _length(call, member.p)
    made, edges, chosen = _made(
        call.collective,
        call.algorithm,
        p,
        call.root,
        call.segments,
        rank,
        n,
        kind.dtype.itemsize,
        call.splits,
        member.machine(group, kind.device),
    )
    work, scratch = _enter(call, made, edges, rank, p, kind)
    try:
        if member.over == "nccl":
            execute_in_batches(made, work, scratch, group, call.op, p)
        else:
            elements = n if call.splits is None else None
            same = signature(
                call.collective, chosen.algorithm, call.op, kind.dtype, elements, call.root, chosen.segments
            )
            execute(made, work, scratch, group, call.op, p, same, call.background)
    except MessageError as error:
        raise RuntimeError(f"{call.collective} by {chosen.algorithm} failed on rank {rank}, {error}") from error
    _leave(call, work, edges, rank, p)
    return chosen


def _length(call: Call, p: int) -> int:
    """Elements of the whole buffer, the same number on every rank (but in an all-to-all with splits of its own)."""
    if call.collective in ("scatter", "reduce_scatter"):
        return p * call.wanted().numel()
    if call.collective in ("gather", "all_gather"):
        return p * call.given().numel()
    return call.given().numel()


def _group(call: Call) -> dist.ProcessGroup:
    group = call.group or dist.group.WORLD
    if group is None:
        raise ValueError("there is no process group yet: call torch.distributed.init_process_group first")
    return group


class _Turn:
    """Lets one thread at a time call; two at once fail both, as ranks may take them in different orders."""

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


class _Member:
    """What this process is in a group: its rank, of how many, what messages travel by, and what "auto" goes by."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.rank, self.p, self.over = dist.get_rank(group), dist.get_world_size(group), dist.get_backend(group)
        self.turns = _Turn(), _Turn()  # of calls in the foreground, and in the background
        self._stated: bytes | None = None

    def machine(self, group: dist.ProcessGroup, device: torch.device) -> bytes:
        """The machine's `statement` of rank 0, which all ranks hear when a group is first used."""
        if self._stated is None:
            self._stated = everyones(statement() if self.rank == 0 else b"", group, device)[0]
        return self._stated


_members: WeakKeyDictionary[dist.ProcessGroup, _Member] = WeakKeyDictionary()


def _member(group: dist.ProcessGroup) -> _Member:
    return _members.get(group) or _members.setdefault(group, _Member(group))


class _Kind(NamedTuple):
    """What of a tensor decides whether we can take it."""

    device: torch.device
    dtype: torch.dtype
    contiguous: bool


def _kind(tensor: torch.Tensor) -> _Kind:
    return _Kind(tensor.device, tensor.dtype, tensor.is_contiguous())


@lru_cache(maxsize=PLANS)
def _check(over: str, op: dist.ReduceOp.RedOpType | None, *kinds: _Kind | None) -> None:
    """ValueError for what cannot be run, once for each that can."""
    devices, dtypes = {kind.device.type for kind in kinds if kind}, {kind.dtype for kind in kinds if kind}
    if devices != {DEVICES.get(over)}:
        raise ValueError(
            f"p2p runs over gloo on CPU tensors, or over nccl on CUDA tensors, not over {over} on "
            f"{' and '.join(sorted(devices))}"
        )
    if len(dtypes) > 1 or not dtypes <= set(DTYPES):
        known = ", ".join(str(d).removeprefix("torch.") for d in DTYPES)
        raise ValueError(f"tensors are alike and one of {known}, not {' and '.join(sorted(map(str, dtypes)))}")
    if op is not None and op not in COMBINE:
        raise ValueError(f"op is SUM, AVG, PRODUCT, MAX or MIN, not {op}")
    if not all(kind.contiguous for kind in kinds if kind):
        raise ValueError("tensors must be contiguous")


@lru_cache(maxsize=PLANS)
def _made(
    collective: str,
    algorithm: str,
    p: int,
    root: int | None,
    segments: int | None,
    rank: int,
    n: int,
    size: int,
    splits: tuple[tuple[int, ...], tuple[int, ...]] | None,
    machine: bytes,
) -> tuple[Plan, Ints, Choice]:
    """A plan, where the chunks of ``n`` elements begin and end in this rank's buffer, and what "auto" has become."""
    chosen = choose(collective, p, n * size, algorithm, segments, stated(machine), splits is not None)
    schedule = build(collective, chosen.algorithm, p, root=root, segments=chosen.segments)
    edges = schedule.cut(n)
    if collective in COMPACT:
        sizes = np.diff(edges) if splits is None else _sizes(splits, schedule, rank, chosen.algorithm)
        edges = compact(schedule, rank, sizes)
    return plan(schedule, rank, edges), edges, chosen


def _sizes(splits: tuple[tuple[int, ...], tuple[int, ...]], schedule: Schedule, rank: int, algorithm: str) -> Ints:
    """Chunk sizes of an all-to-all with splits: known of what we send and of what we receive, not of the rest."""
    if not is_straight(schedule):
        raise ValueError(
            f"algorithm: got {algorithm}, which passes on others' pieces, whose sizes a rank does not know; "
            f"expected {' or '.join(STRAIGHT)} with split sizes or lists of tensors"
        )
    sizes = np.zeros((schedule.p, schedule.p), dtype=np.int64)
    sizes[rank], sizes[:, rank] = splits
    return sizes.ravel()


def _enter(call: Call, made: Plan, edges: Ints, rank: int, p: int, kind: _Kind) -> tuple[torch.Tensor, torch.Tensor]:
    """The flat tensor to execute on, holding what this rank contributes, and scratch memory.

    The tensor is the caller's own where torch works in place, else memory of ours: torch leaves that input alone.
    """
    bystander = call.collective == "reduce" and rank != call.root
    in_place = call.collective in IN_PLACE and not (bystander and made.writes)
    if in_place:
        work, scratch = call.wanted(), _memory(made.scratch, kind)
    else:
        whole = made.scratch + int(edges[-1])
        scratch = _memory(whole, kind)
        work = scratch[made.scratch : whole]
    if call.collective in ("gather", "all_gather", "all_to_all"):
        work[_part(edges, rank, p)].copy_(call.given())
    elif not in_place and call.input is not None:
        work.copy_(call.given())
    return work, scratch


def _leave(call: Call, work: torch.Tensor, edges: Ints, rank: int, p: int) -> None:
    """Hand over the result, where it was not made in place."""
    match call.collective:
        case "scatter" | "reduce_scatter":
            call.wanted().copy_(work[_part(edges, rank, p)])
        case "gather" if rank == call.root:
            call.wanted().copy_(work)
        case "all_to_all":
            pieces = [work[edges[s * p + rank] : edges[s * p + rank + 1]] for s in range(p)]
            torch.cat(pieces, out=call.wanted())


def _part(edges: Ints, rank: int, p: int) -> slice:
    """Where a rank's own part lies: the chunks that it owns."""
    each = (len(edges) - 1) // p
    return slice(int(edges[rank * each]), int(edges[(rank + 1) * each]))


class _Kept(threading.local):
    """One block of scratch memory for each dtype, as large as was ever needed; each thread has its own."""

    def __init__(self) -> None:
        self.blocks: dict[_Kind, tuple[int, torch.Tensor]] = {}


_kept = _Kept()


def _memory(n: int, kind: _Kind) -> torch.Tensor:
    """``n`` elements or more that are ours until this thread's next call.

    A block that is kept would be written by one CUDA stream while another still reads it. torch's allocator keeps GPU
    memory by stream, so on a GPU each call takes its own: nothing waits, and no event is needed.
    """
    if kind.device.type == "cuda":
        return torch.empty(n, dtype=kind.dtype, device=kind.device)
    room, block = _kept.blocks.get(kind, (-1, None))
    if block is None or room < n:
        block = torch.empty(n, dtype=kind.dtype, device=kind.device)
        _kept.blocks[kind] = n, block
    return block
