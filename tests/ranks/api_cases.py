"""What every rank does for test_api.py: each collective, algorithm, dtype, op and length, against plain expectations.

`run` reports one event per check: {"case": …, "ok": bool}. Run through collectives.launch, as measurements are.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed as dist

import collectives
from collectives.algorithms import names
from collectives.bench import DTYPES
from collectives.bench.data import reduced, values
from collectives.bench.measure import OPS

Check = Callable[[str, bool], None]
LENGTHS = (0, 1, 2, 3, 7, 64, 1000)
RANDOM_BOUND = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


def run(settings: dict[str, Any], report: Callable[[dict[str, Any]], None]) -> None:
    torch.set_num_threads(1)
    p, rank = dist.get_world_size(), dist.get_rank()

    def check(case: str, ok: bool) -> None:
        everywhere = torch.tensor([int(ok)])
        dist.all_reduce(everywhere, op=dist.ReduceOp.MIN)
        report({"case": case, "ok": bool(everywhere.item())})

    warnings.simplefilter("error")
    for name, op, n in itertools.product(DTYPES, OPS, LENGTHS):
        reducing(check, rank, p, name, op, n)
    for name, n in itertools.product(DTYPES, LENGTHS):
        moving(check, rank, p, name, n)
    half_types(check, rank, p)
    same_bits(check, rank, p)
    shapes(check, rank, p)
    groups(check, rank, p)
    refusals(check, p)


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
    for algorithm in ["auto", *names("all_reduce")]:
        tensor = mine.clone()
        collectives.all_reduce(tensor, OPS[op], algorithm=algorithm, segments=3)
        check(f"all_reduce {algorithm} {name} {op} {n}", torch.equal(tensor, everything))
    for algorithm, dst in itertools.product(["auto", *names("reduce")], {0, p - 1}):
        tensor = mine.clone()
        collectives.reduce(tensor, dst, OPS[op], algorithm=algorithm)
        check(f"reduce {algorithm} to {dst} {name} {op} {n}", torch.equal(tensor, everything if rank == dst else mine))
    whole, parts = data(rank, n * p, name, op, p), total(n * p, name, op, p)
    given, output = whole.clone(), torch.full((n,), 77, dtype=whole.dtype)
    collectives.reduce_scatter_tensor(output, given, OPS[op], algorithm="ring")
    ok = torch.equal(output, parts.view(p, n)[rank]) and torch.equal(given, whole)
    check(f"reduce_scatter ring {name} {op} {n}", ok)


def moving(check: Check, rank: int, p: int, name: str, n: int) -> None:
    mine = data(rank, n, name, "sum", p)
    for algorithm, src in itertools.product(["auto", *names("broadcast")], {0, p - 1}):
        tensor = mine.clone()
        collectives.broadcast(tensor, src, algorithm=algorithm)
        check(f"broadcast {algorithm} from {src} {name} {n}", torch.equal(tensor, data(src, n, name, "sum", p)))
    output, given = torch.full((n * p,), 77, dtype=mine.dtype), mine.clone()
    collectives.all_gather_into_tensor(output, given)
    expected = torch.cat([data(of, n, name, "sum", p) for of in range(p)])
    check(f"all_gather auto {name} {n}", torch.equal(output, expected) and torch.equal(given, mine))


def half_types(check: Check, rank: int, p: int) -> None:
    """Rounded once per step: within ((1 + u)**h - 1) * sum(abs(x)) of the exact sum, for h <= p - 1 adds in a chain."""
    for dtype, u in RANDOM_BOUND.items():
        x = [torch.randn(997, generator=torch.Generator().manual_seed(r)).to(dtype) for r in range(p)]
        exact, scale = torch.stack(x).double().sum(0), torch.stack(x).double().abs().sum(0)
        for algorithm in names("all_reduce"):
            tensor = x[rank].clone()
            collectives.all_reduce(tensor, algorithm=algorithm, segments=2)
            h = 1 if algorithm in ("exchange", "root") else p - 1  # one step: added in float32, rounded once
            slack = p * 2.0**-24
            within = (tensor.double() - exact).abs() <= ((1 + u) ** h - 1 + slack) * scale
            check(f"all_reduce {algorithm} {dtype} stays within its bound", bool(within.all()))


def same_bits(check: Check, rank: int, p: int) -> None:
    """Random floats: sums depend on the order of addition, so equal bits mean equal order."""
    for dtype, algorithm in itertools.product(
        (torch.float16, torch.bfloat16, torch.float32, torch.float64), names("all_reduce")
    ):
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.PRODUCT):
            tensor = torch.randn(501, generator=torch.Generator().manual_seed(rank)).to(dtype)
            collectives.all_reduce(tensor, op, algorithm=algorithm, segments=2)
            everyones = [torch.empty_like(tensor) for _ in range(p)]
            dist.all_gather(everyones, tensor)
            same = all(torch.equal(everyones[0], other) for other in everyones)
            check(f"all_reduce {algorithm} {dtype} {op} has the same bits everywhere", same)


def shapes(check: Check, rank: int, p: int) -> None:
    tensor = torch.arange(24.0).reshape(2, 3, 4) * (rank + 1)
    collectives.all_reduce(tensor, algorithm="two_tree")
    check("all_reduce keeps shapes", torch.equal(tensor, torch.arange(24.0).reshape(2, 3, 4) * (p * (p + 1) // 2)))
    stacked, part = torch.empty(p, 5), torch.arange(5.0) + 10 * rank
    collectives.all_gather_into_tensor(stacked, part)
    check("all_gather stacks", torch.equal(stacked, torch.arange(5.0) + 10 * torch.arange(p)[:, None]))
    weight = torch.ones(3, requires_grad=True)
    collectives.all_reduce(weight)
    check(
        "a tensor that requires grad", weight.requires_grad and torch.equal(weight.detach(), torch.full((3,), float(p)))
    )
    view = torch.ones(10)
    collectives.all_reduce(view[2:5])
    check("a view, and nothing beside it", torch.equal(view, torch.tensor([1.0] * 2 + [float(p)] * 3 + [1.0] * 5)))


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
    refuses("op is SUM, AVG, PRODUCT, MAX or MIN", lambda: collectives.all_reduce(x, dist.ReduceOp.BAND))
    refuses("one of float16, bfloat16", lambda: collectives.all_reduce(x.to(torch.complex64)))
    refuses("must be contiguous", lambda: collectives.all_reduce(torch.ones(4, 4).T))
    refuses(f"joins {p} parts of 6 elements", lambda: collectives.all_gather_into_tensor(torch.ones(6 * p + 1), x))
    refuses("are alike", lambda: collectives.reduce_scatter_tensor(x.double(), torch.ones(6 * p)))
