"""Public tests: `pytest` runs them.

The grader has more cases, and counts and times the messages.
"""

import numpy as np
import passing
import pytest

from collectives_course.local import run
from collectives_course.world import Network

RANKS = [1, 2, 4, 5]


def buffers(p):
    """Three elements for each rank's chunk; the value 207 is element 7 of rank 2."""
    return [[np.arange(3 * p) + 100.0 * rank] for rank in range(p)]


def chunk(array, position):
    return array[3 * position : 3 * position + 3].tolist()


def gathered(p):
    values = []
    for i, rank in enumerate(passing.order(p)):
        values += list(chunk(buffers(p)[rank][0], i))
    return values


def test_chunks_cover_the_buffer():
    assert passing.bounds(10, 4) == [0, 3, 6, 8, 10]


@pytest.mark.parametrize("p", RANKS)
def test_broadcast(p):
    expected = buffers(p)[passing.order(p)[0]][0].tolist()
    for rank, (after,) in enumerate(run(passing.broadcast, buffers(p)).arguments):
        assert after.tolist() == expected, f"rank {rank}"


@pytest.mark.parametrize("p", RANKS)
def test_scatter(p):
    given = buffers(p)[passing.order(p)[0]][0]
    after = run(passing.scatter, buffers(p)).arguments
    for position, rank in enumerate(passing.order(p)):
        assert chunk(after[rank][0], position) == chunk(given, position), (
            f"rank {rank}, position {position}"
        )


@pytest.mark.parametrize("p", RANKS)
def test_gather(p):
    after = run(passing.gather, buffers(p)).arguments
    assert after[passing.order(p)[0]][0].tolist() == gathered(p)


@pytest.mark.parametrize("p", RANKS)
def test_all_gather(p):
    for rank, (after,) in enumerate(run(passing.all_gather, buffers(p)).arguments):
        assert after.tolist() == gathered(p), f"rank {rank}"


def test_all_gather_with_small_buffers():
    run(passing.all_gather, buffers(4), Network(small_buffers=True))


def test_broadcast_takes_two_steps_on_four_ranks():
    assert run(passing.broadcast, buffers(4), Network(alpha=1.0, beta=0.0)).seconds == 2
