"""Our collectives, called as ``torch.distributed``'s are: the same names, arguments and semantics, and an algorithm.

    from collectives import all_reduce
    all_reduce(gradient, op=dist.ReduceOp.AVG, algorithm="two_tree")

Every rank of the group calls alike. ``algorithm`` is a name from ``collectives list`` or "auto"; ``segments`` says into
how many pieces a pipelined algorithm cuts its buffer (by default from the size). Tensors are contiguous, on the CPU, in
a gloo group; dtypes are float16, bfloat16, float32, float64, int32 and int64; op is SUM, AVG, PRODUCT, MAX or MIN. Any
number of elements will do, also 0. What is said here of sums holds for every op; how floats are rounded stands at
`collectives.backends.p2p.perform`. Calls return when they are done: torch's ``async_op`` is not offered.
"""

from __future__ import annotations

import warnings

import torch
from torch import distributed as dist

from collectives.backends import Call, p2p

Group = dist.ProcessGroup | None
Op = dist.ReduceOp.RedOpType


def all_reduce(
    tensor: torch.Tensor,
    op: Op = dist.ReduceOp.SUM,
    group: Group = None,
    *,
    algorithm: str = "auto",
    segments: int | None = None,
) -> None:
    """Sum the ranks' tensors; afterwards every rank's ``tensor`` holds the sum, bit for bit the same.

    Equals, with ``x[r]`` the tensor of rank r: ``for r in ranks: x[r][:] = sum(x)``.
    """
    _perform(Call("all_reduce", tensor, tensor, op, None, group, algorithm, segments))


def broadcast(
    tensor: torch.Tensor,
    src: int = 0,
    group: Group = None,
    *,
    algorithm: str = "auto",
    segments: int | None = None,
) -> None:
    """Copy the tensor of rank ``src`` (a global rank) to all: ``for r in ranks: x[r][:] = x[src]``."""
    _perform(Call("broadcast", tensor, tensor, None, _group_rank(group, src), group, algorithm, segments))


def reduce(
    tensor: torch.Tensor,
    dst: int = 0,
    op: Op = dist.ReduceOp.SUM,
    group: Group = None,
    *,
    algorithm: str = "auto",
    segments: int | None = None,
) -> None:
    """Sum the ranks' tensors into that of rank ``dst`` (a global rank): ``x[dst][:] = sum(x)``. Others keep theirs."""
    _perform(Call("reduce", tensor, tensor, op, _group_rank(group, dst), group, algorithm, segments))


def all_gather_into_tensor(
    output_tensor: torch.Tensor,
    input_tensor: torch.Tensor,
    group: Group = None,
    *,
    algorithm: str = "auto",
    segments: int | None = None,
) -> None:
    """Put all ranks' inputs one after the other into every output: ``for r in ranks: out[r][:] = concatenate(x)``.

    The output has p times as many elements as the input, whatever its shape.
    """
    call = Call("all_gather", output_tensor, input_tensor, None, None, group, algorithm, segments)
    _perform(call, whole=output_tensor, part=input_tensor)


def reduce_scatter_tensor(
    output: torch.Tensor,
    input: torch.Tensor,  # noqa: A002, torch's name for it
    op: Op = dist.ReduceOp.SUM,
    group: Group = None,
    *,
    algorithm: str = "auto",
    segments: int | None = None,
) -> None:
    """Sum the ranks' inputs and give each rank its part: ``for r in ranks: out[r][:] = split(sum(x), p)[r]``.

    The input has p times as many elements as the output, whatever its shape, and is left alone.
    """
    call = Call("reduce_scatter", output, input, op, None, group, algorithm, segments)
    _perform(call, whole=input, part=output)


def _perform(call: Call, whole: torch.Tensor | None = None, part: torch.Tensor | None = None) -> None:
    p = dist.get_world_size(call.group)
    if dist.get_rank(call.group) < 0:
        warnings.warn(f"{call.collective}: this process is no member of the group; nothing is done", stacklevel=3)
        return
    if whole is not None and part is not None and whole.numel() != p * part.numel():
        raise ValueError(
            f"{call.collective} on {p} ranks joins {p} parts of {part.numel()} elements, "
            f"which is not a tensor of {whole.numel()}"
        )
    p2p.perform(call)


def _group_rank(group: Group, rank: int) -> int:
    return rank if group is None else dist.get_group_rank(group, rank)
