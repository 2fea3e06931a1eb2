"""A pickle of plain dicts, lists, tuples, strings and numbers: written, and loaded by a machine of these opcodes alone.

No opcode for globals, calls or persistent ids exists here, so nothing in a file can be executed. CPython's unpickler
with ``find_class`` forbidden is not enough: a place of the memo that a file names takes as much memory as the file
likes, and a key of nested tuples overflows the stack.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

MARK = object()


class Stack(NamedTuple):
    """What the opcodes work on."""

    values: list[Any]
    memo: dict[int, Any]

    def since_mark(self) -> list[Any]:
        """Pop all values above the last mark, and the mark."""
        values = self.values
        at = len(values) - 1
        while values[at] is not MARK:
            if at == 0:
                raise ValueError("no mark")
            at -= 1
        above = values[at + 1 :]
        del values[at:]
        return above

    def last(self, count: int) -> list[Any]:
        """Pop this many values."""
        if len(self.values) < count:
            raise ValueError("too few values")
        above = self.values[-count:]
        del self.values[-count:]
        return above


def _signed(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)


def _count(data: bytes) -> int:
    return int.from_bytes(data, "little")


def _extend(stack: Stack, items: list[Any]) -> None:
    into = stack.values[-1]
    if type(into) is not list:
        raise ValueError("items for what is no list")
    into.extend(items)


def _update(stack: Stack, items: list[Any]) -> None:
    into, keys = stack.values[-1], items[::2]
    if type(into) is not dict or len(items) % 2 or not all(type(key) in (str, int) for key in keys):
        raise ValueError("keys that are no strings")
    into.update(zip(keys, items[1::2], strict=True))


def _put(stack: Stack, place: int) -> None:
    stack.memo[place] = stack.values[-1]


# Opcodes that push a value, and how their argument becomes it.
VALUES: dict[str, Callable[[bytes], Any]] = {
    "N": lambda _: None,
    "\x88": lambda _: True,
    "\x89": lambda _: False,
    "}": lambda _: {},
    "]": lambda _: [],
    ")": lambda _: (),
    "(": lambda _: MARK,
    "K": _count,
    "M": _count,
    "J": _signed,
    "\x8a": _signed,
    "G": lambda data: struct.unpack(">d", data)[0],
    "U": lambda data: data.decode("utf8", "replace"),
    "\x8c": lambda data: data.decode("utf8", "replace"),
    "X": lambda data: data.decode("utf8", "replace"),
    "\x8d": lambda data: data.decode("utf8", "replace"),
}

# Those that change what is there.
CHANGES: dict[str, Callable[[Stack, bytes], None]] = {
    "\x80": lambda stack, data: None,  # noqa: ARG005  PROTO and FRAME
    "\x95": lambda stack, data: None,  # noqa: ARG005
    "h": lambda stack, data: stack.values.append(stack.memo[_count(data)]),
    "j": lambda stack, data: stack.values.append(stack.memo[_count(data)]),
    "q": lambda stack, data: _put(stack, _count(data)),
    "r": lambda stack, data: _put(stack, _count(data)),
    "\x94": lambda stack, _: _put(stack, len(stack.memo)),
    "\x85": lambda stack, _: stack.values.append(tuple(stack.last(1))),
    "\x86": lambda stack, _: stack.values.append(tuple(stack.last(2))),
    "\x87": lambda stack, _: stack.values.append(tuple(stack.last(3))),
    "t": lambda stack, _: stack.values.append(tuple(stack.since_mark())),
    "a": lambda stack, _: _extend(stack, stack.last(1)),
    "e": lambda stack, _: _extend(stack, stack.since_mark()),
    "s": lambda stack, _: _update(stack, stack.last(2)),
    "u": lambda stack, _: _update(stack, stack.since_mark()),
}

# Bytes of an argument; below, bytes that hold the length of one.
FIXED = {"\x80": 1, "K": 1, "h": 1, "q": 1, "M": 2, "J": 4, "j": 4, "r": 4, "G": 8, "\x95": 8}
COUNTED = {"\x8a": 1, "\x8c": 1, "U": 1, "X": 4, "\x8d": 8}
OPCODES = {
    ord(name): (VALUES.get(name), CHANGES.get(name), FIXED.get(name, 0), COUNTED.get(name, 0))
    for name in (*VALUES, *CHANGES)
}
STOP = ord(".")
# Integers that have an opcode of their own.
SMALL = 1 << 31


def written(value: Any) -> bytes:
    """A pickle of protocol 2, as Python's own loader reads it. Raises TypeError for what is not plain.

    >>> load(written({"sizes": [[3, 4], []], "of": ("0", None), "ns": -(1 << 60), "done": True}))
    {'sizes': [[3, 4], []], 'of': ('0', None), 'ns': -1152921504606846976, 'done': True}
    """
    return b"\x80\x02" + b"".join(_parts(value)) + b"."


def _parts(value: Any) -> Iterator[bytes]:
    if value is None or value is True or value is False:
        yield {None: b"N", True: b"\x88", False: b"\x89"}[value]
    elif isinstance(value, int):
        small = -SMALL <= value < SMALL
        yield (b"J" if small else b"\x8a\x10") + value.to_bytes(4 if small else 16, "little", signed=True)
    elif isinstance(value, str):
        data = value.encode("utf8", "replace")
        yield b"X" + len(data).to_bytes(4, "little") + data
    elif isinstance(value, dict):
        yield b"}("
        for key, each in value.items():
            yield from _parts(key)
            yield from _parts(each)
        yield b"u"
    elif isinstance(value, list | tuple):
        yield b"](" if isinstance(value, list) else b"("
        for each in value:
            yield from _parts(each)
        yield b"e" if isinstance(value, list) else b"t"
    else:
        raise TypeError(f"got {type(value).__name__}, expected a plain value")


def load(data: bytes) -> Any:
    """The value in a pickle of protocol 2 to 5. Raises ValueError, in one line, for one that is not plain, or broken.

    >>> import pickle
    >>> load(pickle.dumps({"version": "2.10", "entries": [1, None, ("a", -2.5)]}))
    {'version': '2.10', 'entries': [1, None, ('a', -2.5)]}
    >>> load(pickle.dumps(print))
    Traceback (most recent call last):
        ...
    ValueError: got opcode 0x93 at byte 30, which a pickle of plain values does not have
    """
    stack, at = Stack([], {}), 0
    while at < len(data):
        opcode = data[at]
        if opcode == STOP and len(stack.values) == 1:
            return stack.values[0]
        if opcode not in OPCODES:
            raise ValueError(f"got opcode {opcode:#x} at byte {at}, which a pickle of plain values does not have")
        value, change, size, counted = OPCODES[opcode]
        begin = at + 1 + counted
        end = begin + (_count(data[at + 1 : begin]) if counted else size)
        if end > len(data):
            break
        try:
            if value:
                stack.values.append(value(data[begin:end]))
            elif change:
                change(stack, data[begin:end])
        except (ValueError, LookupError) as error:
            raise ValueError(f"got a broken pickle: opcode {opcode:#x} at byte {at} finds {error}") from None
        at = end
    raise ValueError(f"got a pickle without an end: it is cut at byte {len(data):,}")
