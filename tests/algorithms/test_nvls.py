"""A switch that adds in every node and trees between: what it moves, and where the simulator has its switches."""

from dataclasses import replace

import numpy as np
import pytest

from collectives.algorithms import build, variants
from collectives.core.interpret import run
from collectives.core.schedule import ScheduleError, Step
from collectives.core.verify import verify
from collectives.machine import Link, Machine
from collectives.simulator.simulation import simulate

INSIDE, NETWORK = Link(rate=100e9), Link(rate=10e9)


def nodes_of(g: int) -> Machine:
    """A machine without latency, a port for each rank."""
    return Machine(name="nodes", ranks_per_node=g, inside=INSIDE, network=NETWORK)


@pytest.mark.parametrize("p", [1, 2, 3, 5, 6, 8, 12, 13, 21])
def test_every_size_of_node_is_proved(p: int) -> None:
    for schedule in variants("all_reduce", "nvls_tree", p):
        verify(schedule)
        assert schedule.switches == (p // schedule.ranks_per_node)


@pytest.mark.parametrize(("p", "g"), [(4, 2), (6, 3), (12, 4), (9, 3), (7, 7), (5, 1)])
@pytest.mark.parametrize("pieces", [1, 8])
def test_ragged_numbers_are_added_once(p: int, g: int, pieces: int) -> None:
    schedule = build(
        "all_reduce",
        "nvls_tree",
        p,
        ranks_per_node=g,
        segments=3,
        pieces=pieces,
    )
    state = np.zeros(
        (p + p // g, schedule.k),
        dtype=np.int64,
    )
    state[:p] = np.arange(p * schedule.k).reshape(p, -1) ** 2 + 1
    total = state.sum(axis=0)
    assert (run(schedule, state)[:p] == total).all()


@pytest.mark.parametrize(("p", "g"), [(8, 8), (16, 8), (12, 4)])
def test_a_port_inside_moves_a_part_more_than_the_buffer(p: int, g: int) -> None:
    n = 1 << 30
    done = simulate(
        build("all_reduce", "nvls_tree", p, ranks_per_node=g, segments=8),
        nodes_of(g),
        n,
        "nvls_tree",
    )
    # Up to its switch and back, for each rank: the buffer and a part.
    assert done.bytes["inside"] == 2 * p * n * (1 + 1 / g)
    if p == g:
        assert done.seconds == pytest.approx((1 + 1 / g) * n / INSIDE.rate, rel=0.12)
        assert done.bytes["network"] == 0
    else:
        assert done.bytes["network"] == (p // g - 1) * 2 * n


def test_the_switches_of_another_number_of_ranks_a_node_are_in_the_network() -> None:
    schedule, n = build("all_reduce", "nvls_tree", 8, ranks_per_node=4, segments=2), 1 << 28
    own, other = (simulate(schedule, nodes_of(g), n) for g in (4, 2))
    assert own.seconds < other.seconds / 3
    assert other.bytes["inside"] == 0


def test_a_switch_that_forgets_a_rank_or_a_part_that_is_not_sent_on_is_found() -> None:
    good = build(
        "all_reduce",
        "nvls_tree",
        8,
        ranks_per_node=4,
    )

    def without(t: int, row: int):
        def make(step: int) -> Step:
            made = good.step(step)
            if step != t:
                return made
            kept = np.arange(len(made)) != row
            src = made.src[kept]
            dst = made.dst[kept]
            chunk = made.chunk[kept]
            return Step(src, dst, chunk, made.count[kept], made.add[kept])

        return replace(good, make=make)

    for t in range(good.nsteps):
        with pytest.raises(ScheduleError):
            verify(without(t, 1))


def test_ranks_that_do_not_fill_nodes_are_refused() -> None:
    with pytest.raises(ValueError, match="got 4, expected a divisor of 6"):
        build("all_reduce", "nvls_tree", 6, ranks_per_node=4)
