"""Steps, cutting, and the combinators, on small schedules of their own."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.algorithms import ALGORITHMS
from collectives.core.schedule import (
    Schedule,
    ScheduleError,
    Step,
    cut,
    on,
    owner,
    parallel,
    reverse,
    then,
)


def one(collective: str, p: int, k: int, step: Step, root: int | None = None) -> Schedule:
    return Schedule(collective, p, k, 1, lambda _: step, root)


def test_a_step_spreads_single_numbers_and_knows_its_cells() -> None:
    step = Step([0, 2], [1, 3], [0, 4], count=[3, 1], add=True)
    assert step.add.tolist() == [True, True]
    row, chunk = step.cells()
    assert (row.tolist(), chunk.tolist()) == ([0, 0, 0, 1], [0, 1, 2, 4])


ROWS = st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 5), st.integers(1, 3))


@given(st.lists(ROWS, max_size=12), st.sampled_from([None, 0, 3, 11]))
def test_rows_of_a_pair_are_one_message_and_empty_ones_are_not_sent(
    rows: list[tuple[int, ...]], elements: int | None
) -> None:
    edges = None if elements is None else cut(elements, 8)
    wanted: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for i, (src, dst, chunk, count) in enumerate(rows):
        size = count if edges is None else int(edges[chunk + count] - edges[chunk])
        if size:
            wanted.setdefault((src, dst), []).append((i, size))
    sent = Step(*np.array(rows, np.int64).reshape(-1, 4).T).messages(edges)
    assert list(zip(sent.src.tolist(), sent.dst.tolist(), strict=True)) == list(wanted)
    assert sent.size.tolist() == [sum(size for _, size in each) for each in wanted.values()]
    assert [sent.rows(i).tolist() for i in range(len(wanted))] == [
        [i for i, _ in each] for each in wanted.values()
    ]


@pytest.mark.parametrize("columns", [([0.5], [1], [0]), ([0], [1], [1.0])])
def test_a_step_takes_whole_numbers_only(columns: tuple[list[float], ...]) -> None:
    with pytest.raises(ScheduleError, match="whole numbers, not float64"):
        Step(*columns)


def test_columns_of_a_step_must_agree() -> None:
    with pytest.raises(ScheduleError, match=r"got src of shape \(2,\), expected 3 values, or one"):
        Step([0, 1], [1, 2, 3], 0)
    with pytest.raises(
        ScheduleError, match=r"got src of shape \(1, 2\), expected 2 values, or one"
    ):
        Step([[0, 1]], [1, 2], 0)
    with pytest.raises(ScheduleError, match="inhomogeneous"):
        Step([0, [1]], [1, 2], 0)


@pytest.mark.parametrize("junk", [None, "0", 2**70, 1.0, np.float64(1)])
def test_a_step_takes_no_junk(junk: object) -> None:
    with pytest.raises(ScheduleError, match="whole numbers, not"):
        Step([0, 1], [1, 0], junk)


def test_a_step_owns_its_columns() -> None:
    """A schedule that fills the same arrays for each of its steps is as good as one that makes new ones."""
    buffers = (
        np.arange(5),
        np.arange(1, 6),
        np.zeros(5, np.int64),
        np.ones(5, np.int64),
        np.zeros(5, np.bool_),
    )
    step = Step(*buffers)
    said = repr(step)
    for buffer in buffers:
        buffer[:] = 3
    assert repr(step) == said
    for name in Step.__slots__:
        with pytest.raises(ValueError, match="read-only"):
            getattr(step, name)[0] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            getattr(step, name).flags.writeable = True


def test_a_read_only_view_of_memory_that_changes_is_copied() -> None:
    memory = np.arange(4)
    view = memory[:]
    view.flags.writeable = False
    step = Step(view, view + 1, 0)
    memory[:] = 9
    assert step.src.tolist() == [0, 1, 2, 3]


def test_a_schedule_that_reuses_its_buffers_can_be_placed() -> None:
    """The rows of every step stay its own, also through `on`, `then`, `parallel` and `reverse`."""
    src, dst, chunk = np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64)

    def make(t: int) -> Step:
        src[:], dst[:], chunk[:] = t, t + 1, t
        return Step(src, dst, chunk)

    reusing = Schedule("x", 4, 4, 3, make)
    fresh = Schedule("x", 4, 4, 3, lambda t: Step([t], [t + 1], [t]))
    for change in (
        lambda s: on(s, p=9, k=8, ranks=[8, 3, 0, 5], chunks=[6, 0, 4, 2], width=2),
        lambda s: then(s, s, "x"),
        lambda s: parallel(s, on(s, 4, 4, [3, 2, 1, 0], [0, 1, 2, 3]), "x"),
        lambda s: reverse(s, "x", add=True),
    ):
        assert [*map(repr, [*change(reusing).steps()])] == [*map(repr, [*change(fresh).steps()])]


@pytest.mark.parametrize("junk", [None, 7, [(0, 1, 0)], Step])
def test_a_step_that_is_none_says_which(junk: object) -> None:
    junky = Schedule("x", 2, 1, 2, lambda t: junk if t else Step(0, 1, 0))  # type: ignore[arg-type, return-value]
    plain = one("x", 2, 1, Step(0, 1, 0))
    for schedule in (junky, parallel(junky, plain, "x"), on(junky, 2, 1, [0, 1], [0])):
        with pytest.raises(ScheduleError, match=r"^step 1: got .*, expected a Step"):
            list(schedule.steps())


@pytest.mark.parametrize("junk", [None, "2", 2.0])
def test_a_schedule_takes_whole_numbers_only(junk: object) -> None:
    for numbers in ((junk, 2, 1), (2, junk, 1), (2, 2, junk)):
        with pytest.raises(ScheduleError, match=r"of a schedule: got .*, expected a whole number"):
            Schedule("all_reduce", *numbers, make=lambda _: Step([], [], []))  # type: ignore[arg-type]
    with pytest.raises(ScheduleError, match="ranks_per_node of a schedule: got '1'"):
        Schedule("all_reduce", 2, 1, 1, lambda _: Step([], [], []), ranks_per_node="1")  # type: ignore[arg-type]
    with pytest.raises(ScheduleError, match=r"root of a schedule: got 0\.0"):
        Schedule("reduce", 2, 1, 1, lambda _: Step([], [], []), root=0.0)  # type: ignore[arg-type]


REPEATING = {
    "ring": ALGORITHMS["all_reduce", "ring"](5),
    "segmented": ALGORITHMS["all_reduce", "segmented_ring"](4, segments=3),
    "dual": ALGORITHMS["reduce_scatter", "ring"](5),
    "placed": ALGORITHMS["all_reduce", "hierarchical_ring"](12, ranks_per_node=3),
    "shortened": reverse(
        replace(ALGORITHMS["all_gather", "ring"](6), nsteps=3), "reduce_scatter", add=True
    ),
    "second half": ALGORITHMS["broadcast", "scatter_allgather"](6),
}


@pytest.mark.parametrize("name", REPEATING)
def test_what_is_declared_to_repeat_does(name: str) -> None:
    schedule = REPEATING[name]
    steps, repeated = (
        [*schedule.steps()],
        [t for t in range(schedule.nsteps) if schedule.repeated(t)],
    )
    assert repeated
    for t in repeated:
        for column_name in ("src", "dst", "count", "add"):
            assert (getattr(steps[t], column_name) == getattr(steps[t - 1], column_name)).all()


def test_a_ring_repeats_all_steps_but_the_first_of_each_half() -> None:
    ring = ALGORITHMS["all_reduce", "ring"](5)
    assert [t for t in range(ring.nsteps) if not ring.repeated(t)] == [0, 4]


@given(n=st.integers(0, 500), parts=st.integers(1, 9), segments=st.integers(1, 7))
def test_cut_covers_everything_in_near_equal_pieces(n: int, parts: int, segments: int) -> None:
    edges = cut(n, parts * segments, parts)
    assert edges[0] == 0
    assert edges[-1] == n
    part_sizes = np.diff(edges[::segments])
    assert part_sizes.tolist() == sorted(part_sizes, reverse=True)
    assert np.ptp(part_sizes) <= 1
    for part in np.split(np.diff(edges), parts):
        assert part.tolist() == sorted(part, reverse=True)
        assert np.ptp(part) <= 1


@given(p=st.integers(1, 40), segments=st.integers(1, 5))
def test_every_rank_owns_its_own_run_of_chunks(p: int, segments: int) -> None:
    owners = owner(np.arange(p * segments), p, p * segments)
    assert owners.tolist() == np.repeat(np.arange(p), segments).tolist()


def test_parts_stay_equal_where_the_collective_has_parts() -> None:
    gather = ALGORITHMS["all_gather", "ring"](4)
    assert np.diff(gather.cut(20)).tolist() == [5, 5, 5, 5]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("all_reduce", 0, 1, 0), "p and k are at least 1"),
        (("all_reduce", 2, 1, -1), "nsteps at least 0"),
        (("all_gather", 4, 6, 0), "must be a multiple of that, not 6"),
        (("all_to_all", 3, 3, 0), "has 9 parts"),
    ],
)
def test_an_impossible_schedule_says_why(
    arguments: tuple[str, int, int, int], message: str
) -> None:
    with pytest.raises(ScheduleError, match=message):
        Schedule(*arguments, make=lambda _: Step([], [], []))
    with pytest.raises(ScheduleError, match="root 4 is not one of the ranks 0 to 3"):
        Schedule("broadcast", 4, 1, 0, lambda _: Step([], [], []), root=4)


def test_steps_are_asked_for_within_range() -> None:
    ring = ALGORITHMS["all_reduce", "ring"](4)
    with pytest.raises(IndexError, match="step 6 of a schedule with 6 steps"):
        ring.step(6)
    with pytest.raises(IndexError):
        ring.step(-1)


def test_then_plays_one_after_the_other() -> None:
    a, b = one("x", 3, 1, Step(0, 1, 0)), one("x", 3, 1, Step(1, 2, 0))
    assert [repr(step) for step in then(a, b, "x").steps()] == ["Step(0->1:=0)", "Step(1->2:=0)"]


def test_parallel_plays_both_at_once_as_long_as_they_last() -> None:
    a, b = one("x", 4, 2, Step(0, 1, 0)), one("x", 4, 2, Step(2, 3, 1, add=True))
    longer = then(b, b, "x")
    assert [repr(step) for step in parallel(a, longer, "x").steps()] == [
        "Step(0->1:=0, 2->3:+1)",
        "Step(2->3:+1)",
    ]


def test_only_alike_schedules_are_joined() -> None:
    a, b = one("x", 3, 1, Step(0, 1, 0)), one("x", 3, 2, Step(0, 1, 0))
    for join in (then, parallel):
        with pytest.raises(ScheduleError, match="3 ranks and 1 chunks, but 3 ranks and 2 chunks"):
            join(a, b, "x")


def test_on_places_ranks_and_runs_of_chunks() -> None:
    two = one("x", 2, 3, Step([0, 1], [1, 0], [0, 2], count=[2, 1], add=[True, False]))
    placed = on(two, p=9, k=8, ranks=[8, 3], chunks=[6, 0, 3], width=2)
    assert repr(placed.step(0)) == "Step(8->3:+6-7, 8->3:+0-1, 3->8:=3-4)"


def test_on_needs_a_place_for_every_rank_and_chunk() -> None:
    with pytest.raises(ScheduleError, match="2 ranks and 1 chunks need as many places"):
        on(one("x", 2, 1, Step(0, 1, 0)), p=9, k=8, ranks=[1], chunks=[0])


@pytest.mark.parametrize("p", [1, 2, 3, 5, 8, 13])
def test_the_dual_reverses_time_and_arrows(p: int) -> None:
    broadcast = ALGORITHMS["broadcast", "binomial"](p, root=p - 1)
    for add in (True, False):
        backwards = [Step(s.dst, s.src, s.chunk, s.count, add) for s in broadcast.steps()][::-1]
        turned = reverse(broadcast, "reduce", add=add)
        assert [repr(step) for step in turned.steps()] == [repr(step) for step in backwards]
        assert turned.root == p - 1


def test_a_reduce_has_no_dual() -> None:
    with pytest.raises(
        ScheduleError, match="reduce cannot be reversed: step 1 writes chunk 0 of rank 0"
    ):
        reverse(ALGORITHMS["reduce", "binomial"](4), "broadcast", add=False)


@pytest.mark.parametrize(
    "second",
    [Step(0, 2, 0), Step(2, 0, 0)],
    ids=["a cell that was written already", "a cell that the chunk came from"],
)
def test_no_dual_where_a_cell_is_used_twice(second: Step) -> None:
    steps = [Step([0, 0], [1, 2], 0), second]
    twice = Schedule("broadcast", 3, 1, 2, steps.__getitem__, root=0, one_port=False)
    with pytest.raises(
        ScheduleError, match=r"cannot be reversed: step 1 writes chunk 0 of rank [02]"
    ):
        reverse(twice, "reduce", add=True)
