"""What a rank says when it gives up, and what others hear of it: at once, from nobody else, and of no later call."""

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from loop_ranks import Ranks
from torch import distributed as dist

from collectives.cause import Cause, Kind, noted
from collectives.engine.blame import (
    AbortError,
    NumberedCall,
    WaitedError,
    cause_of,
    gave_sign,
    how_calls_differ,
)
from collectives.engine.handshake import (
    HANDSHAKE,
    NO_CALL,
    Message,
    MessageError,
    send_to_all,
    signature,
)

pytestmark = pytest.mark.timeout(60)  # a peer says nothing, or ends: nobody waits for ever

WHY = "rank 1 failed by ValueError: 3 ≠ 4"
FAILED = Cause(Kind.OWN, 1, WHY)
LATE = Cause(Kind.TIMED_OUT, 2, f"rank 2 failed in step 0, receiving from rank 1: {WaitedError(2)}")
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
    mesh: Any, cause: Cause = FAILED, peer: int = 1, call: int = 5, of: bytes = SIGNATURE
) -> bytes:
    told = cause.kind, cause.rank, cause.text.encode()
    return HANDSHAKE.pack(mesh._token, peer, call, of, *told)


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
    send_to_all([rank.addresses[0]], handshake(rank, FAILED._replace(text="é" * letters)), SECONDS)
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
    for each in (handshake(rank, LATE, peer=2), handshake(rank)):
        send_to_all([rank.addresses[0]], each, SECONDS)
        rank.progress(SECONDS)
    assert rank._abort().cause == FAILED
    rank._aborts[2] = AbortError(2, LATE, 5, OTHER)
    assert rank._abort().cause == LATE


UNAUTHENTICATED = {
    "the wrong token": lambda mesh: HANDSHAKE.pack(
        b"x" * 16, 1, 5, SIGNATURE, Kind.OWN, 1, WHY.encode()
    ),
    "a rank that is not there": lambda mesh: handshake(mesh, peer=3),
    "a kind that is not there": lambda mesh: HANDSHAKE.pack(
        mesh._token, 1, 5, SIGNATURE, 77, 1, WHY.encode()
    ),
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


def message_error(why: OSError | None) -> MessageError:
    error = MessageError(False, 2, 7, "planted")
    error.__cause__ = why
    return error


def test_a_rank_passes_on_the_cause_that_it_has_heard() -> None:
    """And adds whom it waited for itself, which it tells its own launcher only."""
    own = Cause(Kind.LOST, 0, "rank 0 failed in step 2, receiving from rank 7: planted", 7, 2)
    assert cause_of(0, message_error(ConnectionResetError("it has gone"))) == own
    late = own._replace(kind=Kind.TIMED_OUT, silent=(3, 4))
    assert cause_of(0, message_error(WaitedError(2, [3, 4]))) == late
    passed_on = cause_of(0, message_error(AbortError(1, FAILED)))
    assert passed_on == FAILED._replace(peer=7, step=2)
    by_itself = cause_of(0, KeyError("x"))
    assert by_itself == Cause(Kind.OWN, 0, "rank 0 failed by KeyError: 'x'")
    assert [each.blamed for each in (own, late, passed_on, by_itself)] == [(7,), (3, 4), (7,), ()]
    assert [each.is_own for each in (own, late, passed_on, by_itself)] == [False] * 3 + [True]


def test_a_rank_that_fails_notes_the_cause_for_its_launcher(rank: Any) -> None:
    rank.fail(KeyError("x"))
    assert noted() == Cause(Kind.OWN, 0, "rank 0 failed by KeyError: 'x'")


def test_only_a_rank_s_own_cause_is_a_sign_of_it() -> None:
    gone, passed_on = ConnectionResetError("it has gone"), AbortError(2, FAILED)
    assert gave_sign(1, gone, None)
    assert gave_sign(1, None, AbortError(1, FAILED))
    assert not gave_sign(2, None, passed_on)
    assert not gave_sign(2, None, None)


@pytest.mark.parametrize(
    ("call", "theirs", "differs"),
    [(5, OTHER, True), (5, SIGNATURE, False), (6, OTHER, False), (5, NO_CALL, False)],
    ids=["another", "the same", "of another number", "none"],
)
def test_calls_of_one_number_are_compared(call: int, theirs: bytes, differs: bool) -> None:
    error = AbortError(1, FAILED, call=call, signature=theirs)
    found = how_calls_differ(error, NumberedCall(5, SIGNATURE))
    assert found == ("elements 9 against 8" if differs else "")
    assert how_calls_differ(error, NumberedCall(5, NO_CALL)) == ""
