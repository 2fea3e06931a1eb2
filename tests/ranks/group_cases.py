"""What every rank does for test_group.py: calls on a group of ours whose order, memory or way is unusual.

`run` reports one event per case: {"case": …, "seen": [what each rank saw]}; True where all was
right.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel

import collectives
from collectives.torch_backend import Options, hook

Group = Any
LIMIT = timedelta(seconds=20)
DTYPES = (
    torch.uint8,
    torch.bool,
    torch.int16,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.uint32,
)


def run(settings: dict[str, Any], report: Callable[[dict[str, Any]], None]) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)  # of names that torch is about to replace
    rank, p = dist.get_rank(), dist.get_world_size()
    for case in CASES:
        group = dist.new_group(backend="collectives", pg_options=Options("two_tree"), timeout=LIMIT)
        seen: list[Any] = [None] * p
        dist.all_gather_object(seen, case(group, rank, p))
        report({"case": case.__name__, "seen": seen})
        dist.destroy_process_group(group)


def calls_keep_their_order(group: Group, rank: int, p: int) -> bool:
    """Each call reads what the one before has written, and none has been waited for."""
    x, total = torch.full((1000,), float(rank)), p * (p - 1) / 2
    parts = torch.zeros(p, 1000)
    works = [
        dist.all_reduce(x, group=group, async_op=True),
        dist.all_gather_into_tensor(parts, x, group=group, async_op=True),
        dist.reduce_scatter_tensor(x, parts, group=group, async_op=True),
        dist.all_reduce(x.view(50, 20).T, dist.ReduceOp.MAX, group, async_op=True),
    ]
    dist.broadcast(x, src=0, group=group)  # comes back when it is its turn, behind the others
    done = all(work.is_completed() for work in works)
    return (
        done
        and torch.equal(x, torch.full((1000,), p * total))
        and torch.equal(parts, torch.full((p, 1000), total))
    )


def futures_hold_the_outputs(group: Group, rank: int, p: int) -> bool:
    x, room = torch.full((3,), float(rank)), [torch.empty(3) for _ in range(p)]
    doubled = (
        dist.all_reduce(x, group=group, async_op=True)
        .get_future()
        .then(lambda future: 2 * future.value()[0])
    )
    gathered = dist.all_gather(room, x, group=group, async_op=True).get_future()
    whole = [torch.full((3,), p * (p - 1) / 2)] * p
    return torch.equal(doubled.wait(), 2 * whole[0]) and all(
        map(torch.equal, gathered.wait(), whole)
    )


def what_lies_between_stays(group: Group, rank: int, p: int) -> bool:
    """Tensors that are not contiguous: every other column, and a transposed list."""
    x = torch.arange(12.0).view(3, 4) + rank
    dist.all_reduce(x[:, ::2], group=group)
    plain = torch.arange(12.0).view(3, 4)
    right = torch.equal(x[:, ::2], p * plain[:, ::2] + p * (p - 1) / 2) and torch.equal(
        x[:, 1::2], (plain + rank)[:, 1::2]
    )
    room = [torch.zeros(4, 3).T for _ in range(p)]
    dist.all_gather(room, plain + rank, group=group)
    return right and all(torch.equal(each, plain + r) for r, each in enumerate(room))


def every_dtype_moves(group: Group, rank: int, p: int) -> list[str]:
    """Those that did not arrive as they were."""
    wrong = []
    for dtype in DTYPES:
        own = [torch.tensor([r % 2, 1, 0, r % 3]).to(dtype) for r in range(p)]
        room, x = torch.zeros(4 * p).to(dtype), own[rank].clone()
        group.all_gather_single(room, own[rank]).wait()
        group.alltoall(list(room.chunk(p)), [own[rank]] * p).wait()
        root = dist.BroadcastOptions()  # type: ignore[attr-defined]
        root.rootRank = p - 1
        group.broadcast([x], root).wait()
        bits = [torch.cat(own), room, own[-1], x]
        bits = [each.view(torch.uint8) for each in bits]
        if not (torch.equal(bits[0], bits[1]) and torch.equal(bits[2], bits[3])):
            wrong.append(str(dtype))
    return wrong


def our_functions_take_the_group(group: Group, rank: int, p: int) -> bool:
    """`collectives.all_reduce` in such a group, now and in the background, beside its own calls."""
    x, y, z = (torch.full((9,), float(rank)) for _ in range(3))
    work = collectives.all_reduce(x, group=group, algorithm="ring", async_op=True)
    dist.all_reduce(y, group=group)
    collectives.all_reduce(z, group=group, algorithm="tree", segments=2)
    assert work
    return work.wait() and all(
        torch.equal(each, torch.full((9,), p * (p - 1) / 2)) for each in (x, y, z)
    )


def several_at_once(group: Group, rank: int, p: int) -> bool:
    tensors = [torch.full((n,), float(rank)) for n in (3, 0, 7)]
    with dist._coalescing_manager(group):  # type: ignore[attr-defined]
        for each in tensors:
            dist.all_reduce(each, group=group)
    return all(torch.equal(each, torch.full_like(each, p * (p - 1) / 2)) for each in tensors)


def messages_between_ranks(group: Group, rank: int, p: int) -> bool:
    """To the next rank and from the one before, in two orders by their tags."""
    room = [torch.empty(5), torch.empty(5)]
    ranks = (rank + 1) % p, (rank - 1) % p
    if p == 1:
        return True
    works = [dist.irecv(room[tag], ranks[1], group=group, tag=tag) for tag in (1, 0)]
    works += [
        dist.isend(torch.full((5,), 10.0 * rank + tag), ranks[0], group=group, tag=tag)
        for tag in (0, 1)
    ]
    for work in works:
        work.wait()
    return all(torch.equal(room[tag], torch.full((5,), 10.0 * ranks[1] + tag)) for tag in (0, 1))


def a_subgroup_is_one_of_ours(group: Group, rank: int, p: int) -> bool:
    """Every other rank, backwards; objects go through it, too."""
    members = list(range(p))[::-2]
    part = dist.new_group(members, backend="collectives", pg_options=Options("ring"), timeout=LIMIT)
    if rank not in members:
        return True
    said: list[Any] = [None] * len(members)
    dist.all_gather_object(said, {"rank": rank}, group=part)
    dist.barrier(part)
    return sorted(each["rank"] for each in said) == sorted(members)


def nobody_goes_on_alone(group: Group, rank: int, p: int) -> str:
    """Rank 0 broadcasts, and receives nothing; the last rank reduces to it."""
    x = torch.ones(100)
    try:
        if rank == p - 1 and p > 1:
            dist.reduce(x, 0, group=group)
        else:
            dist.broadcast(x, 0, group=group)
    except RuntimeError as error:
        return str(error)
    return "nothing"


def splits_that_do_not_fit(group: Group, rank: int, p: int) -> str:
    """Rank 0 sends a row to the last rank, which expects none.

    Nothing else is sent to or by either.
    """
    sent = [int(rank == 0 and r == p - 1) for r in range(p)]
    try:
        dist.all_to_all_single(torch.empty(0), torch.ones(sum(sent)), [0] * p, sent, group=group)
    except RuntimeError as error:
        return str(error)
    return "nothing"


def a_subgroup_s_errors_name_global_ranks(group: Group, rank: int, p: int) -> str:
    """The last two ranks call differently; in their group they have other numbers."""
    if p < 3:
        return "nothing"
    part = dist.new_group(
        [p - 2, p - 1], backend="collectives", timeout=LIMIT, group_desc="last two"
    )
    if rank < p - 2:
        return "nothing"
    try:
        dist.all_reduce(torch.ones(3 + rank), group=part)
    except RuntimeError as error:
        return str(error)
    return "it returned"


def built_in_hooks_average_as_over_gloo(group: Group, rank: int, p: int) -> bool:
    """One element is in no float16, and no other rank adds to it.

    The others are exact in any order.
    """
    kinds = dist.BuiltinCommHookType  # type: ignore[attr-defined]
    given = torch.tensor([[p * (rank + 1.0), -p * rank, 2049.0 * p * (rank == 0), 0.5 * p]])
    plain, alike = dist.new_group(backend="gloo", timeout=LIMIT), []
    for kind in (kinds.ALLREDUCE, kinds.FP16_COMPRESS):
        gradients = []
        for over in (group, plain):
            ddp = DistributedDataParallel(torch.nn.Linear(4, 1, bias=False), process_group=over)
            ddp._register_builtin_comm_hook(kind)  # type: ignore[no-untyped-call]
            ddp(given).sum().backward()
            gradients.append(ddp.module.weight.grad)
        alike.append(torch.equal(*gradients))
        sums = gradients[0][0, :2].tolist() == [p * (p + 1) / 2, -p * (p - 1) / 2]
        alike += [sums, (gradients[0][0, 2] == 2049) == (kind == kinds.ALLREDUCE)]
    return all(alike)


def what_is_refused_is_left_alone(group: Group, rank: int, p: int) -> list[str]:
    """Calls that no rank sends: who catches ValueError or RuntimeError sees them.

    Then one that is right.
    """
    memory, row = torch.arange(8.0), torch.arange(3.0) + rank
    expanded, wrong = memory[:1].expand(4), []
    refused = {
        "all_reduce": lambda: dist.all_reduce(expanded, group=group),
        "broadcast": lambda: dist.broadcast(expanded, 0, group=group),
        "all_gather": lambda: dist.all_gather([expanded] * p, torch.ones(4), group=group),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(
            expanded, torch.ones(4 * p), group=group
        ),
        "rows": lambda: dist.all_to_all_single(
            torch.empty(p), torch.ones(p), [7] * p, [1] * p, group=group
        ),
        "sums in one tensor": lambda: group.allreduce_coalesced([row, row]),
        "no list": lambda: group.allreduce_coalesced([]),
        "device": lambda: group.base("meta"),
    }
    if p > 1:
        overlapping = [memory[i : i + 3] for i in range(p)]
        refused |= {
            "one tensor twice": lambda: dist.all_gather([memory[:3]] * p, row, group=group),
            "overlapping views": lambda: dist.all_to_all(overlapping, [row] * p, group=group),
            "views with gaps": lambda: dist.all_gather([memory[:6:2]] * p, row, group=group),
        }
    for name, call in refused.items():
        try:
            call()
            wrong.append(f"{name}: it returned")
        except Exception as error:
            if not (isinstance(error, ValueError) and isinstance(error, RuntimeError)):
                wrong.append(f"{name}: {type(error)}")
            if "expand" in str(error) and "clone()" not in str(error):
                wrong.append(f"{name}: {error}")
    if not torch.equal(memory, torch.arange(8.0)):
        wrong.append(f"memory: {memory}")
    columns = torch.empty(3, p)
    dist.all_gather([*columns.T], row, group=group)  # views between each other share no element
    if not torch.equal(columns.T, torch.stack([torch.arange(3.0) + r for r in range(p)])):
        wrong.append(f"columns: {columns}")
    room = torch.empty(p, 2, 3)
    dist.all_gather_into_tensor(room, row.expand(2, 3), group=group)  # it is only read
    right = torch.equal(room, torch.stack([(torch.arange(3.0) + r).expand(2, 3) for r in range(p)]))
    return wrong if right else [*wrong, f"all_gather of an expanded tensor: {room}"]


def what_waits_ends_with_its_group(group: Group, rank: int, p: int) -> list[str]:
    """The last rank calls when all others have destroyed the group: they wait for it, and then it waits for them."""
    own = dist.new_group(backend="collectives", pg_options=Options("one_shot"), timeout=LIMIT)
    works, said = [], list[str]()
    if rank < p - 1:
        works = [dist.all_reduce(torch.ones(3), group=own, async_op=True) for _ in range(3)]
        works.append(dist.irecv(torch.ones(3), p - 1, group=own))
        dist.destroy_process_group(own)
    dist.barrier()
    if rank == p - 1:
        works = [dist.all_reduce(torch.ones(3), group=own, async_op=True)]
    for work in works:
        try:
            work.wait()
            said.append("it returned")
        except RuntimeError as error:
            said.append(str(error))
    return said


def its_timeout_may_be_set(group: Group, rank: int, p: int) -> str:
    """The last rank never calls."""
    dist.all_reduce(torch.ones(3), group=group)
    c10d._set_pg_timeout(timedelta(seconds=0.5), group)
    if rank == p - 1:
        return "nothing"
    try:
        dist.all_reduce(torch.ones(3), group=group)
    except RuntimeError as error:
        return str(error)
    return "it returned"


def an_error_names_its_bucket(group: Group, rank: int, p: int) -> list[str]:
    """The last rank's all-reduces are by another algorithm; its other collectives are the same."""
    said = []
    for by_hook in (False, True):
        options = Options("tree" if rank == p - 1 else "one_shot")
        own = dist.new_group(backend="collectives", pg_options=options, timeout=LIMIT)
        model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(3)])
        ddp = DistributedDataParallel(model, process_group=own, bucket_cap_mb=1e-4)
        if by_hook:
            ddp.register_comm_hook(own, hook(options.algorithm))  # type: ignore[arg-type]
        try:
            ddp(torch.ones(2, 8)).sum().backward()
            said.append("nothing")
        except RuntimeError as error:
            said.append(str(error))
    return said


CASES = [
    calls_keep_their_order,
    futures_hold_the_outputs,
    what_lies_between_stays,
    every_dtype_moves,
    our_functions_take_the_group,
    several_at_once,
    messages_between_ranks,
    a_subgroup_is_one_of_ours,
    built_in_hooks_average_as_over_gloo,
    what_is_refused_is_left_alone,
    nobody_goes_on_alone,
    splits_that_do_not_fit,
    a_subgroup_s_errors_name_global_ranks,
    what_waits_ends_with_its_group,
    its_timeout_may_be_set,
    an_error_names_its_bucket,
]
