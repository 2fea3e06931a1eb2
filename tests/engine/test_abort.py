"""What a rank says when it gives up, and what others hear of it: at once, from nobody else, and of no later call."""

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from loop_ranks import Ranks
from torch import distributed as dist

from collectives.engine.handshake import (
    HANDSHAKE,
    NO_CALL,
    Message,
    MessageError,
    send_to_all,
    signature,
)
from collectives.engine.mesh import TIMED_OUT, AbortError, abort_reason

pytestmark = pytest.mark.timeout(60)  # a peer says nothing, or ends: nobody waits for ever

WHY = "rank 1 failed by ValueError: 3 ≠ 4"
SIGNATURE, OTHER = (
    signature("all_reduce", "ring", dist.ReduceOp.SUM, torch.float32, n, None, 1, b"a schedule")
    for n in (8, 9)
)
SECONDS = 40.0  # within which what was said is heard on any machine


@pytest.fixture
def rank() -> Iterator[Any]:
    """The mesh of rank 0 of 3, in its fifth call, which waits for a message of rank 1."""
    with pytest.MonkeyPatch.context() as patch:
        ranks = Ranks(3, patch)
        mesh = ranks.groups[0].transport.mesh
        mesh.begin(SIGNATURE)
        mesh.call = 5
        yield mesh
        mesh.end()
        ranks.close()


def handshake(
    mesh: Any, why: str = WHY, peer: int = 1, call: int = 5, of: bytes = SIGNATURE
) -> bytes:
    return HANDSHAKE.pack(mesh._token, peer, call, of, why.encode())


def heard(mesh: Any, seconds: float = SECONDS) -> str:
    """What the rank says when it has listened; nothing if it goes on."""
    until = time.monotonic() + seconds
    try:
        while time.monotonic() < until:
            mesh.progress(0.05)
            mesh.check_peers([Message(1, 0, is_sent=False)])
    except MessageError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("peer", [1, 2])
def test_a_rank_that_waits_hears_why_any_rank_has_given_up(rank: Any, peer: int) -> None:
    send_to_all([rank.addresses[0]], handshake(rank, peer=peer), SECONDS)
    assert (
        heard(rank) == f"in step 0, receiving from rank 1: rank {peer} has given up, because {WHY}"
    )


@pytest.mark.parametrize("letters", [400, 2000])
def test_a_long_reason_is_cut(rank: Any, letters: int) -> None:
    send_to_all([rank.addresses[0]], handshake(rank, "é" * letters), SECONDS)
    assert heard(rank).count("é") == min(letters, 500)


def test_a_handshake_may_come_in_pieces(rank: Any) -> None:
    with socket.create_connection(rank.addresses[0]) as connected:
        for begin, end in ((0, 7), (7, HANDSHAKE.size - 1), (HANDSHAKE.size - 1, HANDSHAKE.size)):
            assert heard(rank, 0.2) == ""
            connected.sendall(handshake(rank)[begin:end])
        assert WHY in heard(rank)


def test_an_abort_of_a_later_call_waits_for_that_call(rank: Any) -> None:
    send_to_all([rank.addresses[0]], handshake(rank, call=6), SECONDS)
    assert heard(rank, 0.3) == ""
    rank.call = 6
    assert WHY in heard(rank)


def test_a_reason_of_the_rank_itself_or_of_another_call_goes_before_a_timeout(rank: Any) -> None:
    """Most ranks only know that they have waited."""
    late = f"rank 2 failed in step 0, receiving from rank 1: {TIMED_OUT} of 2 s"
    for each in (handshake(rank, late, peer=2), handshake(rank)):
        send_to_all([rank.addresses[0]], each, SECONDS)
        rank.progress(SECONDS)
    assert rank._abort().reason == WHY
    rank._aborts[2] = AbortError(2, late, 5, OTHER)
    assert rank._abort().reason == late


UNAUTHENTICATED = {
    "the wrong token": lambda mesh: HANDSHAKE.pack(b"x" * 16, 1, 5, SIGNATURE, WHY.encode()),
    "a rank that is not there": lambda mesh: handshake(mesh, peer=3),
    "half a handshake": lambda mesh: handshake(mesh)[:-1],
    "nothing": lambda mesh: b"",
}


@pytest.mark.parametrize("payload", UNAUTHENTICATED.values(), ids=UNAUTHENTICATED)
def test_an_unauthenticated_connection_stops_nobody(rank: Any, payload: Any) -> None:
    send_to_all([rank.addresses[0]], payload(rank), SECONDS)
    assert heard(rank, 0.3) == ""
    assert not rank.has_pending


def test_ranks_that_do_not_listen_keep_nobody_from_being_told() -> None:
    """One is gone; another one's system takes no more connections."""
    with socket.create_server(("127.0.0.1", 0)) as gone:
        nobody = gone.getsockname()
    with (
        socket.create_server(("127.0.0.1", 0)) as listens,
        socket.create_server(("127.0.0.1", 0), backlog=0) as full,
    ):
        calls = [socket.socket() for _ in range(4)]
        for each in calls:
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        send_to_all([nobody, full.getsockname(), listens.getsockname()], b"said", 0.3)
        listens.settimeout(SECONDS)
        with listens.accept()[0] as came:
            assert came.recv(5) == b"said"
        for each in calls:
            each.close()


def test_a_rank_passes_on_the_reason_that_it_has_heard() -> None:
    late = MessageError(False, 2, 1, "planted")
    assert abort_reason(0, late) == "rank 0 failed in step 2, receiving from rank 1: planted"
    assert abort_reason(0, KeyError("x")) == "rank 0 failed by KeyError: 'x'"
    late.__cause__ = AbortError(1, WHY)
    assert abort_reason(0, late) == WHY


@pytest.mark.parametrize(
    ("call", "theirs", "differs"),
    [(5, OTHER, True), (5, SIGNATURE, False), (6, OTHER, False), (5, NO_CALL, False)],
    ids=["another", "the same", "of another number", "none"],
)
def test_calls_of_one_number_are_compared(call: int, theirs: bytes, differs: bool) -> None:
    error = AbortError(1, WHY, call=call, signature=theirs)
    assert error.difference(5, SIGNATURE) == "elements 9 against 8" * differs
    assert error.difference(5, NO_CALL) == ""
