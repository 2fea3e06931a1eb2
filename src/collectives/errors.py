"""Say what was wrong with an input in one plain line each, instead of a library's traceback."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic import ValidationError


def explain(error: ValidationError) -> str:
    """What pydantic found, as ``name: what is wrong, got …``; names of our own checks are left out."""
    lines = []
    for found in error.errors():
        where, what = ".".join(map(str, found["loc"])), found["msg"].removeprefix("Value error, ")
        lines.append(f"{where}: {what}, got {found['input']!r}" if where else what)
    return "; ".join(lines)


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """An unknown name, what it was probably meant to be, and what is known.

    >>> unknown("parameter", "rnaks", ["ranks", "sizes"])
    "unknown parameter 'rnaks': did you mean 'ranks'? Known are ranks, sizes"
    """
    known = list(known)
    near = get_close_matches(name, known, n=1)
    meant = f": did you mean {near[0]!r}? Known" if near else "; known"
    return f"unknown {what} {name!r}{meant} are {', '.join(known)}"
