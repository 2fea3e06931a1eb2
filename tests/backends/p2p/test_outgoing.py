"""Messages leave in the order of the steps where ranks exchange, and at once where they do not."""

import errno
import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from collectives.backends.p2p.connection import HEADER, Connection, Message, prepare
from collectives.backends.p2p.outgoing import BANDWIDTH_DELAY, SEND_BUFFER, Outgoing
from collectives.backends.p2p.signature import NO_CALL

LONG = 4 * SEND_BUFFER
LIMIT_MS = 10_000


class Peer:
    """The other end of a connection, which takes little before it reads."""

    def __init__(self, stack: ExitStack) -> None:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BANDWIDTH_DELAY // 4)
        ours = stack.enter_context(socket.create_connection(server.getsockname()))
        self.socket = stack.enter_context(server.accept()[0])
        prepare(ours)
        self.socket.setblocking(False)
        self.connection = Connection(0)
        self.connection.socket, self.connection.number = ours, ours.fileno()

    def read(self, wanted: int) -> bytes:
        """What has come; to be called again and again, as who sends has to be asked to go on."""
        return self.socket.recv(wanted) if select.select([self.socket], [], [], 0.05)[0] else b""


@pytest.fixture
def peers() -> Iterator[list[Peer]]:
    with ExitStack() as stack:
        yield [Peer(stack) for _ in range(3)]


@pytest.fixture
def lost() -> list[tuple[Connection, OSError]]:
    return []


@pytest.fixture
def outgoing(lost: list[tuple[Connection, OSError]]) -> Outgoing:
    made = Outgoing(lambda connection, error: lost.append((connection, error)))
    made.step_by_step = True
    return made


def message(step: int, size: int, call: int = 1) -> Message:
    data = bytes(i * 7 % 251 for i in range(251)) * (size // 251 + 1)
    return Message(0, call, step, [HEADER.pack(call, step, size, NO_CALL), memoryview(data)[:size]], is_sent=True)


def read_all(peer: Peer, outgoing: Outgoing, size: int) -> bytes:
    """Read a whole message, while its sender goes on as soon as there is room."""
    said, deadline = b"", time.monotonic() + LIMIT_MS / 1e3
    while len(said) < HEADER.size + size:
        assert time.monotonic() < deadline, "the rest was never sent"
        outgoing.push()
        said += peer.read(HEADER.size + size - len(said))
    return said


def test_a_later_step_waits_until_the_earlier_one_has_left(peers: list[Peer], outgoing: Outgoing) -> None:
    outgoing.send(peers[0].connection, message(0, LONG))
    outgoing.send(peers[1].connection, message(1, 100))
    assert peers[1].read(1) == b""
    assert outgoing.stuck() == [peers[0].connection]
    assert read_all(peers[0], outgoing, LONG)[HEADER.size :] == bytes(message(0, LONG).parts[1])
    assert read_all(peers[1], outgoing, 100)[: HEADER.size] == HEADER.pack(1, 1, 100, NO_CALL)
    assert not outgoing.unsent


def test_what_the_system_has_taken_has_not_left_yet(peers: list[Peer], outgoing: Outgoing) -> None:
    size = 3 * BANDWIDTH_DELAY
    outgoing.send(peers[0].connection, message(0, size))
    assert not outgoing.unsent
    outgoing.send(peers[1].connection, message(1, 100))
    assert outgoing.unsent == [peers[1].connection]
    assert outgoing.stuck() == [peers[0].connection]
    room = select.poll()
    room.register(peers[0].connection.socket, select.POLLOUT)
    assert room.poll(100) == [], "as long as nobody reads there is no room"
    left = size + HEADER.size
    while not room.poll(0):
        left -= len(peers[0].read(left))
    outgoing.push()
    assert peers[1].read(HEADER.size) == HEADER.pack(1, 1, 100, NO_CALL)


@pytest.mark.parametrize(("size", "left"), [(BANDWIDTH_DELAY, True), (BANDWIDTH_DELAY + 1, False)])
def test_what_a_link_holds_whole_has_left_as_soon_as_it_is_taken(
    peers: list[Peer], outgoing: Outgoing, monkeypatch: pytest.MonkeyPatch, size: int, left: bool
) -> None:
    monkeypatch.setattr("collectives.backends.p2p.outgoing._under_way", lambda _: BANDWIDTH_DELAY + 1)
    outgoing.send(peers[0].connection, message(0, size - HEADER.size))
    outgoing.send(peers[1].connection, message(1, 100))
    assert (outgoing.unsent == []) == left


@pytest.mark.parametrize(("under_way", "left"), [(BANDWIDTH_DELAY, True), (BANDWIDTH_DELAY + 1, False)])
def test_a_long_message_has_left_when_no_more_than_a_link_holds_is_under_way(
    peers: list[Peer], outgoing: Outgoing, monkeypatch: pytest.MonkeyPatch, under_way: int, left: bool
) -> None:
    monkeypatch.setattr("collectives.backends.p2p.outgoing._under_way", lambda _: under_way)
    outgoing.send(peers[0].connection, message(0, 3 * BANDWIDTH_DELAY))
    outgoing.send(peers[1].connection, message(1, 100))
    assert (outgoing.unsent == []) == left


def test_a_connection_with_two_long_messages_is_stuck_once(
    peers: list[Peer], outgoing: Outgoing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collectives.backends.p2p.outgoing._under_way", lambda _: BANDWIDTH_DELAY + 1)
    outgoing.send(peers[0].connection, message(0, 2 * BANDWIDTH_DELAY))
    outgoing.send(peers[0].connection, message(1, 2 * BANDWIDTH_DELAY))
    outgoing.send(peers[1].connection, message(2, 100))
    assert outgoing.stuck() == [peers[0].connection]


def test_an_earlier_step_overtakes_what_waits(peers: list[Peer], outgoing: Outgoing) -> None:
    outgoing.send(peers[0].connection, message(1, LONG))
    outgoing.send(peers[1].connection, message(2, LONG))
    outgoing.send(peers[2].connection, message(0, 100))
    assert peers[2].read(HEADER.size) == HEADER.pack(1, 0, 100, NO_CALL)
    assert peers[1].read(1) == b""


def test_those_of_one_step_and_of_a_pipeline_share_the_link(peers: list[Peer], outgoing: Outgoing) -> None:
    outgoing.send(peers[0].connection, message(0, LONG))
    outgoing.send(peers[1].connection, message(0, LONG))
    assert peers[1].read(HEADER.size) == HEADER.pack(1, 0, LONG, NO_CALL)
    outgoing.step_by_step = False
    outgoing.send(peers[2].connection, message(5, 100))
    assert peers[2].read(HEADER.size) == HEADER.pack(1, 5, 100, NO_CALL)


def test_a_step_of_the_next_call_is_a_later_one(peers: list[Peer], outgoing: Outgoing) -> None:
    outgoing.send(peers[0].connection, message(9, 3 * BANDWIDTH_DELAY, call=1))
    outgoing.send(peers[1].connection, message(0, 100, call=2))
    assert outgoing.unsent == [peers[1].connection]


def test_a_connection_that_breaks_keeps_nobody_back(
    peers: list[Peer], outgoing: Outgoing, lost: list[tuple[Connection, OSError]]
) -> None:
    outgoing.send(peers[0].connection, message(0, LONG))
    outgoing.send(peers[1].connection, message(1, 100))
    peers[0].socket.close()
    room = select.poll()
    room.register(peers[0].connection.socket, select.POLLOUT)
    assert room.poll(LIMIT_MS)
    outgoing.push()
    assert [connection for connection, _ in lost] == [peers[0].connection]
    assert peers[1].read(HEADER.size) == HEADER.pack(1, 1, 100, NO_CALL)


class MacSocket:
    """As macOS has it: a message for a connection that is still being made is refused with ENOTCONN."""

    def __init__(self) -> None:
        self.is_connected, self.code, self.said = False, 0, b""

    def sendmsg(self, parts: list[memoryview]) -> int:
        if not self.is_connected:
            raise OSError(errno.ENOTCONN, "Socket is not connected")
        self.said += b"".join(parts)
        return sum(map(len, parts))

    def getsockopt(self, *_: int) -> int:
        return self.code


def test_a_connection_that_is_still_being_made_is_waited_for(
    outgoing: Outgoing, lost: list[tuple[Connection, OSError]]
) -> None:
    connection, mac = Connection(0), MacSocket()
    connection.socket = mac
    outgoing.send(connection, message(0, 100))
    assert (lost, mac.said, outgoing.stuck()) == ([], b"", [connection])
    mac.is_connected = True
    outgoing.push()
    assert mac.said[HEADER.size :] == bytes(message(0, 100).parts[1])
    assert not outgoing.unsent


def test_a_connection_that_could_not_be_made_is_lost_with_the_reason(
    outgoing: Outgoing, lost: list[tuple[Connection, OSError]]
) -> None:
    connection, mac = Connection(0), MacSocket()
    connection.socket, mac.code = mac, errno.ECONNREFUSED
    outgoing.send(connection, message(0, 100))
    assert [(each, error.errno) for each, error in lost] == [(connection, errno.ECONNREFUSED)]
    assert not outgoing.unsent
