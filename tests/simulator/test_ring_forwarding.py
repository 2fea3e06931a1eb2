"""Steps that repeat, played together, against the same steps played one by one: all clocks, on many machines.

And the tiles that they are played by, some of them carried forward, against a plain loop over the same steps.
"""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from collectives import Machine
from collectives.algorithms import build
from collectives.machine import Delay, Level, Link, Protocol, machine
from collectives.schedule import Schedule, Step, column
from collectives.simulator import ring_forwarding, simulation
from collectives.simulator.clocks import Clocks, UnsureError
from collectives.simulator.simulation import simulate
from collectives.simulator.trace import trace

INSIDE, NETWORK = Link(latency=1e-6, overhead=2e-7, rate=1e11), Link(latency=7e-6, overhead=1e-6, rate=2.3e10)
RACK, ROW = Level(name="rack", nodes=2, latency=1e-6, rate=1.8e10), Level(name="row", nodes=4, uplink=3e10)
MACHINES = [
    Machine(name="one rank to a node", network=NETWORK),
    Machine(name="latency alone", network=Link(latency=1e-3, rate=1e12)),
    Machine(name="reducing", network=NETWORK, gamma=1e-10),
    Machine(name="ports", ranks_per_node=4, inside=INSIDE, network=NETWORK, gamma=1e-11),
    Machine(name="one port", ranks_per_node=4, ports_per_node=1, inside=INSIDE, network=NETWORK, gamma=1e-11),
    Machine(name="uplinks", ranks_per_node=2, ports_per_node=1, inside=INSIDE, network=NETWORK, levels=(RACK, ROW)),
    Machine(
        name="protocols",
        ranks_per_node=2,
        ports_per_node=1,
        inside=INSIDE,
        network=NETWORK,
        protocols=(Protocol(name="small", up_to=64, share=0.5, startup=1e-6, network=Delay(latency=2e-6)),),
    ),
]
LATENCY, FIXED, PER_BYTE = 3e-6, 1e-6, 1e-9
RINGS = ("ring", "hierarchical_ring", "segmented_ring")


def clocks(schedule: Schedule, on: Machine, n: int) -> Clocks | None:
    """All clocks after a simulation with one for each rank; None where that is not enough."""
    try:
        return simulation._run(simulation._setting(schedule, on, n, on.choices(None, n)[-1]), None, by_cell=False)[0]
    except UnsureError:
        return None


def need_equal(schedule: Schedule, on: Machine, n: int) -> None:
    """The declared repetition changes nothing; also the ports' and links' ends are the same."""
    declared, plainly = clocks(schedule, on, n), clocks(replace(schedule, repeats=()), on, n)
    assert (declared is None) == (plainly is None), (schedule, on.name, n)
    if declared is None or plainly is None:
        return
    for name in Clocks._fields:
        found, wanted = getattr(declared, name), getattr(plainly, name)
        if name in ("egress", "ingress", "shared"):
            found, wanted = found[:, 2], wanted[:, 2]
        assert np.allclose(found, wanted, rtol=1e-12, atol=1e-18), (name, schedule, on.name, n)


@pytest.mark.parametrize("on", MACHINES, ids=lambda on: on.name)
def test_every_clock_is_the_same_as_without_the_declaration(on):
    for p, name in product((8, 16, 24), RINGS):
        schedule = build("all_reduce", name, p, ranks_per_node=on.ranks_per_node)
        for n in (3, p - 1, p, 7 * p + 5, 1000 * p, 100_003):
            need_equal(schedule, on, n)


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
def test_half_an_all_reduce_by_itself(collective):
    for p, n in product((1, 2, 3, 5, 13), (0, 1, 12, 1009)):
        need_equal(build(collective, "ring", p), MACHINES[2], n)


@pytest.mark.integration
@pytest.mark.parametrize("name", ["textbook", "summit", "dgx-h100"])
def test_more_rows_than_a_tile_has(name):
    on = machine(name)
    p = (ring_forwarding.ROWS + 3 * ring_forwarding.STEPS) // on.ranks_per_node * on.ranks_per_node
    for algorithm, n in product(("ring", "hierarchical_ring"), (p // 2, 1000 * p + 7)):
        need_equal(build("all_reduce", algorithm, p, ranks_per_node=on.ranks_per_node), on, n)


def played_together(monkeypatch, schedule, on, n):
    """How many steps each of the two fast ways has played."""
    steps = {"alone": 0, "sharing": 0}
    ways = (
        ("alone", "advance", ring_forwarding.advance),
        ("sharing", "advance_shared", ring_forwarding.advance_shared),
    )
    for key, name, real in ways:

        def counting(several, *rest, key=key, advance=real):
            steps[key] += several
            advance(several, *rest)

        monkeypatch.setattr(ring_forwarding, name, counting)
    simulate(schedule, on, n)
    return steps


@pytest.mark.parametrize(
    ("name", "on", "steps"),
    [
        # Of each half's p-1 = 23 steps, the first and the last are played by themselves, and the first repeated one.
        ("ring", MACHINES[0], {"alone": 2 * 20, "sharing": 0}),
        ("ring", MACHINES[4], {"alone": 2 * 20, "sharing": 0}),
        # Of each half's 5 steps between 6 nodes the first and the last.
        ("hierarchical_ring", MACHINES[4], {"alone": 0, "sharing": 2 * 3}),
    ],
    ids=["a ring", "a ring through shared ports", "rings that share ports"],
)
def test_most_steps_are_played_together(monkeypatch, name, on, steps):
    schedule = build("all_reduce", name, 24, ranks_per_node=on.ranks_per_node)
    assert played_together(monkeypatch, schedule, on, 24_000) == steps


def turning(p: int, nsteps: int, chunks: list[int]) -> Schedule:
    """Steps of a ring whose chunks are pieces of one array, each one place before the last."""
    rank, values = column(np.arange(p)), column(chunks)

    def make(t: int) -> Step:
        first = len(chunks) - p - t
        return Step(rank, (rank + 1) % p, values[first : first + p])

    return Schedule("all_gather", p, p, nsteps, make, repeats=(range(nsteps),))


def test_a_rank_that_sends_something_else_in_the_middle_of_a_run_is_noticed(monkeypatch):
    """Its chunk is not what it has received, so a clock for each rank is not enough."""
    p = 6
    chunks = [(i + 1) % p for i in range(2 * p)]
    right, wrong = turning(p, 5, chunks), turning(p, 5, [*chunks[:4], 0, *chunks[5:]])
    assert chunks[4] != 0
    assert clocks(right, MACHINES[0], 6000) is not None
    assert clocks(wrong, MACHINES[0], 6000) is None
    need_equal(wrong, MACHINES[0], 6000)
    assert played_together(monkeypatch, right, MACHINES[0], 6000)["alone"] == 2


def test_slower_nodes_are_played_one_by_one(monkeypatch):
    slow = MACHINES[4].model_copy(update={"slower": {1: 4.0}})
    schedule = build("all_reduce", "ring", 24)
    assert played_together(monkeypatch, schedule, slow, 24_000) == {"alone": 0, "sharing": 0}
    need_equal(schedule, slow, 24_000)


@pytest.mark.parametrize("name", ["ring", "hierarchical_ring"])
def test_a_trace_ends_when_the_simulation_does(tmp_path, name):
    on = MACHINES[4]
    schedule = build("all_reduce", name, 24, ranks_per_node=4)
    traced, simulated = trace(tmp_path / "trace.json", schedule, on, 24_007), simulate(schedule, on, 24_007)
    assert simulated.seconds == pytest.approx(traced.seconds, rel=1e-12)
    assert np.allclose(simulated.finish, traced.finish, rtol=1e-12)
    assert (simulated.messages, simulated.bytes) == (traced.messages, traced.bytes)


def played(steps, free, latency, fixed, per_byte, sizes):
    """When each row is free: its message begins when its source's has arrived, and when the row is free."""
    for step in range(1, steps + 1):
        arrived = np.roll(free + latency, 1)
        free = np.maximum(arrived, free) + fixed + per_byte * np.roll(sizes, step)
    return free


def costs(p, period, rng):
    """Latency and fixed cost of each row: dearer after so many rows, as at the border of a node; 0 for random ones."""
    if not period:
        return LATENCY * rng.random(p), FIXED * rng.random(p)
    dear = np.arange(p) % period == period - 1
    return np.where(dear, 5 * LATENCY, LATENCY), np.where(dear, 3 * FIXED, FIXED)


@pytest.mark.integration  # a plain loop over thousands of steps: ten seconds
@pytest.mark.parametrize("period", [1, 6, 108, 0])
@pytest.mark.parametrize("p", [1, 5, 700, 4 * ring_forwarding.ROWS + 17])
def test_tiles_equal_a_plain_loop(p, period):
    rng = np.random.default_rng(p + period)
    latency, fixed = costs(p, period, rng)
    halves = np.where(np.arange(p) < p // 2, 5000, 4000)
    for sizes in (np.full(p, 8), np.full(p, 10**6), halves, rng.integers(1, 10**5, p)):
        for begin in (np.zeros(p), 1e-3 * rng.random(p)):
            for steps in (1, 63, 2500):
                rows = latency, fixed, np.full(p, PER_BYTE), sizes
                found = ring_forwarding._played(steps, begin.copy(), *rows)
                assert np.allclose(found, played(steps, begin, *rows), rtol=1e-9, atol=0)


@pytest.mark.parametrize(("period", "steps"), [(1, 64), (6, 66), (108, 108), (0, ring_forwarding.STEPS)])
def test_a_tile_is_played_for_whole_periods(period, steps):
    latency, fixed = costs(3000, period, np.random.default_rng(1))
    assert ring_forwarding._whole_periods(latency, fixed, np.full(3000, PER_BYTE)) == steps


def test_clocks_are_even_only_if_all_have_advanced_by_the_same_time():
    now = np.arange(100.0)
    assert ring_forwarding._is_even(now - 5, now)
    late = now.copy()
    late[50] += 1e-9
    assert not ring_forwarding._is_even(now - 5, late)
