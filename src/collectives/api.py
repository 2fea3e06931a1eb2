"""Our collectives, with the names, arguments and semantics of ``torch.distributed``, and a choice of algorithm.

::

    from collectives import all_reduce
    all_reduce(gradient, op=dist.ReduceOp.AVG, algorithm="two_tree")

Every rank of the group makes the same calls, one thread at a time. ``algorithm`` is a name from
``collectives list`` or "auto"; ``segments`` says into how many pieces, at most 1024, a pipelined
algorithm cuts its buffer (by default from the size). "auto" takes the algorithm with the shortest
predicted time on the machine that the environment variable COLLECTIVES_MACHINE names on rank 0 (a
preset, a file that ``collectives calibrate`` wrote, or LATENCY,RATE) when a group is first used.
Rank 0 tells the others. If it names none, the ranks of a gloo group measure their links then, in
about 30 round trips or 0.1 s, and later groups on the same hosts take these; an NCCL group goes by
the preset ethernet. COLLECTIVES_MACHINE=ethernet turns the measurement off. Where "auto" simulates,
it chooses once for each power of two of bytes (`collectives.autotune`).

Tensors are on the CPU in a gloo group, or on the GPU in an NCCL group (not yet with ``async_op``);
a group of `collectives.torch_backend` takes both. Lists of tensors, and tensors that are not
contiguous, cost a copy. The dtype is the same for all tensors of a call. Without a reduction it is
any that torch copies: not quantized types, nor integers of fewer than 8 bits. A reduction takes
float16, bfloat16, float32, float64, signed integers, uint8 and bool; op is SUM, AVG, PRODUCT, MAX
or MIN, and for integers and bools BAND, BOR or BXOR. A sum of bools is their "or"; they have no
average.

Tensors may have any shape and any number of elements, including 0. Roots are global ranks. What a
function says of sums holds for every op; for the rounding of floats see
`collectives.engine.group.perform`. Discard the group after any error: some ranks have added what
others have not.

With ``async_op=True`` a call returns a `Work` at once. Such calls run one after the other, in the
order in which they were made, on a thread and over connections of their own; every rank has to make
them in the same order. The first on a group makes these connections, so it has the same place among
all calls on every rank.

Every function raises ValueError, before it sends anything, for a tensor, op, algorithm, list or
split sizes that it does not take. Outputs must not share memory: it refuses a tensor that
`Tensor.expand` has made, and a list with one tensor twice. It raises RuntimeError, which names the
peer and the step, if a peer fails, is late or makes a different call (over gloo), or if two threads
use one group at once. With ``async_op`` the `Work` raises them.

On one rank every collective is a copy:

>>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
>>> x = torch.tensor([3.0, 4.0])
>>> all_reduce(x, dist.ReduceOp.AVG), reduce(x, dst=0), broadcast(x, src=0)
(None, None, None)
>>> out = torch.zeros(8, 2)
>>> scatter(out[0], [x]), gather(x, [out[1]]), all_gather([out[2]], x), all_gather_into_tensor(out[3], x)
(None, None, None, None)
>>> reduce_scatter(out[4], [x]), reduce_scatter_tensor(out[5], x), all_to_all([out[6]], [x])
(None, None, None)
>>> all_to_all_single(out[7], x, async_op=True).wait()
True
>>> torch.equal(out, x.expand(8, 2))
True
>>> all_reduce(x, algorithm="rnig")  # doctest: +ELLIPSIS
Traceback (most recent call last):
    ...
ValueError: no algorithm 'rnig' for 'all_reduce'; all_reduce has ...
>>> dist.destroy_process_group()
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import distributed as dist

from collectives import calls
from collectives.calls import CallInto, Group, Op, Tensors
from collectives.engine.call import Call
from collectives.engine.group import PreparedCall, connect, group_of, perform
from collectives.engine.group import prepare as group_prepare
from collectives.engine.work import Work, start

# The group that `new_group` gives a rank outside it.
NON_MEMBER: Any = dist.GroupMember.NON_GROUP_MEMBER


def all_reduce(
    tensor: torch.Tensor,
    op: Op = dist.ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
    *,
    algorithm: str = "auto",
    segments: int | None = None,
) -> Work | None:
    """Sum the ranks' tensors in place, so that every rank's ``tensor`` holds the sum, bit for bit the same.

    The tensors have the same number of elements. With ``x[r]`` the tensor of rank r it equals
    ``for r in ranks: x[r][:] = sum(x)``.
    """
    flatten = partial(calls.all_reduce, tensor, op, group, algorithm, segments)
    return _perform("all_reduce", flatten, group, async_op)


def broadcast(
    tensor: torch.Tensor,
    src: int = 0,
    group: Group = None,
    async_op: bool = False,
    *,
    algorithm: str = "auto",
    segments: int | None = None,
) -> Work | None:
    """Copy the tensor of rank ``src`` to all, in place: ``for r in ranks: x[r][:] = x[src]``.

    The tensors have the same number of elements.
    """
    flatten = partial(calls.broadcast, tensor, _group_rank(group, src), group, algorithm, segments)
    return _perform("broadcast", flatten, group, async_op)


def reduce(
    tensor: torch.Tensor,
    dst: int = 0,
    op: Op = dist.ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
    *,
    algorithm: str = "auto",
    segments: int | None = None,
) -> Work | None:
    """Sum the ranks' tensors into that of rank ``dst``: ``x[dst][:] = sum(x)``.

    The others keep theirs.

    The tensors have the same number of elements.
    """
    flatten = partial(calls.reduce, tensor, op, _group_rank(group, dst), group, algorithm, segments)
    return _perform("reduce", flatten, group, async_op)


def scatter(
    tensor: torch.Tensor,
    scatter_list: Tensors | None = None,
    src: int = 0,
    group: Group = None,
    async_op: bool = False,
    *,
    algorithm: str = "auto",
    segments: int | None = None,
) -> Work | None:
    """Give each rank its tensor out of a list that rank ``src`` has: ``for r in ranks: x[r][:] = scatter_list[r]``.

    The list has p tensors, each with as many elements as ``tensor``; other ranks give None.
    """
    root = _group_rank(group, src)
    parts = (scatter_list or ()) if dist.get_rank(group) == root else None
    flatten = partial(calls.scatter, tensor, parts, root, group, algorithm, segments)
    return _perform("scatter", flatten, group, async_op)


def gather(
    tensor: torch.Tensor,
    gather_list: Tensors | None = None,
    dst: int = 0,
    group: Group = None,
    async_op: bool = False,
    *,
    algorithm: str = "auto",
    segments: int | None = None,
) -> Work | None:
    """Gather the ranks' tensors in a list at rank ``dst``: ``for r in ranks: gather_list[r][:] = x[r]``.

    The list has p tensors, each with as many elements as ``tensor``; other ranks give None.
    """
    root = _group_rank(group, dst)
    outputs = (gather_list or ()) if dist.get_rank(group) == root else None
    flatten = partial(calls.gather, outputs, tensor, root, group, algorithm, segments)
    return _perform("gather", flatten, group, async_op)


def all_gather(
    tensor_list: Tensors,
    tensor: torch.Tensor,
    group: Group = None,
    async_op: bool = False,
    *,
    algorithm: str = "auto",
    segments: int | None = None,
) -> Work | None:
    """Gather the ranks' tensors in every rank's list: ``for r in ranks: tensor_list[r][:] = x[r]``.

    The list has p tensors, each with as many elements as ``tensor``.
    """
    flatten = partial(calls.all_gather, tensor_list, tensor, group, algorithm, segments)
    return _perform("all_gather", flatten, group, async_op)


def all_gather_into_tensor(
    output_tensor: torch.Tensor,
    input_tensor: torch.Tensor,
    group: Group = None,
    async_op: bool = False,
    *,
    algorithm: str = "auto",
    segments: int | None = None,
) -> Work | None:
    """Copy all ranks' inputs one after the other into every output: ``for r in ranks: out[r][:] = concatenate(x)``.

    The output has p times as many elements as the input, whatever its shape.
    """
    flatten = partial(calls.all_gather, [output_tensor], input_tensor, group, algorithm, segments)
    return _perform("all_gather", flatten, group, async_op)


def reduce_scatter(
    output: torch.Tensor,
    input_list: Tensors,
    op: Op = dist.ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
    *,
    algorithm: str = "auto",
    segments: int | None = None,
) -> Work | None:
    """Sum the ranks' lists element by element and give rank r the r-th: ``out[r][:] = sum(x[s][r] for s in ranks)``.

    The list has p tensors, the r-th with as many elements as the output of rank r, and is left
    alone. If they differ in size, an all-reduce of all of them serves the call, and ``algorithm``
    is one of its.
    """
    flatten = partial(calls.reduce_scatter, output, input_list, op, group, algorithm, segments)
    return _perform("reduce_scatter", flatten, group, async_op)


def reduce_scatter_tensor(
    output: torch.Tensor,
    input: torch.Tensor,  # noqa: A002, torch's name for it
    op: Op = dist.ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
    *,
    algorithm: str = "auto",
    segments: int | None = None,
) -> Work | None:
    """Sum the ranks' inputs and give each rank its part: ``for r in ranks: out[r][:] = split(sum(x), p)[r]``.

    The input has p times as many elements as the output, whatever its shape, and is left alone.
    """
    flatten = partial(calls.reduce_scatter, output, [input], op, group, algorithm, segments)
    return _perform("reduce_scatter", flatten, group, async_op)


def all_to_all(
    output_tensor_list: Tensors,
    input_tensor_list: Tensors,
    group: Group = None,
    async_op: bool = False,
    *,
    algorithm: str = "auto",
    segments: int | None = None,
) -> Work | None:
    """Send the r-th tensor of the list to rank r: ``for r, s in pairs: out[r][s][:] = inp[s][r]``.

    Sizes may differ.

    A rank knows the sizes of its own tensors only. So the algorithm is one that passes on no other
    rank's data (direct, pairwise), even if all sizes happen to be equal.
    """
    flatten = partial(
        calls.all_to_all, output_tensor_list, input_tensor_list, group, algorithm, segments
    )
    return _perform("all_to_all", flatten, group, async_op)


def all_to_all_single(
    output: torch.Tensor,
    input: torch.Tensor,  # noqa: A002, torch's name for it
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Group = None,
    async_op: bool = False,
    *,
    algorithm: str = "auto",
    segments: int | None = None,
) -> Work | None:
    """Send each rank its part of ``input``, and put what comes from rank s into part s of ``output``.

    Parts are equal, or have the given numbers of rows (entries of the first dimension). Either all
    ranks give split sizes, input's or output's or both, or none does.
    """
    rows = output_split_sizes, input_split_sizes
    flatten = partial(calls.all_to_all_single, output, input, *rows, group, algorithm, segments)
    return _perform("all_to_all", flatten, group, async_op)


def prepare(
    collective: str,
    *tensors: torch.Tensor,
    op: Op = dist.ReduceOp.SUM,
    root: int = 0,
    group: Group = None,
    algorithm: str = "auto",
    segments: int | None = None,
) -> PreparedCall:
    """Prepare a call that is performed again and again on the same tensors, as MPI 4's persistent collectives are.

    ``again = prepare("all_reduce", x)``, then each ``again()`` equals ``all_reduce(x)`` without
    looking the call up: the algorithm, the program and the tensors are kept. Every rank prepares
    the same call, at the same place among its calls. ``tensors`` are one for "all_reduce",
    "broadcast" and "reduce"; an output and an input for "all_gather", "reduce_scatter" and
    "all_to_all" of equal parts. They are contiguous. ``root`` is a global rank.

    Raises ValueError for other collectives and tensors; ``again()`` raises what the functions here
    raise.

    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> x = torch.tensor([3.0, 4.0])
    >>> again = prepare("all_reduce", x, op=dist.ReduceOp.AVG)
    >>> again(), again(), x
    (None, None, tensor([3., 4.]))
    >>> prepare("scatter", x)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    ValueError: prepare: got scatter of 1 tensors, expected all_reduce, broadcast or reduce of one, or all_gather, ...
    >>> dist.destroy_process_group()
    """
    options, at = (group, algorithm, segments), _group_rank(group, root)
    match collective, tensors:
        case "all_reduce", (tensor,):
            call, into = calls.all_reduce(tensor, op, *options)
        case "broadcast", (tensor,):
            call, into = calls.broadcast(tensor, at, *options)
        case "reduce", (tensor,):
            call, into = calls.reduce(tensor, op, at, *options)
        case "all_gather", (output, given):
            call, into = calls.all_gather([output], given, *options)
        case "reduce_scatter", (output, given):
            call, into = calls.reduce_scatter(output, [given], op, *options)
        case "all_to_all", (output, given):
            call, into = calls.all_to_all_single(output, given, None, None, *options)
        case _:
            raise ValueError(
                f"prepare: got {collective} of {len(tensors)} tensors, expected all_reduce, broadcast or reduce "
                "of one, or all_gather, reduce_scatter or all_to_all of an output and an input"
            )
    if into or not all(tensor.is_contiguous() for tensor in tensors):
        raise ValueError(
            "prepare: got a tensor that is not contiguous, expected contiguous ones, whose memory is kept"
        )
    return group_prepare(call)


def _perform(
    collective: str, flatten: Callable[[], CallInto], group: Group, async_op: bool
) -> Work | None:
    """Perform a call now, or start it in the background.

    ``flatten`` makes the call, and names the tensors that its output is copied to, if any. In the
    background that happens when the call's turn comes.
    """
    if group is NON_MEMBER:
        warnings.warn(
            f"{collective}: this process is not a member of the group; the call does nothing",
            stacklevel=3,
        )
        return None
    if async_op:
        # Before its turn only the call's group is needed. A group of several back ends gives the
        # one of an empty CPU tensor, which is gloo's.
        cpu_call = Call(collective, torch.empty(0), None, group=group)
        gloo_group = group_of(cpu_call)
        connect(gloo_group)
        return start(partial(_perform_later, flatten, gloo_group), gloo_group, collective)
    call, outputs = flatten()
    perform(call)
    if outputs:
        calls.hand_out(call.flat_output(), outputs)
    return None


def _perform_later(flatten: Callable[[], CallInto], group: dist.ProcessGroup) -> list[torch.Tensor]:
    """Perform a call on the group's thread, and return its outputs."""
    call, into = flatten()
    perform(call._replace(group=group, background=True))
    if into:
        calls.hand_out(call.flat_output(), into)
        return list(into)
    return [] if call.output is None else [call.output]


def _group_rank(group: Group, rank: int) -> int:
    return rank if group is None or group is NON_MEMBER else dist.get_group_rank(group, rank)
