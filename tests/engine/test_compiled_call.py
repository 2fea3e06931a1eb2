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
    named,
)
from collectives.engine.program import Plan
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
    n: int,
    dtype: torch.dtype = torch.float32,
    op: Any = dist.ReduceOp.SUM,
    ranks_per_host: int = 1,
    algorithm: str = "ring",
) -> CompiledCall:
    tensor = torch.zeros(n, dtype=dtype)
    call = Call("all_reduce", tensor, tensor, op, None, None, algorithm, None)
    us = US._replace(ranks_per_host=ranks_per_host)
    return compile_call(us, named(call_key(call)), shares_memory=ranks_per_host > 1)


def test_more_segments_than_a_rank_compiles_in_seconds_are_refused(compiled: Counter[int]) -> None:
    tensor = torch.zeros(3)
    call = Call("all_reduce", tensor, tensor, dist.ReduceOp.SUM, None, None, "two_tree", 20_000)
    with pytest.raises(ValueError, match="segments: got 20000, expected at most 1024"):
        compile_call(US, named(call_key(call)), shares_memory=False)
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


def test_messages_are_planned_only_where_no_slots_serve(compiled: Counter[int]) -> None:
    """On one host none, between two hosts of two ranks those of one stage, without shared memory all."""
    assert prepare(24, ranks_per_host=4).messages is None
    assert not compiled
    stages = prepare(24, ranks_per_host=2, algorithm="hierarchical_ring").stages
    assert compiled == {24: sum(isinstance(stage, Plan) for stage in stages)} == {24: 1}
    assert prepare(24, ranks_per_host=2).plan.program, "a ring mixes hosts in each step"
    assert compiled == {24: 2}


def test_a_call_in_stages_has_no_program_of_messages() -> None:
    with pytest.raises(ValueError, match="got a call in stages, expected one without"):
        assert prepare(8, ranks_per_host=4).plan


CALL = Call("all_to_all", torch.zeros(6), torch.zeros(6), None, None, None, "auto", 1, None)
CHANGED: dict[str, Any] = {
    "collective": "all_gather",
    "output": torch.zeros(7),
    "input": torch.zeros(6, dtype=torch.float64),
    "op": dist.ReduceOp.SUM,
    "root": 0,
    "algorithm": "ring",
    "segments": 2,
    "splits": ((1, 5), (3, 3)),
    "barrier": True,
}


def test_a_key_tells_calls_apart_that_are_compiled_differently() -> None:
    """Every field but the group and the thread, which have a cache of their own, and the data."""
    assert {*CHANGED} == {*Call._fields} - {"group", "background"}
    keys = {call_key(CALL._replace(**{name: value})) for name, value in CHANGED.items()}
    assert len(keys | {call_key(CALL)}) == len(CHANGED) + 1
    same_data = CALL._replace(input=CALL.output)
    assert call_key(same_data) != call_key(CALL), "in place"
    assert call_key(CALL._replace(output=torch.ones(6))) == call_key(CALL)


def test_a_named_key_is_the_key() -> None:
    for call in (CALL, CALL._replace(input=None), CALL._replace(input=CALL.output)):
        assert named(call_key(call)) == call_key(call)
        assert hash(named(call_key(call))) == hash(call_key(call))


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
    layouts = [compiled_call._layout(KEY, n, None) for n in range(1000, 1020)]
    plans = [compiled_call._plan(KEY, layout.edges) for layout in layouts]
    programs = [flatten(each.program) for each in plans]
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(programs) == len(plans)
    assert 0.6 < sum(map(compiled_call._nbytes, plans)) / used < 1.7
