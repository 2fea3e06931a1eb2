"""Rings over several channels: each leaves a node by another rank, and more ports at work take less time."""

import numpy as np
import pytest

from collectives import verify
from collectives.algorithms import build
from collectives.algorithms.hierarchical import multi_channel_ring
from collectives.machine import machine
from collectives.schedule import Step
from collectives.simulator.simulation import simulate
from collectives.traffic import traffic

H100 = machine("dgx-h100")


def leaving(step: Step, g: int) -> set[int]:
    return set(step.src[step.src // g != step.dst // g].tolist())


@pytest.mark.parametrize(("nodes", "g"), [(2, 2), (3, 4), (5, 3)])
def test_as_many_ranks_leave_a_node_as_there_are_channels(nodes: int, g: int) -> None:
    for channels in range(1, g + 1):
        schedule = multi_channel_ring(nodes * g, g, channels)
        verify(schedule)
        assert (schedule.nsteps, schedule.k) == (2 * (nodes * g - 1), channels * nodes * g)
        for step in schedule.steps():
            assert len(leaving(step, g)) == channels * nodes


@pytest.mark.parametrize(("p", "g"), [(8, 2), (12, 4), (15, 5)])
def test_every_rank_sends_the_least_and_a_share_of_it_leaves_the_node(p: int, g: int) -> None:
    schedule, n = multi_channel_ring(p, g), 60 * p * g
    assert set(traffic(schedule, n).sent.tolist()) == {2 * (p - 1) * n // p}
    out = np.zeros(p, dtype=np.int64)
    for step in schedule.steps():
        far = step.src // g != step.dst // g
        np.add.at(out, step.src[far], step.count[far] * n // schedule.k)
    assert set(out.tolist()) == {2 * (p - 1) * n // p // g}


def test_one_channel_is_the_ring() -> None:
    ring = build("all_reduce", "ring", 6)
    assert [repr(step) for step in multi_channel_ring(6, 1).steps()] == [repr(step) for step in ring.steps()]


def test_channels_divide_the_time_of_large_buffers_on_several_nodes() -> None:
    n = 1 << 30
    times = [simulate(multi_channel_ring(32, 8, c), H100, n).seconds for c in (1, 2, 4, 8)]
    assert times == sorted(times, reverse=True)
    assert times[0] / times[3] == pytest.approx(8, rel=0.1)
    one = simulate(build("all_reduce", "ring", 32), H100, n).seconds
    assert times[0] == pytest.approx(one, rel=1e-6)


def test_they_gain_nothing_in_one_node_or_where_its_ranks_share_a_port() -> None:
    n = 1 << 30
    one, eight = (simulate(multi_channel_ring(8, 8, c), H100, n).seconds for c in (1, 8))
    assert one == pytest.approx(eight, rel=1e-3)
    shared = H100.model_copy(update={"ports_per_node": 1})
    one, eight = (simulate(multi_channel_ring(32, 8, c), shared, n).seconds for c in (1, 8))
    assert eight > 0.99 * one


def test_nodes_must_be_full() -> None:
    with pytest.raises(ValueError, match="10 ranks do not fill nodes of 4"):
        multi_channel_ring(10, 4)
