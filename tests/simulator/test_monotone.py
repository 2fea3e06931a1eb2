"""More bytes never take less time: on every machine, by every algorithm that ranks alone perform."""

from collections.abc import Iterator
from itertools import pairwise

import pytest

from collectives.algorithms import executable, takes
from collectives.machine import Machine, machine, presets
from collectives.simulator.scaling import Case, row
from collectives_book.measured_machines.predictions import fitted
from sweep import each

MACHINES = [*presets(), "leonardo", "lumi"]
# Machines whose library switches at fixed sizes, as fitted. Time falls there, as it does in their
# measurements: NCCL's ring on 128 GPUs of MareNostrum 5 takes 599 us for 128 KiB and 521 us for 1
# MiB. Each protocol alone is tested.
SWITCHED = {"leonardo", "lumi", "marenostrum5", "summit"}
SIZES = [8, 64 << 10, (64 << 10) + 24, 1 << 20, 1 << 30]
# Ports are granted in step order, so a pipeline of single bytes may end 3% after one of more; and
# the search for the best number of segments stops where the next saves less than 1%.
MOST_LESS = 0.03


def falls(case: Case) -> list[tuple[str, str, int, int]]:
    """Return where a case takes less time for more bytes, as algorithm, ranks and bytes."""
    times = [row(case._replace(bytes=n))["seconds"] for n in SIZES]
    less = [more < (1 - MOST_LESS) * seconds for seconds, more in pairwise(times)]
    return [(*case[:3], n) for n, fell in zip(SIZES[1:], less, strict=True) if fell]


def test_machines_that_switch_at_fixed_sizes_are_named() -> None:
    machines = [fitted(name) for name in MACHINES]
    assert {of.name for of in machines if of.protocols and not of.fastest_protocol} == SWITCHED


def alone(on: Machine, turn: int) -> Machine:
    """Return a machine that switches at fixed sizes with one of its protocols for all sizes."""
    if on.name not in SWITCHED:
        return on
    one = on.protocols[turn % len(on.protocols)].model_copy(
        update={"up_to": None, "buffer_up_to": None}
    )
    return on.model_copy(update={"protocols": (one,)})


def cases(on: Machine) -> Iterator[Case]:
    """Return one case for each algorithm; nodes, segments and protocols take turns."""
    node = on.ranks_per_node
    ranks = (
        [node if node > 1 else 2] if on.links and not on.links.rails else [max(node, 2), 3 * node]
    )
    for turn, (collective, algorithm) in enumerate(executable()):
        segments = (1, 4, None)[turn % 3] if takes(collective, algorithm, "segments") else 1
        yield Case(collective, algorithm, ranks[turn % len(ranks)], 0, alone(on, turn), segments)


@pytest.mark.integration  # seconds
@pytest.mark.parametrize("name", each(MACHINES, few=["dgx-h100", "dgx1", "lumi", "summit"]))
def test_more_bytes_never_take_less_time(name: str) -> None:
    assert [fall for case in cases(fitted(name)) for fall in falls(case)] == []


@pytest.mark.parametrize(
    "algorithm", ["one_shot", "two_shot", "recursive_doubling", "ring", "two_tree"]
)
def test_the_change_of_a_protocol_is_no_step(algorithm: str) -> None:
    """On eight H100, twice the bytes take at most 2.2 times as long: once 66 KiB took half as long as 64 KiB."""
    on = machine("dgx-h100")
    times = [row(Case("all_reduce", algorithm, 8, 1024 << i, on, 1))["seconds"] for i in range(16)]
    assert all(less <= more <= 2.2 * less for less, more in pairwise(times))
