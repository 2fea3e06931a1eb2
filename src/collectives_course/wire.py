"""The protocol between a rank of a student and the grader: whole values as frames, one question or answer at a time.

A frame is two lengths (header, payload: 4 and 8 bytes, little-endian), the header as JSON, then the
bytes of the arrays one after another. Nothing that is read here is executed, and sizes, shapes and
dtypes are checked before memory is taken for them. `numpy.lib.format` does neither: it parses an
array's header as Python, and takes the memory that the header asks for before it reads.
"""

import json
import math
import re
import selectors
import socket
import struct
import time
from typing import Any

import numpy as np

from collectives.core.schedule import Schedule, Step

LENGTHS = struct.Struct("<IQ")
MAX_HEADER, MAX_PAYLOAD = 1 << 20, 32 << 20
MAX_STEPS, MAX_ROWS = 1 << 16, 1 << 19  # of a schedule that is sent
KINDS = "biufc"
DTYPE = re.compile(rf"[<>|][{KINDS}]\d{{1,2}}")
# Of a schedule, besides its steps.
FIELDS = ("collective", "p", "k", "root", "one_port", "ranks_per_node")
PIECE = 1 << 20


class WireError(ValueError):
    """A frame that cannot be read, or a value that cannot be written."""


class GoneError(Exception):
    """The other end is closed: its process or thread has ended."""


class Connection:
    """One end of a connection. A blocking one waits in `send` and `receive`, another never does.

    ``moved`` counts the pieces that have come or gone, ``header`` is the size of the last value's
    header in bytes.
    """

    def __init__(self, end: socket.socket, blocking: bool = True) -> None:
        self.end = end
        self.unread = bytearray()
        self.unsent = bytearray()
        self.moved = self.header = 0
        end.setblocking(blocking)

    def ended(self) -> str:
        """Say why the other end is closed."""
        return "the other end has gone"

    def send(self, value: Any) -> None:
        """Send a value. What the socket does not take now goes with `flush`."""
        self.send_frame(pack(value))

    def send_frame(self, frame: bytes) -> None:
        """Send a value that has been packed."""
        self.unsent += frame
        self.flush()

    def flush(self) -> None:
        """Send what the socket takes."""
        try:
            while self.unsent:
                del self.unsent[: self.end.send(memoryview(self.unsent)[:PIECE])]
                self.moved += 1
        except BlockingIOError:
            return
        except OSError:
            self.unsent.clear()  # it has ended, which the next read says

    def receive(self) -> list[Any]:
        """Return the value that has arrived as a whole, or none.

        Raises GoneError, or WireError for bytes that are no value, and for an end that speaks
        before it has read the last answer: one that only sends would otherwise fill this process's
        memory.
        """
        try:
            piece = self.end.recv(PIECE)
        except BlockingIOError:
            return []
        except OSError:
            piece = b""
        if not piece:
            raise GoneError(self.ended())
        self.unread += piece
        self.moved += 1
        if len(self.unread) < LENGTHS.size or len(self.unread) < (size := frame_size(self.unread)):
            return []
        if len(self.unread) > size or self.unsent:
            raise WireError("it speaks before it has read the answer")
        frame, self.unread = bytes(self.unread), bytearray()
        self.header = LENGTHS.unpack_from(frame)[0]
        return [unpack(frame)]

    def ask(self, question: Any) -> Any:
        """Send a question from a blocking end, and return the answer. Raises GoneError."""
        self.send(question)
        return self.next()

    def next(self) -> Any:
        """Wait at a blocking end for the next value, and return it. Raises GoneError."""
        while not (values := self.receive()):
            pass
        return values[0]

    def wait(self, seconds: float) -> Any:
        """Return the next value.

        Raises TimeoutError after so many seconds, and what `receive` raises.
        """
        end = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self.end, selectors.EVENT_READ)
            while (left := end - time.monotonic()) > 0:
                self.flush()
                if selector.select(min(left, 0.1)) and (values := self.receive()):
                    return values[0]
        raise TimeoutError


def pack(value: Any) -> bytes:
    """Return a value as a frame: numbers, text, None, lists, dicts with text as keys, arrays and schedules.

    Raises WireError for a value of another type, and for one that is too large to be read.

    >>> unpack(pack({"to": 1, "array": np.arange(3)}))["array"].tolist()
    [0, 1, 2]
    """
    arrays: list[bytes] = []
    header = json.dumps(_plain(value, arrays)).encode()
    payload = b"".join(arrays)
    lengths = LENGTHS.pack(len(header), len(payload))
    frame_size(lengths)
    return lengths + header + payload


def frame_size(start: bytes | bytearray) -> int:
    """Return the bytes of the frame that begins so.

    Raises WireError for a larger one than is allowed.
    """
    header, payload = LENGTHS.unpack_from(start)
    if header > MAX_HEADER or payload > MAX_PAYLOAD:
        limit = f"at most {MAX_HEADER:,} and {MAX_PAYLOAD:,} bytes"
        raise WireError(f"frame too large: got {header:,} and {payload:,} bytes, expected {limit}")
    return int(LENGTHS.size + header + payload)


def unpack(frame: bytes) -> Any:
    """Return the value of a whole frame. Raises WireError for one that `pack` has not written."""
    end = LENGTHS.size + LENGTHS.unpack_from(frame)[0]
    try:
        return _Reader(memoryview(frame)[end:]).value(json.loads(frame[LENGTHS.size : end]))
    except (
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ) as error:
        raise WireError(f"unreadable frame: {error}") from None


def _plain(value: Any, arrays: list[bytes]) -> Any:
    """Return a value as JSON has it, and append the bytes of its arrays."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in KINDS:
            raise WireError(f"arrays of {value.dtype} cannot be sent; expected numbers")
        arrays.append(np.ascontiguousarray(value).tobytes())
        return {"#": "array", "dtype": value.dtype.str, "shape": list(value.shape)}
    if isinstance(value, Schedule):
        return {"#": "schedule", "value": _plain(_columns(value), arrays)}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {
            "#": "dict",
            "items": [[str(key), _plain(each, arrays)] for key, each in value.items()],
        }
    if isinstance(value, list | tuple):
        return [_plain(each, arrays) for each in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise WireError(
        f"a value of type {type(value).__name__} cannot be sent; expected numbers, text, lists or arrays"
    )


def _columns(schedule: Schedule) -> dict[str, Any]:
    """Return a schedule's fields, its steps one after another in five columns, and how many rows each step has.

    The steps are made one by one, so that a schedule without end is refused before memory is used
    up.
    """
    _check_at_most("steps", schedule.nsteps, MAX_STEPS)
    steps, total = [], 0
    for step in schedule.steps():
        steps.append(step)
        total += len(step)
        _check_at_most("rows", total, MAX_ROWS)
    columns = [
        np.concatenate([getattr(step, name) for step in steps] or [np.zeros(0, np.int64)])
        for name in Step.__slots__
    ]
    rows = np.array([len(step) for step in steps], np.int64)
    return {**{name: getattr(schedule, name) for name in FIELDS}, "rows": rows, "columns": columns}


def _check_at_most(what: str, got: int, most: int) -> None:
    if got > most:
        raise WireError(f"schedule too large: got {got:,} {what}, expected at most {most:,}")


def array_type(found: dict[str, Any]) -> tuple[np.dtype[Any], list[int]]:
    """Return the dtype and the shape of an array that a frame names.

    Raises WireError if there is no such array.
    """
    name, shape = found["dtype"], found["shape"]
    lengths_fit = (
        isinstance(shape, list) and len(shape) <= 8 and all(_is_length(each) for each in shape)
    )
    if not isinstance(name, str) or not DTYPE.fullmatch(name) or not lengths_fit:
        raise WireError(f"no array of numbers: {str(name)[:40]!r} {str(shape)[:40]}")
    return np.dtype(name), shape


def _is_length(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_PAYLOAD


class _Reader:
    """Reads arrays from the payload in the order in which the header names them."""

    def __init__(self, payload: memoryview) -> None:
        self.payload = payload

    def value(self, found: Any) -> Any:
        if isinstance(found, list):
            return [self.value(each) for each in found]
        if isinstance(found, str):
            # Half a pair of surrogates fits into no file.
            return found.encode(errors="replace").decode()
        if isinstance(found, int) and not -(1 << 63) <= found < 1 << 64:
            raise WireError("a whole number of more than 64 bits")  # no float and no array holds it
        if not isinstance(found, dict):
            return found
        return {"array": self.array, "schedule": self.schedule, "dict": self.items}[found["#"]](
            found
        )

    def items(self, found: dict[str, Any]) -> dict[str, Any]:
        return {str(self.value(key)): self.value(each) for key, each in found["items"]}

    def array(self, found: dict[str, Any]) -> np.ndarray[Any, Any]:
        dtype, shape = array_type(found)
        size = dtype.itemsize * math.prod(shape)
        if size > len(self.payload):
            raise WireError(f"array of {size:,} bytes: got {len(self.payload):,}")
        data, self.payload = self.payload[:size], self.payload[size:]
        return np.frombuffer(data, dtype).reshape(shape).copy()

    def schedule(self, found: dict[str, Any]) -> Schedule:
        given = self.value(found["value"])
        rows, columns = given["rows"], given["columns"]
        _check_at_most("steps", rows.size, MAX_STEPS)
        ends = np.cumsum(rows)
        if (
            rows.ndim != 1
            or (rows < 0).any()
            or any(each.shape != (int(rows.sum()),) for each in columns)
        ):
            raise WireError("schedule: rows and columns differ in length")
        steps = [
            Step(*(each[end - n : end] for each in columns))
            for n, end in zip(rows, ends, strict=True)
        ]
        return Schedule(
            nsteps=len(steps), make=steps.__getitem__, **{name: given[name] for name in FIELDS}
        )
