"""What every rank does for test_functions.py: each function of torch.distributed on our back end, and on gloo.

A case draws a function, a group, shapes, dtypes, memory layouts, an op and roots; all ranks draw
alike, but each has data of its own. It runs twice, with the same data. Afterwards every tensor has
to be the same, and what is between its elements as it was. `run` reports {"case": …, "group": …,
"differs": …}: what a rank saw, where it differs.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from torch import distributed as dist
from torch.distributed import _functional_collectives as functional

import collectives.torch_backend  # noqa: F401  # makes the name known

Op = dist.ReduceOp
LIMIT = timedelta(seconds=60)
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int32, torch.int64, torch.int8, torch.uint8)
ARITHMETIC = (Op.SUM, Op.PRODUCT, Op.MIN, Op.MAX, Op.AVG)
BITWISE = (Op.BAND, Op.BOR, Op.BXOR)
DENSE, ANY = ("dense",), ("dense", "sliced", "permuted")
GAP = 99


class Draw:
    """What one case consists of: the same for all ranks that draw in the same order, but for the elements."""

    def __init__(self, seed: tuple[int, ...], ranks: list[int], is_ours: bool) -> None:
        self.rng, self.p, self.ranks, self.is_ours = (
            np.random.default_rng(seed),
            len(ranks),
            ranks,
            is_ours,
        )
        self.me = ranks.index(dist.get_rank())
        self.own = np.random.default_rng((*seed, self.me))
        self.made: list[torch.Tensor] = []
        self.between: list[torch.Tensor] = []  # what is beside or between their elements, and stays
        self.is_async, self.averaged = bool(self.rng.integers(2)), list[torch.Tensor]()
        self.dtype = self.one_of((*FLOATS, *INTEGERS))
        self.op = self.one_of(ARITHMETIC if self.dtype in FLOATS else (*ARITHMETIC[:4], *BITWISE))
        self.root = int(self.rng.integers(self.p))

    def one_of(self, values: Any) -> Any:
        return values[self.rng.integers(len(values))]

    def shape(self) -> tuple[int, ...]:
        """A few dimensions, sometimes without an element, sometimes with thousands."""
        if self.rng.integers(6) == 0:
            return (int(self.rng.integers(1_000, 20_000)),)
        return tuple(
            int(size)
            for size in self.rng.integers(
                0 if self.rng.integers(4) == 0 else 1, 6, self.rng.integers(4)
            )
        )

    def tensor(self, shape: tuple[int, ...], layouts: tuple[str, ...] = DENSE) -> torch.Tensor:
        """Small integers, whose sums and products are exact in every dtype and order. gloo wants them dense."""
        layout, n, count = self.one_of(layouts), int(np.prod(shape)), len(shape)
        values = [1, 2] if self.dtype == torch.uint8 else [-2, -1, 1, 2]
        data = torch.from_numpy(self.own.choice(values, n)).to(self.dtype).view(shape)
        if layout == "sliced" and self.is_ours:
            made, between = torch.full((*shape, 2), GAP, dtype=self.dtype).unbind(-1)
        elif layout == "permuted" and self.is_ours:
            made, between = (
                torch.empty(shape[::-1], dtype=self.dtype).permute(tuple(range(count))[::-1]),
                torch.empty(0),
            )
        else:
            whole = torch.full((n + 3,), GAP, dtype=self.dtype)
            between, made = whole[:2], whole[2 : n + 2].view(shape)
        made.copy_(data)
        self.made.append(made)
        self.between.append(between)
        return made

    def tensors(
        self, count: int, shape: tuple[int, ...], layouts: tuple[str, ...] = ANY
    ) -> list[torch.Tensor]:
        return [self.tensor(shape, layouts) for _ in range(count)]

    def reduces(self, *written: torch.Tensor) -> Any:
        """The op for a call that writes into these tensors.

        Where gloo has none, their sum is divided afterwards.
        """
        if self.op is not Op.AVG or self.is_ours:
            return self.op
        self.averaged += written
        return Op.SUM

    def finish(self) -> None:
        for each in self.averaged:
            each.div_(self.p)


Group = Any
Case = Callable[[Draw, Group], Any]


def all_reduce(d: Draw, g: Group) -> Any:
    x = d.tensor(d.shape(), ANY)
    return dist.all_reduce(x, d.reduces(x), g, d.is_async)


def all_reduce_coalesced(d: Draw, g: Group) -> Any:
    xs = [d.tensor(d.shape(), ANY) for _ in range(3)]
    return dist.all_reduce_coalesced(xs, d.reduces(*xs), g, d.is_async)


def broadcast(d: Draw, g: Group) -> Any:
    return dist.broadcast(d.tensor(d.shape(), ANY), d.ranks[d.root], g, d.is_async)


def reduce(d: Draw, g: Group) -> Any:
    x = d.tensor(d.shape(), ANY)
    op = d.reduces(*[x] * (d.me == d.root))
    work = dist.reduce(x, group=g, op=op, async_op=d.is_async, group_dst=d.root)
    if d.me != d.root:  # gloo leaves partial sums in it
        d.made.clear()
    return work


def all_gather(d: Draw, g: Group) -> Any:
    shape = d.shape()
    return dist.all_gather(d.tensors(d.p, shape), d.tensor(shape, ANY), g, d.is_async)


def all_gather_into_tensor(d: Draw, g: Group) -> Any:
    n, shape = int(d.rng.integers(1, 5)), d.shape()
    out = d.tensor((d.p, n, *shape), ("dense", "sliced"))
    if d.rng.integers(2) or not d.is_ours:  # gloo takes no stack
        out = out.flatten(0, 1)
    name = d.one_of(("all_gather_into_tensor", "all_gather_single", "_all_gather_base"))
    return getattr(dist, name)(out, d.tensor((n, *shape), ANY), g, d.is_async)


def all_gather_coalesced(d: Draw, g: Group) -> Any:
    shapes = [d.shape() for _ in range(2)]
    into = [[d.tensor(shape) for shape in shapes] for _ in range(d.p)]
    return dist.all_gather_coalesced(into, [d.tensor(shape) for shape in shapes], g, d.is_async)


def gather(d: Draw, g: Group) -> Any:
    shape = d.shape()
    into = d.tensors(d.p, shape) if d.me == d.root else None
    return dist.gather(d.tensor(shape, ANY), into, d.ranks[d.root], g, d.is_async)


def scatter(d: Draw, g: Group) -> Any:
    shape = d.shape()
    given = d.tensors(d.p, shape) if d.me == d.root else None
    return dist.scatter(d.tensor(shape, ANY), given, group=g, async_op=d.is_async, group_src=d.root)


def reduce_scatter(d: Draw, g: Group) -> Any:
    shape = d.shape()
    out = d.tensor(shape, ANY)
    return dist.reduce_scatter(out, d.tensors(d.p, shape), d.reduces(out), g, d.is_async)


def uneven_reduce_scatter(d: Draw, g: Group) -> Any:
    """Parts of several sizes, some without an element."""
    sizes = d.rng.integers(0, 5, d.p).tolist()
    out = d.tensor((sizes[d.me], 3), ANY)
    return dist.reduce_scatter(
        out, [d.tensor((n, 3), ANY) for n in sizes], d.reduces(out), g, d.is_async
    )


def reduce_scatter_tensor(d: Draw, g: Group) -> Any:
    n, shape = int(d.rng.integers(1, 5)), d.shape()
    name = d.one_of(("reduce_scatter_tensor", "reduce_scatter_single", "_reduce_scatter_base"))
    out = d.tensor((n, *shape), ANY)
    return getattr(dist, name)(out, d.tensor((d.p * n, *shape), ANY), d.reduces(out), g, d.is_async)


def all_to_all(d: Draw, g: Group) -> Any:
    sizes = d.rng.integers(0, 5, (d.p, d.p))
    out, given = sizes[:, d.me].tolist(), sizes[d.me].tolist()
    into, parts = [d.tensor((n, 2), ANY) for n in out], [d.tensor((n, 2), ANY) for n in given]
    if d.is_ours:
        return dist.all_to_all(into, parts, g, d.is_async)
    whole = parts[0].new_empty((sum(out), 2))  # gloo's own takes equal tensors only
    dist.all_to_all_single(whole, torch.cat(parts), out, given, g)
    for part, came in zip(into, whole.split(out), strict=True):
        part.copy_(came)
    return None


def all_to_all_single(d: Draw, g: Group) -> Any:
    if d.rng.integers(2):
        shape = (d.p * int(d.rng.integers(4)), *d.shape()[:1])
        return dist.all_to_all_single(
            d.tensor(shape, ANY), d.tensor(shape, ANY), group=g, async_op=d.is_async
        )
    sizes = d.rng.integers(0, 5, (d.p, d.p))
    out, given = sizes[:, d.me].tolist(), sizes[d.me].tolist()
    return dist.all_to_all_single(
        d.tensor((sum(out), 3), ANY), d.tensor((sum(given), 3), ANY), out, given, g, d.is_async
    )


def barrier(d: Draw, g: Group) -> Any:
    return dist.barrier(g, d.is_async)


def send_recv(d: Draw, g: Group) -> Any:
    """One rank sends to another.

    The receiver may take it from any rank (gloo hangs there if it is empty).
    """
    to, shape, tag = (d.root + 1) % d.p, d.shape(), int(d.rng.integers(3))
    x, anybody = d.tensor(shape), d.rng.integers(2) and 0 not in shape
    if to == d.root:
        return None
    if d.me == d.root:
        return dist.send(x, d.ranks[to], g, tag)
    if d.me == to:
        return dist.recv(x, None if anybody else d.ranks[d.root], g, tag)
    return None


def isend_irecv(d: Draw, g: Group) -> Any:
    """Every rank to all others, by tags, received in another order than sent."""
    if d.p == 1:
        return None
    shape = d.shape()
    pairs = [(tag, (d.me + 1) % d.p, (d.me - 1) % d.p) for tag in range(3)]
    works = [dist.isend(d.tensor(shape), d.ranks[to], g, tag) for tag, to, _ in pairs]
    return works + [
        dist.irecv(d.tensor(shape), d.ranks[source], g, tag) for tag, _, source in reversed(pairs)
    ]


def batch_isend_irecv(d: Draw, g: Group) -> Any:
    shift = int(d.rng.integers(1, d.p)) if d.p > 1 else 0
    if not shift:
        return None
    x, y = d.tensor(d.shape()), d.tensor(d.shape())
    to, source = d.ranks[(d.me + shift) % d.p], d.ranks[(d.me - shift) % d.p]
    received = [torch.zeros_like(x), torch.zeros_like(y)]
    d.made += received
    ops = [dist.P2POp(dist.isend, each, to, g) for each in (x, y)]
    return dist.batch_isend_irecv(
        ops + [dist.P2POp(dist.irecv, each, source, g) for each in received]
    )


def objects(d: Draw, g: Group) -> Any:
    mine: Any = {
        "rank": d.me,
        "text": "x" * int(d.own.integers(2000)),
        "tensor": torch.arange(d.me + 1).tolist(),
    }
    everyone: list[Any] = [None] * d.p
    name = d.one_of(("all_gather", "broadcast", "gather", "scatter"))
    root = d.ranks[d.root]
    if name == "all_gather":
        dist.all_gather_object(everyone, mine, g)
    elif name == "broadcast":
        everyone = [mine, d.me] if d.me == d.root else [None, None]
        dist.broadcast_object_list(everyone, root, g)
    elif name == "gather":
        dist.gather_object(mine, everyone if d.me == d.root else None, root, g)
    else:
        everyone = [None]
        dist.scatter_object_list(
            everyone, [(mine, r) for r in range(d.p)] if d.me == d.root else None, root, g
        )
    return everyone


def object_messages(d: Draw, g: Group) -> Any:
    to, said = (d.root + 1) % d.p, [None, None]
    if to != d.root and d.me == d.root:
        dist.send_object_list([{"from": d.me}, "x" * 1000], d.ranks[to], g)
    elif to != d.root and d.me == to:
        dist.recv_object_list(said, d.ranks[d.root], g)
    return said


def coalescing_manager(d: Draw, g: Group) -> Any:
    """Several all-reduces, or all-gathers, or reduce-scatters, as one call."""
    kind, count, sizes = (
        d.one_of(("all_reduce", "all_gather", "reduce_scatter")),
        3,
        d.rng.integers(1, 50, 3),
    )
    with dist._coalescing_manager(group=g, async_ops=d.is_async) as manager:
        for n in map(int, sizes[:count]):
            small, large = d.tensor((n,)), d.tensor((d.p * n,))
            if kind == "all_reduce":
                dist.all_reduce(large, Op.SUM, g)
            elif kind == "all_gather":
                dist.all_gather_into_tensor(large, small, g)
            else:
                dist.reduce_scatter_tensor(small, large, Op.SUM, g)
    return manager if d.is_async else None


def functional_collectives(d: Draw, g: Group) -> Any:
    """What DTensor calls: the result is a new tensor."""
    x, name = d.tensor((d.p * int(d.rng.integers(1, 4)), 2)), d.one_of(("sum", "max"))
    made = [
        functional.all_reduce(x, name, g),
        functional.all_gather_tensor(x, 0, g),
        functional.reduce_scatter_tensor(x, name, 0, g),
        functional.all_to_all_single(x, None, None, g),
        functional.broadcast(x, d.root, g),
        *functional.all_reduce_coalesced([x, x + 1], name, g),
        *functional.all_gather_into_tensor_coalesced([x, x + 1], g),
        *functional.reduce_scatter_tensor_coalesced([x, x + 1], name, [0, 0], g),
    ]
    return [each + 0 for each in made]


CASES: tuple[Case, ...] = (
    all_reduce,
    all_reduce_coalesced,
    broadcast,
    reduce,
    all_gather,
    all_gather_into_tensor,
    all_gather_coalesced,
    gather,
    scatter,
    reduce_scatter,
    uneven_reduce_scatter,
    reduce_scatter_tensor,
    all_to_all,
    all_to_all_single,
    barrier,
    send_recv,
    isend_irecv,
    batch_isend_irecv,
    objects,
    object_messages,
    coalescing_manager,
    functional_collectives,
)


def run(settings: dict[str, Any], report: Callable[[dict[str, Any]], None]) -> None:
    torch.set_num_threads(1)
    pairs = groups(settings)
    for number in range(settings["rounds"]):
        for index, case in enumerate(CASES):
            seed = (settings["seed"], number, index)
            ours, gloo, ranks, name = pairs[np.random.default_rng(seed).integers(len(pairs))]
            differs = compare(case, seed, ours, gloo, ranks) if dist.get_rank() in ranks else None
            everyone: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(everyone, differs)
            report(
                {
                    "case": case.__name__,
                    "seed": seed,
                    "group": name,
                    "differs": [x for x in everyone if x],
                }
            )


def groups(settings: dict[str, Any]) -> list[tuple[Group, Group, list[int], str]]:
    """Ours and gloo's, their ranks and a name: all ranks, some of them, and subgroups by torch's own functions."""
    p = dist.get_world_size()
    names, everyone = (settings["backend"], "gloo"), list(range(p))
    made: list[Any] = [
        [dist.new_group(backend=name, timeout=LIMIT) for name in names] + [everyone, "all"]
    ]
    some = np.random.default_rng(settings["seed"]).permutation(p)[: max(1, p - 1)].tolist()
    chosen = [dist.new_group(some, backend=name, timeout=LIMIT) for name in names]
    made.append([*chosen, sorted(some), "some"])
    halves = [everyone[: p // 2], everyone[p // 2 :]] if p > 1 else [everyone]
    parts = [
        dist.new_subgroups_by_enumeration(halves, backend=name, timeout=LIMIT)[0] for name in names
    ]
    made.append([*parts, next(half for half in halves if dist.get_rank() in half), "halves"])
    return [tuple(each) for each in made]


def compare(
    case: Case, seed: tuple[int, ...], ours: Group, gloo: Group, ranks: list[int]
) -> str | None:
    """In what the two differ, if they do. Where gloo refuses a call, ours may do what it likes."""
    draw = Draw(seed, ranks, True)
    there, here = attempt(case, Draw(seed, ranks, False), gloo), attempt(case, draw, ours)
    if isinstance(there, Exception):
        return f"gloo: {there}" if isinstance(here, Exception) else f"gloo refuses: {there}"
    if isinstance(here, Exception):
        return f"ours: {type(here).__name__}: {here}"
    if not all(bool((gap == GAP).all()) for gap in draw.between):
        return "ours wrote between the elements"
    wrong = [(a, b) for a, b in zip(here, there, strict=True) if not same(a, b)]
    return f"ours {wrong[0][0]} gloo {wrong[0][1]}" if wrong else None


def attempt(case: Case, draw: Draw, group: Group) -> list[Any] | Exception:
    """All tensors of the case after it is done, and what it returned beside works; or the error."""
    try:
        result = case(draw, group)
        returned = result if isinstance(result, list) else [result]
        works = [
            each
            for each in returned
            if hasattr(each, "wait") and not isinstance(each, torch.Tensor)
        ]
        for work in works:
            work.wait()
        draw.finish()
    except Exception as error:
        return error
    return draw.made + [
        each for each in returned if each is not None and not any(each is work for work in works)
    ]


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return bool(one == other) or (isinstance(one, int) and isinstance(other, int))  # recv's sender
