"""Error messages: one plain line for each invalid input, instead of a library's traceback."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic import ValidationError


MOST = 4  # findings in one message


def explain(error: ValidationError) -> str:
    """Pydantic's findings as ``name: problem, got …``, at most four; findings of our own checks have no name."""
    lines = []
    for found in error.errors():
        where, what = ".".join(map(str, found["loc"])), found["msg"].removeprefix("Value error, ")
        lines.append(f"{where}: {what}, got {short(found['input'])}" if where else what)
    more = [f"and {len(lines) - MOST:,} more"] if len(lines) > MOST else []
    return "; ".join([*lines[:MOST], *more])


def short(value: object) -> str:
    """A value as a message shows it, cut beyond 80 characters.

    >>> short("64Q"), short("9" * 1000)
    ("'64Q'", "'999999999999999999999999999999999999999… (1,002 characters)")
    """
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:40]}… ({len(shown):,} characters)"


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """The message for an unknown name: the nearest known one, and all known ones.

    >>> unknown("parameter", "rnaks", ["ranks", "sizes"])
    "unknown parameter 'rnaks': did you mean 'ranks'? Known are ranks, sizes"
    """
    known = list(known)
    near = get_close_matches(name, known, n=1)
    meant = f": did you mean {near[0]!r}? Known" if near else "; known"
    return f"unknown {what} {short(name)}{meant} are {', '.join(known)}"
