"""Steps that repeat, played together, against the same steps played one by one: all clocks, on many machines."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from collectives import Machine
from collectives.algorithms import build
from collectives.core.schedule import Schedule, Step, column
from collectives.machine import Delay, Level, Link, Protocol, machine
from collectives.simulator import repeated, simulation
from collectives.simulator.kernel import Clocks, UnsureError
from collectives.simulator.simulation import simulate
from collectives.simulator.trace import trace

INSIDE, NETWORK = (
    Link(latency=1e-6, overhead=2e-7, rate=1e11),
    Link(latency=7e-6, overhead=1e-6, rate=2.3e10),
)
RACK, ROW = (
    Level(name="rack", nodes=2, latency=1e-6, rate=1.8e10),
    Level(name="row", nodes=4, uplink=3e10),
)
MACHINES = [
    Machine(name="one rank to a node", network=NETWORK),
    Machine(name="latency alone", network=Link(latency=1e-3, rate=1e12)),
    Machine(name="reducing", network=NETWORK, gamma=1e-10),
    Machine(name="ports", ranks_per_node=4, inside=INSIDE, network=NETWORK, gamma=1e-11),
    Machine(
        name="one port",
        ranks_per_node=4,
        ports_per_node=1,
        inside=INSIDE,
        network=NETWORK,
        gamma=1e-11,
    ),
    Machine(
        name="uplinks",
        ranks_per_node=2,
        ports_per_node=1,
        inside=INSIDE,
        network=NETWORK,
        levels=(RACK, ROW),
    ),
    Machine(
        name="protocols",
        ranks_per_node=2,
        ports_per_node=1,
        inside=INSIDE,
        network=NETWORK,
        protocols=(
            Protocol(name="small", up_to=64, share=0.5, startup=1e-6, network=Delay(latency=2e-6)),
        ),
    ),
]


def clocks(schedule: Schedule, on: Machine, n: int) -> Clocks | None:
    """All clocks after a simulation with one for each rank; None where that is not enough."""
    try:
        return simulation._run(
            simulation._setting(schedule, on, n, on.choices(None, n)[-1]), None, by_cell=False
        )[0]
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


ALL_REDUCES = [("all_reduce", name) for name in ("ring", "hierarchical_ring", "segmented_ring")]
HALVES = [("all_gather", "ring"), ("reduce_scatter", "ring"), ("reduce", "rabenseifner")]


@pytest.mark.parametrize("on", MACHINES, ids=lambda on: on.name)
def test_every_clock_is_the_same_as_without_the_declaration(on):
    for nodes, names in product((2, 5, 6), [*ALL_REDUCES, *HALVES]):
        p = nodes * on.ranks_per_node
        schedule = build(*names, p, ranks_per_node=on.ranks_per_node)
        for n in (0, 3, p - 1, p, 7 * p + 5, 1000 * p, 100_003):
            need_equal(schedule, on, n)


def test_a_tree_after_a_ring_uses_the_gaps_that_there_are():
    """Formerly 0.24% too long, because messages of the ring were not put into gaps."""
    on = machine("marenostrum5")
    need_equal(
        build("reduce", "rabenseifner", 60, segments=3, ranks_per_node=on.ranks_per_node),
        on,
        64 << 20,
    )


@pytest.mark.integration
@pytest.mark.parametrize("name", ["textbook", "summit", "dgx-h100"])
def test_more_rows_than_a_tile_has(name):
    on = machine(name)
    p = (repeated.ROWS + 3 * repeated.STEPS) // on.ranks_per_node * on.ranks_per_node
    for names, n in product(ALL_REDUCES[:2], (8, p // 2, 1000 * p + 7)):
        need_equal(build(*names, p, ranks_per_node=on.ranks_per_node), on, n)


def played_together(monkeypatch, schedule, on, n):
    """How many steps each of the two fast ways has played."""
    steps = {"advance": 0, "advance_shared": 0}
    for name, real in [(name, getattr(repeated, name)) for name in steps]:

        def counting(several, *rest, name=name, advance=real):
            steps[name] += several
            advance(several, *rest)

        monkeypatch.setattr(repeated, name, counting)
    simulate(schedule, on, n)
    return tuple(steps.values())


@pytest.mark.parametrize(
    ("name", "on", "slower", "steps"),
    # Of each half's 23 steps on 24 ranks, or 5 between 6 nodes, the first and the last are played
    # by themselves.
    [
        ("ring", MACHINES[0], {}, (2 * 21, 0)),
        ("ring", MACHINES[4], {}, (2 * 21, 0)),
        ("hierarchical_ring", MACHINES[4], {}, (0, 2 * 3)),
        ("ring", MACHINES[4], {1: 4.0}, (0, 0)),
    ],
    ids=["a ring", "a ring through shared ports", "rings that share ports", "a slower node"],
)
def test_most_steps_are_played_together(monkeypatch, name, on, slower, steps):
    schedule, on = (
        build("all_reduce", name, 24, ranks_per_node=on.ranks_per_node),
        on.model_copy(update={"slower": slower}),
    )
    assert played_together(monkeypatch, schedule, on, 24_000) == steps


def turning(p: int, nsteps: int, chunks: list[int]) -> Schedule:
    """Steps of a ring whose chunks are pieces of one array, each one place before the last."""
    rank, values = column(np.arange(p)), column(chunks)

    def make(t: int) -> Step:
        first = len(chunks) - p - t
        return Step(rank, (rank + 1) % p, values[first : first + p])

    return Schedule("all_gather", p, p, nsteps, make, repeats=(range(nsteps),))


def test_a_rank_that_sends_something_else_in_the_middle_of_a_run_is_noticed():
    """Its chunk is not what it has received, so a clock for each rank is not enough."""
    p = 6
    chunks = [(i + 1) % p for i in range(2 * p)]
    right, wrong = turning(p, 5, chunks), turning(p, 5, [*chunks[:4], 0, *chunks[5:]])
    assert chunks[4] != 0
    assert clocks(right, MACHINES[0], 6000) is not None
    assert clocks(wrong, MACHINES[0], 6000) is None
    need_equal(wrong, MACHINES[0], 6000)


@pytest.mark.parametrize("name", ["ring", "hierarchical_ring"])
def test_a_trace_ends_when_the_simulation_does(tmp_path, name):
    on = MACHINES[4]
    schedule = build("all_reduce", name, 24, ranks_per_node=4)
    traced, simulated = (
        trace(tmp_path / "trace.json", schedule, on, 24_007),
        simulate(schedule, on, 24_007),
    )
    assert simulated.seconds == pytest.approx(traced.seconds, rel=1e-12)
    assert np.allclose(simulated.finish, traced.finish, rtol=1e-12)
    assert (simulated.messages, simulated.bytes) == (traced.messages, traced.bytes)


def played(steps, free, latency, fixed, sizes):
    """When each row is free: its message begins when its source's has arrived, and when the row is free."""
    for step in range(1, steps + 1):
        sent = np.roll(sizes, step)
        later = np.maximum(np.roll(free + latency, 1), free) + fixed + 1e-9 * sent
        free = np.where(sent > 0, later, free)
    return free


@pytest.mark.integration  # a plain loop over thousands of steps: ten seconds
@pytest.mark.parametrize("period", [1, 6, 108, 0])
@pytest.mark.parametrize("p", [1, 5, 700, 4 * repeated.ROWS + 17])
def test_tiles_equal_a_plain_loop(p, period):
    """Rows are dearer at the border of a node, after so many; 0 for random ones."""
    rng, begin = np.random.default_rng(p + period), np.zeros(p)
    costs = (
        np.where(np.arange(p) % (period or 1) == (period or 1) - 1, 5.0, 1.0)
        if period
        else rng.random(p)
    )
    latency, fixed, halves = 3e-6 * costs, 1e-6 * costs, np.where(np.arange(p) < p // 2, 5000, 4000)
    for sizes in (np.full(p, 8), halves, halves % 5000, rng.integers(0, 10**5, p)):
        for free, steps in ((begin, 63), (begin, 2500), (1e-3 * rng.random(p), 2500)):
            found = repeated.advance_ring(
                steps,
                -(-repeated.STEPS // (period or 1)) * (period or 1),
                free.copy(),
                latency,
                fixed,
                np.full(p, 1e-9),
                sizes,
            )
            assert np.allclose(found, played(steps, free, latency, fixed, sizes), rtol=1e-9, atol=0)
