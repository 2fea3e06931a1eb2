"""The leaderboard's races: the bound holds for every algorithm of the library, and a seed gives one race."""

from dataclasses import replace

import pytest

from collectives.machine import Link
from collectives_course.leaderboard import Race, bound, machine, race, standings

SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.extended) for seed in range(1, 5))]


@pytest.mark.integration  # a second of simulations
@pytest.mark.parametrize("seed", SEEDS)
def test_no_algorithm_of_the_library_is_below_the_bound(seed: int) -> None:
    for standing in standings(seed):
        assert 0 < standing.bound <= min(standing.times.values()), standing


def test_races_differ_by_seed_and_stream() -> None:
    races = [race(seed, stream) for seed in range(20) for stream in (0, 1)]
    assert len({each.sizes for each in races}) == len(races)
    assert len({(each.nodes, each.machine.ranks_per_node, each.machine.ports) for each in races}) > 10
    assert race(5) == race(5)


def test_the_told_machine_is_the_raced_one() -> None:
    told, on = race(2).description(), race(2)
    assert told["nodes"] * told["ranks_per_node"] == on.p
    assert told["network"]["beta"] * on.machine.network.rate == pytest.approx(1)
    assert told["network"]["alpha"] == on.machine.network.alpha


def alike(nodes: int, per_node: int, ports: int, n: int) -> float:
    """The bound where a message costs 1 s and a second a byte, inside and outside."""
    link = Link(overhead=1.0, rate=1.0)
    return bound(Race(nodes, machine(per_node, ports, link, link), ()), n)


def test_the_bound_by_hand() -> None:
    assert alike(1, 1, 1, 100) == 0.0
    assert alike(2, 1, 1, 0) == 1.0
    assert alike(2, 1, 1, 100) == 100.0  # each hands its half of the sum over, and gets the other's
    assert alike(4, 1, 1, 100) == 150.0
    assert alike(1, 4, 4, 100) == 150.0
    assert alike(3, 1, 1, 0) == 2.0
    assert alike(4, 4, 4, 0) == pytest.approx(3.0)  # 1, 3, 9, 27 ranks: two kinds of links at once
    assert alike(2, 4, 1, 100) == 140.0  # 14 n bytes, on a port and four links inside for each of two nodes
    assert alike(2, 4, 4, 100) == 87.5
    assert alike(9, 2, 1, 100) == pytest.approx(2 * 8 / 9 * 100)  # all that leaves a node shares its one port


def test_a_slower_network_raises_the_bound() -> None:
    on = race(3)
    slow = on.machine.model_copy(update={"network": Link(overhead=on.machine.network.alpha, rate=1e9)})
    assert bound(replace(on, machine=slow), 1 << 30) > bound(on, 1 << 30)
