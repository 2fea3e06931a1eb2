"""Channels: each ring, chain or pair of trees leaves a node by another rank, and more ports at work take less time."""

import numpy as np
import pytest

from collectives import verify
from collectives.algorithms import ALGORITHMS, build
from collectives.core.bounds import height
from collectives.core.schedule import Schedule, Step
from collectives.core.traffic import traffic
from collectives.machine import Link, Machine
from collectives.simulator.simulation import simulate

# Nodes of eight with a port for each rank, in round numbers.
NODES = Machine(
    name="nodes",
    ranks_per_node=8,
    inside=Link(latency=1e-6, rate=450e9),
    network=Link(latency=4e-6, overhead=1e-6, rate=50e9),
)
RINGS = {"all_gather": 1, "reduce_scatter": 1, "all_reduce": 2}  # how often a part goes round
ON_NODES = [(1, 4), (2, 2), (3, 4), (5, 3), (8, 8), (7, 1)]


def leaving(step: Step, g: int) -> set[int]:
    return set(step.src[step.src // g != step.dst // g].tolist())


def outside(schedule: Schedule, g: int) -> np.ndarray:
    """Chunks that each rank sends to another node."""
    sent = np.zeros(schedule.p, dtype=np.int64)
    for step in schedule.steps():
        far = step.src // g != step.dst // g
        np.add.at(sent, step.src[far], step.count[far])
    return sent


@pytest.mark.parametrize("collective", RINGS)
@pytest.mark.parametrize(("nodes", "g"), [(2, 2), (3, 4), (5, 3)])
def test_as_many_ranks_leave_a_node_as_there_are_channels(
    collective: str, nodes: int, g: int
) -> None:
    for channels in range(1, g + 1):
        schedule = build(
            collective, "multi_channel_ring", nodes * g, ranks_per_node=g, channels=channels
        )
        verify(schedule)
        assert (schedule.nsteps, schedule.k) == (
            RINGS[collective] * (nodes * g - 1),
            channels * nodes * g,
        )
        for step in schedule.steps():
            assert len(leaving(step, g)) == channels * nodes


@pytest.mark.parametrize("collective", RINGS)
@pytest.mark.parametrize(("nodes", "g"), ON_NODES)
def test_every_rank_sends_the_least_and_a_share_of_it_leaves_the_node(
    collective: str, nodes: int, g: int
) -> None:
    p = nodes * g
    schedule = build(collective, "multi_channel_ring", p, ranks_per_node=g)
    parts = RINGS[collective] * (p - 1)
    assert set(traffic(schedule, p * schedule.k).sent.tolist()) == {parts * schedule.k}
    assert set(outside(schedule, g).tolist()) == {parts if nodes > 1 else 0}


@pytest.mark.parametrize(("nodes", "g"), ON_NODES)
def test_a_chain_for_each_channel_leaves_every_node_by_all_ports(nodes: int, g: int) -> None:
    p, s = nodes * g, 3
    for root in {0, p - 1, p // 2}:
        schedule = build(
            "broadcast", "multi_channel_chain", p, root=root, ranks_per_node=g, segments=s
        )
        assert schedule.nsteps == p - 1 + s - 1
        assert traffic(schedule, schedule.k).sent.max() <= schedule.k
        sent = outside(schedule, g)
        assert sent.max() == (s if nodes > 1 else 0), "a channel's share"
        assert (nodes - 1) * schedule.k <= sent.sum() <= nodes * schedule.k, (
            "a chain may end on the root's node"
        )


@pytest.mark.parametrize(("nodes", "g"), ON_NODES)
def test_a_pair_of_trees_for_each_port(nodes: int, g: int) -> None:
    """Two shares of the buffer at most leave by each port, where one pair of trees sends two buffers by one port."""
    s = 4
    many, one = (
        build("all_reduce", name, nodes * g, ranks_per_node=g, segments=s)
        for name in ("multi_channel_tree", "hierarchical_tree")
    )
    assert many.nsteps == one.nsteps <= 2 * (2 * (height(nodes) + g - 1) + 2 * s - 2)
    assert outside(many, g).max() * g * one.k == outside(one, g).max() * many.k
    assert outside(many, g).max() * g <= 2 * many.k
    assert traffic(many, many.k).sent.max() <= 4 * many.k


@pytest.mark.parametrize("collective", RINGS)
def test_one_channel_is_the_ring(collective: str) -> None:
    ring, one = (
        build(collective, "ring", 6),
        build(collective, "multi_channel_ring", 6, ranks_per_node=1),
    )
    assert [repr(step) for step in one.steps()] == [repr(step) for step in ring.steps()]


@pytest.mark.parametrize("collective", RINGS)
def test_channels_divide_the_time_of_large_buffers_on_several_nodes(collective: str) -> None:
    n, make = 1 << 30, ALGORITHMS[collective, "multi_channel_ring"]
    times = [
        simulate(make(32, ranks_per_node=8, channels=c), NODES, n).seconds for c in (1, 2, 4, 8)
    ]
    assert times == sorted(times, reverse=True)
    assert times[0] / times[3] == pytest.approx(8, rel=0.1)
    one = simulate(build(collective, "ring", 32), NODES, n).seconds
    assert times[0] == pytest.approx(one, rel=1e-6)


def test_they_gain_nothing_in_one_node_or_where_its_ranks_share_a_port() -> None:
    n, make = 1 << 30, ALGORITHMS["all_reduce", "multi_channel_ring"]
    one, eight = (simulate(make(8, ranks_per_node=8, channels=c), NODES, n).seconds for c in (1, 8))
    assert one == pytest.approx(eight, rel=1e-3)
    shared = NODES.model_copy(update={"ports_per_node": 1})
    one, eight = (
        simulate(make(32, ranks_per_node=8, channels=c), shared, n).seconds for c in (1, 8)
    )
    assert eight > 0.99 * one


def test_nodes_must_be_full() -> None:
    for collective, name in (
        *((of, "multi_channel_ring") for of in RINGS),
        ("broadcast", "multi_channel_chain"),
    ):
        with pytest.raises(ValueError, match="10 ranks do not fill nodes of 4"):
            build(collective, name, 10, ranks_per_node=4)
