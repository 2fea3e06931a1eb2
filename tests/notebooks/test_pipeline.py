"""Pipelines equal one process; their schedules end, keep what they say, and idle as the formula says."""

import os
from collections import Counter
from itertools import product

import pytest

from collectives.launch import RankError, launch
from collectives_book.model_parallel.pipeline import (
    BACKWARD,
    FORWARD,
    SCHEDULES,
    Action,
    bubble,
    gpipe,
    kept,
    timetable,
)
from places import TASKS
from sweep import each

SIZES = list(product((1, 2, 3, 4, 7), (1, 2, 3, 4, 8, 13)))
EVEN = {FORWARD: 1.0, BACKWARD: 2.0}


@pytest.mark.integration
@pytest.mark.parametrize("p", each([1, 2, 3, 4, 5], few=[1, 2, 3, 4]))
def test_pipelines_equal_one_process_bit_for_bit(p: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TASKS), prepend=os.pathsep)
    events = launch("split_cases", {"what": "pipeline"}, p, timeout=60)
    assert [event["case"] for event in events if not event["ok"]] == []
    assert len(events) == 9 + 2 * (p > 1)


@pytest.mark.integration
def test_a_stage_that_goes_away_ends_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TASKS), prepend=os.pathsep)
    with pytest.raises(RankError, match=r"rank \d of 2 .*(ended|timed out)"):
        launch("split_cases", {"what": "silent"}, 2, timeout=2)


def orders(name: str, stages: int, count: int) -> list[list[Action]]:
    return [SCHEDULES[name](stage, stages, count) for stage in range(stages)]


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_ends_and_idles_as_the_formula_says(name: str) -> None:
    for stages, count in SIZES:
        for order in orders(name, stages, count):
            assert Counter(order) == Counter(Action(kind, i) for kind in EVEN for i in range(count))
        table = timetable(orders(name, stages, count), EVEN)
        end = max(spans[-1].end for spans in table)
        assert end == 3 * (count + stages - 1)
        assert 1 - 3 * count / end == pytest.approx(bubble(stages, count))


def test_one_forward_one_backward_keeps_no_more_than_there_are_stages() -> None:
    for stages, count in SIZES:
        assert [kept(order) for order in orders("gpipe", stages, count)] == [count] * stages
        assert [kept(order) for order in orders("1f1b", stages, count)] == [
            min(count, stages - stage) for stage in range(stages)
        ]


def test_a_message_makes_the_way_there_and_back_longer() -> None:
    """GPipe's first micro-batch crosses s - 1 links, and its last gradient crosses them back."""
    for stages, count in SIZES:
        table = timetable(orders("gpipe", stages, count), EVEN, message=0.25)
        assert max(spans[-1].end for spans in table) == 3 * (count + stages - 1) + 2 * 0.25 * (stages - 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda order: order[::-1], r"stage 1 waits for ever to run backward 1"),
        (lambda order: order[:2], r"stage 0 waits for ever to run backward 0, expected"),
        (lambda order: [*order[1:], order[0]], r"stage 1 waits for ever to run backward 0"),
    ],
    ids=["backward first", "no backward", "a forward too late"],
)
def test_stages_that_would_wait_for_ever_are_named_before_anything_runs(change: object, message: str) -> None:
    assert callable(change)
    with pytest.raises(ValueError, match=message):
        timetable([gpipe(0, 2, 2), change(gpipe(1, 2, 2))], EVEN)
