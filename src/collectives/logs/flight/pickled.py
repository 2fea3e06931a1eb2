"""A pickle of plain dicts, lists, tuples, strings and numbers: written, and loaded with the opcodes of these alone.

The standard library's loader in Python does the work. No opcode for globals, calls or persistent ids is left in it, so
nothing in a file can be executed. The loader in C is not enough: a high place of the memo takes as much memory as a
file likes, and a key of nested tuples overflows the stack.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Callable, Iterator
from typing import Any

# Opcodes by what they count, because a file of a megabyte can stand for gigabytes: those that make or enlarge a value,
# and those that name one or read what frames the others.
MAKING = b"}])(tKMJG\x8aUX\x8c\x8d\x85\x86\x87aesu"
NAMING = b"N\x88\x89hjqr\x94\x80\x95."
MOST_PARTS = 1 << 24

# Integers that have an opcode of their own.
SMALL = 1 << 31


def _counted(opcode: int, parts: int) -> Callable[[Any], None]:
    """Return the standard library's function for an opcode, behind checks of keys and of the parts so far."""
    keys = {ord("s"): slice(-2, -1), ord("u"): slice(None, None, 2)}.get(opcode)
    act = pickle._Unpickler.dispatch[opcode]

    def counted(loader: Any) -> None:
        loader.parts += parts
        if loader.parts > MOST_PARTS:
            raise ValueError(f"more than {MOST_PARTS:,} parts")
        for key in loader.stack[keys] if keys else ():
            if type(key) not in (str, int):
                raise ValueError("keys that are no strings")
        act(loader)

    return counted


class _Plain(pickle._Unpickler):
    parts = 0
    dispatch = {opcode: _counted(opcode, 2) for opcode in MAKING} | {opcode: _counted(opcode, 1) for opcode in NAMING}


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
    """Return the value in a pickle of protocol 2 to 5. Raises ValueError, in one line, for one not plain, or broken.

    >>> import pickle
    >>> load(pickle.dumps({"version": "2.10", "entries": [1, None, ("a", -2.5)]}))
    {'version': '2.10', 'entries': [1, None, ('a', -2.5)]}
    >>> load(pickle.dumps(print))
    Traceback (most recent call last):
        ...
    ValueError: got a pickle with opcode 0x93, expected one of plain values
    """
    loader = _Plain(io.BytesIO(data))
    try:
        return loader.load()
    except KeyError as error:
        raise ValueError(f"got a pickle with opcode {error.args[0]:#x}, expected one of plain values") from None
    except EOFError:
        raise ValueError(f"got a pickle without an end: it is cut at byte {len(data):,}") from None
    except (pickle.UnpicklingError, AttributeError, IndexError, TypeError, ValueError, struct.error) as error:
        raise ValueError(f"got a broken pickle: {error}") from None
