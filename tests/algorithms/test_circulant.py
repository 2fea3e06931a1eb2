"""Circulant broadcast and reduce: the paper's conditions on the schedules, its count of rounds, and every byte once."""

from itertools import pairwise

import numpy as np
import pytest

from collectives.algorithms import build
from collectives.algorithms.circulant import distances, receives
from collectives.core.bounds import height
from collectives.core.schedule import ScheduleError, reverse
from collectives.core.traffic import traffic
from collectives.core.verify import verify
from sweep import sweep

RANKS = pytest.mark.parametrize("ranks", sweep(range(1, 300)))


@RANKS
def test_distances_are_halves_rounded_up(ranks: list[int]) -> None:
    for p in ranks:
        ways = [*distances(p), p]
        assert len(ways) == height(p) + 1
        assert ways[0] == 1
        assert all(below == -(-above // 2) for below, above in pairwise(ways)), p


@RANKS
def test_the_schedules_meet_the_papers_conditions(ranks: list[int]) -> None:
    """Träff 2023, section 2: one segment of this phase and all others of the last.

    What is sent was received before.
    """
    for p in ranks:
        rows, rounds = receives(p), height(p)
        for rank in range(1, p):
            (own,) = rows[rank][rows[rank] >= 0]
            assert sorted(rows[rank]) == sorted({*range(-rounds, 0), own} - {own - rounds}), (
                p,
                rank,
            )
            for k, distance in enumerate(distances(p)):
                to = (rank + distance) % p
                earlier = {*rows[rank][:k].tolist(), own - rounds}
                assert to == 0 or rows[to][k] in earlier, (p, rank, k)
        for k, distance in enumerate(distances(p)):
            assert rows[distance % p][k] == k or p == 1, (
                "the root sends a new segment in each round"
            )


@RANKS
def test_fewest_rounds_and_each_segment_once(ranks: list[int]) -> None:
    """The lower bound is s-1 + ceil(log2 p): the root needs s rounds to send, the last segment ceil(log2 p)."""
    for p in ranks:
        for segments in (1, 2, 3, 7, 20):
            schedule = build("broadcast", "circulant", p, segments=segments, root=p // 2)
            counted = traffic(schedule, segments)
            assert schedule.nsteps == (segments - 1 + height(p) if p > 1 else 0)
            assert counted.received.tolist() == [
                0 if r == p // 2 or p == 1 else segments for r in range(p)
            ], p
            assert all(
                len(set(step.src)) == len(set(step.dst)) == len(step) for step in schedule.steps()
            )
            if p > 1:
                verify(schedule)
                verify(reverse(schedule, "reduce", add=True))


def test_the_root_is_busy_from_the_first_round_and_no_rank_sends_much_more_than_it() -> None:
    for p in (2, 3, 9, 17, 24, 100):
        schedule, s = build("broadcast", "circulant", p, segments=50), 50
        sent = traffic(schedule, s).sent
        assert all(0 in step.src for step in list(schedule.steps())[:s])
        assert s <= sent.max() <= s + height(p), p


def test_a_wrong_round_is_caught() -> None:
    from dataclasses import replace

    right = build("broadcast", "circulant", 9, segments=4)
    for t in range(right.nsteps):
        skipped = replace(
            right, nsteps=right.nsteps - 1, make=lambda i, t=t: right.make(i + (i >= t))
        )
        with pytest.raises(ScheduleError):
            verify(skipped)


def test_a_row_can_be_made_for_many_ranks() -> None:
    rows = receives(5000)
    assert rows.shape == (5000, 13)
    assert np.sort(rows[1:], axis=1)[:, -1].min() >= 0
