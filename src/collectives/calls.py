"""Flatten calls of ``torch.distributed``: lists of tensors become one flat buffer, other layouts a contiguous copy.

Each function here flattens one collective. It returns the `Call`, and the tensors into which its
output is copied: none if the output is the caller's own memory. Inputs are read at once, so a call
that waits behind others is flattened when its turn comes. Roots are ranks within the group. Raises
ValueError for lists or split sizes that do not fit, and for outputs whose elements share memory: a
tensor that `Tensor.expand` has made, or the same one twice in a list.

>>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
>>> x = torch.arange(6.0).view(2, 3)
>>> call, into = all_reduce(x, dist.ReduceOp.SUM)
>>> call.output is x, into
(True, ())
>>> call, into = all_reduce(x.T, dist.ReduceOp.SUM)
>>> call.output.is_contiguous(), [each.shape for each in into]
(True, [torch.Size([3, 2])])
>>> all_gather([x, x], x)
Traceback (most recent call last):
    ...
ValueError: all_gather: got tensors of [6, 6] elements, expected 1 of 6, one for each rank, or one of 6 for all
>>> dist.destroy_process_group()
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import distributed as dist

from collectives.engine.call import Call

Group = dist.ProcessGroup | None
Op = dist.ReduceOp.RedOpType
Tensors = Sequence[torch.Tensor]
CallInto = tuple[Call, Tensors]


def all_reduce(
    tensor: torch.Tensor,
    op: Op,
    group: Group = None,
    algorithm: str = "auto",
    segments: int | None = None,
) -> CallInto:
    """Flatten an all-reduce, which is in place."""
    if tensor.is_contiguous():
        return Call("all_reduce", tensor, tensor, op, None, group, algorithm, segments), ()
    flat, into = _in_place(tensor)
    return Call("all_reduce", flat, flat, op, None, group, algorithm, segments), into


def broadcast(
    tensor: torch.Tensor,
    root: int,
    group: Group = None,
    algorithm: str = "auto",
    segments: int | None = None,
) -> CallInto:
    """Flatten a broadcast, which is in place."""
    flat, into = _in_place(tensor)
    return Call("broadcast", flat, flat, None, root, group, algorithm, segments), into


def reduce(
    tensor: torch.Tensor,
    op: Op,
    root: int,
    group: Group = None,
    algorithm: str = "auto",
    segments: int | None = None,
) -> CallInto:
    """Flatten a reduce, which is in place on the root and leaves the tensors of the others."""
    flat, into = _in_place(tensor)
    return Call("reduce", flat, flat, op, root, group, algorithm, segments), into


def gather(
    outputs: Tensors | None,
    tensor: torch.Tensor,
    root: int,
    group: Group = None,
    algorithm: str = "auto",
    segments: int | None = None,
) -> CallInto:
    """Flatten a gather into the root's list; other ranks have None."""
    flat: torch.Tensor | None = None
    into: Tensors = ()
    if outputs is not None:
        _check_parts("gather", outputs, tensor, group)
        flat, into = _alloc_flat(outputs)
    return Call("gather", flat, _contiguous(tensor), None, root, group, algorithm, segments), into


def scatter(
    tensor: torch.Tensor,
    inputs: Tensors | None,
    root: int,
    group: Group = None,
    algorithm: str = "auto",
    segments: int | None = None,
) -> CallInto:
    """Flatten a scatter of the root's list; other ranks have None."""
    if inputs is not None:
        _check_parts("scatter", inputs, tensor, group)
    flat, into = _alloc_flat([tensor])
    whole = None if inputs is None else _joined(inputs)
    return Call("scatter", flat, whole, None, root, group, algorithm, segments), into


def all_gather(
    outputs: Tensors,
    tensor: torch.Tensor,
    group: Group = None,
    algorithm: str = "auto",
    segments: int | None = None,
) -> CallInto:
    """Flatten an all-gather into a list with a tensor for each rank, or with one tensor for all."""
    _check_parts("all_gather", outputs, tensor, group)
    flat, into = _alloc_flat(outputs)
    return Call(
        "all_gather", flat, _contiguous(tensor), None, None, group, algorithm, segments
    ), into


def reduce_scatter(
    output: torch.Tensor,
    inputs: Tensors,
    op: Op,
    group: Group = None,
    algorithm: str = "auto",
    segments: int | None = None,
) -> CallInto:
    """Flatten a reduce-scatter of a list with a tensor for each rank, or with one tensor for all.

    If the tensors differ in size, it is an all-reduce of all of them, of which the rank takes its
    own.
    """
    lengths = _lengths(inputs)
    if len(set(lengths)) > 1 and len(inputs) == dist.get_world_size(group):
        rank, flat = dist.get_rank(group), _joined(inputs)
        if output.numel() != lengths[rank]:
            raise ValueError(
                f"reduce_scatter: got an output of {output.numel()} elements on rank {rank}, "
                f"expected the {lengths[rank]} of its part"
            )
        check_memory([output])
        into = [*torch.split(flat, lengths)]
        into[rank] = output
        return Call("all_reduce", flat, flat, op, None, group, algorithm, segments), into
    _check_parts("reduce_scatter", inputs, output, group)
    room, copied = _alloc_flat([output])
    return Call(
        "reduce_scatter", room, _joined(inputs), op, None, group, algorithm, segments
    ), copied


def all_to_all(
    outputs: Tensors,
    inputs: Tensors,
    group: Group = None,
    algorithm: str = "auto",
    segments: int | None = None,
) -> CallInto:
    """Flatten an all-to-all between lists with a tensor for each rank, which may differ in size."""
    p = dist.get_world_size(group)
    for tensors in (inputs, outputs):
        if len(tensors) != p:
            raise ValueError(
                f"all_to_all: got a list of {len(tensors)} tensors, expected {p}, one for each rank"
            )
    (flat, into), splits = _alloc_flat(outputs), (tuple(_lengths(inputs)), tuple(_lengths(outputs)))
    return Call(
        "all_to_all", flat, _joined(inputs), None, None, group, algorithm, segments, splits
    ), into


def all_to_all_single(
    output: torch.Tensor,
    input: torch.Tensor,  # noqa: A002, torch's name for it
    output_rows: Sequence[int] | None,
    input_rows: Sequence[int] | None,
    group: Group = None,
    algorithm: str = "auto",
    segments: int | None = None,
) -> CallInto:
    """Flatten an all-to-all between parts of two tensors: equal parts, or with these numbers of rows for each rank."""
    p = dist.get_world_size(group)
    splits = _split(input, input_rows, p), _split(output, output_rows, p)
    flat, into = _alloc_flat([output])
    given = None if input_rows is None and output_rows is None else splits
    return Call(
        "all_to_all", flat, _contiguous(input), None, None, group, algorithm, segments, given
    ), into


def check_memory(outputs: Tensors) -> None:
    """Raise ValueError for outputs whose elements share memory, because each would hold what is written last.

    Of views with gaps the first element alone is compared with the others, because views that lie
    between each other, as the columns of a matrix, share no element.

    >>> x = torch.zeros(5)
    >>> check_memory([x[:2], x[2:], x.view(5, 1)[5:]])
    >>> check_memory([x[2:], x[:3]])
    Traceback (most recent call last):
        ...
    ValueError: tensors to write into: got numbers 1 and 0 of the list, which share memory; expected memory for each
    """
    spans = [(*_span(tensor), number) for number, tensor in enumerate(outputs) if tensor.numel()]
    for (_, end, first), (begin, _, second) in pairwise(sorted(spans)):
        if begin and begin < end:  # the address of a tensor without memory is 0
            raise ValueError(
                f"tensors to write into: got numbers {first} and {second} of the list, which share "
                "memory; expected memory for each"
            )


def hand_out(output: torch.Tensor, into: Tensors) -> None:
    """Copy consecutive pieces of a call's output into tensors, except those that are such a piece themselves."""
    for tensor, piece in zip(
        into, torch.split(output.detach().view(-1), _lengths(into)), strict=True
    ):
        # That of a tensor without memory is 0.
        if tensor.data_ptr() != piece.data_ptr() or not tensor.data_ptr():
            tensor.detach().copy_(piece.view(tensor.shape))


def _contiguous(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor itself if it is contiguous, otherwise a copy."""
    return tensor if tensor.is_contiguous() else tensor.detach().contiguous()


def _in_place(tensor: torch.Tensor) -> tuple[torch.Tensor, Tensors]:
    if tensor.is_contiguous():
        return tensor, ()
    check_memory([tensor])
    return _contiguous(tensor), (tensor,)


def _alloc_flat(outputs: Tensors) -> tuple[torch.Tensor, Tensors]:
    """Return memory for the outputs, one after the other.

    A contiguous one that is alone has it itself.
    """
    if len(outputs) == 1 and outputs[0].is_contiguous():
        return outputs[0], ()
    check_memory(outputs)
    return outputs[0].new_empty(sum(_lengths(outputs))), outputs


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the addresses of a tensor's first byte, and of the byte after it, or after the first element of a view.

    Raises ValueError if its elements share memory.
    """
    begin = tensor.data_ptr()
    if tensor.is_contiguous():
        return begin, begin + tensor.nbytes
    strides = zip(tensor.shape, tensor.stride(), strict=True)
    if any(size > 1 and not stride for size, stride in strides):
        raise ValueError(
            f"tensor to write into: got shape {tuple(tensor.shape)} with strides {tensor.stride()}, "
            "whose elements share memory, as expand() makes it; expected memory for each: give a "
            "clone(), or call before expand()"
        )
    return begin, begin + tensor.itemsize


def _joined(inputs: Tensors) -> torch.Tensor:
    if len(inputs) == 1:
        return _contiguous(inputs[0])
    return torch.cat([tensor.detach().reshape(-1) for tensor in inputs])


def _check_parts(collective: str, whole: Tensors, part: torch.Tensor, group: Group) -> None:
    p, n, lengths = dist.get_world_size(group), part.numel(), _lengths(whole)
    if lengths not in ([p * n], [n] * p):
        raise ValueError(
            f"{collective}: got tensors of {lengths} elements, expected {p} of {n}, one for each rank, "
            f"or one of {p * n} for all"
        )


def _lengths(tensors: Tensors) -> list[int]:
    return [tensor.numel() for tensor in tensors]


def _split(tensor: torch.Tensor, rows: Sequence[int] | None, p: int) -> tuple[int, ...]:
    """Return the elements for each of p ranks: equal shares, or the given rows of the tensor."""
    n = tensor.numel()
    if rows is None:
        if n % p:
            raise ValueError(
                f"split sizes: got none for {n} elements, expected {p} of them, or {p} equal parts"
            )
        return (n // p,) * p
    if len(rows) != p or sum(rows) != len(tensor) or min(rows) < 0:
        raise ValueError(
            f"split sizes: got {list(rows)}, expected {p} counts of rows that add up to {len(tensor)}"
        )
    return tuple(count * (n // max(1, len(tensor))) for count in rows)
