"""Synthesis: SCCL's verdicts for DGX-1, small topologies against the plain formula, and planted faults."""

import builtins
import threading
import time
from itertools import product
from typing import Any

import numpy as np
import pytest

from collectives.core.schedule import Ints, Schedule, ScheduleError, Step
from collectives.core.verify import verify
from collectives.machine import machine
from collectives.topology.graph import graph, rank_links
from collectives_interop.synthesis import few_steps
from collectives_interop.synthesis.few_steps import (
    Deadline,
    Question,
    TimeUpError,
    check,
    chunks_of,
    diameter,
    least_rounds,
    rounds_of,
    search,
    splits,
    synthesize,
)
from places import PATIENCE

DGX1 = rank_links(graph(machine("dgx1")))

# Steps, rounds and chunks of an all-gather on DGX-1, which is the example of SCCL (PPoPP 2021).
SATISFIABLE = [(2, 2, 1), (2, 3, 2), (3, 4, 3), (3, 5, 4), (3, 6, 5), (3, 7, 6)]
UNSATISFIABLE = [(1, 1, 1), (2, 4, 3), (2, 5, 4), (2, 6, 5), (2, 7, 6)]


def ring(p: int) -> Ints:
    one = np.roll(np.eye(p, dtype=np.int64), 1, axis=1)
    return np.minimum(one + one.T, 1)


ONE_WAY = np.array([[0, 2, 0], [0, 0, 1], [1, 1, 0]])
STAR = np.array([[0, 1, 1, 1], [1, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]])
SMALL = {"ring": ring(4), "one way": ONE_WAY, "star": STAR}


@pytest.mark.parametrize(
    "question",
    [
        pytest.param(each, marks=[pytest.mark.extended] if each[2] > 3 else [])
        for each in SATISFIABLE
    ],
    ids=str,
)
def test_dgx_1_has_a_schedule(question: tuple[int, int, int]) -> None:
    steps, rounds, chunks = question
    answer = synthesize(DGX1, "all_gather", steps, rounds, chunks)
    assert answer.verdict == "satisfiable"
    assert answer.schedule is not None
    verify(answer.schedule)
    assert (answer.schedule.nsteps, answer.schedule.k) == (steps, 8 * chunks)
    assert sum(rounds_of(answer.schedule, DGX1)) == rounds


@pytest.mark.parametrize("question", UNSATISFIABLE, ids=str)
def test_dgx_1_has_no_schedule(question: tuple[int, int, int]) -> None:
    answer = synthesize(DGX1, "all_gather", *question)
    assert (answer.verdict, answer.schedule) == ("unsatisfiable", None)
    assert answer.why.startswith("rank" if question[0] == 1 else "no counts")


def plain(links: Ints, steps: int, rounds: int, chunks: int) -> bool:
    """Return the answer by the chunks alone: no bound and no counts before, and every split."""
    of = Question(links, steps, rounds, chunks)
    deadline = Deadline(time.monotonic() + PATIENCE, threading.Event())
    answers = {
        check(chunks_of(of, split, deadline)[0], deadline) for split in splits(rounds, steps)
    }
    assert answers <= {"sat", "unsat"}
    return "sat" in answers


@pytest.mark.integration  # seconds
@pytest.mark.parametrize("name", SMALL)
def test_bounds_and_counts_refute_nothing_that_has_a_schedule(name: str) -> None:
    verdicts = set()
    for steps, rounds, chunks in product((1, 2, 3), (2, 3, 4, 5), (1, 2)):
        found = synthesize(SMALL[name], "all_gather", steps, rounds, chunks)
        assert found.verdict == (
            "satisfiable" if plain(SMALL[name], steps, rounds, chunks) else "unsatisfiable"
        )
        verdicts.add((found.verdict, found.why.split(" ")[0]))
    assert len(verdicts) > 2


def test_splits_are_all_of_them() -> None:
    for rounds, steps in product(range(1, 9), range(1, 5)):
        wanted = {
            each for each in product(range(1, rounds + 1), repeat=steps) if sum(each) == rounds
        }
        assert list(splits(rounds, steps)) == sorted(wanted, key=lambda each: (max(each), each))


@pytest.mark.parametrize("collective", ["reduce_scatter", "all_reduce"])
@pytest.mark.parametrize("links", [DGX1, ONE_WAY], ids=["dgx1", "one way"])
def test_the_reversed_half_runs_on_the_links_as_they_are(collective: str, links: Ints) -> None:
    parts = 2 if collective == "all_reduce" else 1
    *refuted, found = search(links, collective, parts * diameter(links), chunks=1)
    assert {each.verdict for each in refuted} <= {"unsatisfiable"}
    assert found.schedule is not None
    verify(found.schedule)
    assert found.schedule.collective == collective
    assert sum(rounds_of(found.schedule, links)) <= found.rounds


def test_search_goes_up_from_the_bound_to_the_first_schedule() -> None:
    answers = [*search(DGX1, "all_gather", steps=2, chunks=3)]
    assert [(each.rounds, each.verdict) for each in answers] == [
        (4, "unsatisfiable"),
        (5, "satisfiable"),
    ]
    assert least_rounds(DGX1, 3) == 4


def test_an_all_gather_may_send_less_than_it_receives() -> None:
    """Rank 0 sends a chunk a round, and others relay its two: a bound on what a rank sends would ask for 4 rounds."""
    *_, found = search(np.array([[0, 1, 0], [2, 0, 2], [2, 2, 0]]), "all_gather", steps=2, chunks=2)
    assert (found.verdict, found.rounds) == ("satisfiable", 3)


def test_search_ends_where_no_number_of_rounds_suffices() -> None:
    (answer,) = search(ring(6), "all_gather", steps=2, chunks=1)
    assert answer.verdict == "unsatisfiable"
    assert "3 links" in answer.why


@pytest.mark.integration  # seconds
def test_the_limit_ends_the_solver() -> None:
    answer = synthesize(DGX1, "all_gather", 3, 14, 12, limit=0.3)
    assert (answer.verdict, answer.schedule) == ("limit", None)
    assert answer.why == "the solver has not ended"


class Clock:
    """A clock that each look puts on by one."""

    now = 0

    def __call__(self) -> int:
        self.now += 1
        return self.now


@pytest.mark.parametrize(
    "write",
    [
        lambda of, deadline: few_steps.counts(of, deadline),
        lambda of, deadline: few_steps.counts(of, deadline, (1, 2, 1)),
        lambda of, deadline: few_steps.chunks_of(of, (1, 2, 1), deadline)[0],
    ],
    ids=["counts", "counts of a split", "chunks"],
)
def test_the_limit_ends_the_writing_of_a_formula_at_any_statement(
    write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many steps the formula alone takes longer than the limit."""
    monkeypatch.setattr(few_steps.time, "monotonic", clock := Clock())
    asked = Question(ring(6), 3, 4, 2)
    statements = len(write(asked, Deadline(1e9, threading.Event())).assertions())
    looks = clock.now
    # The first statement and those on the rounds of each step are written at once.
    assert statements - 1 - 3 <= looks
    for at in range(1, looks, 7):
        clock.now = 0
        with pytest.raises(TimeUpError):
            write(asked, Deadline(at, threading.Event()))
        assert clock.now == at


def test_the_limit_begins_before_the_solver_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(deadline: Deadline) -> float:
        return deadline.at

    began = time.monotonic()
    real, slow = builtins.__import__, []

    def imported(name: str, *rest: Any) -> Any:
        slow.append(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", imported)
    monkeypatch.setattr(few_steps.time, "monotonic", lambda: began + 100 * ("z3" in slow))
    assert few_steps.apart(asked, 60) == began + 60


def test_a_lost_chunk_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    faulty(monkeypatch, lambda rows: rows[1:])
    with pytest.raises(ScheduleError, match=r"rank . holds chunk . of rank . 0 times"):
        synthesize(ring(4), "all_gather", 2, 2, 1)


def test_rounds_that_a_solver_overlooks_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The option pb.solver=sorting of z3 did so."""
    real = few_steps.chunks_of
    monkeypatch.setattr(
        few_steps,
        "chunks_of",
        lambda of, split, *rest: real(of, [each + 9 for each in split], *rest),
    )
    with pytest.raises(ScheduleError, match=r"rounds of the schedule: got [4-9], expected 3"):
        synthesize(DGX1, "all_gather", 2, 3, 2)


def faulty(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    real = few_steps.schedule_of

    def broken(*arguments: Any) -> Schedule:
        made = real(*arguments)
        steps = [Step(*map(change, (step.src, step.dst, step.chunk))) for step in made.steps()]
        return Schedule(
            made.collective, made.p, made.k, made.nsteps, steps.__getitem__, one_port=False
        )

    monkeypatch.setattr(few_steps, "schedule_of", broken)


def test_a_message_without_a_link_is_found() -> None:
    across = Schedule("all_gather", 4, 4, 1, lambda t: Step(0, 2, 0), one_port=False)
    with pytest.raises(
        ScheduleError, match="step 0: got a message from rank 0 to rank 2, expected a link there"
    ):
        rounds_of(across, ring(4))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"links": np.zeros((2, 3), dtype=np.int64)},
            r"links: got int64 of shape \(2, 3\), expected a square matrix",
        ),
        ({"links": ring(4) / 2}, "links: got float64"),
        ({"links": np.eye(3, dtype=np.int64)}, "zeros on the diagonal"),
        ({"links": np.triu(ring(4))}, "links of a matrix: got no way from rank 1 to rank 0"),
        ({"collective": "broadcast"}, "collective: got broadcast, expected one of all_gather"),
        ({"steps": 0}, "steps: got 0, expected 1 or more"),
        ({"chunks": -1}, "chunks: got -1, expected 1 or more"),
        (
            {"collective": "all_reduce", "rounds": 3},
            "rounds of an all_reduce: got 3, expected an even number",
        ),
    ],
)
def test_wrong_questions(changed: dict[str, Any], message: str) -> None:
    asked = {
        "links": ring(4),
        "collective": "all_gather",
        "steps": 2,
        "rounds": 2,
        "chunks": 1,
    } | changed
    with pytest.raises(ValueError, match=message):
        synthesize(**asked)
