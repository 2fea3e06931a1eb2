"""Our own back end: plays a schedule over ``torch.distributed``'s point-to-point messages.

A plan is made once for each schedule and size and kept, and so is scratch memory. Calls of one process share it, so
they must not overlap.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import distributed as dist

from collectives.algorithms import build
from collectives.backends import Call
from collectives.backends.plan import plan
from collectives.backends.program import Finish, Fold, Plan, Post, Send, Span, Wait

# Our messages carry tags from here on (plus the step), apart from the user's own.
FIRST_TAG = 1 << 20

# Plans kept: a training step uses a handful of sizes.
PLANS = 64

COMBINE: dict[Any, Callable[..., torch.Tensor]] = {
    dist.ReduceOp.SUM: torch.add,
    dist.ReduceOp.AVG: torch.add,
    dist.ReduceOp.PRODUCT: torch.mul,
    dist.ReduceOp.MAX: torch.maximum,
    dist.ReduceOp.MIN: torch.minimum,
}
HALF = (torch.float16, torch.bfloat16)
DTYPES = (*HALF, torch.float32, torch.float64, torch.int32, torch.int64)

# What "auto" takes: the only choice, or the one with the fewest steps for small buffers and the fewest bytes for large.
SMALL_BYTES = 64 << 10
AUTO = {"broadcast": "binomial", "reduce": "binomial", "all_gather": "ring", "reduce_scatter": "ring"}

# A pipelined algorithm cuts its buffer into segments of about this size, but never into more than MOST_SEGMENTS.
SEGMENT_BYTES, MOST_SEGMENTS = 1 << 20, 64


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
    whole = call.input if call.input.numel() >= call.output.numel() else call.output
    nbytes = whole.numel() * whole.element_size()
    algorithm = choose(call.collective, nbytes, call.algorithm)
    segments = call.segments or min(MOST_SEGMENTS, max(1, nbytes // SEGMENT_BYTES))
    made = _plan(call.collective, algorithm, p, call.root, segments, rank, whole.numel())
    work, scratch = _enter(call, made, rank, p)
    try:
        _play(made, work, scratch, group, call.op, p)
    except _MessageError as error:
        raise RuntimeError(f"{call.collective} by {algorithm} failed on rank {rank}, {error}") from error
    if call.collective == "reduce_scatter":
        call.output.detach().view(-1).copy_(work.view(p, -1)[rank])


def choose(collective: str, nbytes: int, algorithm: str = "auto") -> str:
    """The algorithm that "auto" stands for; any other name stays what it is.

    >>> choose("all_reduce", 4), choose("all_reduce", 1 << 20), choose("all_reduce", 4, "tree")
    ('recursive_doubling', 'ring', 'tree')
    """
    if algorithm != "auto":
        return algorithm
    return AUTO.get(collective) or ("recursive_doubling" if nbytes <= SMALL_BYTES else "ring")


def _group(call: Call) -> dist.ProcessGroup:
    group = call.group or dist.group.WORLD
    if group is None:
        raise ValueError("there is no process group yet: call torch.distributed.init_process_group first")
    return group


def _check(call: Call, group: dist.ProcessGroup) -> None:
    if dist.get_backend(group) != "gloo" or call.input.device.type != "cpu":
        raise ValueError(
            f"p2p plays over gloo, on CPU tensors, not over {dist.get_backend(group)} on {call.input.device.type}"
        )
    if call.input.dtype not in DTYPES or call.output.dtype != call.input.dtype:
        known = ", ".join(str(d).removeprefix("torch.") for d in DTYPES)
        raise ValueError(f"tensors are alike and one of {known}, not {call.input.dtype} into {call.output.dtype}")
    if call.op is not None and call.op not in COMBINE:
        raise ValueError(f"op is SUM, AVG, PRODUCT, MAX or MIN, not {call.op}")
    if not (call.input.is_contiguous() and call.output.is_contiguous()):
        raise ValueError("tensors must be contiguous")


@lru_cache(maxsize=PLANS)
def _plan(collective: str, algorithm: str, p: int, root: int | None, segments: int, rank: int, n: int) -> Plan:
    return plan(build(collective, algorithm, p, root=root, segments=segments), rank, n)


def _enter(call: Call, made: Plan, rank: int, p: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The flat tensor to play on, holding what this rank contributes, and scratch memory.

    The tensor is the caller's own where torch works in place, else a copy: torch leaves that input alone.
    """
    data = call.input.detach().view(-1)
    if call.collective == "all_gather":
        whole = call.output.detach().view(-1)
        whole.view(p, -1)[rank].copy_(data)
        return whole, _memory(made.scratch, data)
    if call.collective == "reduce_scatter" or (call.collective == "reduce" and rank != call.root and made.writes):
        memory = _memory(made.scratch + len(data), data)
        return memory[made.scratch :].copy_(data), memory
    return data, _memory(made.scratch, data)


_kept: dict[tuple[torch.dtype, torch.device], torch.Tensor] = {}


def _memory(n: int, like: torch.Tensor) -> torch.Tensor:
    """``n`` elements, ours until the next call: one block for each dtype and device, as large as was ever needed."""
    key = like.dtype, like.device
    if key not in _kept or len(_kept[key]) < n:
        _kept[key] = torch.empty(n, dtype=like.dtype, device=like.device)
    return _kept[key][:n]


class _MessageError(RuntimeError):
    """A message that did not arrive or could not be sent: in which step, to or from whom, and why."""


def _play(made: Plan, tensor: torch.Tensor, scratch: torch.Tensor, group: dist.ProcessGroup, op: Any, p: int) -> None:
    """Carry out the program, instruction by instruction."""
    waiting: dict[int, tuple[dist.Work | None, Send | Post]] = {}

    def view(span: Span) -> torch.Tensor:
        return (scratch if span.scratch else tensor)[span.start : span.stop]

    for do in made.program:
        match do:
            case Fold(into, operands):
                _fold(view(into), [view(span) for span in operands], op)
            case Finish(span):
                if op == dist.ReduceOp.AVG:
                    _divide(view(span), p)
            case Wait(number):
                _wait(*waiting.pop(number))
            case _:
                waiting[do.number] = _start(do, view, group), do


def _start(do: Send | Post, view: Callable[[Span], torch.Tensor], group: dist.ProcessGroup) -> dist.Work | None:
    try:
        if isinstance(do, Post):
            return dist.irecv(view(do.into), group=group, group_src=do.peer, tag=FIRST_TAG + do.step)
        data = view(do.spans[0]) if len(do.spans) == 1 else torch.cat([view(span) for span in do.spans])
        return dist.isend(data, group=group, group_dst=do.peer, tag=FIRST_TAG + do.step)
    except RuntimeError as error:
        raise _message_error(do, error) from error


def _wait(work: dist.Work | None, what: Send | Post) -> None:
    try:
        if work is not None:  # None only where this process is no member of the group, which is refused earlier
            work.wait()
    except RuntimeError as error:
        raise _message_error(what, error) from error


def _message_error(what: Send | Post, error: RuntimeError) -> _MessageError:
    verb = "sending to" if isinstance(what, Send) else "receiving from"
    return _MessageError(f"in step {what.step}, {verb} rank {what.peer}: {error}")


def _divide(span: torch.Tensor, p: int) -> None:
    span.div_(p, rounding_mode=None if span.is_floating_point() else "trunc")


def _fold(into: torch.Tensor, operands: list[torch.Tensor], op: Any) -> None:
    """Combine in the order given; half types in float32, rounded once."""
    if len(operands) == 1:
        into.copy_(operands[0])
    elif len(operands) == 2:
        COMBINE[op](*operands, out=into)
    else:
        total = operands[0].to(torch.float32 if into.dtype in HALF else into.dtype, copy=True)
        for operand in operands[1:]:
            COMBINE[op](total, operand, out=total)
        into.copy_(total)
