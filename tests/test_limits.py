"""The limits of `verify` and of what "auto" stands for, each at its edge."""

import pytest

from collectives.algorithms import ALGORITHMS
from collectives.autotune import MAX_SEGMENTS, MEASURED, OVERHEAD, SEGMENT_BYTES, choose
from collectives.core.bounds import star_seconds
from collectives.core.schedule import Schedule, ScheduleError, Step
from collectives.core.verify import COUNTED, COUNTED_RANKS, exact, verify
from collectives.machine import Link, Machine


def empty(p: int, k: int) -> Schedule:
    return Schedule("all_reduce", p, k, 0, lambda _: Step([], [], [], []))


def test_schedules_are_counted_up_to_so_many_ranks() -> None:
    assert [exact(empty(p, 1)) for p in (COUNTED_RANKS, COUNTED_RANKS + 1)] == [True, False]


def test_schedules_are_counted_up_to_so_many_counts() -> None:
    assert [exact(empty(1, k)) for k in (COUNTED // 2, COUNTED // 2 + 1)] == [True, False]


@pytest.mark.parametrize("nsteps", [1, 2, 30])
def test_a_cell_that_no_step_writes_is_marked_in_the_last_step(nsteps: int) -> None:
    back_and_forth = Schedule(
        "broadcast", 3, 1, nsteps, lambda t: Step([t % 2], [1 - t % 2], 0), root=0
    )
    with pytest.raises(
        ScheduleError, match="rank 2 holds chunk 0 of rank 0 0 times, not 1"
    ) as caught:
        verify(back_and_forth)
    (marked,) = (
        line
        for line in str(caught.value).splitlines()
        if line.endswith("<-- no step ever writes chunk 0 here")
    )
    assert marked.split("|")[0].strip() == str(nsteps - 1)


def test_without_any_step_the_fault_is_told_all_the_same() -> None:
    with pytest.raises(ScheduleError, match="rank 0 holds chunk 0 of rank 1 0 times, not 1"):
        verify(empty(2, 1))


@pytest.mark.parametrize(
    ("nbytes", "segments"),
    [
        (0, 1),
        (2 * SEGMENT_BYTES - 1, 1),
        (2 * SEGMENT_BYTES, 2),
        (64 * SEGMENT_BYTES - 1, 63),
        (64 * SEGMENT_BYTES, 64),
        (65 * SEGMENT_BYTES, 64),
    ],
)
def test_segments_of_an_algorithm_without_a_law(nbytes: int, segments: int) -> None:
    assert choose("all_reduce", 4, nbytes, "mine.py:swap").segments == segments


def test_segments_where_a_message_costs_nothing_but_its_bytes() -> None:
    free = Machine(name="free", network=Link(rate=1e9))
    assert choose("broadcast", 8, 1 << 30, "chain", on=free).segments == MAX_SEGMENTS


@pytest.mark.parametrize(
    ("collective", "algorithm"), [key for key, each in ALGORITHMS.items() if each.latencies]
)
@pytest.mark.parametrize("overhead", [0.0, OVERHEAD / 2, OVERHEAD, 2 * OVERHEAD])
def test_a_message_costs_a_star_s_centre_what_ours_costs_at_least(
    collective: str, algorithm: str, overhead: float
) -> None:
    on = Machine(name=MEASURED, network=Link(latency=1e-3, overhead=overhead, rate=1e9))
    chosen = choose(collective, 8, 1000, algorithm, segments=4, on=on)
    known = ALGORITHMS[collective, algorithm]
    expected = star_seconds(
        known.cost(8), known.latencies, 1000, 1e-3, max(OVERHEAD, overhead), 1 / 1e9
    )
    assert chosen.seconds == expected
    assert chosen.segments == 1, "a star sends whole buffers"
