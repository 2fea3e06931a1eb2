"""torch's calls as ours: lists of tensors as one flat buffer, and tensors that are not contiguous as copies.

Each function here makes a `Job`, when it is the job's turn: by then what was called before has changed its tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import distributed as dist

from collectives.engine.call import Call

Tensors = Sequence[torch.Tensor]
Op = dist.ReduceOp.RedOpType


class Job(NamedTuple):
    """A call on flat buffers, and the tensors that its output is for, one after the other."""

    call: Call
    outputs: Tensors

    def hand_out(self) -> None:
        """Copy the output into the tensors whose memory it is not."""
        if not self.outputs:
            return
        lengths = [tensor.numel() for tensor in self.outputs]
        for tensor, piece in zip(self.outputs, torch.split(self.call.flat_output(), lengths), strict=True):
            if tensor.data_ptr() != piece.data_ptr():
                tensor.detach().copy_(piece.view(tensor.shape))


def all_reduce(tensor: torch.Tensor, op: Op) -> Job:
    """Of one tensor, in place."""
    flat = _flat(tensor)
    return Job(Call("all_reduce", flat, flat, op), [tensor])


def broadcast(tensor: torch.Tensor, root: int) -> Job:
    """Of one tensor, in place."""
    flat = _flat(tensor)
    return Job(Call("broadcast", flat, flat, None, root), [tensor])


def reduce(tensor: torch.Tensor, op: Op, root: int, rank: int) -> Job:
    """Of one tensor, in place on the root."""
    flat = _flat(tensor)
    return Job(Call("reduce", flat, flat, op, root), [tensor] if rank == root else [])


def gather(outputs: Tensors, tensor: torch.Tensor, root: int, p: int) -> Job:
    """Into a list on the root; elsewhere it is empty."""
    if outputs:
        _need_parts("gather", outputs, tensor, p)
    return Job(Call("gather", _alloc_flat(outputs) if outputs else None, _flat(tensor), None, root), outputs)


def scatter(tensor: torch.Tensor, inputs: Tensors, root: int, p: int) -> Job:
    """Out of a list on the root; elsewhere it is empty."""
    if inputs:
        _need_parts("scatter", inputs, tensor, p)
    return Job(Call("scatter", _alloc_flat([tensor]), _joined(inputs) if inputs else None, None, root), [tensor])


def all_gather(outputs: Tensors, tensor: torch.Tensor, p: int) -> Job:
    """Into a list, or into one tensor that holds all parts."""
    _need_parts("all_gather", outputs, tensor, p)
    return Job(Call("all_gather", _alloc_flat(outputs), _flat(tensor)), outputs)


def reduce_scatter(output: torch.Tensor, inputs: Tensors, op: Op, rank: int, p: int) -> Job:
    """Out of a list, or of one tensor that holds all parts. Parts of several sizes are reduced by an all-reduce."""
    if len({tensor.numel() for tensor in inputs}) > 1 and len(inputs) == p:
        return _uneven_reduce_scatter(output, inputs, op, rank)
    _need_parts("reduce_scatter", inputs, output, p)
    return Job(Call("reduce_scatter", _alloc_flat([output]), _joined(inputs), op), [output])


def _uneven_reduce_scatter(output: torch.Tensor, inputs: Tensors, op: Op, rank: int) -> Job:
    """As an all-reduce of all parts: those of the other ranks stay where they are."""
    if output.numel() != inputs[rank].numel():
        raise ValueError(
            f"reduce_scatter: got an output of {output.numel()} elements on rank {rank}, "
            f"expected the {inputs[rank].numel()} of its part"
        )
    flat = _joined(inputs)
    parts = list(torch.split(flat, [tensor.numel() for tensor in inputs]))
    parts[rank] = output
    return Job(Call("all_reduce", flat, flat, op), parts)


def all_to_all(outputs: Tensors, inputs: Tensors) -> Job:
    """Between lists, whose tensors may differ in size."""
    splits = tuple(each.numel() for each in inputs), tuple(each.numel() for each in outputs)
    return Job(Call("all_to_all", _alloc_flat(outputs), _joined(inputs), splits=splits), outputs)


def all_to_all_single(output: torch.Tensor, given: torch.Tensor, rows: Sequence[Sequence[int]], p: int) -> Job:
    """Between parts of two tensors: equal ones, or with the number of ``rows`` for each rank."""
    splits = (_elements(given, rows[0], p), _elements(output, rows[1], p)) if any(rows) else None
    return Job(Call("all_to_all", _alloc_flat([output]), _flat(given), splits=splits), [output])


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's own memory if that is contiguous, otherwise a copy."""
    return tensor.detach().contiguous().view(-1)


def _joined(tensors: Tensors) -> torch.Tensor:
    return _flat(tensors[0]) if len(tensors) == 1 else torch.cat([_flat(tensor) for tensor in tensors])


def _alloc_flat(outputs: Tensors) -> torch.Tensor:
    """Memory for the outputs, one after the other; a contiguous one that is alone has it itself."""
    if len(outputs) == 1 and outputs[0].is_contiguous():
        return _flat(outputs[0])
    return outputs[0].new_empty(sum(tensor.numel() for tensor in outputs))


def _elements(tensor: torch.Tensor, rows: Sequence[int], p: int) -> tuple[int, ...]:
    each = tensor.numel() // max(1, len(tensor))
    return tuple(count * each for count in rows or [len(tensor) // p] * p)


def _need_parts(collective: str, whole: Tensors, part: torch.Tensor, p: int) -> None:
    lengths = [tensor.numel() for tensor in whole]
    if lengths not in ([p * part.numel()], [part.numel()] * p):
        raise ValueError(
            f"{collective} on {p} ranks: got tensors of {lengths} elements for parts of {part.numel()}, "
            f"expected {p} of {part.numel()}, or one of {p * part.numel()}"
        )
