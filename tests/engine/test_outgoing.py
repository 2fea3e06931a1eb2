"""Messages leave in the order of the steps where ranks exchange, and at once where they do not."""

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from lone_rank import N, Rank, come, ended, header, send

from collectives.engine.handshake import HEADER
from collectives.engine.tcp import loop, state
from collectives.engine.tcp.loop import BANDWIDTH_DELAY, LARGE_BUFFER, SMALL_BUFFER

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120, method="thread")]


@pytest.fixture
def rank() -> Iterator[Rank]:
    """A rank whose system takes little of a message before its peer reads, in an exchange over a network."""
    with ExitStack() as stack:
        made = Rank(stack, peers=3)
        made.step_by_step = made.has_network = True
        yield made


@pytest.fixture
def roomy() -> Iterator[Rank]:
    """The same, but its system takes a whole message at once."""
    with ExitStack() as stack:
        made = Rank(stack, peers=3, send_buffer=LARGE_BUFFER)
        made.step_by_step = made.has_network = True
        yield made


def has_come(peer: socket.socket) -> bool:
    return bool(select.select([peer], [], [], 0)[0])


def go_on(rank: Rank, size: int) -> int:
    """How the loop ends, while peer 0 reads its message."""
    return ended(
        rank, threading.Thread(daemon=True, target=come, args=(rank.peers[0], HEADER.size + size))
    )


@pytest.mark.parametrize("has_network", [False, True])
def test_a_later_step_waits_until_the_earlier_one_has_left(rank: Rank, has_network: bool) -> None:
    rank.has_network = has_network
    rank.begin(send(N), send(100, number=1, peer=1, step=1))
    assert rank.run() == loop.PAUSE
    assert not has_come(rank.peers[1])
    assert go_on(rank, N) == loop.FINISHED
    assert come(rank.peers[1], HEADER.size) == header(100, step=1)


def test_what_the_system_has_taken_has_not_left_yet(roomy: Rank) -> None:
    roomy.begin(send(4 * BANDWIDTH_DELAY), send(100, number=1, peer=1, step=1))
    assert roomy.run() == loop.PAUSE
    assert roomy.links["in_flight"].tolist() == [0, state.NEVER, state.NEVER]
    assert roomy.links[0]["send_buffer"] == SMALL_BUFFER, "it is told when there is room"
    assert not has_come(roomy.peers[1])
    assert go_on(roomy, 4 * BANDWIDTH_DELAY) == loop.FINISHED
    assert come(roomy.peers[1], HEADER.size) == header(100, step=1)


def test_on_one_host_it_has(roomy: Rank) -> None:
    roomy.has_network = False
    roomy.begin(send(4 * BANDWIDTH_DELAY), send(100, number=1, peer=1, step=1))
    assert roomy.run() == loop.FINISHED
    assert come(roomy.peers[1], HEADER.size) == header(100, step=1)


@pytest.mark.parametrize(
    ("size", "in_flight"), [(BANDWIDTH_DELAY, state.NEVER), (BANDWIDTH_DELAY + 1, 5)]
)
def test_what_a_link_holds_whole_has_left_as_soon_as_it_is_taken(
    roomy: Rank, size: int, in_flight: int
) -> None:
    roomy.begin(send(size, step=5))
    assert roomy.run() == loop.FINISHED
    assert roomy.links[0]["in_flight"] == in_flight


def test_a_short_message_behind_a_long_one_leaves_after_it(roomy: Rank) -> None:
    roomy.begin(
        send(4 * BANDWIDTH_DELAY), send(100, number=1, step=1), send(100, number=2, peer=1, step=1)
    )
    assert roomy.run() == loop.FINISHED
    assert roomy.links[0]["in_flight"] == 1
    assert come(roomy.peers[1], HEADER.size) == header(100, step=1)


def test_an_earlier_step_overtakes_what_waits(rank: Rank) -> None:
    rank.begin(send(N, step=1), send(N, number=1, peer=1, step=2), send(100, number=2, peer=2))
    assert rank.run() == loop.PAUSE
    assert come(rank.peers[2], HEADER.size) == header(100)
    assert not has_come(rank.peers[1])


def test_those_of_one_step_share_the_link(rank: Rank) -> None:
    rank.begin(send(N), send(N, number=1, peer=1))
    assert rank.run() == loop.PAUSE
    assert come(rank.peers[1], HEADER.size) == header(N)


def test_a_pipeline_sends_what_is_there(rank: Rank) -> None:
    rank.step_by_step = False
    rank.begin(send(N), send(100, number=1, peer=1, step=5))
    assert rank.run() == loop.PAUSE
    assert come(rank.peers[1], HEADER.size) == header(100, step=5)


def test_a_step_of_the_next_call_is_a_later_one(roomy: Rank) -> None:
    roomy.begin(send(4 * BANDWIDTH_DELAY, step=9))
    assert roomy.run() == loop.FINISHED
    roomy.begin(send(100, peer=1))
    assert roomy.run() == loop.PAUSE
    assert not has_come(roomy.peers[1])
    assert go_on(roomy, 4 * BANDWIDTH_DELAY) == loop.FINISHED


def test_the_next_long_message_has_room_again(roomy: Rank) -> None:
    roomy.begin(
        send(4 * BANDWIDTH_DELAY),
        send(100, number=1, peer=1, step=1),
        send(N // 4, number=2, step=2),
    )
    assert roomy.run() == loop.PAUSE
    assert go_on(roomy, 4 * BANDWIDTH_DELAY) == loop.FINISHED
    assert roomy.links[0]["send_buffer"] == LARGE_BUFFER
