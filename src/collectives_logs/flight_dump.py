"""A dump of PyTorch's flight recorder: the groups of one rank and the last calls that it made, from JSON or a pickle.

Versions 2.0 to 2.x are known, as `FlightRecorderDetail.hpp` writes them; keys that are absent, and
entries of wrong types, are left out. Frames are in pickles only.
"""

from __future__ import annotations

import io
import json
import math
import pickle
import re
import struct
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from collectives_logs.json_stream import MAX_LETTERS, as_count, as_number, as_text
from collectives_logs.sources import LogError, opened

# What is read at most: bytes of a pickle, bytes and dicts of JSON; entries of all files together,
# tensors of an entry, their dimensions, elements of a tensor; ranks of a group, groups of a rank;
# and sizes, frames and ranks of all entries and groups of a file, because a pickle names one list
# as often as it likes.
MAX_BYTES, MAX_JSON, MAX_DICTS = 1 << 27, 1 << 25, 1 << 20
MAX_ENTRIES, MAX_TENSORS, MAX_DIMENSIONS, MAX_ELEMENTS = 1 << 21, 1 << 10, 64, 1 << 62
MAX_RANKS, MAX_GROUPS, MAX_PARTS = 1 << 17, 1 << 12, 1 << 22

MESSAGE = re.compile(r"(send|recv) (\d{1,9})(?:->|<-)(\d{1,9})")
AT_END = re.compile(r"(\d{1,9})(?:\.(?:json|pickle|pkl|pt|bin|txt))?$")
# Files whose functions call a collective for the program.
LIBRARY = re.compile(r"/torch/|/collectives/torch_backend/|^<|^torch/")

Shapes = tuple[tuple[int, ...], ...]


class Entry(NamedTuple):
    """A call as one rank recorded it."""

    group: str  # its name
    number: int  # of this collective in its group
    operation: str  # "all_reduce", "send"
    ends: tuple[int, int] | None  # of a message: sender and receiver, as ranks of the group
    inputs: Shapes
    outputs: Shapes
    input_types: tuple[str, ...]
    output_types: tuple[str, ...]
    state: str  # "scheduled", "started", "completed"; "ended" if it is over, well or not
    frame: str  # of the program: "train.py:88 (step)", or ""
    created: int = 0  # when it was called, in ns, by the clock of its host; 0 where it is not known
    timeout: int = 0  # in ms, the same
    lasted: int = 0  # from its start to its end, in ns; 0 where that is not known
    algorithm: str = ""  # where a library says it


class DumpedGroup(NamedTuple):
    """A process group as a rank knows it; no ranks where the dump does not name them."""

    description: str
    ranks: tuple[int, ...]


class Dump(NamedTuple):
    """One file."""

    path: str
    rank: int
    version: str
    host: str
    groups: dict[str, DumpedGroup]  # by name
    entries: list[Entry]
    left_out: int  # entries of wrong types
    is_whole: bool  # the recorder has overwritten none
    library: str = ""  # its version


def begins(start: bytes) -> bool:
    """Return True if a file that begins so is a dump of the flight recorder.

    >>> begins(b'{"entries":[{"collective_seq_id":1}]}'), begins(b'{"version":"2"}'), begins(b"")
    (True, False, False)
    """
    looks = start.lstrip()[:1] == b"{" or start[:1] == b"\x80"
    # Of the profiler, with groups, too.
    is_trace = b'"traceEvents"' in start or b'"distributedInfo"' in start
    return (
        looks and not is_trace and any(key in start for key in (b"collective_seq_id", b"pg_config"))
    )


def read(path: Path, most: int = MAX_ENTRIES, left: PickledParts | None = None) -> Dump:
    """Return the dump in a file, the last ``most`` entries of it; `left`: parts of all pickles.

    Raises LogError.
    """
    try:
        data = b""
        with opened(path) as file:
            data = file.read(MAX_BYTES + 1)
        is_pickle = data[:1] == b"\x80"
        room, dicts = (MAX_BYTES, 0) if is_pickle else (MAX_JSON, data.count(b"{"))
        if len(data) > room or dicts > MAX_DICTS:
            raise ValueError(
                f"got over {room:,} bytes, or over {MAX_DICTS:,} dicts in JSON, expected a rank's dump"
            )
        value = load(data, left) if is_pickle else json.loads(data, parse_constant=_refuse)
        return _dump(path, value, most)
    except OSError as error:
        raise LogError(f"cannot read {path}: {error.strerror}") from None
    except RecursionError:
        raise LogError(
            f"{path}: got values nested too deep, expected a dump of the flight recorder"
        ) from None
    except ValueError as error:
        raise LogError(f"{path}: {str(error).splitlines()[0][:300]}") from None


class _Left:
    """The parts of a file that may still be read. Raises LogError when there are no more."""

    parts = MAX_PARTS

    def take(self, parts: Sized) -> None:
        self.parts -= 1 + len(parts)
        if self.parts < 0:
            raise LogError(
                f"got more than {MAX_PARTS:,} sizes, frames and ranks, expected a dump of one rank"
            )


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"got {name}, which is not JSON")


def _dump(path: Path, value: Any, most: int) -> Dump:
    if not isinstance(value, dict):
        raise ValueError(f"got a {type(value).__name__}, expected the dict of a dump")
    found = AT_END.search(path.name)
    rank = value["rank"] if _is_count(value.get("rank")) else int(found[1]) if found else -1
    if not 0 <= rank < MAX_RANKS:
        raise ValueError(
            "got no rank, expected one in the dump, or a number at the end of the file's name"
        )
    raw = value.get("entries", [])
    raw = raw if isinstance(raw, list) else []
    left = _Left()
    entries = list(_entries(raw[-most:], left))
    first = raw[0].get("record_id") if raw and isinstance(raw[0], dict) else 0
    return Dump(
        str(path),
        rank,
        as_text(value.get("version")),
        as_text(value.get("host_name")),
        _groups(value.get("pg_config"), left),
        entries,
        min(len(raw), most) - len(entries),
        first == 0 and len(raw) <= most,
        as_text(value.get("comm_lib_version")),
    )


def _entries(raw: list[Any], left: _Left) -> Iterator[Entry]:
    """Yield the entries of right types; equal parts of them are shared."""
    known: dict[Any, Any] = {}
    for each in raw:
        try:
            entry = _entry(each, left)
        except LogError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
            continue
        yield Entry._make(
            part if type(part) is int else known.setdefault(part, part) for part in entry
        )


def _entry(raw: Any, left: _Left) -> Entry:
    """Return one entry.

    Raises one of several errors if a part that is needed is absent or has a wrong type.
    """
    group = raw["process_group"]
    name = group[0] if isinstance(group, list | tuple) and group else group
    number = raw.get("collective_seq_id", raw.get("seq_id"))
    if not isinstance(name, str) or not _is_count(number):
        raise ValueError("a group's name and a number")
    called = raw["profiling_name"]
    if not isinstance(called, str):
        raise TypeError("a call's name")
    back_end, _, operation = called[:MAX_LETTERS].rpartition(":")
    message = MESSAGE.fullmatch(operation)
    ends = None
    if message:
        a, b = int(message[2]), int(message[3])
        operation, ends = message[1], (a, b) if message[1] == "send" else (b, a)
    return Entry(
        name[:MAX_LETTERS],
        number,
        operation,
        ends,
        _shapes(raw.get("input_sizes"), left),
        _shapes(raw.get("output_sizes"), left),
        _names(raw.get("input_dtypes"), left),
        _names(raw.get("output_dtypes"), left),
        _state(raw, back_end),
        _frame(raw.get("frames"), left),
        as_count(raw.get("time_created_ns"), MAX_ELEMENTS),
        as_count(raw.get("timeout_ms"), MAX_ELEMENTS),
        _lasted(raw),
        as_text(raw.get("algorithm")),
    )


def _lasted(raw: Any) -> int:
    """Return a call's nanoseconds, or 0: by CUDA's events where they were recorded, else as the watchdog saw it."""
    by_events = as_number(raw.get("duration_ms"), 0.0)
    if by_events > 0:
        return min(round(by_events * 1e6), MAX_ELEMENTS)
    start, end = (
        as_count(raw.get(f"time_discovered_{what}_ns"), MAX_ELEMENTS)
        for what in ("started", "completed")
    )
    return end - start if 0 < start < end else 0


def _state(raw: Any, back_end: str) -> str:
    """Return the state; gloo leaves every entry scheduled, and tells only that it is over."""
    state = raw.get("state")
    if state not in ("scheduled", "started", "completed"):
        raise ValueError("a state")
    return (
        "ended"
        if back_end == "gloo" and state == "scheduled" and raw.get("retired") is True
        else str(state)
    )


def _shapes(raw: Any, left: _Left) -> Shapes:
    """Return the sizes of each tensor."""
    shapes = tuple(tuple(sizes[: MAX_DIMENSIONS + 1]) for sizes in _of_tensors(raw, left))
    for sizes in shapes:
        left.take(sizes)
        if len(sizes) > MAX_DIMENSIONS or not all(_is_count(size) for size in sizes):
            raise ValueError("sizes")
        if math.prod(sizes) > MAX_ELEMENTS:
            raise ValueError("elements")
    return shapes


def _names(raw: Any, left: _Left) -> tuple[str, ...]:
    return tuple(as_text(each) for each in _of_tensors(raw, left))


def _of_tensors(raw: Any, left: _Left) -> Sequence[Any]:
    """Return a part for each tensor; none where the key is absent."""
    if raw is None:
        return ()
    if not isinstance(raw, list | tuple) or len(raw) > MAX_TENSORS:
        raise ValueError("tensors")
    left.take(raw)
    return raw


def _frame(raw: Any, left: _Left) -> str:
    """Return the innermost frame of the program itself; of torch's own where there is no other."""
    frames = raw[:MAX_DIMENSIONS] if isinstance(raw, list) else []
    left.take(frames)
    called = [
        f"{as_text(frame.get('filename'))}:{frame.get('line')} ({as_text(frame.get('name'))})"
        for frame in frames
        if isinstance(frame, dict) and _is_count(frame.get("line"))
    ]
    return next((each for each in called if not LIBRARY.search(each)), called[0] if called else "")


def _groups(raw: Any, left: _Left) -> dict[str, DumpedGroup]:
    found = list(raw.items())[:MAX_GROUPS] if isinstance(raw, dict) else []
    return {
        name[:MAX_LETTERS]: DumpedGroup(as_text(of.get("desc")), _ranks(of.get("ranks"), left))
        for name, of in found
        if isinstance(name, str) and isinstance(of, dict)
    }


def _ranks(raw: Any, left: _Left) -> tuple[int, ...]:
    """Return the ranks of a group: torch writes their list as a text, "[0, 1]".

    None if it is broken.
    """
    if isinstance(raw, str) and re.fullmatch(r"\[[\d, ]*\]", raw[: 8 * MAX_RANKS]):
        raw = [int(each) for each in re.findall(r"\d{1,9}", raw)]
    if not isinstance(raw, list) or len(raw) > MAX_RANKS:
        return ()
    left.take(raw)
    return (
        tuple(sorted({each for each in raw if each < MAX_RANKS}))
        if all(map(_is_count, raw))
        else ()
    )


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_ELEMENTS


# Opcodes by what they count, because a file of a megabyte can stand for gigabytes: those that make
# or enlarge a value, and those that name one or read what frames the others.
MAKING = b"}])(tKMJG\x8aUX\x8c\x8d\x85\x86\x87aesu"
NAMING = b"N\x88\x89hjqr\x94\x80\x95."
MAX_PICKLED = 1 << 24


def _counted(opcode: int, parts: int) -> Callable[[Any], None]:
    """Return the standard library's function for an opcode, behind checks of keys and of the parts so far."""
    keys = {ord("s"): slice(-2, -1), ord("u"): slice(None, None, 2)}.get(opcode)
    act = pickle._Unpickler.dispatch[opcode]

    def counted(loader: Any) -> None:
        loader.left.parts -= parts
        if loader.left.parts < 0:
            raise ValueError(f"more than {MAX_PICKLED:,} parts in all files")
        for key in loader.stack[keys] if keys else ():
            if type(key) not in (str, int):
                raise ValueError("keys that are no strings")
        act(loader)

    return counted


@dataclass
class PickledParts:
    """The parts that all pickles of a call may still have."""

    parts: int = MAX_PICKLED


class _Plain(pickle._Unpickler):
    left: PickledParts
    dispatch = {opcode: _counted(opcode, 2) for opcode in MAKING} | {
        opcode: _counted(opcode, 1) for opcode in NAMING
    }


def load(data: bytes, left: PickledParts | None = None) -> Any:
    """Return the value in a pickle of protocol 2 to 5.

    Raises ValueError, in one line, for one not plain, or broken.

    >>> import pickle
    >>> load(pickle.dumps({"version": "2.10", "entries": [1, None, ("a", -2.5)]}))
    {'version': '2.10', 'entries': [1, None, ('a', -2.5)]}
    >>> load(pickle.dumps(print))
    Traceback (most recent call last):
        ...
    ValueError: got a pickle with opcode 0x93, expected one of plain values
    """
    loader = _Plain(io.BytesIO(data))
    loader.left = left or PickledParts()
    try:
        return loader.load()
    except KeyError as error:
        raise ValueError(
            f"got a pickle with opcode {error.args[0]:#x}, expected one of plain values"
        ) from None
    except EOFError:
        raise ValueError(f"got a pickle without an end: it is cut at byte {len(data):,}") from None
    except (
        pickle.UnpicklingError,
        AttributeError,
        IndexError,
        TypeError,
        ValueError,
        struct.error,
    ) as error:
        raise ValueError(f"got a broken pickle: {error}") from None
