"""Ranks as threads: what a message costs, who waits for whom, what no rank may do, and what a Comm lets through."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from collectives_course import wire, world
from collectives_course.comm import Comm, CommError
from collectives_course.local import run
from collectives_course.verdict import Crashed, EndedError, Failed, TimedOut, Ungraded
from collectives_course.world import Channel, Network, RunResult, Used

ALPHA, BETA = 3.0, 0.5
SLOW = Network(alpha=ALPHA, beta=BETA)


def vectors(p: int = 2, n: int = 1) -> list[list[Any]]:
    return [[np.full(n, float(rank))] for rank in range(p)]


def ring(comm: Any, array: Any) -> None:
    """All-gather of one row of each rank, by a ring."""
    for step in range(comm.size - 1):
        out, into = (comm.rank - step) % comm.size, (comm.rank - step - 1) % comm.size
        comm.sendrecv(
            array[out], (comm.rank + 1) % comm.size, array[into], (comm.rank - 1) % comm.size
        )


def rows(p: int, n: int) -> list[list[Any]]:
    whole = np.arange(p * n, dtype=np.float64).reshape(p, n) + 1
    return [[np.where(np.arange(p)[:, None] == rank, whole, 0)] for rank in range(p)]


@pytest.mark.parametrize("small_buffers", [False, True])
@pytest.mark.parametrize("p", [1, 2, 3, 5, 8])
def test_a_ring_takes_its_closed_form(p: int, small_buffers: bool) -> None:
    n = 4
    result = run(ring, rows(p, n), Network(ALPHA, BETA, small_buffers))
    assert all(
        (after[0] == np.arange(1, p * n + 1).reshape(p, n)).all() for after in result.arguments
    )
    assert result.seconds == (p - 1) * (ALPHA + BETA * 8 * n)
    assert result.bytes_sent(p) == [(p - 1) * 8 * n] * p
    assert result.messages_sent(p) == [p - 1] * p


def test_the_same_ten_times_of_ten() -> None:
    def seen(result: RunResult) -> object:
        return (
            sorted(result.sent),
            result.seconds,
            result.unreceived,
            [after[0].tolist() for after in result.arguments],
        )

    network = Network(ALPHA, BETA, late=(0.0, 5.0, 1.0, 0.0, 2.0))
    first = seen(run(ring, rows(5, 3), network))
    assert all(seen(run(ring, rows(5, 3), network)) == first for _ in range(9))


def test_values_and_arguments_of_every_rank() -> None:
    def f(comm: Any, array: Any, scale: int) -> dict[str, Any]:
        array *= scale
        return {"rank": comm.rank, "of": comm.size, "sum": array.sum()}

    given = [[np.arange(3.0) + rank, 10] for rank in range(3)]
    result = run(f, given)
    assert result.values == [{"rank": r, "of": 3, "sum": 30.0 + 30 * r} for r in range(3)]
    assert [after[0].tolist() for after in result.arguments] == [
        [10.0 * (r + i) for i in range(3)] for r in range(3)
    ]
    assert given[1][0].tolist() == [1, 2, 3]  # the caller's stay as they are


def test_a_send_returns_at_once_and_with_small_buffers_when_it_is_received() -> None:
    def f(comm: Any, array: Any) -> float:
        for _ in range(2):
            comm.send(array, 1) if comm.rank == 0 else comm.recv(array, 0)
        return float(comm.time())

    cost = ALPHA + BETA * 16
    assert run(f, vectors(n=2), SLOW).values == [0, 2 * cost]
    assert run(f, vectors(n=2), Network(ALPHA, BETA, small_buffers=True)).values == [
        2 * cost,
        2 * cost,
    ]


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

    result = run(f, vectors(n=2))
    assert [after[0].tolist() for after in result.arguments] == [[9, 9], [0, 0]]
    assert result.unreceived == [(0, 1)]


def receive_in_a_circle(comm: Any, array: Any) -> None:
    comm.recv(array, (comm.rank + 1) % comm.size)


def send_then_receive(comm: Any, array: Any) -> None:
    comm.send(array, 1 - comm.rank)
    comm.recv(array, 1 - comm.rank)


def receive_from_one_that_returned(comm: Any, array: Any) -> None:
    if comm.rank:
        comm.recv(array, 0)


def raise_key_error(comm: Any, _array: Any) -> None:
    if comm.rank == 1:
        raise KeyError("gone")


def not_written(_comm: Any, _array: Any) -> None:
    raise NotImplementedError("add them")


def send(sent: Any, into: Any) -> Callable[[Any, Any], None]:
    return lambda comm, _: comm.send(sent, 1) if comm.rank == 0 else comm.recv(into, 0)


@pytest.mark.parametrize(
    ("function", "p", "small_buffers", "error", "message"),
    [
        (
            receive_in_a_circle,
            3,
            False,
            Failed,
            r"ranks 0, 1 and 2 wait for each other: rank 0 waits \(line 1\) to rec",
        ),
        (
            send_then_receive,
            2,
            True,
            Failed,
            r"ranks 0 and 1 wait for each other: rank 0 waits .* to send to rank 1",
        ),
        (
            receive_from_one_that_returned,
            2,
            False,
            Failed,
            r"rank 1 waits .* to receive from rank 0, which has returned",
        ),
        (raise_key_error, 2, False, Crashed, r"rank 1 \(test_world.py, line 2\): KeyError: 'gone'"),
        (not_written, 1, False, Failed, r"not written yet .*: add them"),
        (
            send(np.zeros(3), np.zeros(2)),
            2,
            False,
            Failed,
            "2 of float64, rank 0 sent 3 elements of float64",
        ),
        (
            send(np.zeros(2, "f4"), np.zeros(2)),
            2,
            False,
            Failed,
            "2 of float64, rank 0 sent 2 elements of float32",
        ),
        (
            send(np.zeros(0), np.zeros(1)),
            2,
            False,
            Failed,
            "receives 1 of float64, rank 0 sent 0 elements",
        ),
    ],
)
def test_what_goes_wrong_is_told_with_its_rank_and_line(
    function: Any, p: int, small_buffers: bool, error: type[EndedError], message: str
) -> None:
    before = threading.active_count()
    first = function.__code__.co_firstlineno
    message = message.replace("line 1", f"line {first + 1}").replace("line 2", f"line {first + 2}")
    with pytest.raises(error, match=message):
        run(function, vectors(p), Network(small_buffers=small_buffers))
    assert threading.active_count() == before
    if function is send_then_receive:
        assert run(function, vectors()).arguments[0][0].tolist() == [1]


@pytest.mark.parametrize(
    ("message", "peer", "expected"),
    [
        *((np.zeros(1), peer, "another rank from 0 to 1") for peer in (-1, 2, 0, 1.0, "1", None)),
        *(
            (each, 1, "a numpy array of numbers")
            for each in ([1.0], 1.0, None, np.array(["a"]), np.array([None]))
        ),
    ],
)
def test_a_comm_sends_numbers_to_other_ranks_only(message: Any, peer: Any, expected: str) -> None:
    comm = Comm(0, 2, lambda question: pytest.fail(f"it asked {question}"))
    with pytest.raises(CommError, match=f"expected {expected}"):
        comm.send(message, peer)


def test_what_a_comm_asks() -> None:
    questions: list[dict[str, Any]] = []

    def ask(question: dict[str, Any]) -> dict[str, Any]:
        questions.append(question)
        return {"array": np.array([7.0, 8.0]), "time": 2}

    comm = Comm(1, 4, ask, "test_world.py")
    out, into = np.arange(3), np.zeros(2)
    comm.send(out, 2)
    comm.recv(into, 0)
    assert into.tolist() == [7, 8]
    comm.sendrecv(out, np.int64(3), into[::-1], 0)
    assert into.tolist() == [8, 7]
    assert comm.time() == 2
    assert [each["op"] for each in questions] == ["send", "recv", "sendrecv", "time"]
    assert {"from": 0, "dtype": "<f8", "shape": [2]}.items() <= questions[1].items()
    assert questions[2]["to"] == 3
    assert questions[2]["from"] == 0
    assert questions[0]["line"] == test_what_a_comm_asks.__code__.co_firstlineno + 9


def test_a_rank_that_does_not_return_is_told_with_its_line() -> None:
    go_on = [True]

    def f(comm: Any, array: Any) -> None:
        while comm.rank == 0 and go_on[0]:
            pass
        comm.recv(array, 0)

    line = f.__code__.co_firstlineno + 1
    try:
        with pytest.raises(
            TimedOut, match=rf"rank 0 has used the 0.3 s .* line {line}\); rank 1 waited"
        ):
            run(f, vectors(), limit=0.3)
    finally:
        go_on[:] = [False]


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
    *({"op": "send", "to": to, "array": np.zeros(1)} for to in (0, 2, "1")),
    {"op": "recv", "from": 1, "dtype": "O", "shape": [1]},
    *(
        {"op": "recv", "from": 1, "dtype": "<f8", "shape": shape}
        for shape in ([-1, -1], [2**62], "1")
    ),
    {"op": "return"},
    *({"op": "return", "value": 0, "arguments": arguments} for arguments in (None, [])),
    {"op": "raise"},
]
OTHERS = [None, 1, [1.0], np.zeros(2), np.zeros((1, 1)), np.zeros(1, np.int64)]
ANOTHER = r"rank 0: argument 0: got .* expected the array given: shape"


@pytest.mark.parametrize(
    ("question", "error", "message"),
    [
        *((each, Crashed, "rank 0: a message that the grader cannot read") for each in HARMFUL),
        *(({"op": "return", "value": None, "arguments": [now]}, Failed, ANOTHER) for now in OTHERS),
    ],
    ids=str,
)
def test_questions_that_no_comm_asks(question: Any, error: type[EndedError], message: str) -> None:
    with pytest.raises(error, match=message):
        run(lambda comm, _array: comm._ask(question) if comm.rank == 0 else None, vectors())


@pytest.mark.parametrize(
    ("name", "limit", "message"),
    [
        ("MAX_QUESTIONS", 20, "too many messages and other questions"),
        ("MAX_UNRECEIVED", 8000, "too many bytes sent"),
    ],
)
def test_a_rank_that_sends_without_end(
    name: str, limit: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def f(comm: Any, array: Any) -> None:
        while comm.rank == 0:
            comm.send(array, 1)

    monkeypatch.setattr(world, name, limit)
    with pytest.raises(Failed, match=message):
        run(f, vectors(n=100))


def test_a_rank_that_speaks_without_end() -> None:
    def f(comm: Any) -> None:
        while True:
            comm.time()

    with pytest.raises(TimedOut):
        run(f, [[]], limit=0.2)


@contextmanager
def hand_made(count: int) -> Iterator[tuple[world.World, list[socket.socket]]]:
    """A world whose ranks this test plays, and their ends of the connections."""
    pairs = [socket.socketpair() for _ in range(count)]
    yield (
        world.World([Channel(ours) for ours, _ in pairs], limit=30.0),
        [theirs for _, theirs in pairs],
    )
    for ours, theirs in pairs:
        ours.close()
        theirs.close()


@pytest.mark.parametrize(("waits", "error"), [(True, Ungraded), (False, TimedOut)])
def test_a_call_without_end_is_the_machine_s_fault_only_if_ranks_waited_for_a_processor(
    waits: bool, error: type[EndedError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world, "MAX_WAIT", 2)
    start = time.monotonic()
    with hand_made(1) as (made, _):
        made.limit = 0.1
        made.channels[0].meter.usage = lambda: Used(
            0.0, False, 0, waits * (time.monotonic() - start)
        )
        with pytest.raises(
            error, match="too busy for" if waits else "its ranks waited 0 s for a processor"
        ):
            made.run("f", [[]])


def test_the_first_rank_is_blamed_whichever_raises_first() -> None:
    def f(comm: Any, array: Any) -> None:
        if comm.rank == 3:
            comm.recv(array, 2)
        time.sleep(0.1 * (2 - comm.rank))
        raise ValueError

    with pytest.raises(Crashed, match="rank 0"):
        run(f, vectors(4))


@pytest.mark.parametrize("returned", [False, True])
def test_ranks_that_end_one_after_the_other(returned: bool) -> None:
    def end(rank: int) -> None:
        if returned:
            theirs[rank].sendall(wire.pack({"op": "return", "value": rank, "arguments": []}))
        theirs[rank].close()

    with hand_made(2) as (made, theirs):
        end(1)
        timer = threading.Timer(0.2, end, [0])
        timer.start()
        if returned:  # before it ended
            assert made.run("f", [[], []]).values == [0, 1]
        else:  # the first is blamed, whichever ends first
            with pytest.raises(Crashed, match="rank 0"):
                made.run("f", [[], []])
        timer.join()


def test_text_of_an_error_is_harmless() -> None:
    def f(_comm: Any) -> None:
        raise ValueError("\x1b[2J\ud800" * 10_000)

    with pytest.raises(Crashed) as raised:
        run(f, [[]])
    assert len(str(raised.value)) < 2100
    assert "\x1b" not in str(raised.value).encode().decode()


def test_what_the_grader_spends_to_read_a_rank_counts_as_the_ranks() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = Channel(ours, usage=lambda: Used(0.0, False))
        wire.Connection(theirs).send(
            {"op": "return", "value": list(range(10_000)), "arguments": []}
        )
        while not channel.receive():
            pass
        assert channel.meter.spent > 0


def test_a_question_with_more_than_its_own_keys_is_refused() -> None:
    def f(comm: Any, _array: Any) -> None:
        comm._question(op="time", more=1)

    with pytest.raises(Crashed, match="a message that the grader cannot read"):
        run(f, vectors())


def test_a_long_question_is_refused_but_a_long_result_is_not() -> None:
    def f(comm: Any, _array: Any, long: list[int]) -> list[int]:
        return (
            long
            if len(long) > 5000
            else comm._question(op="recv", dtype="<f8", shape=long, **{"from": 1})
        )

    assert run(f, [[np.zeros(1), list(range(6000))]]).values[0] == list(range(6000))
    with pytest.raises(Crashed, match="a message that the grader cannot read"):
        run(f, [[np.zeros(1), list(range(3000))]])
