"""A schedule as text: what it marks, how much of a large one it shows, and what it says of the rest."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.algorithms import build, executable, variants
from collectives.core.grid import MAX_CELL, MAX_RANKS, MAX_STEPS, grid, parse_grid
from collectives.core.schedule import Schedule, ScheduleError, Step
from collectives.core.verify import verify


def ring(p: int, nsteps: int) -> Schedule:
    """Every rank passes chunk 0 on to the next one."""
    return Schedule(
        "all_reduce", p, 1, nsteps, lambda _: Step(range(p), [(r + 1) % p for r in range(p)], 0)
    )


def test_rows_of_one_cell_are_written_together() -> None:
    step = Step(
        src=[2, 1, 1, 0], dst=[0, 0, 0, 2], chunk=[0, 0, 1, 0], count=[1, 1, 2, 1], add=[1, 1, 0, 0]
    )
    assert grid(Schedule("all_reduce", 3, 3, 1, lambda _: step, one_port=False)).splitlines() == [
        "step | rank 0        | rank 1 | rank 2",
        "   0 | +0<1,2 =1-2<1 |        | =0<0",
    ]


@pytest.mark.parametrize(("rank", "cell"), [(0, ">?<"), (1, ">=0<0<")])
def test_one_cell_is_marked_in_its_own_step(rank: int, cell: str) -> None:
    lines = grid(build("broadcast", "binomial", 4), (0, rank, "here")).splitlines()
    assert [cell in line for line in lines] == [False, True, False]
    assert [line.endswith("   <-- here") for line in lines] == [False, True, False]
    assert "<--" not in grid(build("broadcast", "binomial", 4))
    assert ">" not in grid(build("broadcast", "binomial", 4))


@pytest.mark.parametrize(
    ("p", "nsteps", "left_out"),
    [
        (MAX_RANKS, MAX_STEPS, None),
        (MAX_RANKS + 1, MAX_STEPS, "(1 more rank is not shown)"),
        (MAX_RANKS, MAX_STEPS + 2, "(2 more steps are not shown)"),
    ],
)
def test_what_does_not_fit_is_counted(p: int, nsteps: int, left_out: str | None) -> None:
    lines = grid(ring(p, nsteps)).splitlines()
    assert lines[0].split(" | ")[-1] == f"rank {MAX_RANKS - 1}"
    assert len(lines) == 1 + MAX_STEPS + (left_out is not None)
    assert lines[-1].startswith("(") == (left_out is not None)
    assert left_out in (None, lines[-1])


@pytest.mark.parametrize(
    ("at", "steps", "ranks"),
    [((0, 0), (0, 23), (0, 11)), ((50, 30), (38, 61), (24, 35)), ((99, 39), (76, 99), (28, 39))],
)
def test_the_window_is_around_the_mark_and_within_the_schedule(
    at: tuple[int, int], steps: tuple[int, int], ranks: tuple[int, int]
) -> None:
    heading, *lines, _ = grid(ring(40, 100), (*at, "here")).splitlines()
    columns = heading.split(" | ")
    assert (columns[1].strip(), columns[-1].strip()) == tuple(f"rank {r}" for r in ranks)
    assert (int(lines[0].split("|")[0]), int(lines[-1].split("|")[0])) == steps
    (marked,) = (line for line in lines if line.endswith("<-- here"))
    assert int(marked.split("|")[0]) == at[0]
    assert marked.split(" | ")[1 + at[1] - ranks[0]].startswith(">=0<")


def test_a_cell_of_many_rows_stays_short() -> None:
    """A thousand rows from one rank are told by their number, and a cell of many ranks is cut."""
    step = Step([1] * 1000 + [2], 0, 0, add=True)
    assert "+0<1(x1000),2 |" in grid(Schedule("reduce", 3, 1, 1, lambda _: step, root=0))
    crowd = Schedule(
        "gather", 500, 500, 1, lambda _: Step(np.arange(1, 500), 0, np.arange(1, 500)), root=0
    )
    cell = grid(crowd).splitlines()[1].split(" | ")[1]
    assert len(cell) == MAX_CELL
    assert cell.endswith("…")


def rows(schedule: Schedule) -> list[list[tuple[int, ...]]]:
    """The rows of every step, in one order."""
    columns = (
        [getattr(step, name).tolist() for name in Step.__slots__] for step in schedule.steps()
    )
    return [sorted(zip(*step, strict=True)) for step in columns]


@pytest.mark.parametrize(("collective", "algorithm"), executable())
def test_a_whole_table_is_read_back(collective: str, algorithm: str) -> None:
    for p in (1, 2, 5, 13):
        for schedule in variants(collective, algorithm, p):
            text = grid(schedule, whole=True)
            again = parse_grid(text, collective, p, root=schedule.root, k=schedule.k)
            assert (rows(again), grid(again, whole=True)) == (rows(schedule), text)
            verify(again)


@pytest.mark.parametrize(("collective", "algorithm"), executable())
def test_the_number_of_chunks_need_not_be_given(collective: str, algorithm: str) -> None:
    schedule = build(collective, algorithm, 6)
    assert parse_grid(grid(schedule, whole=True), collective, 6).k == schedule.k


def test_spaces_marks_and_notes_do_not_matter() -> None:
    text = "  step|rank 0 |rank   1\r\n\n0|>+0<1<|\t+0<0   <-- here | 1\n1 | >?< |"
    assert rows(parse_grid(text, "all_reduce", 2)) == [[(0, 1, 0, 1, True), (1, 0, 0, 1, True)], []]


def test_repeated_rows_and_runs() -> None:
    text = "step | rank 0 | rank 1 | rank 2\n0 | +0-2<1(x2),2 =5<1 | |"
    assert rows(parse_grid(text, "all_reduce", 3)) == [
        [(1, 0, 0, 3, True), (1, 0, 0, 3, True), (1, 0, 5, 1, False), (2, 0, 0, 3, True)]
    ]
    assert parse_grid(text, "all_gather", 3).k == 6
    assert parse_grid(text, "all_to_all", 3).k == 9


HEADING = "step | rank 0 | rank 1\n"


def test_rows_move_as_many_chunks_as_the_limit_says() -> None:
    text = f"{HEADING}0 | +0-65535<1(x3) |\n1 | | +0-65535<0"
    assert [step.count.sum() for step in parse_grid(text, "all_reduce", 2).steps()] == [
        3 << 16,
        1 << 16,
    ]


@pytest.mark.parametrize(
    ("text", "place", "what"),
    [
        ("", (1, 1), "got '', expected 3 columns, step and 2 ranks, not 1"),
        ("step | rank 0 | rank 2", (1, 17), "got 'rank 2', expected the heading rank 1"),
        (
            "step | rank 0",
            (1, 1),
            "got 'step | rank 0', expected 3 columns, step and 2 ranks, not 2",
        ),
        (f"{HEADING}1 | |", (2, 1), "got '1', expected step 0"),
        (f"{HEADING}0 | |\n\n 2 | |", (4, 2), "got '2', expected step 1"),
        (f"{HEADING}0 | +0<1 | +0>0", (2, 12), "got '+0>0', expected a cell such as"),
        (f"{HEADING}0 | +0<1 +1<0 |", (2, 13), "got '0', expected another rank, 0 to 1"),
        (f"{HEADING}0 | +0<1,2 |", (2, 10), "got '2', expected another rank"),
        (f"{HEADING}0 | +3-1<1 |", (2, 6), "got '3-1', expected chunks in order"),
        (f"{HEADING}0 | +99999<1 |", (2, 6), "got '99999', expected chunks in order, up to 65535"),
        (f"{HEADING}0 | +0<1(x65537) |", (2, 8), "got '1(x65537)', expected 1 to 65536 rows"),
        (f"{HEADING}0 | +0<1(x0) |", (2, 8), "got '1(x0)', expected 1 to 65536 rows"),
        (
            f"{HEADING}0 | +0-4095<1(x65) |",
            (2, 13),
            "got '1(x65)', expected rows that move up to 262144 chunks",
        ),
        (
            f"{HEADING}0 | +0-65535<1(x4) | +7<0",
            (2, 25),
            "got '0', expected rows that move up to 262144 chunks",
        ),
        (
            f"{HEADING}0 | +0-65535<1(x4) |\n1 | =9<1 |",
            (3, 8),
            "got '1', expected rows that move up to 262144",
        ),
        (f"{HEADING}0 | {'x' * 99} |", (2, 5), f"got '{'x' * 40}', expected a cell"),
    ],
)
def test_an_error_names_line_column_and_what_is_allowed(
    text: str, place: tuple[int, int], what: str
) -> None:
    with pytest.raises(
        ScheduleError, match=re.escape(f"line {place[0]}, column {place[1]}: {what}")
    ):
        parse_grid(text, "all_reduce", 2)


@pytest.mark.parametrize(
    ("text", "options", "what"),
    [
        (" " * 1_048_577, {}, "got 1048577 characters, expected at most 1048576"),
        (
            HEADING,
            {"collective": "gossip"},
            "unknown collective: got 'gossip', expected one of broadcast, ",
        ),
        (f"{HEADING}0 | +4<1 |", {"k": 4}, "got chunk 4, expected at most 3"),
        (HEADING, {"collective": "all_gather", "k": 3}, "k must be a multiple"),
        (HEADING, {"collective": "reduce", "root": 2}, "root 2 is not one of the ranks"),
    ],
)
def test_what_does_not_fit_is_refused(text: str, options: dict[str, Any], what: str) -> None:
    with pytest.raises(ScheduleError, match=re.escape(what)):
        parse_grid(text, **{"collective": "all_reduce", "p": 2, **options})


@given(data=st.data())
def test_any_table_is_read_back(data: st.DataObject) -> None:
    """Random rows, right or wrong: what is printed is read as the same rows."""
    p, k = data.draw(st.integers(2, 5)), data.draw(st.integers(1, 6))

    def row() -> st.SearchStrategy[tuple[int, int, int, int, bool]]:
        ranks = st.permutations(range(p)).map(lambda order: order[:2])
        runs = st.tuples(st.integers(0, k - 1), st.integers(1, k)).map(
            lambda run: (run[0], min(run[1], k - run[0]))
        )
        return st.builds(lambda pair, run, add: (*pair, *run, add), ranks, runs, st.booleans())

    steps = data.draw(st.lists(st.lists(row(), min_size=1, max_size=6), max_size=4))
    made = [Step(*zip(*each, strict=True)) for each in steps]
    schedule = Schedule("all_reduce", p, k, len(made), made.__getitem__, one_port=False)
    assert rows(parse_grid(grid(schedule, whole=True), "all_reduce", p, k=k)) == rows(schedule)
