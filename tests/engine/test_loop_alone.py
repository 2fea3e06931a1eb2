"""The compiled loop of one rank, whose peers are sockets that the test holds: pieces, failures, wake-ups."""

import errno
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from lone_rank import (
    CALL,
    MOST_PAUSES,
    SIGNATURE,
    N,
    Rank,
    come,
    ended,
    header,
    receive,
    reset,
    send,
)

from collectives.engine.handshake import HEADER
from collectives.engine.program import AHEAD, Send, Span, Wait
from collectives.engine.tcp import loop, state

# The loop is compiled, which takes half a minute; where it does not return, a signal does not end
# it.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(120, method="thread")]

SOON = 900_000_000  # nanoseconds: the system's call takes less than a second
LONG = loop.RECEIVE_LOW_WATER


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def test_waiting_ends_when_its_time_is_over(stack: ExitStack) -> None:
    """The first test, because all others would hang."""
    rank = Rank(stack)
    rank.begin(receive(100))
    loop._begin(rank.program, rank.state)
    assert loop._run_ready(rank.program, rank.state)
    assert rank.wait(0) == loop.PAUSE


def test_a_rank_polls_its_sockets_before_it_sleeps(stack: ExitStack) -> None:
    """It has no time to sleep, so it would see nothing of what comes later."""
    rank = Rank(stack)
    rank.begin(receive(100))
    assert rank.run() == loop.PAUSE
    rank.state.call["spins"] = 1 << 22
    later = threading.Timer(0.05, rank.peers[0].sendall, [header(100) + bytes(range(100))])
    later.start()
    rank.wait(0)
    later.join()
    assert bytes(rank.tensor[:100]) == bytes(range(100))


def test_a_message_may_come_in_pieces(stack: ExitStack) -> None:
    rank = Rank(stack)
    rank.begin(receive(100))
    whole = header(100) + bytes(range(100))
    for begin, end in ((0, 10), (10, HEADER.size + 1), (HEADER.size + 1, HEADER.size + 3)):
        rank.peers[0].sendall(whole[begin:end])
        assert rank.run() == loop.PAUSE
    rank.peers[0].sendall(whole[HEADER.size + 3 :])
    assert rank.run() == loop.FINISHED
    assert bytes(rank.tensor[:100]) == bytes(range(100))


@pytest.mark.parametrize("size", [0, N], ids=["receiving", "sending, too"])
def test_a_peer_may_connect_while_a_rank_waits_for_it(stack: ExitStack, size: int) -> None:
    rank = Rank(stack, peers=2)
    connected = int(rank.descriptors[0]["into"])
    rank.descriptors[0]["into"] = state.NONE
    rank.begin(receive(100), *([send(size, number=1, peer=1)] if size else []))
    assert rank.run() == loop.PAUSE
    assert not rank.failed[0]
    rank.descriptors[0]["into"] = connected
    rank.peers[0].sendall(header(100) + bytes(range(100)))
    reader = threading.Thread(
        daemon=True, target=come, args=(rank.peers[1], HEADER.size + size if size else 0)
    )
    assert ended(rank, reader) == loop.FINISHED
    assert bytes(rank.tensor[:100]) == bytes(range(100))


@pytest.mark.parametrize("begun", [0, 3])
@pytest.mark.parametrize(
    "wrong",
    [
        header(100, call=CALL + 1),
        header(100, step=1),
        header(101),
        header(100, signature=SIGNATURE[:-1] + b"x"),
    ],
    ids=["call", "step", "bytes", "signature"],
)
def test_another_header_is_refused_whether_or_not_bytes_follow(
    stack: ExitStack, wrong: bytes, begun: int
) -> None:
    rank = Rank(stack, peers=2)
    rank.begin(receive(100, peer=1))
    rank.peers[1].sendall(wrong + b"x" * begun)
    assert rank.run() == loop.FAILED
    assert rank.failed == (1, 1, 0, state.DIFFERENT)


@pytest.mark.parametrize(
    ("end", "why"), [(socket.socket.close, state.CLOSED), (reset, errno.ECONNRESET)]
)
def test_a_peer_that_ends_in_a_message_is_named(
    stack: ExitStack, end: Callable[[socket.socket], None], why: int
) -> None:
    rank = Rank(stack, peers=3)
    rank.begin(receive(100, peer=2))
    rank.peers[2].sendall(header(100) + b"part")
    assert rank.run() == loop.PAUSE
    end(rank.peers[2])
    assert rank.run() == loop.FAILED
    assert rank.failed == (1, 2, 0, why)


def test_of_two_peers_that_end_the_first_is_named(stack: ExitStack) -> None:
    rank = Rank(stack, peers=2)
    rank.begin(receive(100), send(N, number=1, peer=1))
    assert rank.run() == loop.PAUSE
    for peer in rank.peers:
        reset(peer)
    assert rank.run() == loop.FAILED
    assert rank.failed == (1, 0, 0, errno.ECONNRESET)


def test_a_peer_that_takes_no_more_is_named_as_the_receiver(stack: ExitStack) -> None:
    rank = Rank(stack, peers=2)
    rank.begin(send(N, peer=1))
    assert rank.run() == loop.PAUSE
    reset(rank.peers[1])
    assert rank.run() == loop.FAILED
    assert rank.failed[:3] == (1, 1, 1)
    assert rank.failed[3] in (errno.ECONNRESET, errno.EPIPE)


def test_later_and_interrupted_are_no_failures(stack: ExitStack) -> None:
    rank = Rank(stack)
    rank.begin()
    for why in (errno.EAGAIN, errno.EINTR):
        loop.fail(rank.state, 0, False, why)
        assert rank.failed[0] == 0
    loop.fail(rank.state, 0, False, errno.EBADF)
    assert rank.failed == (1, 0, 0, errno.EBADF)


def test_what_the_system_takes_bit_by_bit_arrives_whole_at_each_peer(stack: ExitStack) -> None:
    """Several spans.

    The peers read one after the other, so that all messages wait to be sent at first.
    """
    rank = Rank(stack, peers=3)
    spans = (Span(5, N // 2), Span(N // 2 + 3, N - 100), Span(N - 50, N))
    rank.begin(*([Send(peer, peer, 0, spans), Wait(peer)] for peer in range(3)))
    assert rank.run() == loop.PAUSE
    expected = b"".join(bytes(rank.tensor[span.start : span.stop]) for span in spans)
    whole = header(len(expected)) + expected
    came: list[bytes] = []
    reader = threading.Thread(
        daemon=True, target=lambda: came.extend(come(peer, len(whole)) for peer in rank.peers)
    )
    assert ended(rank, reader) == loop.FINISHED
    assert came == [whole] * 3


def test_a_message_of_more_parts_than_one_call_of_the_system_takes(stack: ExitStack) -> None:
    rank = Rank(stack)
    spans = tuple(Span(3 * at, 3 * at + 2) for at in range(state.MAX_PARTS + 1))
    rank.begin([Send(0, 0, 0, spans), Wait(0)])
    assert rank.run() == loop.FINISHED
    expected = b"".join(bytes(rank.tensor[span.start : span.stop]) for span in spans)
    assert come(rank.peers[0], HEADER.size + len(expected)) == header(len(expected)) + expected


def test_a_rank_that_waits_to_send_reads_what_it_has_asked_for(stack: ExitStack) -> None:
    """Its receiver may do the same: neither reads otherwise."""
    rank = Rank(stack)
    rank.begin([receive(100)[0], *send(N, number=1), Wait(0)])
    assert rank.run() == loop.PAUSE
    rank.peers[0].sendall(header(100) + bytes(100))
    assert rank.run() == loop.PAUSE
    assert loop.left(rank.state, 0) == 0
    assert loop.left(rank.state, 1) > 0


def test_a_message_that_has_left_while_another_one_was_sent_is_not_waited_for(
    stack: ExitStack,
) -> None:
    """A task waits for room, and the send of another task finds it."""
    rank = Rank(stack)
    rank.begin(send(100))
    assert rank.run() == loop.FINISHED
    rank.state.call["first_task"] = 0
    rank.state.tasks[0] = 1, state.BLOCKED
    assert rank.wait(SOON) == loop.GOING
    assert rank.state.tasks[0]["status"] == state.READY


@pytest.mark.parametrize("size", [100, LONG + 1000, 3 * LONG])
def test_the_last_bytes_of_a_long_message_wake_the_rank(stack: ExitStack, size: int) -> None:
    rank = Rank(stack)
    rank.begin(receive(size))
    sender = threading.Thread(
        daemon=True, target=rank.peers[0].sendall, args=(header(size) + bytes(size - 10),)
    )
    sender.start()
    for _ in range(MOST_PAUSES):
        if rank.run() == loop.PAUSE and loop.left(rank.state, 0) <= 10:
            break
    sender.join()
    rank.peers[0].sendall(b"1234567890")
    assert rank.wait(SOON) == loop.GOING
    assert bytes(rank.tensor[size - 10 : size]) == b"1234567890"


def test_a_task_goes_on_with_the_byte_that_it_lacks(stack: ExitStack) -> None:
    rank = Rank(stack)
    rank.begin(receive(100, missing=5))
    rank.peers[0].sendall(header(100) + bytes(94))
    assert rank.run() == loop.PAUSE
    rank.peers[0].sendall(b"x")
    assert rank.run() == loop.FINISHED


def test_a_process_that_connects_ends_the_waiting(stack: ExitStack) -> None:
    rank = Rank(stack)
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    rank.listener = listener.fileno()
    rank.begin(receive(100))
    assert rank.run() == loop.PAUSE
    stack.enter_context(socket.create_connection(listener.getsockname()))
    assert rank.run() == loop.LISTENER_READY


@pytest.mark.parametrize("waiting", [0, 1, AHEAD, AHEAD + 1])
def test_every_task_that_may_begin_has_run_before_a_rank_waits(
    stack: ExitStack, waiting: int
) -> None:
    """That is up to AHEAD behind the one that waits, also where tasks before it have just let them begin."""
    rank, tasks = Rank(stack), waiting + 2 * AHEAD
    rank.begin(
        *(
            receive(1, number) if number == waiting else send(1, number, step=number)
            for number in range(tasks)
        )
    )
    assert rank.run() == loop.PAUSE
    rank.peers[0].setblocking(False)
    came = rank.peers[0].recv(1 << 16)
    steps = [HEADER.unpack_from(came, at)[1] for at in range(0, len(came), HEADER.size + 1)]
    assert steps == [*range(waiting), *range(waiting + 1, waiting + AHEAD)]
