"""Our own back end: plays a schedule over ``torch.distributed``'s point-to-point messages.

Plans and their scratch memory are made once for each (schedule, size, dtype) and reused. Calls of one process must not
overlap: they share that memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import distributed as dist

from collectives.algorithms import build
from collectives.backends import Call
from collectives.backends.plan import Finish, Fold, Plan, Post, Send, Span, Wait, plan

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

    Floating-point sums are taken in the order that the schedule gives, the same on every rank, so all ranks end
    with the same bits. float16 and bfloat16 are added in float32 and rounded once per step: after h steps of
    adding, the result is within ``((1 + u)**h - 1) * sum(abs(x))`` of the exact sum, u = 2**-11 or 2**-8, and h <=
    p - 1 always. AVG is the sum, divided once by the rank that completes it (integers towards zero).
    """
    group = _group(call)
    _check(call, group)
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    buffer = call.input if call.input.numel() >= call.output.numel() else call.output
    algorithm = choose(call.collective, buffer.numel() * buffer.element_size(), call.algorithm)
    segments = call.segments or _segments(buffer.numel() * buffer.element_size())
    key = _Key(call.collective, algorithm, p, call.root, segments, rank, buffer.numel())
    player = _player(key, buffer.dtype, buffer.device)
    work = _enter(call, player, rank, p)
    player.play(work, group, call.op)
    _leave(call, work, rank, p)


def choose(collective: str, nbytes: int, algorithm: str = "auto") -> str:
    """The algorithm that "auto" stands for; any other name stays what it is.

    >>> choose("all_reduce", 4), choose("all_reduce", 1 << 20), choose("all_reduce", 4, "tree")
    ('recursive_doubling', 'ring', 'tree')
    """
    if algorithm != "auto":
        return algorithm
    return AUTO.get(collective) or ("recursive_doubling" if nbytes <= SMALL_BYTES else "ring")


def _segments(nbytes: int) -> int:
    return min(MOST_SEGMENTS, max(1, nbytes // SEGMENT_BYTES))


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


class _Key(NamedTuple):
    collective: str
    algorithm: str
    p: int
    root: int | None
    segments: int
    rank: int
    n: int


class _Player:
    """A plan with its memory: made once, played on any tensor of its size and dtype."""

    def __init__(self, key: _Key, dtype: torch.dtype, device: torch.device) -> None:
        self.key = key
        schedule = build(key.collective, key.algorithm, key.p, root=key.root, segments=key.segments)
        self.plan: Plan = plan(schedule, key.rank, key.n)
        self.scratch = torch.empty(self.plan.scratch, dtype=dtype, device=device)
        self._copy: torch.Tensor | None = None

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of a tensor that has to be left alone, in memory that is kept for the next call."""
        if self._copy is None:
            self._copy = torch.empty_like(tensor)
        return self._copy.copy_(tensor)

    def play(self, tensor: torch.Tensor, group: dist.ProcessGroup, op: Any) -> None:
        """Run the program on a flat tensor."""
        waiting: dict[int, tuple[dist.Work, Send | Post]] = {}

        def view(span: Span) -> torch.Tensor:
            return (self.scratch if span.scratch else tensor)[span.start : span.stop]

        for do in self.plan.program:
            match do:
                case Wait(number):
                    self._wait(*waiting.pop(number))
                case Post(number, peer, step, into):
                    waiting[number] = (
                        _works(dist.irecv(view(into), group=group, group_src=peer, tag=FIRST_TAG + step)),
                        do,
                    )
                case Send(number, peer, step, spans):
                    data = view(spans[0]) if len(spans) == 1 else torch.cat([view(span) for span in spans])
                    waiting[number] = _works(dist.isend(data, group=group, group_dst=peer, tag=FIRST_TAG + step)), do
                case Fold(into, operands):
                    _fold(view(into), [view(span) for span in operands], op)
                case Finish(span) if op == dist.ReduceOp.AVG:
                    _divide(view(span), self.key.p)

    def _wait(self, work: dist.Work, what: Send | Post) -> None:
        try:
            work.wait()
        except RuntimeError as error:
            verb = "sending to" if isinstance(what, Send) else "receiving from"
            raise RuntimeError(
                f"{self.key.collective} by {self.key.algorithm} failed on rank {self.key.rank} in step {what.step}, "
                f"{verb} rank {what.peer}: {error}"
            ) from error


def _works(work: dist.Work | None) -> dist.Work:
    if work is None:
        raise ValueError("this process is no member of the group")
    return work


@lru_cache(maxsize=PLANS)
def _player(key: _Key, dtype: torch.dtype, device: torch.device) -> _Player:
    return _Player(key, dtype, device)


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


def _divide(span: torch.Tensor, p: int) -> None:
    span.div_(p, rounding_mode=None if span.is_floating_point() else "trunc")


def _enter(call: Call, player: _Player, rank: int, p: int) -> torch.Tensor:
    """The flat tensor to play on, holding what this rank contributes; inputs that torch leaves alone are copied."""
    data = call.input.detach().view(-1)
    match call.collective:
        case "all_gather":
            whole = call.output.detach().view(-1)
            whole.view(p, -1)[rank].copy_(data)
            return whole
        case "reduce_scatter":
            return player.copy(data)
        case "reduce" if rank != call.root and player.plan.writes:
            return player.copy(data)
        case _:
            return data


def _leave(call: Call, work: torch.Tensor, rank: int, p: int) -> None:
    if call.collective == "reduce_scatter":
        call.output.detach().view(-1).copy_(work.view(p, -1)[rank])
