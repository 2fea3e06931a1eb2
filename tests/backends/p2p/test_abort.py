"""What a rank says at last, and what another one hears of it: in pieces, behind other messages, or not at all."""

import socket
from collections.abc import Iterator

import pytest
import torch
from torch import distributed as dist

from collectives.backends.p2p import abort as said
from collectives.backends.p2p.abort import CALL, MOST, AbortError, drain_abort, peek_abort, read_abort
from collectives.backends.p2p.connection import HEADER, Connection, Message, MessageError
from collectives.backends.p2p.signature import NO_CALL, signature

pytestmark = pytest.mark.timeout(20)  # a peer says nothing, or ends: nobody waits for long

WHY = "rank 1 failed by ValueError: 3 ≠ 4"
SIGNATURE, OTHER = (signature("all_reduce", "ring", dist.ReduceOp.SUM, torch.float32, n, None, 1) for n in (8, 9))


def words(why: str = WHY) -> bytes:
    return b"".join(said.abort_message(0, 5, SIGNATURE, why).parts)


def message(size: int) -> bytes:
    return HEADER.pack(5, 0, size, SIGNATURE) + bytes(size)


# What comes from a peer that has not said why.
BEFORE = {"nothing": b"", "a message": message(10), "a message's begin": message(10)[:-1], "an abort's": words()[:9]}

Ends = tuple[Connection, socket.socket]


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ends]:
    """A rank's connection from rank 3, and that rank's end; nobody is patient."""
    monkeypatch.setattr(said, "PATIENCE", 0.05)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection = Connection(3)
        connection.socket = ours
        yield connection, theirs


def ask(connection: Connection, size: int, header: bytes = b"", come: int = 0) -> None:
    """Ask for a message, of which the begin of the header, and so many bytes have come."""
    connection.messages.append(Message(3, 5, 0, [memoryview(bytearray(size))], is_sent=False))
    connection.messages[0].advance(come)
    connection.header[: len(header)], connection.got = header, len(header)


def check(error: AbortError | None, who: str = "it", why: str = WHY) -> None:
    assert error is not None
    assert (str(error), error.reason) == (f"{who} has given up, because {why}", why)
    assert (error.call, error.signature) == (5, SIGNATURE)


def test_a_reason_is_cut_and_its_length_counts_bytes() -> None:
    long = words("é" * MOST)
    assert len(long) == HEADER.size + MOST
    for each in (words(), long):
        call, step, size, which = HEADER.unpack_from(each)
        assert (call, step, size, which) == (CALL, 5, len(each) - HEADER.size, SIGNATURE)


@pytest.mark.parametrize("begun", [0, 4, len(WHY.encode())])
def test_a_reason_of_which_some_has_come_is_heard_whole(ends: Ends, begun: int) -> None:
    connection, theirs = ends
    text = WHY.encode()
    theirs.sendall(text[begun:] + message(3))
    check(read_abort(connection.socket, HEADER.unpack_from(words()), text[:begun]))
    assert connection.socket.recv(HEADER.size + 3) == message(3)


def test_a_peer_that_ends_while_it_speaks_is_heard_so_far(ends: Ends) -> None:
    connection, theirs = ends
    theirs.close()
    check(read_abort(connection.socket, HEADER.unpack_from(words()), b"rank 1"), why="rank 1")


@pytest.mark.parametrize(("header", "come"), [(0, 0), (7, 0), (HEADER.size, 0), (HEADER.size, 60)])
def test_an_abort_comes_behind_messages_that_are_dropped(ends: Ends, header: int, come: int) -> None:
    connection, theirs = ends
    first = message(100)
    ask(connection, 100, first[:header], come)
    theirs.sendall(first[header + come :] + message(0) + message(200) + words())
    check(drain_abort(connection))


@pytest.mark.parametrize("closes", [False, True])
@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE)
def test_a_peer_that_does_not_say_why_has_no_abort(ends: Ends, before: bytes, closes: bool) -> None:
    connection, theirs = ends
    theirs.sendall(before)
    if closes:
        theirs.close()
    assert drain_abort(connection) is None


@pytest.mark.parametrize(("header", "come"), [(0, 0), (7, 0), (HEADER.size, 0), (HEADER.size, 60)])
def test_an_abort_is_peeked_at_and_all_stays_where_it_is(ends: Ends, header: int, come: int) -> None:
    connection, theirs = ends
    first = message(100)
    ask(connection, 100, first[:header], come)
    behind = first[header + come :] + message(0) + message(200) + words()
    theirs.sendall(behind)
    for _ in range(2):
        check(peek_abort(connection), "rank 3")
    assert connection.socket.recv(len(behind) + 1) == behind


@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE)
def test_what_is_no_abort_is_not_taken_for_one(ends: Ends, before: bytes) -> None:
    connection, theirs = ends
    theirs.sendall(before)
    assert peek_abort(connection) is None
    theirs.close()
    assert peek_abort(connection) is None


def test_a_rank_passes_on_the_reason_that_it_has_heard() -> None:
    late = MessageError(False, 2, 1, "planted")
    assert said.reason(0, late) == "rank 0 failed in step 2, receiving from rank 1: planted"
    assert said.reason(0, KeyError("x")) == "rank 0 failed by KeyError: 'x'"
    late.__cause__ = AbortError(WHY)
    assert said.reason(0, late) == WHY


@pytest.mark.parametrize(
    ("call", "theirs", "differs"),
    [(5, OTHER, True), (5, SIGNATURE, False), (6, OTHER, False), (5, NO_CALL, False)],
    ids=["another", "the same", "of another number", "none"],
)
def test_calls_of_one_number_are_compared(call: int, theirs: bytes, differs: bool) -> None:
    error = AbortError(WHY, call=call, signature=theirs)
    told = said.describe(error, 5, SIGNATURE)
    assert told == str(error) + "; its call differs from this rank's: elements 9 against 8" * differs
    assert said.describe(error, 5, NO_CALL) == str(error)
    assert said.describe(OSError("planted"), 5, SIGNATURE) == "planted"
