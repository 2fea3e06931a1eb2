"""Simulated rows of pages that take long to compute.

`collectives_book.computed` names and records them.
"""

from itertools import product

from collectives.algorithms import candidates
from collectives.machine import Level, Link, Machine, machine
from collectives.simulator.scaling import Case, Row, regimes
from collectives.simulator.scaling import rows as simulated

MIB = 1 << 20
GIB = 1 << 30

# Nodes in round numbers: eight GPUs with a port each, or with one for all.
OWN = Machine(
    name="a port for each GPU",
    ranks_per_node=8,
    inside=Link(overhead=1e-6, rate=250e9),
    network=Link(overhead=5e-6, rate=25e9),
)
SHARED = OWN.model_copy(update={"name": "one shared port", "ports_per_node": 1})


NEWER = ("circulant", "swing", "swing_doubling", "around_slow_rank")


def places() -> dict[str, tuple[int, Machine]]:
    """Return the number of nodes and the machine of each place at which newer algorithms are compared with older ones.

    Racks of four H100 nodes have uplinks for a quarter of their rate; 72 GPUs of a node have NVLink
    of twice the rate.
    """
    h100 = machine("dgx-h100")
    uplink = Level(name="rack", nodes=4, uplink=4 * 8 * h100.network.rate / 4)
    inside = h100.inside or h100.network  # it has one, which its type does not say
    domain = Link(latency=inside.latency, rate=2 * inside.rate)
    return {
        "H100": (16, h100.model_copy(update={"levels": (uplink,)})),
        "Summit": (36, machine("summit")),
        "NVLink": (
            1,
            h100.model_copy(update={"ranks_per_node": 72, "inside": domain}),
        ),
    }


def after_two_trees() -> list[Row]:
    """Return the all-reduces of each group that may be its fastest at each place, for a few, some and many bytes."""
    groups = {
        "fastest older": [name for name in candidates("all_reduce") if name not in NEWER],
        "fastest newer": NEWER,
        "two trees": ["two_tree"],
        "a switch that adds": ["in_network"],
    }
    found = []
    for (group, algorithms), (place, (nodes, on)) in product(groups.items(), places().items()):
        rows = regimes([on], [nodes], (8, MIB, 256 * MIB), algorithms)
        found += [{"group": group, "place": place} | row for row in rows]
    return found


def slow_host() -> list[Row]:
    """Return every all-reduce on Ethernet whose last host has half the rate, and a ring whose hosts are all alike."""
    healthy = machine("ethernet")
    cases = []
    for n, p in product((64 * MIB, GIB), (8, 16)):
        lame = healthy.model_copy(update={"name": "one slow host", "slower": {p - 1: 2.0}})
        cases.append(Case("all_reduce", "ring", p, n, healthy))
        cases += [Case("all_reduce", name, p, n, lame) for name in candidates("all_reduce")]
        cases += [Case("all_reduce", "around_slow_rank", p, n, lame, cut) for cut in (32, 128, 256)]
    found = simulated(cases)
    return [
        row | {"is_cut": case.segments is not None} for case, row in zip(cases, found, strict=True)
    ]


def eight_ports() -> list[Row]:
    """Return collectives of 16 GB on 64 H100, through one port of a node and through eight."""
    asked = {
        "all_reduce": (
            "ring",
            "multi_channel_ring",
            "hierarchical_tree",
            "multi_channel_tree",
        ),
        "reduce_scatter": ("ring", "multi_channel_ring"),
        "all_gather": ("ring", "multi_channel_ring"),
        "broadcast": ("chain", "multi_channel_chain"),
    }
    on = machine("dgx-h100")
    cases = []
    for collective, algorithms in asked.items():
        cases += [Case(collective, name, 64, 16_000_000_000, on) for name in algorithms]
    return simulated(cases)


def eight_ranks() -> list[Row]:
    """Return every all-reduce of the activations of two models on eight H100, in one node and in eight."""
    within = machine("dgx-h100")
    cases = []
    apart = within.model_copy(update={"name": "a node for each GPU", "ranks_per_node": 1})
    for on, n in product((within, apart), (64 * MIB, 128 * MIB)):
        cases += [Case("all_reduce", name, 8, n, on) for name in candidates("all_reduce")]
    return simulated(cases)
