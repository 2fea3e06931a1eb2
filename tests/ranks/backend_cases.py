"""What every rank does for test_backends.py: all collectives that a back end has, against plain expectations.

`run` reports one event per check: {"case": …, "ok": bool}. ``settings["backend"]`` names the back
end.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed as dist

from collectives.backends import Backend, backend
from collectives.bench import DTYPES
from collectives.bench.data import reduced, values
from collectives.engine.call import Call
from collectives.engine.ops import BY_ROW_NAME

Event = dict[str, Any]
Check = tuple[str, bool]
LENGTHS = (0, 3, 1000)


def run(settings: Event, report: Callable[[Event], None]) -> None:
    torch.set_num_threads(1)
    global _place
    name, do = settings["backend"], settings.get("do", "cases")
    _place = backend(name).device()
    checks = orders(name, settings["algorithms"]) if do == "order" else list(cases(name))
    everywhere = torch.tensor([int(ok) for _, ok in checks])
    dist.all_reduce(everywhere, op=dist.ReduceOp.MIN)  # right only where it is right on every rank
    for (case, _), ok in zip(checks, everywhere.tolist(), strict=True):
        report({"case": case, "ok": bool(ok)})
    backend(name).close()


def cases(name: str) -> Any:
    """Every collective, dtype, op, root and length that the back end has."""
    p = dist.get_world_size()
    for collective, dtype, op, n in itertools.product(CASES, DTYPES, BY_ROW_NAME, LENGTHS):
        reduces = collective in ("reduce", "reduce_scatter", "all_reduce")
        if (reduces or op == "sum") and not backend(name).unsupported(collective, op, dtype):
            for root in (
                sorted({0, p - 1})
                if collective in ("broadcast", "scatter", "gather", "reduce")
                else [0]
            ):
                yield (
                    f"{collective} {dtype} {op} {n} root {root}",
                    CASES[collective](name, dtype, op, n, root),
                )
    if not backend(name).unsupported("all_to_all", "sum", "float32"):
        yield "all_to_all with splits", ragged(name)
    if type(backend(name)).flush is not Backend.flush:
        yield "all_reduce that everyone waits for", waited_for(name)


def waited_for(name: str) -> bool:
    """Nobody leaves flush before the last rank has begun to."""
    x = torch.ones(1)
    backend(name).perform(Call("all_reduce", x, x, BY_ROW_NAME["sum"]))
    if dist.get_rank() == dist.get_world_size() - 1:
        time.sleep(0.3)
    times: list[Any] = [time.monotonic(), 0.0]
    backend(name).flush()
    times[1] = time.monotonic()
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, times)
    return bool(max(before for before, _ in everyone) <= min(after for _, after in everyone))


def data(of: int, n: int, dtype: str, op: str) -> torch.Tensor:
    found = values(of, n, op, dist.get_world_size(), DTYPES[dtype][1])
    return torch.from_numpy(found).to(place(), getattr(torch, dtype))


def total(n: int, dtype: str, op: str) -> torch.Tensor:
    p = dist.get_world_size()
    found = torch.from_numpy(reduced(n, op, p, DTYPES[dtype][1])).to(place(), getattr(torch, dtype))
    return (
        found
        if op != "avg"
        else torch.div(found, p, rounding_mode=None if found.is_floating_point() else "trunc")
    )


_place = torch.device("cpu")


def place() -> torch.device:
    return _place


def perform(
    name: str, collective: str, output: Any, given: Any, op: str = "sum", root: int = 0, **more: Any
) -> None:
    backend(name).perform(
        Call(collective, output, given, BY_ROW_NAME[op], root, backend(name).group(), **more)
    )


def all_reduce(name: str, dtype: str, op: str, n: int, _: int) -> bool:
    tensor = data(dist.get_rank(), n, dtype, op)
    perform(name, "all_reduce", tensor, tensor, op)
    return torch.equal(tensor, total(n, dtype, op))


def reduce(name: str, dtype: str, op: str, n: int, root: int) -> bool:
    rank = dist.get_rank()
    tensor = data(rank, n, dtype, op)
    perform(name, "reduce", tensor, tensor, op, root)
    return rank != root or torch.equal(tensor, total(n, dtype, op))


def broadcast(name: str, dtype: str, op: str, n: int, root: int) -> bool:
    tensor = data(dist.get_rank(), n, dtype, op)
    perform(name, "broadcast", tensor, tensor, root=root)
    return torch.equal(tensor, data(root, n, dtype, op))


def scatter(name: str, dtype: str, op: str, n: int, root: int) -> bool:
    rank, p = dist.get_rank(), dist.get_world_size()
    whole = data(root, n * p, dtype, op)
    output = torch.full_like(whole[:n], 77)
    perform(name, "scatter", output, whole.clone() if rank == root else None, root=root)
    return torch.equal(output, whole.view(p, n)[rank])


def gather(name: str, dtype: str, op: str, n: int, root: int) -> bool:
    rank, p = dist.get_rank(), dist.get_world_size()
    expected = torch.cat([data(of, n, dtype, op) for of in range(p)])
    output = torch.full_like(expected, 77) if rank == root else None
    perform(name, "gather", output, data(rank, n, dtype, op), root=root)
    return output is None or torch.equal(output, expected)


def all_gather(name: str, dtype: str, op: str, n: int, _: int) -> bool:
    rank, p = dist.get_rank(), dist.get_world_size()
    expected, given = (
        torch.cat([data(of, n, dtype, op) for of in range(p)]),
        data(rank, n, dtype, op),
    )
    output = torch.full_like(expected, 77)
    perform(name, "all_gather", output, given)
    return torch.equal(output, expected) and torch.equal(given, data(rank, n, dtype, op))


def reduce_scatter(name: str, dtype: str, op: str, n: int, _: int) -> bool:
    rank, p = dist.get_rank(), dist.get_world_size()
    given = data(rank, n * p, dtype, op)
    output = torch.full_like(given[:n], 77)
    perform(name, "reduce_scatter", output, given, op)
    return torch.equal(output, total(n * p, dtype, op).view(p, n)[rank])


def all_to_all(name: str, dtype: str, op: str, n: int, _: int) -> bool:
    rank, p = dist.get_rank(), dist.get_world_size()
    given = data(rank, n * p, dtype, op)
    output = torch.full_like(given, 77)
    perform(name, "all_to_all", output, given)
    return torch.equal(
        output, torch.cat([data(of, n * p, dtype, op).view(p, n)[rank] for of in range(p)])
    )


CASES: dict[str, Callable[[str, str, str, int, int], bool]] = {
    each.__name__: each
    for each in (
        all_reduce,
        reduce,
        broadcast,
        scatter,
        gather,
        all_gather,
        reduce_scatter,
        all_to_all,
    )
}


def ragged(name: str) -> bool:
    """Rank r gets (us + 2 r) % 3 elements from us, so none at times, and other numbers come back than go."""
    rank, p = dist.get_rank(), dist.get_world_size()
    sent, received = (
        [(rank + 2 * r) % 3 for r in range(p)],
        [(r + 2 * rank) % 3 for r in range(p)],
    )
    given = torch.cat([torch.full((count,), 10.0 * rank + r) for r, count in enumerate(sent)]).to(
        place()
    )
    output = torch.full((sum(received),), -1.0, device=place())
    perform(name, "all_to_all", output, given, splits=(tuple(sent), tuple(received)))
    expected = torch.cat(
        [torch.full((count,), 10.0 * r + rank) for r, count in enumerate(received)]
    )
    return torch.equal(output.cpu(), expected)


def orders(name: str, algorithms: list[str]) -> list[Check]:
    """What `order` finds of each algorithm."""
    return [
        (f"{algorithm}: {case}", ok)
        for algorithm in algorithms
        for case, ok in order(name, algorithm)
    ]


def order(name: str, algorithm: str) -> list[Check]:
    """Which order of adding, out of those of known algorithms, explains every bit of an all-reduce on four ranks."""
    p, n = dist.get_world_size(), 4000
    x = [torch.randn(n, generator=torch.Generator().manual_seed(r)) for r in range(p)]
    tensor = x[dist.get_rank()].clone()
    perform(name, "all_reduce", tensor, tensor, algorithm=algorithm)
    in_turn = ((x[0] + x[1]) + x[2]) + x[3], x[0] + (x[1] + (x[2] + x[3]))
    halves = (x[0] + x[1]) + (x[2] + x[3])
    rings = []
    for shift in range(p):  # chunk c starts at rank c + shift and goes round
        chunks = []
        for c, span in enumerate(torch.arange(n).chunk(p)):
            total = x[(c + shift) % p][span]
            for step in range(1, p):
                total = total + x[(c + shift + step) % p][span]
            chunks.append(total)
        rings.append(torch.cat(chunks))
    return [
        ("in turn", any(torch.equal(tensor, one) for one in in_turn)),
        ("by halves", torch.equal(tensor, halves)),
        ("around a ring", any(torch.equal(tensor, one) for one in rings)),
    ]
