"""Say what was wrong with an input in one plain line each, instead of a library's traceback."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic import ValidationError


MOST = 4  # findings in one message


def explain(error: ValidationError) -> str:
    """What pydantic found, as ``name: what is wrong, got …``; names of our own checks are left out."""
    lines = []
    for found in error.errors():
        where, what = ".".join(map(str, found["loc"])), found["msg"].removeprefix("Value error, ")
        lines.append(f"{where}: {what}, got {short(found['input'])}" if where else what)
    more = [f"and {len(lines) - MOST:,} more"] if len(lines) > MOST else []
    return "; ".join([*lines[:MOST], *more])


def short(value: object) -> str:
    """A value as a message shows it.

    >>> short("64Q"), short("9" * 1000)
    ("'64Q'", "'999999999999999999999999999999999999999… (1,002 characters)")
    """
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:40]}… ({len(shown):,} characters)"


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """An unknown name, what it was probably meant to be, and what is known.

    >>> unknown("parameter", "rnaks", ["ranks", "sizes"])
    "unknown parameter 'rnaks': did you mean 'ranks'? Known are ranks, sizes"
    """
    known = list(known)
    near = get_close_matches(name, known, n=1)
    meant = f": did you mean {near[0]!r}? Known" if near else "; known"
    return f"unknown {what} {short(name)}{meant} are {', '.join(known)}"
