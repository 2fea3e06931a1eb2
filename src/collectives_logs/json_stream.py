"""JSON objects of a file, plain or gzip, one after the other: a window of the file is in memory, never the whole."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from collectives_logs.sources import texts

# The longest object: an event of a trace takes a few hundred bytes.
MAX_OBJECT = 1 << 22

# Letters of a name.
MAX_LETTERS = 300

# After so many places that are no JSON the rest of a file is left out.
MAX_BROKEN = 64

BETWEEN = re.compile(r"[\s,]*")
LINE_OF_OBJECT = re.compile(r"^[ \t]*\{", re.MULTILINE)

Object = dict[str, Any]


def array_in(path: Path, name: re.Pattern[str]) -> tuple[Object, Iterator[Object | None]]:
    """Return what comes before a named array in a file's object, and the array's objects, as `objects` gives them.

    Raises OSError.
    """
    pieces, head = texts(path), ""
    for piece in pieces:
        head += piece
        if found := name.search(head):
            return _members(head[: found.start()]), objects(chain([head[found.end() :]], pieces))
        if len(head) > MAX_OBJECT:
            break
    return {}, iter([None])


def _members(text: str) -> Object:
    try:
        return as_object(json.loads(text.rstrip().rstrip(",") + "}"))
    except (ValueError, RecursionError):
        return {}


def as_object(value: Any) -> Object:
    """Return an object; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def as_text(value: Any) -> str:
    """Return the first line of a text; "" for anything else."""
    start = value[: 2 * MAX_LETTERS].lstrip()[:MAX_LETTERS] if isinstance(value, str) else ""
    return " ".join(start.partition("\n")[0].split())


def as_count(value: Any, most: int = 1 << 50) -> int:
    """Return a whole number from 0 on; 0 for anything else."""
    return value if isinstance(value, int) and 0 <= value <= most else 0


def as_number(value: Any, otherwise: float = math.nan) -> float:
    """Return a number, also one in a text; `otherwise` for anything else.

    >>> as_number("-1"), as_number(None), as_number(10**400, 0.0), as_number(float("inf"))
    (-1.0, nan, 0.0, nan)
    """
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return otherwise
    return number if abs(number) < 1e18 else otherwise


def objects(pieces: Iterable[str]) -> Iterator[Object | None]:
    """Yield the objects in a text, behind each other or at the start of a line.

    None for each place that is no JSON.

    An array's end stops it. Text between lines is passed over, and so is the rest after MAX_BROKEN
    broken places.

    >>> [*objects(['{"a": 1}, {"a"', ': 2}', ' {"a": oops}', chr(10), '{"a": 3}', '], {"a": 4}'])]
    [{'a': 1}, {'a': 2}, None, {'a': 3}]
    """
    source, text, at, broken, has_more = iter(pieces), "", 0, 0, True
    decode = json.JSONDecoder().raw_decode
    while broken <= MAX_BROKEN:
        at = BETWEEN.match(text, at).end()  # type: ignore[union-attr]  # it matches everywhere
        if text.startswith("]", at):
            return
        if not text.startswith("{", at):
            found = LINE_OF_OBJECT.search(text, at)
            at = found.end() - 1 if found else _last_line(text, at)
        if text.startswith("{", at):
            try:
                value, at = decode(text, at)
            except (ValueError, RecursionError):
                if not has_more or len(text) - at > MAX_OBJECT:
                    yield None
                    broken, at = broken + 1, _next_line(text, at)
                    continue
            else:
                yield value
                continue
        if not has_more:
            return
        more = next(source, None)
        has_more, text, at = more is not None, text[at:] + (more or ""), 0


def _next_line(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end + 1


def _last_line(text: str, at: int) -> int:
    """Return where the last line begins, because its rest is to come.

    A line that is too long is dropped.
    """
    at = max(at, text.rfind("\n") + 1)
    return at if len(text) - at <= MAX_OBJECT else len(text)
