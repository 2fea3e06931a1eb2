"""The protocol between a rank and the grader: what is packed is read back, and no bytes of a hostile rank do harm."""

import json
import math
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from collectives.algorithms import build
from collectives.core.schedule import Schedule, Step
from collectives_course import wire
from collectives_course.wire import FIELDS, LENGTHS, GoneError, WireError, frame_size, pack, unpack
from collectives_course.world import Channel

Pair = tuple[Channel, socket.socket]


def frame(header: Any, payload: bytes = b"") -> bytes:
    """A frame as a hostile rank may write it: any bytes, or anything that JSON has, as its header."""
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    return LENGTHS.pack(len(header), len(payload)) + header + payload


@pytest.mark.parametrize(
    "value",
    [None, True, 7, -2.5, "text é", [], {}, [1, [2, {"a": [None]}]], {"#": "array", "b": {"#": 1}}],
)
def test_small_values(value: Any) -> None:
    assert unpack(pack(value)) == value


@pytest.mark.parametrize("dtype", ["?", "i1", "u8", "f2", "f4", ">f8", "c16"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 5), (2, 3)])
def test_arrays(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.arange(math.prod(shape)).astype(dtype).reshape(shape)
    first, second = unpack(pack([array, array[::-1] if shape else array]))
    assert first.dtype == array.dtype
    assert first.shape == shape
    assert first.flags.writeable
    assert (first == array).all()
    assert (second == (array[::-1] if shape else array)).all()


def test_numbers_that_json_has_no_word_for() -> None:
    found = unpack(pack([math.inf, math.nan, np.float32(1.5), np.int64(3)]))
    assert found[0] == math.inf
    assert math.isnan(found[1])
    assert found[2:] == [1.5, 3]


@pytest.mark.parametrize("p", [1, 2, 3, 5, 8])
def test_schedules(p: int) -> None:
    schedule = build("all_reduce", "ring", p)
    found = unpack(pack({"made": schedule}))["made"]
    assert [str(step) for step in found.steps()] == [str(step) for step in schedule.steps()]
    assert found.collective == "all_reduce"
    assert found.p == p
    assert found.k == schedule.k


ENDLESS = Schedule("all_reduce", 2, 1, 10**9, lambda _: Step([], [], []))
WIDE = Schedule("all_reduce", 2, 1, 1000, lambda _: Step(np.zeros(10**4, int), 1, 0))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        *(
            (value, "cannot be sent")
            for value in (object(), {1, 2}, np.array(["a"]), np.array([object()]), b"bytes")
        ),
        ("x" * (wire.MAX_HEADER + 1), "frame too large"),
        (np.zeros(wire.MAX_PAYLOAD + 1, np.uint8), "frame too large"),
        (ENDLESS, "got 1,000,000,000 steps, expected at most 65,536"),
        (WIDE, "rows, expected at most 524,288"),
    ],
)
def test_values_that_cannot_be_sent(value: Any, message: str) -> None:
    with pytest.raises(WireError, match=message):
        pack(value)


def array(dtype: Any, shape: Any) -> dict[str, Any]:
    return {"#": "array", "dtype": dtype, "shape": shape}


DTYPES = (
    "O",
    "|O8",
    "V8",
    "<U4",
    "|S4",
    "<M8[s]",
    "f8,f8",
    "(2,)<f8",
    "(2,i8",
    "<f3",
    "<i16",
    8,
    None,
    ["f8"],
)
SHAPES = (
    [-1],
    [-1, -1],
    [0, 10**30],
    [2**62, 4],
    [1.0],
    [1e400],
    [True],
    ["1"],
    1,
    None,
    [1] * 9,
    [[1]],
    {"0": 1},
)
HARMFUL = [
    b"",
    b"{",
    b"\xff\xfe",
    b"[" * 100_000,
    b"9" * 100_000,
    b"18446744073709551616",
    b"-9223372036854775809",
    b"1e999999999x",
    {"a": 1},
    {"#": []},
    {"#": "on_return"},
    {"#": "dict"},
    {"#": "dict", "items": [["a"]]},
    {"#": "dict", "items": {"a": 1}},
    *(array(dtype, [1]) for dtype in DTYPES),
    *(array("<f8", shape) for shape in SHAPES),
    array("<f8", [2]),  # the payload has one number
]


@pytest.mark.parametrize("header", HARMFUL, ids=lambda header: str(header)[:40])
def test_harmful_headers(header: Any) -> None:
    with pytest.raises(WireError):
        unpack(frame(header, bytes(8)))


SWAP = Schedule("all_reduce", p=2, k=1, nsteps=1, make=lambda _t: Step([0], [1], 0, add=True))


def changed(**fields: Any) -> bytes:
    """The frame of a schedule, with other values of its fields, or headers of them as JSON."""
    columns = [getattr(SWAP.step(0), name) for name in Step.__slots__]
    given = {name: getattr(SWAP, name) for name in FIELDS} | {
        "rows": np.array([1]),
        "columns": columns,
    }
    arrays: list[bytes] = []
    header = wire._plain(
        given | {name: each for name, each in fields.items() if not isinstance(each, dict)}, arrays
    )
    header["items"] += [[name, each] for name, each in fields.items() if isinstance(each, dict)]
    return frame({"#": "schedule", "value": header}, b"".join(arrays))


@pytest.mark.parametrize(
    "fields",
    [
        *({"p": p} for p in ("2", "4", None, 0)),
        *({"k": k} for k in (1.5, -1)),
        *({"root": root} for root in (7, 9, "0")),
        *({"ranks_per_node": g} for g in (0, 3)),
        {"collective": []},
        {"collective": "all_to_all", "p": 2**62},
        *(
            {"rows": rows}
            for rows in (5, [1], np.array([-1, 2]), np.array([1.0]), np.array([2**62] * 4))
        ),
        *({"rows": array(dtype, [1])} for dtype in ("(2,i8", "O")),
        *({"rows": array("<i8", shape)} for shape in ([float("inf")], [-1])),
        {"rows": {"#": "nothing"}},
        {"columns": []},
        *(
            {"columns": columns}
            for columns in (3, [[1], [2]], [np.zeros(1)] * 5, [np.zeros((1, 1), np.int64)] * 5)
        ),
    ],
)
def test_schedules_that_are_none(fields: dict[str, Any]) -> None:
    with pytest.raises(WireError):
        unpack(changed(**fields))


def test_a_schedule_that_is_one() -> None:
    assert str(unpack(changed()).step(0)) == str(SWAP.step(0))


def test_many_empty_steps_are_not_unpacked() -> None:
    with pytest.raises(WireError, match="65,537 steps"):
        unpack(
            changed(
                rows=np.zeros(wire.MAX_STEPS + 1, np.int64), columns=[np.zeros(0, np.int64)] * 5
            )
        )


def test_text_can_be_written_to_a_file() -> None:
    assert unpack(frame(b'{"#": "dict", "items": [["\\ud800", "a\\udfff"]]}')) == {"?": "a?"}


@pytest.mark.parametrize(
    ("header", "payload"),
    [(wire.MAX_HEADER + 1, 0), (0, wire.MAX_PAYLOAD + 1), (2**32 - 1, 2**64 - 1)],
)
def test_lengths_beyond_the_limits(header: int, payload: int) -> None:
    with pytest.raises(WireError, match="frame too large"):
        frame_size(LENGTHS.pack(header, payload))


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Channel(ours, lambda: "it has gone"), theirs


def test_a_value_in_pieces(pair: Pair) -> None:
    channel, theirs = pair
    sent = pack({"op": "time"})
    for byte in sent[:-1]:
        theirs.sendall(bytes([byte]))
        assert channel.receive() == []
    theirs.sendall(sent[-1:])
    assert channel.receive() == [{"op": "time"}]
    assert channel.receive() == []


@pytest.mark.parametrize(
    ("answer", "sent", "message"),
    [
        (None, pack(1) + pack(2)[:1], "speaks before"),
        (np.zeros(1 << 20), pack(1), "speaks before"),  # it has not read the answer
        (None, LENGTHS.pack(0, 1 << 40), "frame too large"),  # before the frame has come
    ],
)
def test_bytes_that_end_a_connection(pair: Pair, answer: Any, sent: bytes, message: str) -> None:
    channel, theirs = pair
    if answer is not None:
        channel.send(answer)
    theirs.sendall(sent)
    with pytest.raises(WireError, match=message):
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
    size = len(pack(array))
    received = bytearray()
    while len(received) < size:
        received += theirs.recv(1 << 16)
        channel.flush()
    assert (unpack(bytes(received)) == array).all()


def test_wait(pair: Pair) -> None:
    channel, theirs = pair
    with pytest.raises(TimeoutError):
        channel.wait(0.01)
    theirs.sendall(pack("ready"))
    assert channel.wait(5) == "ready"
