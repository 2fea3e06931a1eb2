"""A schedule as text: what it marks, how much of a large one it shows, and what it says of the rest."""

import numpy as np
import pytest

from collectives.algorithms import build
from collectives.grid import LONGEST_CELL, MOST_RANKS, MOST_STEPS, grid
from collectives.schedule import Schedule, Step


def ring(p: int, nsteps: int) -> Schedule:
    """Every rank passes chunk 0 on to the next one."""
    return Schedule("all_reduce", p, 1, nsteps, lambda _: Step(range(p), [(r + 1) % p for r in range(p)], 0))


def test_rows_of_one_cell_are_written_together() -> None:
    step = Step(src=[2, 1, 1, 0], dst=[0, 0, 0, 2], chunk=[0, 0, 1, 0], count=[1, 1, 2, 1], add=[1, 1, 0, 0])
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
        (MOST_RANKS, MOST_STEPS, None),
        (MOST_RANKS + 1, MOST_STEPS, "(0 more steps and 1 more ranks are not shown)"),
        (MOST_RANKS, MOST_STEPS + 2, "(2 more steps and 0 more ranks are not shown)"),
    ],
)
def test_what_does_not_fit_is_counted(p: int, nsteps: int, left_out: str | None) -> None:
    lines = grid(ring(p, nsteps)).splitlines()
    assert lines[0].split(" | ")[-1] == f"rank {MOST_RANKS - 1}"
    assert len(lines) == 1 + MOST_STEPS + (left_out is not None)
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
    crowd = Schedule("gather", 500, 500, 1, lambda _: Step(np.arange(1, 500), 0, np.arange(1, 500)), root=0)
    cell = grid(crowd).splitlines()[1].split(" | ")[1]
    assert len(cell) == LONGEST_CELL
    assert cell.endswith("…")
