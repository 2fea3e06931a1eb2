"""Public tests: `pytest -s` runs them and prints your times on a machine to practise on.

The secret one is another.
"""

import sys
from dataclasses import replace

import fastest
import pytest
from variant import MACHINE, SIZES

from collectives.core.schedule import Schedule
from collectives.core.verify import verify
from collectives.machine import Link, Machine
from collectives.simulator.simulation import simulate
from collectives.units import duration

P = MACHINE["nodes"] * MACHINE["ranks_per_node"]


def simulated(schedule, n):
    inside, network = (
        Link(overhead=MACHINE[name]["alpha"], rate=1 / MACHINE[name]["beta"])
        for name in ("inside", "network")
    )
    machine = Machine(
        name="practice",
        ranks_per_node=MACHINE["ranks_per_node"],
        ports_per_node=MACHINE["ports_per_node"],
        inside=inside,
        network=network,
    )
    return simulate(schedule, machine, n).seconds


@pytest.mark.parametrize("n", SIZES)
def test_proved_and_no_slower_than_the_ring(n):
    schedule = fastest.schedule(MACHINE, n)
    assert isinstance(schedule, Schedule)
    assert (schedule.collective, schedule.p) == ("all_reduce", P)
    # A rank may send several messages in a step; they take longer.
    verify(replace(schedule, one_port=False))
    mine, ring = simulated(schedule, n), simulated(fastest.ring(P), n)
    said = f"{n:,} bytes: {duration(mine)}, the ring {duration(ring)}"
    sys.stdout.write(f"\n{said}\n")
    assert mine <= 1.001 * ring, said
