"""The emulated network by itself, without devices and clocks: when each packet arrives, to rounding."""

import math

import pytest

from collectives.emulator import network as emulated
from collectives.emulator.network import (
    NONE,
    EmulatedLink,
    EmulatedNetwork,
    advance,
    change,
    free_packet,
    network,
    next_event,
    release,
)

pytestmark = pytest.mark.integration  # compiles the network, which takes ten seconds

RATE, LATENCY = 1000.0, 0.5


def arrivals(net: EmulatedNetwork) -> list[tuple[float, int, bytes]]:
    """Everything that is still to come: when, at which host, what."""
    found = []
    while (now := next_event(net)) < math.inf:
        while (packet := advance(net, now)) != NONE:
            found.append((now, int(net.packets["target"][packet]), net.data[packet, :3].tobytes()))
            release(net, packet)
    return found


def send(
    net: EmulatedNetwork, source: int, target: int, size: int, now: float = 0.0, flow: int = 0
) -> None:
    net.data[free_packet(net), :3] = source, target, flow
    emulated.send(net, source, target, size, flow, now)


SLOW, LATE = ("rate", RATE / 10), ("latency", 3 * LATENCY)


@pytest.mark.parametrize(
    ("changed", "source", "target", "size", "seconds"),
    [
        (None, 0, 1, 100, LATENCY + 0.1),  # once, not once a port
        (None, 0, 2, 3, LATENCY + 0.003),
        (None, 0, 2, 2000, LATENCY + 2.0),  # its head arrives while its tail is here
        # A slow sender does not keep a fast receiver from the end.
        ((0, *SLOW), 0, 1, 100, LATENCY + 1.0),
        ((2, *SLOW), 0, 2, 100, LATENCY + 1.0),
        ((1, *LATE), 0, 1, 3, 2 * LATENCY + 0.003),  # a latency is half of each end's
        ((1, *LATE), 1, 2, 3, 2 * LATENCY + 0.003),
        ((1, *LATE), 2, 0, 3, LATENCY + 0.003),
    ],
)
def test_a_lone_packet_takes_its_latency_and_its_size(
    changed: tuple[int, str, float] | None, source: int, target: int, size: int, seconds: float
) -> None:
    net = network(3, EmulatedLink(RATE, LATENCY))
    if changed:
        change(net, changed[0], None, *changed[1:])
    send(net, source, target, size, now=7.0)
    assert [(time, host) for time, host, _ in arrivals(net)] == [
        (pytest.approx(7 + seconds), target)
    ]


def test_a_port_sends_one_after_the_other_and_in_both_directions_at_once() -> None:
    net = network(2, EmulatedLink(RATE, LATENCY))
    for _ in range(3):
        send(net, 0, 1, 100)
        send(net, 1, 0, 100)
    found = arrivals(net)
    for host in (0, 1):
        times = [time for time, at, _ in found if at == host]
        assert times == [pytest.approx(LATENCY + 0.1 * nth) for nth in (1, 2, 3)]


@pytest.mark.parametrize("hosts", [2, 3, 8])
def test_all_to_one_takes_as_long_as_the_one_needs(hosts: int) -> None:
    net = network(hosts, EmulatedLink(RATE, LATENCY))
    for source in range(1, hosts):
        for _ in range(5):
            send(net, source, 0, 100)
    found = arrivals(net)
    assert len(found) == 5 * (hosts - 1)
    assert found[-1][0] == pytest.approx(LATENCY + 0.1 * len(found))
    first_round = [data[0] for _, _, data in found[: hosts - 1]]
    assert sorted(first_round) == list(range(1, hosts))  # each has its turn before any has a second


def test_a_short_flow_does_not_wait_for_all_of_a_long_one() -> None:
    net = network(2, EmulatedLink(RATE, LATENCY))
    for _ in range(50):
        send(net, 0, 1, 100, flow=1)
    send(net, 0, 1, 10, flow=2)
    order = [data[2] for _, _, data in arrivals(net)]
    assert order.index(2) == 2  # behind the one that is being sent and the one whose turn it is
    assert len(order) == 51


def test_racks_share_their_uplinks() -> None:
    net = network(4, EmulatedLink(RATE, LATENCY), racks=2, uplink=EmulatedLink(RATE, 2 * LATENCY))
    for source, target in ((0, 1), (0, 2), (1, 3)):
        send(net, source, target, 100)
    inside, *across = arrivals(net)
    assert inside[:2] == (pytest.approx(LATENCY + 0.1), 1)
    # Host 0 sends its second packet 0.1 later than host 1 its first, and both meet at the uplink's
    # end.
    assert [host for _, host, _ in across] == [3, 2]
    assert [time for time, _, _ in across] == [
        pytest.approx(3 * LATENCY + 0.1),
        pytest.approx(3 * LATENCY + 0.2),
    ]


def test_a_cut_loses_what_is_on_its_way_and_healing_lets_through_what_comes_later() -> None:
    net = network(3, EmulatedLink(RATE, LATENCY))
    for _ in range(5):
        send(net, 0, 1, 100)
    send(net, 2, 0, 100)
    while advance(net, LATENCY) != NONE:
        pass
    change(net, 1, None, "cut", True)
    assert [host for _, host, _ in arrivals(net)] == [0]
    change(net, 1, None, "cut", False)
    send(net, 0, 1, 100, now=10.0)
    assert [time for time, _, _ in arrivals(net)] == [pytest.approx(10 + LATENCY + 0.1)]


def test_a_pair_of_hosts_has_a_link_of_its_own() -> None:
    net = network(3, EmulatedLink(RATE, LATENCY))
    change(net, 0, 1, "cut", True)
    for source, target in ((0, 1), (1, 0), (0, 2), (2, 1)):
        send(net, source, target, 100)
    assert sorted(host for _, host, _ in arrivals(net)) == [1, 2]
    change(net, 0, 1, "cut", False)
    change(net, 0, 1, "latency", 4 * LATENCY)
    send(net, 1, 0, 100, now=100.0)
    assert [time for time, _, _ in arrivals(net)] == [pytest.approx(100 + 5 * LATENCY + 0.1)]
