"""What every rank does for test_api.py: each collective, algorithm, dtype, op and length, against plain expectations.

`run` reports one event per check: {"case": …, "ok": bool}. Run through collectives.launch, as
measurements are.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import distributed as dist

import collectives
from collectives.algorithms import build, executable, names
from collectives.backends import backend
from collectives.bench import DTYPES
from collectives.bench.data import reduced, values
from collectives.core.interpret import apply
from collectives.core.schedule import Schedule
from collectives.core.summation import is_alike, summation
from collectives.engine.call import Call
from collectives.engine.compile import plan
from collectives.engine.group import communicator
from collectives.engine.nccl import execute_in_batches
from collectives.engine.ops import BY_ROW_NAME
from collectives.engine.program import Plan

Check = Callable[[str, bool], None]
LENGTHS = (0, 1, 2, 3, 7, 64, 1000)
ADDED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
RANDOM_BOUND = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


def run(settings: dict[str, Any], report: Callable[[dict[str, Any]], None]) -> None:
    torch.set_num_threads(1)
    p, rank = dist.get_world_size(), dist.get_rank()

    checked: list[tuple[str, bool]] = []

    def check(case: str, ok: bool) -> None:
        checked.append((case, ok))

    warnings.simplefilter("error")
    for name, op, n in itertools.product(DTYPES, BY_ROW_NAME, LENGTHS):
        if n in (7, 64) or (name in ("float32", "bfloat16") and op in ("sum", "avg")):
            reducing(check, rank, p, name, op, n)
    for name, n in itertools.product(DTYPES, LENGTHS):
        moving(check, rank, p, name, n)
    lists(check, rank, p)
    in_the_background(check, rank, p)
    prepared(check, rank, p)
    step_by_step(check, rank, p)
    in_batches(check, rank, p)
    half_types(check, rank, p)
    same_bits(check, rank, p)
    predicted_bits(check, rank, p)
    shapes(check, rank, p)
    overlapping(check, rank, p)
    groups(check, rank, p)
    refusals(check, p)
    everywhere = torch.tensor([int(ok) for _, ok in checked])
    dist.all_reduce(everywhere, op=dist.ReduceOp.MIN)  # right only where it is right on every rank
    for (case, _), ok in zip(checked, everywhere.tolist(), strict=True):
        report({"case": case, "ok": bool(ok)})


def data(rank: int, n: int, name: str, op: str, p: int) -> torch.Tensor:
    return torch.from_numpy(values(rank, n, op, p, DTYPES[name][1])).to(getattr(torch, name))


def total(n: int, name: str, op: str, p: int) -> torch.Tensor:
    dtype = getattr(torch, name)
    result = torch.from_numpy(reduced(n, op, p, DTYPES[name][1])).to(dtype)
    if op == "avg":
        result = torch.div(result, p, rounding_mode=None if dtype.is_floating_point else "trunc")
    return result


def reducing(check: Check, rank: int, p: int, name: str, op: str, n: int) -> None:
    mine, everything = data(rank, n, name, op, p), total(n, name, op, p)
    for algorithm in ["auto", *names("all_reduce", executable())]:
        tensor = mine.clone()
        collectives.all_reduce(tensor, BY_ROW_NAME[op], algorithm=algorithm, segments=3)
        check(f"all_reduce {algorithm} {name} {op} {n}", torch.equal(tensor, everything))
    for algorithm, dst in itertools.product(["auto", *names("reduce", executable())], {0, p - 1}):
        tensor = mine.clone()
        collectives.reduce(tensor, dst, BY_ROW_NAME[op], algorithm=algorithm)
        check(
            f"reduce {algorithm} to {dst} {name} {op} {n}",
            torch.equal(tensor, everything if rank == dst else mine),
        )
    whole, parts = data(rank, n * p, name, op, p), total(n * p, name, op, p)
    for algorithm in ["auto", *names("reduce_scatter", executable())]:
        given, output = whole.clone(), torch.full((n,), 77, dtype=whole.dtype)
        collectives.reduce_scatter_tensor(output, given, BY_ROW_NAME[op], algorithm=algorithm)
        ok = torch.equal(output, parts.view(p, n)[rank]) and torch.equal(given, whole)
        check(f"reduce_scatter {algorithm} {name} {op} {n}", ok)


def moving(check: Check, rank: int, p: int, name: str, n: int) -> None:
    mine = data(rank, n, name, "sum", p)
    for algorithm, src in itertools.product(
        ["auto", *names("broadcast", executable())], {0, p - 1}
    ):
        tensor = mine.clone()
        collectives.broadcast(tensor, src, algorithm=algorithm)
        check(
            f"broadcast {algorithm} from {src} {name} {n}",
            torch.equal(tensor, data(src, n, name, "sum", p)),
        )
    for algorithm in ["auto", *names("all_gather", executable())]:
        output, given = torch.full((n * p,), 77, dtype=mine.dtype), mine.clone()
        collectives.all_gather_into_tensor(output, given, algorithm=algorithm)
        expected = torch.cat([data(of, n, name, "sum", p) for of in range(p)])
        check(
            f"all_gather {algorithm} {name} {n}",
            torch.equal(output, expected) and torch.equal(given, mine),
        )
    for algorithm, root in itertools.product(["auto", *names("scatter", executable())], {0, p - 1}):
        parts = list(data(root, n * p, name, "sum", p).view(p, n))
        tensor = torch.full((n,), 77, dtype=mine.dtype)
        collectives.scatter(tensor, parts if rank == root else None, root, algorithm=algorithm)
        check(f"scatter {algorithm} from {root} {name} {n}", torch.equal(tensor, parts[rank]))
        room = [torch.full((n,), 77, dtype=mine.dtype) for _ in range(p)]
        collectives.gather(mine, room if rank == root else None, root, algorithm=algorithm)
        ok = rank != root or all(
            torch.equal(room[of], data(of, n, name, "sum", p)) for of in range(p)
        )
        check(f"gather {algorithm} to {root} {name} {n}", ok)
    for algorithm in ["auto", *names("all_to_all", executable())]:
        given = data(rank, n * p, name, "sum", p)
        output, before = torch.full_like(given, 77), given.clone()
        collectives.all_to_all_single(output, given, algorithm=algorithm)
        expected = torch.cat([data(of, n * p, name, "sum", p).view(p, n)[rank] for of in range(p)])
        check(
            f"all_to_all {algorithm} {name} {n}",
            torch.equal(output, expected) and torch.equal(given, before),
        )


def lists(check: Check, rank: int, p: int) -> None:
    """The forms that take lists and split sizes, against what torch itself makes of the same input."""
    mine = torch.arange(6.0).reshape(2, 3) + 100 * rank
    ours, theirs = ([torch.full((2, 3), -1.0) for _ in range(p)] for _ in range(2))
    collectives.all_gather(ours, mine)
    dist.all_gather(theirs, mine)
    check("all_gather of a list", all(map(torch.equal, ours, theirs)))
    output, whole = torch.empty(2, 3), [mine + r for r in range(p)]
    collectives.reduce_scatter(output, whole)
    check(
        "reduce_scatter of a list",
        torch.equal(
            output, sum(torch.arange(6.0).reshape(2, 3) + 100 * r + rank for r in range(p))
        ),
    )
    rows = [(rank + r) % 3 for r in range(p)]  # rank r gets so many rows from us, and none at times
    given = torch.arange(2.0 * sum(rows)).reshape(-1, 2) + 1000 * rank
    # Symmetric: as many come back.
    ours, theirs = torch.full((sum(rows), 2), -1.0), torch.full((sum(rows), 2), -1.0)
    for algorithm in ("auto", "direct", "pairwise"):
        collectives.all_to_all_single(ours.fill_(-1), given, rows, rows, algorithm=algorithm)
        dist.all_to_all_single(theirs, given, rows, rows)
        check(f"all_to_all_single by {algorithm} with split sizes", torch.equal(ours, theirs))
    send = [torch.full(((rank + r) % 3 + 1,), 10.0 * rank + r) for r in range(p)]
    received = [torch.empty((rank + r) % 3 + 1) for r in range(p)]
    collectives.all_to_all(received, send)
    check("all_to_all of lists", all(bool((received[r] == 10 * r + rank).all()) for r in range(p)))


def in_the_background(check: Check, rank: int, p: int) -> None:
    """Calls run in order, beside calls in the foreground, and say when they are done."""
    tensors = [torch.full((1000,), float(rank + i)) for i in range(6)]
    works = [
        collectives.all_reduce(tensor, async_op=True, algorithm="two_tree") for tensor in tensors
    ]
    foreground = torch.full((1000,), float(rank))
    collectives.all_reduce(foreground, algorithm="ring")
    told = []
    after = works[-1].get_future().then(lambda future: told.append(future.value()))
    ok = all(work.wait() for work in works) and all(work.is_completed() for work in works)
    after.wait()
    check(
        "a future holds the outputs when it is done",
        [len(held) for held in told] == [1] and told[0][0] is tensors[-1],
    )
    sums = [torch.full((1000,), float(p * (p - 1) // 2 + p * i)) for i in range(6)]
    check("six all_reduces in the background", ok and all(map(torch.equal, tensors, sums)))
    check("one in the foreground beside them", torch.equal(foreground, sums[0]))
    gathered = [torch.empty(3) for _ in range(p)]
    collectives.all_gather(gathered, torch.full((3,), float(rank)), async_op=True).wait()
    check("a list in the background", all(bool((gathered[r] == r).all()) for r in range(p)))
    try:
        collectives.all_reduce(torch.ones(3), async_op=True, algorithm="rnig").wait()
    except ValueError as error:
        check("an error in the background", "no algorithm 'rnig'" in str(error))
    else:
        check("an error in the background", False)


def prepared(check: Check, rank: int, p: int) -> None:
    """Prepared calls take what is in their tensors each time, between calls of other kinds."""
    for n, algorithm in itertools.product((0, 1, 7, 1000), ("auto", "ring")):
        x, out, parts = torch.empty(n), torch.empty(p * n), torch.empty(p * n)
        calls = {
            "all_reduce": collectives.prepare(
                "all_reduce", x, op=dist.ReduceOp.MAX, algorithm=algorithm
            ),
            "reduce": collectives.prepare("reduce", x, root=p - 1),
            "broadcast": collectives.prepare("broadcast", x, root=p - 1),
            "all_gather": collectives.prepare("all_gather", out, x, algorithm=algorithm),
            "reduce_scatter": collectives.prepare("reduce_scatter", x, parts, algorithm=algorithm),
            "all_to_all": collectives.prepare("all_to_all", out, parts),
        }
        every = torch.arange(p).repeat_interleave(n)
        for turn, (collective, again) in itertools.product(range(3), calls.items()):
            x.fill_(rank + turn)
            parts.copy_(every + 10 * rank + turn)
            again()
            expected = {
                "all_reduce": (x, p - 1 + turn),
                "reduce": (x, p * (p - 1) / 2 + p * turn if rank == p - 1 else rank + turn),
                "broadcast": (x, p - 1 + turn),
                "all_gather": (out, every + turn),
                "reduce_scatter": (x, 5 * p * (p - 1) + p * (rank + turn)),
                "all_to_all": (out, 10 * every + rank + turn),
            }
            found, whole = expected[collective]
            right = torch.equal(found, torch.as_tensor(whole).to(found.dtype).expand_as(found))
            check(f"prepared {collective} {algorithm} of {n}, turn {turn}", right)
        x.data = torch.full((n,), float(rank))  # in other memory
        calls["all_reduce"]()
        check(f"prepared {algorithm} of {n} in other memory", bool((x == p - 1).all()))


def follow(program: Plan, tensor: torch.Tensor) -> None:
    """Execute a plan that no call has prepared."""
    scratch, transport = (
        torch.empty(program.scratch, dtype=tensor.dtype),
        communicator(dist.group.WORLD).transport(),
    )
    with transport.mesh.begin():
        transport.execute(program, tensor, scratch, dist.ReduceOp.SUM)


def step_by_step(check: Check, rank: int, p: int) -> None:
    """After every step of every algorithm, what the player holds on real ranks is what the interpreter holds here."""
    for (collective, algorithm), name in itertools.product(executable(), DTYPES):
        whole = build(collective, algorithm, p, segments=2)
        edges = whole.cut(3 * p)
        state = np.zeros((p, whole.k, int(np.diff(edges).max())))
        for r, c in np.ndindex(p, whole.k):
            state[r, c, : edges[c + 1] - edges[c]] = (np.arange(edges[c], edges[c + 1]) + r) % 4
        mine = torch.cat(
            [torch.from_numpy(state[rank, c, : edges[c + 1] - edges[c]]) for c in range(whole.k)]
        )
        agrees, tensor = True, mine.to(getattr(torch, name))
        for step in whole.steps():
            alone = plan(replace(whole, nsteps=1, make=lambda _, step=step: step), rank, edges)
            follow(alone, tensor)
            apply(step, state)
            held = [
                torch.from_numpy(state[rank, c, : edges[c + 1] - edges[c]]) for c in range(whole.k)
            ]
            agrees &= torch.equal(tensor.double(), torch.cat(held))
        check(f"{collective} {algorithm} {name} step by step", agrees)


def in_batches(check: Check, rank: int, p: int) -> None:
    """The player for NCCL, here over gloo: one batch a step gives the same bits as messages one by one."""
    for (collective, algorithm), n in itertools.product(executable(), (1, 1000)):
        schedule = build(collective, algorithm, p, segments=2)
        edges = schedule.cut(n)
        # In an all-to-all the buffers of all ranks.
        made, whole = plan(schedule, rank, edges), int(edges[-1])
        one, other = (
            torch.randn(whole, generator=torch.Generator().manual_seed(rank)) for _ in range(2)
        )
        follow(made, one)
        execute_in_batches(
            made, other, torch.empty(made.scratch), dist.group.WORLD, dist.ReduceOp.SUM, p
        )  # type: ignore[arg-type]
        check(f"{collective} {algorithm} float32 in batches {n}", torch.equal(one, other))


def half_types(check: Check, rank: int, p: int) -> None:
    """Rounded once per step: within ((1 + u)**h - 1) * sum(abs(x)) of the exact sum, for h <= p - 1 adds in a chain."""
    for dtype, u in RANDOM_BOUND.items():
        x = [
            torch.randn(997, generator=torch.Generator().manual_seed(r)).to(dtype) for r in range(p)
        ]
        exact, scale = torch.stack(x).double().sum(0), torch.stack(x).double().abs().sum(0)
        for algorithm in names("all_reduce", executable()):
            tensor = x[rank].clone()
            collectives.all_reduce(tensor, algorithm=algorithm, segments=2)
            at_once = algorithm in ("one_shot", "reduce_broadcast", "two_shot")
            h = 1 if at_once else p - 1  # in one step: added in float32, rounded once
            slack = p * 2.0**-24
            within = (tensor.double() - exact).abs() <= ((1 + u) ** h - 1 + slack) * scale
            check(f"all_reduce {algorithm} {dtype} stays within its bound", bool(within.all()))


def same_bits(check: Check, rank: int, p: int) -> None:
    """Random floats: sums depend on the order of addition, so equal bits mean equal order."""
    alike = [
        name for name in names("all_reduce", executable()) if is_alike(build("all_reduce", name, p))
    ]
    for dtype, algorithm in itertools.product(ADDED, alike):
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.PRODUCT):
            tensor = torch.randn(501, generator=torch.Generator().manual_seed(rank)).to(dtype)
            collectives.all_reduce(tensor, op, algorithm=algorithm, segments=2)
            gathered = [torch.empty_like(tensor) for _ in range(p)]
            dist.all_gather(gathered, tensor)
            same = all(torch.equal(gathered[0], other) for other in gathered)
            check(f"all_reduce {algorithm} {dtype} {op} has the same bits everywhere", same)


def predicted_bits(check: Check, rank: int, p: int) -> None:
    """Ranks compute the bits that `summation` predicts, in more than 10,000 random sums of each dtype."""
    for dtype, algorithm, segments in itertools.product(
        ADDED, names("all_reduce", executable()), (1, 3)
    ):
        x = torch.stack(
            [torch.randn(331, generator=torch.Generator().manual_seed(r)) for r in range(p)]
        ).to(dtype)
        tensor = x[rank].clone()
        collectives.all_reduce(tensor, algorithm=algorithm, segments=segments)
        schedule = build("all_reduce", algorithm, p, segments=segments)
        equal = torch.equal(tensor, predicted(schedule, rank, x))
        check(
            f"all_reduce {algorithm} {dtype} in {segments} segments has the predicted bits", equal
        )


def predicted(schedule: Schedule, rank: int, x: torch.Tensor) -> torch.Tensor:
    """The sums that a rank ends with, by the terms of each chunk.

    Half types are added in float32 and rounded once.
    """
    half, edges = x.dtype in RANDOM_BOUND, schedule.cut(x.shape[1])
    found = summation(schedule, once=half)
    wide = (x.float() if half else x).numpy()

    def rounded(sums: Any) -> Any:
        return torch.from_numpy(sums).to(x.dtype).float().numpy() if half else sums

    pieces = [
        found.tree.evaluate(int(found.node[rank, c]), wide[:, edges[c] : edges[c + 1]], rounded)
        for c in range(schedule.k)
    ]
    return torch.from_numpy(np.concatenate(pieces)).to(x.dtype)


def shapes(check: Check, rank: int, p: int) -> None:
    tensor = torch.arange(24.0).reshape(2, 3, 4) * (rank + 1)
    collectives.all_reduce(tensor, algorithm="two_tree")
    check(
        "all_reduce keeps shapes",
        torch.equal(tensor, torch.arange(24.0).reshape(2, 3, 4) * (p * (p + 1) // 2)),
    )
    stacked, part = torch.empty(p, 5), torch.arange(5.0) + 10 * rank
    collectives.all_gather_into_tensor(stacked, part)
    check(
        "all_gather stacks", torch.equal(stacked, torch.arange(5.0) + 10 * torch.arange(p)[:, None])
    )
    weight = torch.ones(3, requires_grad=True)
    collectives.all_reduce(weight)
    check(
        "a tensor that requires grad",
        weight.requires_grad and torch.equal(weight.detach(), torch.full((3,), float(p))),
    )
    view = torch.ones(10)
    collectives.all_reduce(view[2:5])
    check(
        "a view, and nothing beside it",
        torch.equal(view, torch.tensor([1.0] * 2 + [float(p)] * 3 + [1.0] * 5)),
    )
    columns, whole = torch.arange(12.0).view(3, 4) + rank, torch.empty(p, 4, 3)
    works = [collectives.all_reduce(columns[:, ::2], async_op=True) for _ in range(2)]
    # Of what those before leave.
    gathered = collectives.all_gather(list(whole.transpose(1, 2)), columns, async_op=True)
    check("works of views", all(work and work.wait() for work in (*works, gathered)))
    once = p * torch.arange(12.0).view(3, 4) + p * (p - 1) / 2
    check("views with gaps, one after the other", torch.equal(columns[:, ::2], p * once[:, ::2]))
    check(
        "nothing in the gaps",
        torch.equal(columns[:, 1::2], (torch.arange(12.0).view(3, 4) + rank)[:, 1::2]),
    )
    check("a list of views", torch.equal(whole.transpose(1, 2)[rank], columns))
    parts, mine = [torch.full((r + 1,), float(rank)) for r in range(p)], torch.empty(rank + 1)
    collectives.reduce_scatter(mine, parts)
    check(
        "reduce_scatter of parts that differ in size",
        torch.equal(mine, torch.full_like(mine, p * (p - 1) / 2)),
    )


def overlapping(check: Check, rank: int, p: int) -> None:
    """An input and an output that share memory, in several blocks: the result is that of two tensors."""
    n = 300_000
    own = slice(rank * n, (rank + 1) * n)
    whole = torch.full((p * n,), -1.0)
    whole[own] = torch.arange(n) + rank
    collectives.all_gather_into_tensor(whole, whole[own])
    gathered = torch.cat([torch.arange(n) + float(r) for r in range(p)])
    check("all_gather from a part of its output", torch.equal(whole, gathered))
    collectives.reduce_scatter_tensor(whole[own], whole)
    check("reduce_scatter into a part of its input", torch.equal(whole[own], gathered[own] * p))
    sizes = [n + (r + rank) % p for r in range(p)]  # as many from each rank as to it
    exchanged = torch.arange(sum(sizes)) + float(rank)
    expected, given = torch.empty_like(exchanged), exchanged.clone()
    dist.all_to_all_single(expected, given, sizes, sizes)
    collectives.all_to_all_single(exchanged, exchanged, sizes, sizes)
    check("all_to_all into its input", torch.equal(exchanged, expected))
    try:
        backend("p2p").perform(Call("all_gather", torch.empty(p + 1), torch.ones(1)))
    except ValueError as error:
        check(
            "an output of another size",
            f"got {p + 1} elements, expected {p} elements" in str(error),
        )
    else:
        check("an output of another size", p == 1)


def groups(check: Check, rank: int, p: int) -> None:
    """A subgroup of every other rank, backwards: roots are named by their global rank."""
    members = list(range(p))[::-2]
    group = dist.new_group(members)
    tensor = torch.full((6,), float(rank))
    if rank in members:
        collectives.all_reduce(tensor, group=group, algorithm="ring")
        check_in = torch.equal(tensor, torch.full((6,), float(sum(members))))
        tensor.fill_(rank)
        collectives.broadcast(tensor, src=members[-1], group=group)
        check_in &= torch.equal(tensor, torch.full((6,), float(members[-1])))
    else:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            collectives.all_reduce(tensor, group=group)
        check_in = torch.equal(tensor, torch.full((6,), float(rank))) and len(caught) == 1
    check("a subgroup of every other rank", check_in)


def premultiplied(x: torch.Tensor) -> None:
    """A sum of scaled tensors, which NCCL has alone."""
    collectives.all_reduce(x, dist._make_nccl_premul_sum(2.0))  # type: ignore[attr-defined]


def refusals(check: Check, p: int) -> None:
    def refuses(text: str, call: Callable[[], None]) -> None:
        try:
            call()
        except ValueError as error:
            check(f"refuses: {text}", text in str(error))
        else:
            check(f"refuses: {text}", False)

    x = torch.ones(6)
    refuses("no algorithm 'rnig'", lambda: collectives.all_reduce(x, algorithm="rnig"))
    refuses("op is SUM, AVG, PRODUCT, MAX, MIN, BAND, BOR or BXOR", lambda: premultiplied(x))
    refuses(
        "BAND does not reduce torch.float32", lambda: collectives.all_reduce(x, dist.ReduceOp.BAND)
    )
    refuses(
        "AVG does not reduce torch.bool", lambda: collectives.all_reduce(x > 0, dist.ReduceOp.AVG)
    )
    refuses("one of float16, bfloat16", lambda: collectives.all_reduce(x.to(torch.complex64)))
    refuses(
        "plan ring/mxint8, column 1", lambda: collectives.all_reduce(x, algorithm="ring/mxint8")
    )
    refuses(
        f"got tensors of [{6 * p + 1}] elements, expected {p} of 6",
        lambda: collectives.all_gather_into_tensor(torch.ones(6 * p + 1), x),
    )
    refuses("split sizes: got", lambda: collectives.all_to_all_single(x, x, [6] * p, [1] * (p + 1)))
    mixed = [7, -1, *[0] * (p - 2)] if p > 1 else [-6]
    refuses(
        f"split sizes: got {mixed}, expected {p}",
        lambda: collectives.all_to_all_single(x, x, mixed, mixed),
    )
    refuses(f"a list of 7 tensors, expected {p}", lambda: collectives.all_to_all([x] * 7, [x] * 7))
    parts = list(torch.ones(p, 2))
    if p > 3:
        refuses(
            "got bruck, which passes on others' pieces",
            lambda: collectives.all_to_all(parts, parts, algorithm="bruck"),
        )
    refuses(
        f"got tensors of {[6] * (p + 1)} elements, expected {p} of 6",
        lambda: collectives.all_gather([x] * (p + 1), x),
    )
    refuses("are alike", lambda: collectives.reduce_scatter_tensor(x.double(), torch.ones(6 * p)))
