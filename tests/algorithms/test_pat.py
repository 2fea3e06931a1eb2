"""PAT: steps, messages and depth as NCCL's own code has them, and what waits in a rank's buffer."""

import numpy as np
import pytest

from collectives.algorithms import build
from collectives.algorithms.pat import all_gather, reduce_scatter
from collectives.core.bounds import height
from collectives.core.schedule import Schedule
from collectives.core.traffic import traffic
from collectives.core.verify import verify


def hops_and_waiting(schedule: Schedule) -> tuple[int, int]:
    """The most messages that a part travels by, and the most parts that wait at a rank to be sent on."""
    cells = (schedule.p, schedule.k)
    hops, received, sent = np.zeros(cells, int), np.full(cells, -1), np.full(cells, -1)
    for t, step in enumerate(schedule.steps()):
        row, part = step.cells()
        hops[step.dst[row], part] = hops[step.src[row], part] + 1
        received[step.dst[row], part], sent[step.src[row], part] = t, t
    waiting = [
        ((received >= 0) & (received <= t) & (sent > t)).sum(axis=1).max()
        for t in range(schedule.nsteps)
    ]
    return int(hops.max()), int(max(waiting))


@pytest.mark.parametrize(
    ("p", "all_at_once", "one_by_one"), [(128, 7, 127), (100, 7, 99), (24, 5, 23)]
)
def test_as_many_messages_as_in_nccl(p: int, all_at_once: int, one_by_one: int) -> None:
    """Counted in NCCL 2.30.7's own schedule (src/include/collectives.h)."""
    for make in (all_gather, reduce_scatter):
        for aggregate, messages in ((None, all_at_once), (1, one_by_one)):
            counted = traffic(make(p, aggregate), p)
            assert set(counted.messages_sent) == set(counted.messages_received) == {messages}
            assert set(counted.sent) == set(counted.received) == {p - 1}


@pytest.mark.parametrize("p", [2, 3, 8, 24, 33, 64, 100])
def test_the_buffer_is_bounded_and_the_depth_a_logarithm(p: int) -> None:
    for j in range(height(p) + 1):
        schedule = all_gather(p, 1 << j)
        hops, waiting = hops_and_waiting(schedule)
        assert hops <= height(p)
        assert waiting <= (1 << j) * (height(p) - j + 1)
        assert max(step.messages().size.max() for step in schedule.steps()) <= 1 << j
        assert schedule.nsteps == (j + (1 << height(p) - j) - 1 if j else p - 1)


def test_without_aggregation_a_logarithm_of_parts_waits() -> None:
    """The paper's claim: a buffer of log2 p parts, however large the operation.

    Bruck's needs half of all.
    """
    for p in (8, 32, 128):
        assert hops_and_waiting(all_gather(p, 1))[1] == height(p) - 1
        assert hops_and_waiting(all_gather(p))[1] == p // 2 - 1
    assert (hops_and_waiting(all_gather(128, 4)), all_gather(128, 4).nsteps) == ((7, 19), 33)


def test_the_large_messages_stay_near() -> None:
    """Bruck's sends half of all parts to the farthest rank, PAT one."""

    def parts_to_the_farthest(schedule: Schedule) -> int:
        return max(
            int(step.messages().size.max())
            for step in schedule.steps()
            if (step.dst - step.src == 32).any()
        )

    # Sends the other way round the ring, 32 ranks away all the same.
    turned = build("all_gather", "bruck", 64)
    assert (parts_to_the_farthest(turned), parts_to_the_farthest(all_gather(64))) == (32, 1)


@pytest.mark.parametrize("aggregate", [3, 4, 7, 1000])
def test_any_aggregate_and_any_p(aggregate: int) -> None:
    for p in (1, 2, 5, 12, 31):
        verify(all_gather(p, aggregate))
        verify(reduce_scatter(p, aggregate))


def test_a_message_needs_a_part() -> None:
    with pytest.raises(
        ValueError, match=r"parts of a message \(aggregate\): got 0, expected at least 1"
    ):
        all_gather(8, aggregate=0)
