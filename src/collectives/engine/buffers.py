"""The tensors that a plan works on: the caller's own where torch works in place, otherwise scratch memory."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import torch

from collectives.core.contracts import CONTRACTS
from collectives.core.schedule import Ints
from collectives.engine.call import Call
from collectives.engine.program import Plan

if TYPE_CHECKING:
    from collectives.engine.call import CompiledCall


Shared = tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]


def fill(call: Call, made: CompiledCall, rank: int, p: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the flat tensor to work on, holding what this rank contributes, and scratch memory.

    Where torch leaves the input alone the tensor is memory of ours. Raises ValueError for tensors
    of another size.
    """
    program, edges, some = made.plan, made.edges, call.any_tensor()
    _check_elements(call, *_elements(call, made.n, rank, p))
    form = CONTRACTS[call.collective]
    bystander = call.collective == "reduce" and rank != call.root
    in_place = form.in_place and not (bystander and program.writes)
    if in_place:
        work, scratch = call.flat_output(), _memory(program.scratch, some)
    else:
        whole = program.scratch + int(edges[-1])
        scratch = _memory(whole, some)
        work = scratch[program.scratch : whole]
    if form.input_is_part or call.collective == "all_to_all":
        work[_part(edges, rank, p)].copy_(call.flat_input())
    elif not in_place and call.input is not None:
        work.copy_(call.flat_input())
    return work, scratch


def shared_tensors(call: Call, made: CompiledCall, rank: int) -> Shared:
    """Return memory of the rank's own, if shared memory needs it, its data, and where its result goes.

    Where torch works in place the three are one. Otherwise data that the result would overwrite are
    copied.
    """
    source, target = call.input, call.output
    if source is target and not (call.collective == "reduce" and rank != call.root):
        return target, source, target
    first = made.stages[0]
    _check_elements(call, *first.elements)
    if (
        source is not None
        and target is not None
        and source is not target
        and _overlap(source, target)
    ):
        source = source.detach().clone()
    return (
        _memory(int(made.edges[-1]), call.any_tensor()) if first.needs_own else None,
        source,
        target,
    )


def address(tensor: torch.Tensor | None) -> int:
    """Return the tensor's address, 0 where there is none."""
    return 0 if tensor is None else tensor.data_ptr()


def _elements(call: Call, n: int, rank: int, p: int) -> tuple[int, int]:
    """Elements of the input and of the output, 0 where there is none, of a call on a buffer of n elements."""
    if call.splits:
        return sum(call.splits[0]), sum(call.splits[1])
    form, is_root = CONTRACTS[call.collective], call.root in (None, rank)
    given = n // p if form.input_is_part else n
    wanted = n // p if form.output_is_part else n
    if form.root_only == "input" and not is_root:
        given = 0
    if form.root_only == "output" and not is_root:
        wanted = 0
    return given, wanted


def _check_elements(call: Call, source: int, target: int) -> None:
    for tensor, n, what in ((call.input, source, "an input"), (call.output, target, "an output")):
        if n and (tensor is None or tensor.numel() != n):
            got = "none" if tensor is None else f"{tensor.numel()} elements"
            raise ValueError(
                f"{call.collective} needs {what} on this rank: got {got}, expected {n} elements"
            )


def scratch_of(made: CompiledCall, like: torch.Tensor) -> torch.Tensor | None:
    """Return scratch memory for the stages that send messages; None where there are none."""
    sending = [stage.scratch for stage in made.stages if isinstance(stage, Plan)]
    return _memory(max(sending), like) if sending else None


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    begin, end = (
        max(one.data_ptr(), other.data_ptr()),
        min(each.data_ptr() + each.nbytes for each in (one, other)),
    )
    return begin < end


def hand_over(call: Call, work: torch.Tensor, edges: Ints, rank: int, p: int) -> None:
    """Copy the result into the caller's output, where it was not made in place."""
    if CONTRACTS[call.collective].output_is_part:
        call.flat_output().copy_(work[_part(edges, rank, p)])
    elif call.collective == "gather" and rank == call.root:
        call.flat_output().copy_(work)
    elif call.collective == "all_to_all":
        ends = edges[:: (len(edges) - 1) // (p * p)]
        pieces = [work[ends[s * p + rank] : ends[s * p + rank + 1]] for s in range(p)]
        torch.cat(pieces, out=call.flat_output())


def _part(edges: Ints, rank: int, p: int) -> slice:
    """Return a rank's own part of the buffer: the chunks that it owns."""
    each = (len(edges) - 1) // p
    return slice(int(edges[rank * each]), int(edges[(rank + 1) * each]))


class _Kept(threading.local):
    """One block of scratch memory for each dtype, as large as was ever needed.

    Each thread has its own.
    """

    def __init__(self) -> None:
        self.blocks: dict[torch.dtype, torch.Tensor] = {}


_kept = _Kept()


def _memory(n: int, like: torch.Tensor) -> torch.Tensor:
    """Return ``n`` elements or more of a tensor's dtype that are ours until this thread's next call.

    A block that is kept would be written by one CUDA stream while another still reads it. torch's
    allocator keeps GPU memory by stream, so on a GPU each call takes its own: nothing waits, and no
    event is needed.
    """
    if like.device.type == "cuda":
        return torch.empty(n, dtype=like.dtype, device=like.device)
    block = _kept.blocks.get(like.dtype)
    if block is None or len(block) < n:
        block = _kept.blocks[like.dtype] = torch.empty(n, dtype=like.dtype)
    return block
