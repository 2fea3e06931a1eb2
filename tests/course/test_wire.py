"""Frames: what is packed is read back, and no frame of a stranger does harm."""

import json
import math
from typing import Any

import numpy as np
import pytest

from collectives.algorithms import build
from collectives.schedule import Schedule, Step
from collectives_course import wire
from collectives_course.wire import WireError, pack, split, unpack


def back(value: Any) -> Any:
    return unpack(*split(pack(value)))


@pytest.mark.parametrize(
    "value",
    [None, True, 7, -2.5, "text é", [], {}, [1, [2, {"a": [None]}]], {"#": "array", "b": {"#": 1}}],
)
def test_small_values(value: Any) -> None:
    assert back(value) == value


@pytest.mark.parametrize("dtype", ["?", "i1", "u8", "f2", "f4", ">f8", "c16"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 5), (2, 3)])
def test_arrays(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.arange(math.prod(shape)).astype(dtype).reshape(shape)
    first, second = back([array, array[::-1] if shape else array])
    assert first.dtype == array.dtype
    assert first.shape == shape
    assert (first == array).all()
    assert (second == (array[::-1] if shape else array)).all()
    assert first.flags.writeable


def test_numbers_that_json_has_no_word_for() -> None:
    found = back([math.inf, math.nan, np.float32(1.5), np.int64(3)])
    assert found[0] == math.inf
    assert math.isnan(found[1])
    assert found[2:] == [1.5, 3]


@pytest.mark.parametrize("p", [1, 2, 3, 5, 8])
def test_schedules(p: int) -> None:
    schedule = build("all_reduce", "ring", p)
    found = back({"made": schedule})["made"]
    assert [str(step) for step in found.steps()] == [str(step) for step in schedule.steps()]
    assert (found.collective, found.p, found.k) == ("all_reduce", p, schedule.k)


def test_values_that_cannot_be_sent() -> None:
    for value in (object(), {1, 2}, np.array(["text"]), np.array([object()]), b"bytes"):
        with pytest.raises(WireError, match="cannot be sent"):
            pack(value)
    with pytest.raises(WireError, match="frame too large"):
        pack("x" * (wire.MOST_HEADER + 1))
    with pytest.raises(WireError, match="frame too large"):
        pack(np.zeros(wire.MOST_PAYLOAD + 1, np.uint8))


def array(dtype: Any, shape: Any) -> dict[str, Any]:
    return {"#": "array", "dtype": dtype, "shape": shape}


HARMFUL = [
    b"",
    b"{",
    b"\xff\xfe",
    b"[" * 100_000,
    b"9" * 100_000,
    b"18446744073709551616",
    b"-9223372036854775809",
    b"1e999999999x",
    b'{"a": 1}',
    b'{"#": []}',
    b'{"#": "on_return"}',
    b'{"#": "dict"}',
    b'{"#": "dict", "items": [["a"]]}',
    b'{"#": "dict", "items": {"a": 1}}',
    *(
        json.dumps(array(dtype, [1])).encode()
        for dtype in ("O", "|O8", "V8", "<U4", "|S4", "<M8[s]", "f8,f8", "(2,)<f8", "<f3", "<i16", 8, None, ["f8"])
    ),
    *(
        json.dumps(array("<f8", shape)).encode()
        for shape in ([-1], [-1, -1], [0, 10**30], [2**62, 4], [1.0], [True], ["1"], 1, None, [1] * 9, [[1]], {"0": 1})
    ),
    json.dumps(array("<f8", [2])).encode(),  # the payload has one number
]


@pytest.mark.parametrize("header", HARMFUL, ids=lambda header: header[:40].decode(errors="replace"))
def test_harmful_headers(header: bytes) -> None:
    with pytest.raises(WireError):
        unpack(header, bytes(8))


def test_text_can_be_written_to_a_file() -> None:
    found = unpack(b'{"#": "dict", "items": [["\\ud800", "a\\udfff"]]}', b"")
    assert found == {"?": "a?"}


def test_lengths_beyond_the_limits() -> None:
    for header, payload in ((wire.MOST_HEADER + 1, 0), (0, wire.MOST_PAYLOAD + 1), (2**32 - 1, 2**64 - 1)):
        with pytest.raises(WireError, match="frame too large"):
            wire.lengths(wire.LENGTHS.pack(header, payload))


@pytest.mark.parametrize(
    "wrong",
    [
        {"p": "4"},
        {"p": None},
        {"root": 9},
        {"rows": np.array([-1, 2])},
        {"rows": np.array([1.0])},
        {"rows": np.array([2**62] * 4)},
        {"columns": [np.zeros(1)] * 5},
        {"columns": [np.zeros((1, 1), np.int64)] * 5},
        {"columns": 5},
    ],
)
def test_schedules_that_are_none(wrong: dict[str, Any]) -> None:
    swap = Schedule("all_reduce", p=2, k=1, nsteps=1, make=lambda _t: Step([0], [1], 0, add=True))
    names = ("collective", "p", "k", "root", "one_port", "ranks_per_node")
    columns = [getattr(swap.step(0), name) for name in Step.__slots__]
    given = {name: getattr(swap, name) for name in names} | {"rows": np.array([1]), "columns": columns}
    arrays: list[bytes] = []
    header = {"#": "schedule", "value": wire._out(given | wrong, arrays)}
    with pytest.raises(WireError):
        unpack(json.dumps(header).encode(), b"".join(arrays))
