"""The grader's end of a connection: whole values, no more than one at a time, and never a wait without end."""

import socket
from collections.abc import Iterator

import numpy as np
import pytest

from collectives_course import wire
from collectives_course.channel import Channel, GoneError

Pair = tuple[Channel, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Channel(ours, lambda: "it has gone"), theirs


def test_a_value_in_pieces(pair: Pair) -> None:
    channel, theirs = pair
    frame = wire.pack({"op": "time"})
    for byte in frame[:-1]:
        theirs.sendall(bytes([byte]))
        assert channel.receive() == []
    theirs.sendall(frame[-1:])
    assert channel.receive() == [{"op": "time"}]
    assert channel.receive() == []


def test_one_that_speaks_before_it_is_answered(pair: Pair) -> None:
    channel, theirs = pair
    theirs.sendall(wire.pack(1) + wire.pack(2)[:1])
    with pytest.raises(wire.WireError, match="speaks before"):
        channel.receive()


def test_one_that_does_not_read_its_answer(pair: Pair) -> None:
    channel, theirs = pair
    channel.send(np.zeros(1 << 20))
    theirs.sendall(wire.pack(1))
    with pytest.raises(wire.WireError, match="speaks before"):
        channel.receive()


def test_lengths_are_refused_before_the_frame_has_come(pair: Pair) -> None:
    channel, theirs = pair
    theirs.sendall(wire.LENGTHS.pack(0, 1 << 40))
    with pytest.raises(wire.WireError, match="frame too large"):
        channel.receive()


def test_one_that_has_gone(pair: Pair) -> None:
    channel, theirs = pair
    theirs.close()
    channel.send("nobody reads it")
    with pytest.raises(GoneError, match="it has gone"):
        channel.receive()


def test_a_large_answer_goes_in_pieces(pair: Pair) -> None:
    channel, theirs = pair
    array = np.arange(1 << 18)
    channel.send(array)
    size = len(wire.pack(array))
    received = bytearray()
    while len(received) < size:
        received += theirs.recv(1 << 16)
        channel.flush()
    assert (wire.unpack(*wire.split(bytes(received))) == array).all()


def test_wait(pair: Pair) -> None:
    channel, theirs = pair
    with pytest.raises(TimeoutError):
        channel.wait(0.01)
    theirs.sendall(wire.pack("ready"))
    assert channel.wait(5) == "ready"
