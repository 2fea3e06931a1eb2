"""A pickle of plain dicts, lists, tuples, strings and numbers, loaded with the opcodes of these alone.

The standard library's loader in Python does the work. No opcode for globals, calls or persistent ids is left in it, so
nothing in a file can be executed. The loader in C is not enough: a high place of the memo takes as much memory as a
file likes, and a key of nested tuples overflows the stack.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Callable
from typing import Any

# Opcodes by what they count, because a file of a megabyte can stand for gigabytes: those that make or enlarge a value,
# and those that name one or read what frames the others.
MAKING = b"}])(tKMJG\x8aUX\x8c\x8d\x85\x86\x87aesu"
NAMING = b"N\x88\x89hjqr\x94\x80\x95."
MOST_PARTS = 1 << 24


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
