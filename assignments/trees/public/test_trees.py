"""Public tests: `pytest` runs them. The grader proves more schedules, and simulates them."""

import pytest
import trees
from variant import FIRST, ROOT, SECOND

from collectives.core.schedule import Schedule
from collectives.core.traffic import traffic
from collectives.core.verify import verify


def inside(parent):
    return {up for up in parent if up != trees.NO_PARENT}


@pytest.mark.parametrize("p", [1, 2, 5, 8])
def test_roots(p):
    assert trees.first_tree(p).index(trees.NO_PARENT) == ROOT % p
    assert trees.second_tree(p).index(trees.NO_PARENT) == (ROOT + SECOND) % p


@pytest.mark.parametrize("p", [2, 4, 8, 16])
def test_no_rank_is_interior_in_both_trees(p):
    assert not inside(trees.first_tree(p)) & inside(trees.second_tree(p))


@pytest.mark.parametrize("segments", [1, 3])
def test_down_is_a_broadcast(segments):
    parent = [trees.NO_PARENT, 0, 1, 1]
    verify(trees.down(parent, [0, 0, 0, 1], segments))


@pytest.mark.parametrize("p", [1, 2, 5, 8])
def test_tree(p):
    schedule = trees.tree(p, segments=2)
    assert isinstance(schedule, Schedule)
    assert (schedule.collective, schedule.p, schedule.k) == ("all_reduce", p, 2)
    verify(schedule)


@pytest.mark.parametrize("p", [1, 2, 5, 8])
def test_two_tree(p):
    schedule = trees.two_tree(p, segments=2)
    assert (schedule.collective, schedule.p, schedule.k) == ("all_reduce", p, 4)
    verify(schedule)


def test_chunks_go_through_their_tree():
    """The root of a chunk's tree is the first rank that sends its result: a row that replaces."""
    p = 8
    roots = {}
    for step in trees.two_tree(p, segments=1).steps():
        for src, chunk, add in zip(step.src, step.chunk, step.add, strict=True):
            if not add:
                roots.setdefault(int(chunk), int(src))
    assert roots == {FIRST: ROOT % p, 1 - FIRST: (ROOT + SECOND) % p}


def test_no_rank_sends_more_than_two_buffers():
    schedule = trees.two_tree(8, segments=4)
    assert max(traffic(schedule, 8000).sent) <= 2 * 8000
