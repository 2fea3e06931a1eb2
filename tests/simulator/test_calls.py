"""Test the cost of a call by itself, protocols for one algorithm, and shares of the network's rates alone."""

import pytest

from collectives.algorithms import build
from collectives.machine import Link, Machine, Protocol, machine
from collectives.simulator.simulation import simulate

RING, TREE = "multi_channel_ring", "multi_channel_tree"
FAST, SLOW = Protocol(name="fast", share=1.0), Protocol(name="slow", share=0.25, startup="1us")


def on(*protocols: Protocol, **fields: object) -> Machine:
    """Two nodes of two ranks without latency; a call takes the fastest of these protocols."""
    given = {
        "name": "mine",
        "ranks_per_node": 2,
        "inside": Link(rate=100e9),
        "network": Link(rate=10e9),
        "fastest_protocol": True,
        "protocols": protocols,
    }
    return Machine(**(given | fields))


def seconds(name: str, of: Machine, n: int = 1 << 24) -> float:
    """The simulated seconds of an all-reduce on four ranks."""
    return simulate(build("all_reduce", name, 4, ranks_per_node=2), of, n).seconds


@pytest.mark.parametrize("name", [RING, TREE, "nvls_tree"])
def test_a_call_costs_its_time_once_and_nothing_where_nothing_is_sent(name: str) -> None:
    without, costly = on(FAST), on(FAST, call="7us")
    assert seconds(name, costly) - seconds(name, without) == pytest.approx(7e-6)
    assert seconds(name, costly, n=0) == 0


def test_a_call_on_links_costs_it_too() -> None:
    dgx1 = machine("dgx1")
    costly = dgx1.model_copy(update={"call": 7e-6})
    ring = build(
        "all_reduce",
        "ring",
        8,
    )
    both = [simulate(ring, of, 1 << 20).seconds for of in (costly, dgx1)]
    assert both[0] - both[1] == pytest.approx(7e-6)


def test_a_protocol_that_names_the_algorithm_is_the_only_one_where_the_fastest_counts() -> None:
    of_trees = SLOW.model_copy(
        update={"algorithms": (TREE,)},
    )
    mixed = on(
        FAST,
        of_trees,
    )
    assert seconds(RING, mixed) == seconds(RING, on(FAST))
    assert seconds(TREE, mixed) == seconds(TREE, on(SLOW))
    assert [each.name for (each,) in mixed.choices(TREE, 8)] == ["slow"]


def test_without_the_fastest_the_order_counts_as_before() -> None:
    mixed = on(
        FAST,
        SLOW.model_copy(update={"algorithms": (TREE,)}),
        fastest_protocol=False,
    )
    assert seconds(TREE, mixed) == seconds(TREE, on(FAST))


def test_a_share_of_the_network_leaves_the_node_alone() -> None:
    half = on(
        Protocol(name="half", share=0.5, network_share=1.0),
    )
    network_bound = seconds(
        RING,
        half,
    )
    assert network_bound == pytest.approx(seconds(RING, on(FAST)), rel=0.02)
    node = build(
        "all_reduce",
        "ring",
        2,
    )
    inside = [simulate(node, of, 1 << 24).seconds for of in (half, on(FAST))]
    assert inside[0] == pytest.approx(2 * inside[1])
    assert on(SLOW).protocols[0].of_network == 0.25


def test_a_shared_port_has_the_networks_share() -> None:
    protocol = Protocol(
        name="half",
        share=1.0,
        network_share=0.5,
    )
    half = seconds(
        RING,
        on(protocol, ports_per_node=1),
    )
    whole = seconds(
        RING,
        on(FAST, ports_per_node=1),
    )
    assert half == pytest.approx(2 * whole, rel=0.05)
