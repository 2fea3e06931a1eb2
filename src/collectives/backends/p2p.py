"""Our own back end: plays a schedule on the ranks of a torch process group, over messages from rank to rank.

A plan is made once for each schedule and size and kept, and so is scratch memory.
"""

from __future__ import annotations

import os
import threading
from functools import lru_cache

import numpy as np
import torch
from torch import distributed as dist

from collectives.algorithms import build
from collectives.backends import Call
from collectives.backends.choice import VARIABLE, Choice, choose, named_machine
from collectives.backends.mesh import MessageError
from collectives.backends.plan import compact, plan
from collectives.backends.play import COMBINE, HALF, play, play_in_batches
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
    group = _group(call)
    _check(call, group)
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    n = _length(call, p)
    nbytes = n * call.some().element_size()
    machine = os.environ.get(VARIABLE)
    algorithm, segments, _ = _chosen(call.collective, p, nbytes, call.algorithm, call.segments, machine)
    made, edges = _made(call.collective, algorithm, p, call.root, segments, rank, n, call.splits)
    work, scratch = _enter(call, made, edges, rank, p)
    try:
        player = play_in_batches if dist.get_backend(group) == "nccl" else play
        player(made, work, scratch, group, call.op, p)
    except MessageError as error:
        raise RuntimeError(f"{call.collective} by {algorithm} failed on rank {rank}, {error}") from error
    _leave(call, work, edges, rank, p)


@lru_cache(maxsize=PLANS)
def _chosen(collective: str, p: int, nbytes: int, algorithm: str, segments: int | None, machine: str | None) -> Choice:
    return choose(collective, p, nbytes, algorithm, segments, named_machine(machine))


def _length(call: Call, p: int) -> int:
    """Elements of the whole buffer, the same number on every rank (but in an all-to-all with splits of its own)."""
    if call.collective in ("scatter", "reduce_scatter"):
        return p * len(call.wanted())
    if call.collective in ("gather", "all_gather"):
        return p * len(call.given())
    return len(call.given())


def _group(call: Call) -> dist.ProcessGroup:
    group = call.group or dist.group.WORLD
    if group is None:
        raise ValueError("there is no process group yet: call torch.distributed.init_process_group first")
    return group


def _check(call: Call, group: dist.ProcessGroup) -> None:
    tensors = [tensor for tensor in (call.input, call.output) if tensor is not None]
    over, devices = dist.get_backend(group), {tensor.device.type for tensor in tensors}
    if devices != {DEVICES.get(over)}:
        raise ValueError(
            f"p2p plays over gloo on CPU tensors, or over nccl on CUDA tensors, not over {over} on "
            f"{' and '.join(sorted(devices))}"
        )
    dtypes = {tensor.dtype for tensor in tensors}
    if len(dtypes) > 1 or not dtypes <= set(DTYPES):
        known = ", ".join(str(d).removeprefix("torch.") for d in DTYPES)
        raise ValueError(f"tensors are alike and one of {known}, not {' and '.join(sorted(map(str, dtypes)))}")
    if call.op is not None and call.op not in COMBINE:
        raise ValueError(f"op is SUM, AVG, PRODUCT, MAX or MIN, not {call.op}")
    if not all(tensor.is_contiguous() for tensor in tensors):
        raise ValueError("tensors must be contiguous")


@lru_cache(maxsize=PLANS)
def _made(
    collective: str,
    algorithm: str,
    p: int,
    root: int | None,
    segments: int,
    rank: int,
    n: int,
    splits: tuple[tuple[int, ...], tuple[int, ...]] | None,
) -> tuple[Plan, Ints]:
    """A plan, and where the chunks begin and end in this rank's buffer."""
    schedule = build(collective, algorithm, p, root=root, segments=segments)
    edges = schedule.cut(n)
    if collective in COMPACT:
        sizes = np.diff(edges) if splits is None else _sizes(splits, p, rank, algorithm)
        edges = compact(schedule, rank, sizes)
    return plan(schedule, rank, edges), edges


def _sizes(splits: tuple[tuple[int, ...], tuple[int, ...]], p: int, rank: int, algorithm: str) -> Ints:
    """Chunk sizes of an all-to-all with splits: known of what we send and of what we receive, not of the rest."""
    if algorithm == "bruck":
        raise ValueError("bruck passes on others' pieces: it needs them all alike; with splits take pairwise or direct")
    sizes = np.zeros((p, p), dtype=np.int64)
    sizes[rank], sizes[:, rank] = splits
    return sizes.ravel()


def _enter(call: Call, made: Plan, edges: Ints, rank: int, p: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The flat tensor to play on, holding what this rank contributes, and scratch memory.

    The tensor is the caller's own where torch works in place, else memory of ours: torch leaves that input alone.
    """
    bystander = call.collective == "reduce" and rank != call.root
    in_place = call.collective in IN_PLACE and not (bystander and made.writes)
    if in_place:
        work, scratch = call.wanted(), _memory(made.scratch, call.some())
    else:
        scratch = _memory(made.scratch + int(edges[-1]), call.some())
        work = scratch[made.scratch :]
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
    """One block of scratch memory for each dtype and device, as large as was ever needed; each thread has its own."""

    def __init__(self) -> None:
        self.blocks: dict[tuple[torch.dtype, torch.device], torch.Tensor] = {}


_kept = _Kept()


def _memory(n: int, like: torch.Tensor) -> torch.Tensor:
    """``n`` elements that are ours until this thread's next call."""
    block = _kept.blocks.get((like.dtype, like.device))
    if block is None or len(block) < n:
        block = _kept.blocks[like.dtype, like.device] = torch.empty(n, dtype=like.dtype, device=like.device)
    return block[:n]
