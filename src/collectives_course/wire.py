"""Values as bytes, for a rank of a student and the grader: JSON for what is small, raw bytes for arrays.

Nothing that is read here is executed, and nothing is larger than the reader allows. A frame is two lengths (header,
payload: 4 and 8 bytes, little-endian), the header as JSON, then the arrays one after another.
"""

import json
import math
import re
import struct
from typing import Any

import numpy as np

from collectives.schedule import Schedule, Step

LENGTHS = struct.Struct("<IQ")
MOST_HEADER, MOST_PAYLOAD = 1 << 20, 32 << 20
MOST_STEPS, MOST_ROWS = 1 << 16, 1 << 19  # of a schedule that is sent
KINDS = "biufc"
DTYPE = re.compile(rf"[<>|][{KINDS}]\d{{1,2}}")


class WireError(ValueError):
    """A frame that cannot be read, or a value that cannot be written."""


def pack(value: Any) -> bytes:
    """A frame: the value as bytes. Numbers, text, None, lists, dicts with text as keys, arrays and schedules.

    Raises WireError for a value of another type, and for one that is too large to be read.

    >>> unpack(*split(pack({"to": 1, "array": np.arange(3)})))["array"].tolist()
    [0, 1, 2]
    """
    arrays: list[bytes] = []
    header = json.dumps(_out(value, arrays)).encode()
    payload = b"".join(arrays)
    start = LENGTHS.pack(len(header), len(payload))
    lengths(start)
    return start + header + payload


def lengths(start: bytes) -> tuple[int, int]:
    """Lengths of header and payload. Raises WireError where one is larger than allowed."""
    header, payload = LENGTHS.unpack(start)
    if header > MOST_HEADER or payload > MOST_PAYLOAD:
        limit = f"at most {MOST_HEADER:,} and {MOST_PAYLOAD:,} bytes"
        raise WireError(f"frame too large: got {header:,} and {payload:,} bytes, expected {limit}")
    return header, payload


def split(frame: bytes) -> tuple[bytes, bytes]:
    """Header and payload of a whole frame."""
    header, payload = lengths(frame[: LENGTHS.size])
    start = LENGTHS.size
    return frame[start : start + header], frame[start + header : start + header + payload]


def unpack(header: bytes, payload: bytes) -> Any:
    """The value of a frame. Raises WireError for a frame that `pack` has not written."""
    reader = _Reader(memoryview(payload))
    try:
        value = reader.value(json.loads(header))
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        raise WireError(f"unreadable frame: {error}") from None
    return value


def _out(value: Any, arrays: list[bytes]) -> Any:
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in KINDS:
            raise WireError(f"arrays of {value.dtype} cannot be sent; expected numbers")
        arrays.append(np.ascontiguousarray(value).tobytes())
        return {"#": "array", "dtype": value.dtype.str, "shape": list(value.shape)}
    if isinstance(value, Schedule):
        return _out_schedule(value, arrays)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {"#": "dict", "items": [[str(key), _out(each, arrays)] for key, each in value.items()]}
    if isinstance(value, list | tuple):
        return [_out(each, arrays) for each in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise WireError(f"a value of type {type(value).__name__} cannot be sent; expected numbers, text, lists or arrays")


def _out_schedule(schedule: Schedule, arrays: list[bytes]) -> Any:
    """Its steps one after another, in five columns, and how many rows each has."""
    steps = _steps(schedule)
    columns = [
        np.concatenate([getattr(step, name) for step in steps] or [np.zeros(0, np.int64)]) for name in Step.__slots__
    ]
    plain = {name: getattr(schedule, name) for name in ("collective", "p", "k", "root", "one_port", "ranks_per_node")}
    rows = np.array([len(step) for step in steps], np.int64)
    return {"#": "schedule", "value": _out({**plain, "rows": rows, "columns": columns}, arrays)}


def place(found: dict[str, Any]) -> tuple[np.dtype[Any], list[int]]:
    """The dtype and the shape of an array that a frame names. Raises WireError where there is no such array."""
    name, shape = found["dtype"], found["shape"]
    lengths_fit = isinstance(shape, list) and len(shape) <= 8 and all(_is_length(each) for each in shape)
    if not isinstance(name, str) or not DTYPE.fullmatch(name) or not lengths_fit:
        raise WireError(f"no array of numbers: {str(name)[:40]!r} {str(shape)[:40]}")
    return np.dtype(name), shape


def _is_length(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MOST_PAYLOAD


def _steps(schedule: Schedule) -> list[Step]:
    """All steps, made one by one, so that a schedule without end is refused before memory is used up."""
    _need_at_most("steps", schedule.nsteps, MOST_STEPS)
    steps, rows = [], 0
    for step in schedule.steps():
        steps.append(step)
        rows += len(step)
        _need_at_most("rows", rows, MOST_ROWS)
    return steps


def _need_at_most(what: str, got: int, most: int) -> None:
    if got > most:
        raise WireError(f"schedule too large: got {got:,} {what}, expected at most {most:,}")


class _Reader:
    """Reads arrays from the payload in the order in which the header names them."""

    def __init__(self, payload: memoryview) -> None:
        self.payload = payload
        self.at = 0

    def value(self, found: Any) -> Any:
        if isinstance(found, list):
            return [self.value(each) for each in found]
        if isinstance(found, str):
            return found.encode(errors="replace").decode()  # half a pair of surrogates fits into no file
        if isinstance(found, int) and not -(1 << 63) <= found < 1 << 64:
            raise WireError("a whole number of more than 64 bits")  # no float and no array holds it
        if not isinstance(found, dict):
            return found
        return {"array": self.array, "schedule": self.schedule, "dict": self.items}[found["#"]](found)

    def items(self, found: dict[str, Any]) -> dict[str, Any]:
        return {str(self.value(key)): self.value(each) for key, each in found["items"]}

    def array(self, found: dict[str, Any]) -> np.ndarray[Any, Any]:
        dtype, shape = place(found)
        size = dtype.itemsize * math.prod(shape)
        if size > len(self.payload) - self.at:
            raise WireError(f"array of {size:,} bytes: got {len(self.payload) - self.at:,}")
        self.at += size
        return np.frombuffer(self.payload[self.at - size : self.at], dtype).reshape(shape).copy()

    def schedule(self, found: dict[str, Any]) -> Schedule:
        given = self.value(found["value"])
        rows, columns = given["rows"], given["columns"]
        _need_at_most("steps", rows.size, MOST_STEPS)
        ends = np.cumsum(rows)
        if rows.ndim != 1 or (rows < 0).any() or any(each.shape != (int(rows.sum()),) for each in columns):
            raise WireError("schedule: rows and columns differ in length")
        steps = [Step(*(each[end - n : end] for each in columns)) for n, end in zip(rows, ends, strict=True)]
        plain = {name: given[name] for name in ("collective", "p", "k", "root", "one_port", "ranks_per_node")}
        return Schedule(nsteps=len(steps), make=steps.__getitem__, **plain)
