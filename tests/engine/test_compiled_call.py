"""What is kept of calls: a program that makes many different ones in turn compiles each once."""

import tracemalloc
from collections import Counter
from typing import Any

import pytest
import torch
from torch import distributed as dist

from collectives.engine import compiled_call
from collectives.engine.call import Call, CompiledCall
from collectives.engine.compiled_call import (
    BoundedCache,
    Membership,
    ScheduleKey,
    call_key,
    compile_call,
)
from collectives.engine.tcp.state import flatten

US = Membership(1, 4, "gloo", b"")
KEY = ScheduleKey("all_reduce", "ring", 16, None, 1, None, 3, False)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How many times a plan was compiled for a buffer that ends with an element."""
    found: Counter[int] = Counter()

    def plan(
        schedule: Any, rank: int, edges: Any, finished: Any, plan: Any = compiled_call.plan
    ) -> Any:
        found[int(edges[-1])] += 1
        return plan(schedule, rank, edges, finished)

    monkeypatch.setattr(compiled_call, "plan", plan)
    monkeypatch.setattr(compiled_call, "_plans", BoundedCache(compiled_call._plans._nbytes))
    return found


def prepare(
    n: int, dtype: torch.dtype = torch.float32, op: Any = dist.ReduceOp.SUM
) -> CompiledCall:
    tensor = torch.zeros(n, dtype=dtype)
    call = Call("all_reduce", tensor, tensor, op, None, None, "ring", None)
    return compile_call(US, call_key(call), shares_memory=False)


def test_more_segments_than_a_rank_compiles_in_seconds_are_refused(compiled: Counter[int]) -> None:
    tensor = torch.zeros(3)
    call = Call("all_reduce", tensor, tensor, dist.ReduceOp.SUM, None, None, "two_tree", 20_000)
    with pytest.raises(ValueError, match="segments: got 20000, expected at most 1024"):
        compile_call(US, call_key(call), shares_memory=False)
    assert not compiled


@pytest.mark.parametrize("distinct", [65, 400])
def test_a_cycle_of_many_calls_compiles_each_once(distinct: int, compiled: Counter[int]) -> None:
    sizes = range(1, distinct + 1)
    for _ in range(3):
        for n in sizes:
            assert prepare(n).edges[-1] == n
    assert compiled == dict.fromkeys(sizes, 1)


def test_ops_and_dtypes_share_a_plan_but_an_average_has_its_own(compiled: Counter[int]) -> None:
    for dtype in (torch.float32, torch.float64):
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX):
            prepare(8, dtype, op)
    assert compiled == {8: 1}
    prepare(8, op=dist.ReduceOp.AVG)
    assert compiled == {8: 2}


def test_the_least_recently_used_goes_when_the_bytes_are_used_up() -> None:
    made: list[str] = []
    kept: BoundedCache[str] = BoundedCache(len, most=6)

    def get(word: str) -> None:
        assert kept.get(word[0], lambda: made.append(word) or word) == word

    for word in ("aa", "bbb", "aa", "cc", "aa", "bbb"):  # b goes for c, and c for b
        get(word)
    assert made == ["aa", "bbb", "cc", "bbb"]
    # What is larger than all of it stays until the next one.
    for word in ("dddddddd", "dddddddd", "aa"):
        get(word)
    assert made[4:] == ["dddddddd", "aa"]


def test_a_plan_is_counted_with_about_the_memory_that_it_takes() -> None:
    prepare(64)
    tracemalloc.start()
    many = [
        (each := compiled_call._compile(KEY, n, None), flatten(each.plan.program))
        for n in range(1000, 1020)
    ]
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.6 < sum(compiled_call._nbytes(each.plan, each.edges) for each, _ in many) / used < 1.7
