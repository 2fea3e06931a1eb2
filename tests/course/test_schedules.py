"""A student's schedule is hostile data: whatever it says, the grader answers with a verdict."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from collectives.algorithms import ALGORITHMS
from collectives.core.schedule import Schedule, Step
from collectives_course.schedules import prove, prove_each, schedules
from collectives_course.submission import Submission
from collectives_course.verdict import Failed, TimedOut


class Stub:
    """A submission whose function returns this."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def call(self, *_: Any) -> Any:
        return self.value

    def charge(self, seconds: float, what: str) -> None:
        """Proofs are short here."""


def checked(value: Any, p: int = 2) -> None:
    for call, made in schedules(Stub(value), "f", [(p, (p,))]):  # type: ignore[arg-type]
        prove(call, made)


def all_reduce(
    p: Any = 2, k: Any = 1, rows: Any = ((0, 1), (1, 0), 0, 1, True), **more: Any
) -> Schedule:
    return Schedule("all_reduce", p, k, 1, lambda _: Step(*rows), **more)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "got NoneType, expected a Schedule"),
        (ALGORITHMS["reduce", "binomial"](2), "got a schedule for 'reduce', expected 'all_reduce'"),
        (ALGORITHMS["all_reduce", "ring"](3), "got a schedule for 3 ranks, expected 2"),
        (all_reduce(p=10**4000), "got a schedule for more than 10"),
        (all_reduce(k=10**4000), "got more than 10"),
        (all_reduce(k=10**12), "got 1,000,000,000,000 chunks"),
        (all_reduce(root=1), "got root=1, expected none"),
        (
            ALGORITHMS["all_reduce", "in_network"](2),
            "got a schedule with 1 switches, expected ranks only",
        ),
        (all_reduce(rows=((0, 1), (1, 0), 0, 2**62, True)), "chunks move, expected at most"),
        (all_reduce(rows=((0, 1), (1, 0), 0, -(2**63), True)), "chunks move, expected at most"),
        (all_reduce(rows=((0, 1), (1, 9), 0, 1, True)), "row 1->9:[+]0 needs two different ranks"),
        (all_reduce(rows=((0, 1), (1, 0), -1, 1, True)), "needs chunks out of"),
        (
            all_reduce(rows=((0, 1), (1, 0), 0, 1, False)),
            "rank 0 holds chunk 0 of rank 0 0 times, not 1",
        ),
    ],
)
def test_a_wrong_schedule_becomes_a_verdict(value: Any, message: str) -> None:
    with pytest.raises(Failed, match=message):
        checked(value)


def test_a_proof_is_charged_to_the_submission(tmp_path: Path) -> None:
    class Slow(Submission):
        def call(self, *_: Any, **__: Any) -> Any:
            return all_reduce()

        def ranks(self, p: int) -> Any:
            return [SimpleNamespace(channel=SimpleNamespace(meter=meter))] * p

    meter = SimpleNamespace(spent=0.0)
    submission = Slow(tmp_path, "ring.py", {}, limit=0.05)
    with pytest.raises(TimedOut, match=r"f\(2\): to make and to prove it has used the 0.05 s"):
        prove_each(submission, "f", [(2, (2,))] * 10_000)
    assert meter.spent > 0.05


def test_a_right_one_passes() -> None:
    checked(all_reduce())


def test_a_failed_proof_has_the_marked_grid_and_can_be_played() -> None:
    with pytest.raises(Failed) as failed:
        checked(all_reduce(rows=(1, 0, 0, 1, True)))
    assert "\n" not in str(failed.value)
    assert "<--" in failed.value.details["grid"]
    assert failed.value.details["player"]["steps"] == [[[1], [0], [0], [1], [1]]]
    json.dumps(failed.value.details)


def test_impossible_rows_are_not_played() -> None:
    with pytest.raises(Failed) as failed:
        checked(all_reduce(rows=(1, 9, 0, 1, True)))
    assert list(failed.value.details) == ["grid"]
