"""The tensors that a plan works on: the caller's own where torch works in place, otherwise scratch memory."""

import threading

import torch

from collectives.contracts import IN_PLACE
from collectives.engine.call import Call
from collectives.engine.prepared import CallKey, Prepared, TensorKind
from collectives.engine.program import Plan
from collectives.schedule import Ints


def fill(call: Call, made: Prepared, rank: int, p: int, wanted: CallKey) -> tuple[torch.Tensor, torch.Tensor]:
    """The flat tensor to work on, holding what this rank contributes, and scratch memory.

    Where torch leaves the input alone the tensor is memory of ours. Raises ValueError for tensors of another size.
    """
    program, edges, kind = made.plan, made.edges, wanted.kind
    _need_elements(call, *_elements(call, wanted.n, rank, p))
    bystander = call.collective == "reduce" and rank != call.root
    in_place = call.collective in IN_PLACE and not (bystander and program.writes)
    if in_place:
        work, scratch = call.flat_output(), _memory(program.scratch, kind)
    else:
        whole = program.scratch + int(edges[-1])
        scratch = _memory(whole, kind)
        work = scratch[program.scratch : whole]
    if call.collective in ("gather", "all_gather", "all_to_all"):
        work[_part(edges, rank, p)].copy_(call.flat_input())
    elif not in_place and call.input is not None:
        work.copy_(call.flat_input())
    return work, scratch


def tensors(call: Call, made: Prepared, rank: int, kind: TensorKind) -> tuple[torch.Tensor | None, ...]:
    """Memory of the rank's own, if published buffers need it, its data, and where its result goes.

    Where torch works in place the three are one. Otherwise data that the result would overwrite are copied.
    """
    source, target = call.input, call.output
    if source is target and not (call.collective == "reduce" and rank != call.root):
        return target, source, target
    ready = made.stages[0]
    _need_elements(call, *ready.elements)
    if source is not None and target is not None and source is not target and _overlap(source, target):
        source = source.detach().clone()
    return _memory(int(made.edges[-1]), kind) if ready.plan.needs_own else None, source, target


def _elements(call: Call, n: int, rank: int, p: int) -> tuple[int, int]:
    """Elements of the input and of the output, 0 where there is none, of a call on a buffer of n elements."""
    is_root = call.root in (None, rank)
    match call.collective:
        case "scatter" | "reduce_scatter":
            return n * is_root, n // p
        case "gather" | "all_gather":
            return n // p, n * is_root
        case "all_to_all" if call.splits:
            return sum(call.splits[0]), sum(call.splits[1])
        case "reduce":
            return n, n * is_root
    return n, n


def _need_elements(call: Call, source: int, target: int) -> None:
    for tensor, n, what in ((call.input, source, "an input"), (call.output, target, "an output")):
        if n and (tensor is None or tensor.numel() != n):
            got = "none" if tensor is None else f"{tensor.numel()} elements"
            raise ValueError(f"{call.collective} needs {what} on this rank: got {got}, expected {n} elements")


def scratch_of(made: Prepared, kind: TensorKind) -> torch.Tensor | None:
    """Scratch memory for the stages that send messages; None where there are none."""
    sending = [stage.scratch for stage in made.stages if isinstance(stage, Plan)]
    return _memory(max(sending), kind) if sending else None


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    begin, end = max(one.data_ptr(), other.data_ptr()), min(each.data_ptr() + each.nbytes for each in (one, other))
    return begin < end


def hand_over(call: Call, work: torch.Tensor, edges: Ints, rank: int, p: int) -> None:
    """Copy the result into the caller's output, where it was not made in place."""
    match call.collective:
        case "scatter" | "reduce_scatter":
            call.flat_output().copy_(work[_part(edges, rank, p)])
        case "gather" if rank == call.root:
            call.flat_output().copy_(work)
        case "all_to_all":
            ends = edges[:: (len(edges) - 1) // (p * p)]
            pieces = [work[ends[s * p + rank] : ends[s * p + rank + 1]] for s in range(p)]
            torch.cat(pieces, out=call.flat_output())


def _part(edges: Ints, rank: int, p: int) -> slice:
    """A rank's own part of the buffer: the chunks that it owns."""
    each = (len(edges) - 1) // p
    return slice(int(edges[rank * each]), int(edges[(rank + 1) * each]))


class _Kept(threading.local):
    """One block of scratch memory for each dtype, as large as was ever needed; each thread has its own."""

    def __init__(self) -> None:
        self.blocks: dict[TensorKind, tuple[int, torch.Tensor]] = {}


_kept = _Kept()


def _memory(n: int, kind: TensorKind) -> torch.Tensor:
    """``n`` elements or more that are ours until this thread's next call.

    A block that is kept would be written by one CUDA stream while another still reads it. torch's allocator keeps GPU
    memory by stream, so on a GPU each call takes its own: nothing waits, and no event is needed.
    """
    if kind.device.type == "cuda":
        return torch.empty(n, dtype=kind.dtype, device=kind.device)
    size, block = _kept.blocks.get(kind, (-1, None))
    if block is None or size < n:
        block = torch.empty(n, dtype=kind.dtype, device=kind.device)
        _kept.blocks[kind] = n, block
    return block
