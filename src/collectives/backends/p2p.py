"""Our own back end: plays a schedule on the ranks of a torch process group, over messages from rank to rank.

A plan is made once for each schedule and size and kept, and so is scratch memory.
"""

from __future__ import annotations

import os
import threading
from functools import lru_cache
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import distributed as dist

from collectives.algorithms import build
from collectives.backends import Call
from collectives.backends.batches import play_in_batches
from collectives.backends.choice import VARIABLE, choose, named_machine
from collectives.backends.connection import MessageError
from collectives.backends.fold import COMBINE, HALF
from collectives.backends.plan import compact, plan
from collectives.backends.play import play
from collectives.backends.program import Plan
from collectives.schedule import Ints

# Collectives that are played on the caller's own tensor, and those in which a rank holds but a part of the whole
# buffer and gets room for no more than that.
IN_PLACE = ("all_reduce", "broadcast", "reduce", "all_gather")
COMPACT = ("scatter", "gather", "all_to_all")

# What each kind of process group moves.
DEVICES = {"gloo": "cpu", "nccl": "cuda"}

# Plans kept: a training step uses a handful of sizes.
PLANS = 64

DTYPES = (*HALF, torch.float32, torch.float64, torch.int32, torch.int64)


def perform(call: Call) -> None:
    """Perform the collective; every rank of the group calls it alike, with the same sizes, dtype and algorithm.

    Floating-point sums are taken in the order that the schedule gives, the same on every rank, so all ranks end with
    the same bits. float16 and bfloat16 are added in float32 and rounded once per step: after h steps of adding, the
    result is within ``((1 + u)**h - 1) * sum(abs(x))`` of the exact sum, u = 2**-11 or 2**-8, and h <= p - 1 always.
    AVG is the sum, divided once by the rank that completes it (integers towards zero).
    """
    group, some = _group(call), call.some()
    rank, p, over, machine = _member(group)
    kind = _kind(some)
    _check(over, call.op, kind, None if call.input is None or call.input is some else _kind(call.input))
    made, edges, algorithm = _made(
        call.collective,
        call.algorithm,
        p,
        call.root,
        call.segments,
        rank,
        _length(call, p),
        kind.dtype.itemsize,
        call.splits,
        machine,
    )
    work, scratch = _enter(call, made, edges, rank, p, kind)
    try:
        player = play_in_batches if over == "nccl" else play
        player(made, work, scratch, group, call.op, p)
    except MessageError as error:
        raise RuntimeError(f"{call.collective} by {algorithm} failed on rank {rank}, {error}") from error
    _leave(call, work, edges, rank, p)


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


class _Member(NamedTuple):
    """What this process is in a group: its rank, of how many, what messages travel by, and what "auto" goes by."""

    rank: int
    p: int
    over: str
    machine: str | None


_members: WeakKeyDictionary[dist.ProcessGroup, _Member] = WeakKeyDictionary()


def _member(group: dist.ProcessGroup) -> _Member:
    known = _members.get(group)
    if known is None:
        rank, p, over = dist.get_rank(group), dist.get_world_size(group), dist.get_backend(group)
        known = _members[group] = _Member(rank, p, over, os.environ.get(VARIABLE))
    return known


class _Kind(NamedTuple):
    """What of a tensor decides whether we can take it."""

    device: torch.device
    dtype: torch.dtype
    contiguous: bool


def _kind(tensor: torch.Tensor) -> _Kind:
    return _Kind(tensor.device, tensor.dtype, tensor.is_contiguous())


@lru_cache(maxsize=PLANS)
def _check(over: str, op: dist.ReduceOp.RedOpType | None, *kinds: _Kind | None) -> None:
    """ValueError for what cannot be played, once for each that can."""
    devices, dtypes = {kind.device.type for kind in kinds if kind}, {kind.dtype for kind in kinds if kind}
    if devices != {DEVICES.get(over)}:
        raise ValueError(
            f"p2p plays over gloo on CPU tensors, or over nccl on CUDA tensors, not over {over} on "
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
    machine: str | None,
) -> tuple[Plan, Ints, str]:
    """A plan, where the chunks of ``n`` elements begin and end in this rank's buffer, and what "auto" has become."""
    chosen = choose(collective, p, n * size, algorithm, segments, named_machine(machine))
    schedule = build(collective, chosen.algorithm, p, root=root, segments=chosen.segments)
    edges = schedule.cut(n)
    if collective in COMPACT:
        sizes = np.diff(edges) if splits is None else _sizes(splits, p, rank, chosen.algorithm)
        edges = compact(schedule, rank, sizes)
    return plan(schedule, rank, edges), edges, chosen.algorithm


def _sizes(splits: tuple[tuple[int, ...], tuple[int, ...]], p: int, rank: int, algorithm: str) -> Ints:
    """Chunk sizes of an all-to-all with splits: known of what we send and of what we receive, not of the rest."""
    if algorithm == "bruck":
        raise ValueError("bruck passes on others' pieces: it needs them all alike; with splits take pairwise or direct")
    sizes = np.zeros((p, p), dtype=np.int64)
    sizes[rank], sizes[:, rank] = splits
    return sizes.ravel()


def _enter(call: Call, made: Plan, edges: Ints, rank: int, p: int, kind: _Kind) -> tuple[torch.Tensor, torch.Tensor]:
    """The flat tensor to play on, holding what this rank contributes, and scratch memory.

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
