"""Rings with a twist: both ways at once, and around a rank whose port is slow."""

import numpy as np
import pytest

from collectives.algorithms import build
from collectives.core.bounds import ring, slow_port_seconds
from collectives.core.schedule import Schedule
from collectives.core.traffic import traffic
from collectives.machine import Link, Machine
from collectives.simulator.simulation import simulate

N = 1 << 30


@pytest.mark.parametrize("p", range(1, 65))
def test_both_ways_take_half_the_steps_and_send_as_little(p: int) -> None:
    schedule = build("all_gather", "bidirectional_ring", p)
    assert schedule.nsteps == -(-(p - 1) // 2)
    assert set(traffic(schedule, p).sent.tolist()) == {p - 1}


def test_both_ways_save_latencies_and_no_bytes() -> None:
    far = Machine(name="far", network=Link(latency=1e-3, overhead=0, rate=1e9))
    short, long = (
        [
            simulate(build("all_gather", name, 9), far, n).seconds
            for name in ("ring", "bidirectional_ring")
        ]
        for n in (9, 9_000_000_000)
    )
    assert short[1] == pytest.approx(short[0] / 2, rel=1e-3)
    assert long[1] == pytest.approx(long[0], rel=1e-3)


@pytest.mark.parametrize("p", [2, 3, 5, 8, 16])
def test_the_slow_rank_sends_its_buffer_once_and_the_others_the_rest(p: int) -> None:
    for slow in {None, 0, p // 2}:
        schedule = build("all_reduce", "around_slow_rank", p, slow=slow, segments=3)
        sent = traffic(schedule, schedule.k).sent
        at = p - 1 if slow is None else slow
        assert sent[at] == schedule.k
        others = np.delete(sent, at)
        assert (others == others[0]).all()
        assert others.sum() == (2 * (p - 1) - 1) * schedule.k, "the least there is"


def slowed(schedule: Schedule, slower: float) -> float:
    on = Machine(
        name="one slow", network=Link(overhead=1e-6, rate=1e9), slower={schedule.p - 1: slower}
    )
    return simulate(schedule, on, N).seconds


@pytest.mark.parametrize("p", [4, 8, 16])
def test_around_half_a_port_costs_little_where_a_ring_takes_twice_as_long(p: int) -> None:
    healthy = ring(p).seconds(N, alpha=1e-6, beta=1e-9)
    around = slowed(build("all_reduce", "around_slow_rank", p, segments=256), 2)
    assert slowed(build("all_reduce", "ring", p), 2) == pytest.approx(2 * healthy, rel=0.01)
    assert slow_port_seconds(p, N, 2, 1e-9) <= around < 1.35 * healthy


def test_no_algorithm_beats_the_bound_of_a_slow_port() -> None:
    for name in (
        "ring",
        "circulant",
        "two_tree",
        "around_slow_rank",
        "one_shot",
        "halving_doubling",
    ):
        for slower in (1, 1.5, 4):
            assert slowed(build("all_reduce", name, 8), slower) >= slow_port_seconds(
                8, N, slower, 1e-9
            )
    assert slow_port_seconds(8, N, 1, 1e-9) == pytest.approx(ring(8).seconds(N, 0, 1e-9))
    assert slow_port_seconds(1, N, 2, 1e-9) == 0


def test_no_such_rank() -> None:
    with pytest.raises(ValueError, match="slow rank: got 4, expected 0 to 3"):
        build("all_reduce", "around_slow_rank", 4, slow=4)
