"""Every algorithm, for every p from 1 to 64: proved by exact counts, and its traffic held against the closed forms."""

import numpy as np
import pytest

from collectives.algorithms import ALGORITHMS, build, names, variants
from collectives.algorithms.binary_tree import NO_PARENT, arrivals, binary_tree, edge_colours, second_tree
from collectives.bounds import COSTS, height
from collectives.interpret import play
from collectives.schedule import Schedule, ScheduleError
from collectives.traffic import traffic
from collectives.verify import exact, verify

RANKS = range(1, 65)
EACH = pytest.mark.parametrize(("collective", "algorithm"), ALGORITHMS)


@EACH
def test_proved_for_1_to_64_ranks(collective: str, algorithm: str) -> None:
    for p in RANKS:
        for schedule in variants(collective, algorithm, p):
            assert (schedule.collective, schedule.p) == (collective, p)
            assert exact(schedule)
            verify(schedule)


@EACH
@pytest.mark.parametrize("p", [257, 512])
def test_proved_by_fingerprints_at_hundreds_of_ranks(collective: str, algorithm: str, p: int) -> None:
    verify(build(collective, algorithm, p, segments=5))


@EACH
def test_numbers_move_as_counts_do(collective: str, algorithm: str) -> None:
    """Proof by counting and moving real numbers agree: an independent sum over the contributors comes out."""
    for p in (1, 2, 3, 5, 8):
        schedule = build(collective, algorithm, p, segments=2)
        x = (np.arange(p * schedule.k, dtype=np.int64).reshape(p, schedule.k) * 7919) % 1000
        if collective == "all_reduce":
            assert (play(schedule, x.copy()) == x.sum(axis=0)).all()
        if collective == "reduce":
            assert (play(schedule, x.copy())[0] == x.sum(axis=0)).all()
        if collective == "broadcast":
            assert (play(schedule, x.copy()) == x[0]).all()
        if collective == "all_gather":
            assert (play(schedule, x.copy()) == np.diagonal(x)).all()
        if collective == "reduce_scatter":
            assert (np.diagonal(play(schedule, x.copy())) == x.sum(axis=0)).all()


def in_lock_step(schedule: Schedule, n: int) -> tuple[int, int]:
    """Messages and bytes of the busiest port in each step, added up over the steps."""
    messages = size = 0
    for step in schedule.steps():
        alone = Schedule(schedule.collective, schedule.p, schedule.k, 1, lambda _, step=step: step, schedule.root)
        counted = traffic(alone, n)
        messages += max(counted.messages_sent.max(), counted.messages_received.max())
        size += max(counted.sent.max(), counted.received.max())
    return messages, size


@pytest.mark.parametrize(("collective", "algorithm"), COSTS)
def test_steps_and_bytes_are_what_the_closed_form_says(collective: str, algorithm: str) -> None:
    for p in RANKS:
        schedule, cost = build(collective, algorithm, p), COSTS[collective, algorithm](p)
        n = 840 * schedule.k
        assert in_lock_step(schedule, n) == (cost.steps, pytest.approx(cost.sent * n)), p


def test_totals_of_the_naive_all_reduces() -> None:
    for p in RANKS:
        exchange, root = (traffic(build("all_reduce", name, p), 100) for name in ("exchange", "root"))
        assert exchange.sent.sum() == p * (p - 1) * 100
        assert root.sent.sum() == 2 * (p - 1) * 100


@pytest.mark.parametrize("segments", [1, 2, 7])
def test_trees_take_no_more_steps_than_they_promise(segments: int) -> None:
    for p in range(2, 200):
        for algorithm in ("tree", "two_tree"):
            schedule = build("all_reduce", algorithm, p, segments=segments)
            assert schedule.nsteps <= 2 * (2 * height(p) + 2 * segments - 2), p


def test_trees_begin_and_end_at_work() -> None:
    for p in range(2, 65):
        for algorithm in ("tree", "two_tree"):
            schedule = build("all_reduce", algorithm, p, segments=3)
            assert len(schedule.step(0)), p
            assert len(schedule.step(schedule.nsteps - 1)), p


def test_two_trees_halve_what_one_tree_sends() -> None:
    for p in range(3, 65):
        one, two = (traffic(build("all_reduce", name, p, segments=4), 800) for name in ("tree", "two_tree"))
        assert two.sent.max() <= 1600
        assert two.received.max() <= 1600
        assert one.sent.max() == (2400 if p > 3 else 1600), p


def interior(parent: np.ndarray) -> np.ndarray:
    return np.unique(parent[parent != NO_PARENT])


def test_the_binary_tree_is_nccls() -> None:
    """Children by NCCL's own other formula: r - low and r + low, halving low while that is no rank."""
    for p in range(2, 300):
        parent = binary_tree(p)
        for r in range(1, p):
            low = (r & -r) >> 1
            children = set()
            if low:
                children.add(r - low)
                while low and r + low >= p:
                    low >>= 1
                children |= {r + low} if low else set()
            assert set(np.flatnonzero(parent == r).tolist()) == children, (p, r)
        first_power = 1 << (p - 1).bit_length()
        assert np.flatnonzero(parent == 0).tolist() == [first_power >> 1]


def test_no_rank_is_inside_both_trees_but_rank_0_for_odd_p() -> None:
    for p in range(2, 1025):
        both = np.intersect1d(interior(binary_tree(p)), interior(second_tree(p)))
        assert both.tolist() == ([0] if p % 2 and p > 1 else []), p


def test_trees_are_as_high_as_the_logarithm() -> None:
    for p in range(1, 300):
        for parent in (binary_tree(p), second_tree(p)):
            assert np.sum(parent == NO_PARENT) == 1
            levels = (arrivals(parent, np.zeros_like(parent)) + 2) // 2
            assert levels.max() == height(p), p


def test_no_port_works_twice_in_one_colour() -> None:
    for p in range(2, 400):
        parents = np.stack([binary_tree(p), second_tree(p)])
        colours = edge_colours(parents)
        for colour in (0, 1):
            used = (parents != NO_PARENT) & (colours == colour)
            assert np.bincount(parents[used], minlength=p).max() <= 1, p
            assert used.sum(axis=0).max() <= 1, p


def test_three_children_cannot_be_coloured() -> None:
    with pytest.raises(ScheduleError, match="three children"):
        edge_colours(np.array([[-1, 0, 0, 0]]))


def test_names_and_options() -> None:
    assert names("all_gather") == ["ring"]
    assert build("all_reduce", "two_tree", 8, segments=3, root=5).k == 6
    with pytest.raises(ValueError, match="no algorithm 'rnig' for 'all_reduce'; all_reduce has exchange, root, ring"):
        build("all_reduce", "rnig", 8)
    with pytest.raises(ValueError, match="collectives with algorithms are broadcast, reduce"):
        build("all_the_things", "ring", 8)
