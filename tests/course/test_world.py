"""The world of ranks: what a message costs, who waits for whom, and what no rank may do."""

import socket
import threading
import time
from typing import Any

import numpy as np
import pytest

from collectives_course import wire, world
from collectives_course.comm import CommError
from collectives_course.local import run
from collectives_course.verdict import Crashed, EndedError, Failed, TimedOut, Ungraded
from collectives_course.world import Channel, Network, RunResult, Used

ALPHA, BETA = 3.0, 0.5
SLOW = Network(alpha=ALPHA, beta=BETA)


def ring(comm: Any, array: Any) -> None:
    """All-gather of one row of each rank, by a ring."""
    for step in range(comm.size - 1):
        out, into = (comm.rank - step) % comm.size, (comm.rank - step - 1) % comm.size
        comm.sendrecv(array[out], (comm.rank + 1) % comm.size, array[into], (comm.rank - 1) % comm.size)


def rows(p: int, n: int) -> list[list[Any]]:
    whole = np.arange(p * n, dtype=np.float64).reshape(p, n) + 1
    return [[np.where(np.arange(p)[:, None] == rank, whole, 0)] for rank in range(p)]


@pytest.mark.parametrize("small_buffers", [False, True])
@pytest.mark.parametrize("p", [1, 2, 3, 5, 8])
def test_a_ring_takes_its_closed_form(p: int, small_buffers: bool) -> None:
    n = 4
    result = run(ring, rows(p, n), Network(ALPHA, BETA, small_buffers))
    assert all((after[0] == np.arange(1, p * n + 1).reshape(p, n)).all() for after in result.arguments)
    assert result.seconds == (p - 1) * (ALPHA + BETA * 8 * n)
    assert result.bytes_sent(p) == [(p - 1) * 8 * n] * p
    assert result.messages_sent(p) == [p - 1] * p


def test_the_same_ten_times_of_ten() -> None:
    def told(result: RunResult) -> object:
        return sorted(result.sent), result.seconds, result.unreceived, [after[0].tolist() for after in result.arguments]

    network = Network(ALPHA, BETA, late=(0.0, 5.0, 1.0, 0.0, 2.0))
    first = told(run(ring, rows(5, 3), network))
    assert all(told(run(ring, rows(5, 3), network)) == first for _ in range(9))


def test_a_send_returns_at_once_and_with_small_buffers_when_it_is_received() -> None:
    def f(comm: Any, array: Any) -> float:
        if comm.rank == 0:
            comm.send(array, 1)
            comm.send(array, 1)
        else:
            comm.recv(array, 0)
            comm.recv(array, 0)
        return float(comm.time())

    arguments = [[np.zeros(2)], [np.ones(2)]]
    cost = ALPHA + BETA * 16
    assert run(f, arguments, SLOW).values == [0, 2 * cost]
    assert run(f, arguments, Network(ALPHA, BETA, small_buffers=True)).values == [2 * cost, 2 * cost]


def test_a_late_rank_delays_its_receivers() -> None:
    result = run(ring, rows(2, 1), Network(ALPHA, BETA, late=(0.0, 10.0)))
    assert sorted((each.src, each.start) for each in result.sent) == [(0, 0.0), (1, 10.0)]


def test_a_message_is_a_copy_and_may_be_left_over() -> None:
    def f(comm: Any, array: Any) -> None:
        if comm.rank == 0:
            comm.send(array, 1)
            array[:] = 9
            comm.send(array, 1)
        else:
            comm.recv(array, 0)

    result = run(f, [[np.zeros(2)], [np.ones(2)]])
    assert [after[0].tolist() for after in result.arguments] == [[9, 9], [0, 0]]
    assert result.unreceived == [(0, 1)]


def test_a_cycle_of_waiting_ranks_is_told_with_their_lines() -> None:
    def f(comm: Any, array: Any) -> None:
        comm.recv(array, (comm.rank + 1) % comm.size)

    line = f.__code__.co_firstlineno + 1
    with pytest.raises(Failed, match=rf"ranks 0, 1 and 2 wait for each other: rank 0 waits \(line {line}\) to receive"):
        run(f, [[np.zeros(1)] for _ in range(3)])


def test_small_buffers_show_a_cycle_of_sends() -> None:
    def f(comm: Any, array: Any) -> None:
        comm.send(array, 1 - comm.rank)
        comm.recv(array, 1 - comm.rank)

    arguments = [[np.zeros(1)], [np.ones(1)]]
    assert run(f, arguments).arguments[0][0].tolist() == [1]
    with pytest.raises(Failed, match=r"ranks 0 and 1 wait for each other: rank 0 waits .* to send to rank 1"):
        run(f, arguments, Network(small_buffers=True))


def test_waiting_for_one_that_has_returned() -> None:
    def f(comm: Any, array: Any) -> None:
        if comm.rank:
            comm.recv(array, 0)

    with pytest.raises(Failed, match=r"rank 1 waits .* to receive from rank 0, which has returned"):
        run(f, [[np.zeros(1)], [np.zeros(1)]])


@pytest.mark.parametrize(
    ("sent", "into", "says"),
    [
        (np.zeros(3), np.zeros(2), "receives 2 of float64, rank 0 sent 3 elements of float64"),
        (np.zeros(2, np.float32), np.zeros(2), "receives 2 of float64, rank 0 sent 2 elements of float32"),
        (np.zeros(0), np.zeros(1), "receives 1 of float64, rank 0 sent 0 elements"),
    ],
)
def test_messages_that_do_not_match(sent: Any, into: Any, says: str) -> None:
    def f(comm: Any, array: Any) -> None:
        comm.send(array, 1) if comm.rank == 0 else comm.recv(array, 0)

    with pytest.raises(Failed, match=says):
        run(f, [[sent], [into]])


@pytest.mark.parametrize("peer", [-1, 2, 0, 1.0, "1", None])
def test_ranks_that_are_not_there(peer: Any) -> None:
    def f(comm: Any, array: Any) -> None:
        if comm.rank == 0:
            with pytest.raises(CommError, match="expected another rank from 0 to 1"):
                comm.send(array, peer)

    run(f, [[np.zeros(1)], [np.zeros(1)]])


def test_a_rank_that_does_not_return_is_told_with_its_line() -> None:
    def f(comm: Any, array: Any, go_on: Any) -> None:
        while comm.rank == 0 and go_on[0]:
            pass
        comm.recv(array, 0)

    go_on = [True]
    line = f.__code__.co_firstlineno + 1
    wrapped = lambda comm, array: f(comm, array, go_on)  # noqa: E731
    try:
        with pytest.raises(TimedOut, match=rf"rank 0 has used the 0.3 s .* line {line}\); rank 1 waited"):
            run(wrapped, [[np.zeros(1)], [np.zeros(1)]], limit=0.3)
    finally:
        go_on.clear()
        go_on.append(False)


# A rank can ask anything: here it does so without a Comm.

HARMFUL: list[Any] = [
    None,
    7,
    [],
    {},
    {"op": None},
    {"op": "play"},
    {"op": "send"},
    {"op": "send", "to": 1, "array": [1]},
    {"op": "send", "to": 0, "array": np.zeros(1)},
    {"op": "send", "to": 2, "array": np.zeros(1)},
    {"op": "send", "to": "1", "array": np.zeros(1)},
    {"op": "recv", "from": 1, "dtype": "O", "shape": [1]},
    {"op": "recv", "from": 1, "dtype": "<f8", "shape": [-1, -1]},
    {"op": "recv", "from": 1, "dtype": "<f8", "shape": [2**62]},
    {"op": "recv", "from": 1, "dtype": "<f8", "shape": "1"},
    {"op": "return"},
    {"op": "return", "value": 0, "arguments": None},
    {"op": "return", "value": 0, "arguments": []},
    {"op": "raise"},
]


@pytest.mark.parametrize("question", HARMFUL, ids=str)
def test_questions_that_no_comm_asks(question: Any) -> None:
    def f(comm: Any, _array: Any) -> None:
        if comm.rank == 0:
            comm._ask(question)

    with pytest.raises(Crashed, match="rank 0: a message that the grader cannot read"):
        run(f, [[np.zeros(1)], [np.zeros(1)]])


@pytest.mark.parametrize("now", [None, 1, [1.0], np.zeros(2), np.zeros((1, 1)), np.zeros(1, np.int64)])
def test_arguments_that_come_back_as_something_else(now: Any) -> None:
    def f(comm: Any, _array: Any) -> None:
        if comm.rank == 0:
            comm._ask({"op": "return", "value": None, "arguments": [now]})

    with pytest.raises(Failed, match=r"rank 0: argument 0: got .* expected the array given: shape"):
        run(f, [[np.zeros(1)], [np.zeros(1)]])


def test_a_rank_that_sends_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(comm: Any, array: Any) -> None:
        while comm.rank == 0:
            comm.send(array, 1)

    arguments = [[np.zeros(100)], [np.zeros(100)]]
    monkeypatch.setattr(world, "MAX_QUESTIONS", 20)
    with pytest.raises(Failed, match="too many messages and other questions"):
        run(f, arguments)
    monkeypatch.setattr(world, "MAX_UNRECEIVED", 8000)
    with pytest.raises(Failed, match="too many bytes sent"):
        run(f, arguments)


def test_a_rank_that_speaks_without_end() -> None:
    def f(comm: Any) -> None:
        while True:
            comm.time()

    with pytest.raises(TimedOut):
        run(f, [[]], limit=0.2)


@pytest.mark.parametrize(("waits", "error"), [(True, Ungraded), (False, TimedOut)])
def test_a_call_without_end_is_the_machine_s_fault_only_if_ranks_waited_for_a_processor(
    waits: bool, error: type[EndedError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world, "MAX_WAIT", 2)
    start = time.monotonic()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = Channel(theirs, usage=lambda: Used(0.0, False, 0, waits * (time.monotonic() - start)))
        with pytest.raises(error, match="too busy for" if waits else "its ranks waited 0 s for a processor"):
            world.World([channel], limit=0.1).run("f", [[]])


def test_the_first_rank_is_blamed_whichever_raises_first() -> None:
    def f(comm: Any, array: Any) -> None:
        if comm.rank == 3:
            comm.recv(array, 2)
        time.sleep(0.1 * (2 - comm.rank))
        raise ValueError

    with pytest.raises(Crashed, match="rank 0"):
        run(f, [[np.zeros(1)] for _ in range(4)])


def test_the_first_rank_is_blamed_whichever_process_ends_first() -> None:
    pairs = [socket.socketpair() for _ in range(2)]
    pairs[1][0].close()
    timer = threading.Timer(0.2, pairs[0][0].close)
    timer.start()
    with pytest.raises(Crashed, match="rank 0"):
        world.World([Channel(theirs) for _, theirs in pairs], limit=30.0).run("f", [[], []])
    timer.join()
    for _, theirs in pairs:
        theirs.close()


def test_text_of_an_error_is_harmless() -> None:
    def f(_comm: Any) -> None:
        raise ValueError("\x1b[2J\ud800" * 10_000)

    with pytest.raises(Crashed) as raised:
        run(f, [[]])
    assert len(str(raised.value)) < 2100
    str(raised.value).encode()
    assert "\x1b" not in str(raised.value)


def test_a_rank_that_ends_after_it_returned_has_returned() -> None:
    pairs = [socket.socketpair() for _ in range(2)]

    def give(rank: int) -> None:
        pairs[rank][0].sendall(wire.pack({"op": "return", "value": rank, "arguments": []}))
        pairs[rank][0].close()

    give(0)
    timer = threading.Timer(0.2, give, [1])
    timer.start()
    result = world.World([Channel(theirs) for _, theirs in pairs], limit=30.0).run("f", [[], []])
    timer.join()
    for _, theirs in pairs:
        theirs.close()
    assert result.values == [0, 1]
