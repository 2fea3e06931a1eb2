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


# What other tools call a field of ours.
SYNONYMS = {
    **dict.fromkeys(("bandwidth", "bw", "speed", "throughput"), "rate"),
    **dict.fromkeys(("alpha", "delay"), "latency"),
    **dict.fromkeys(("gpus_per_node", "nproc_per_node", "ntasks_per_node", "ppn", "slots"), "ranks_per_node"),
    **dict.fromkeys(("nics_per_node", "hcas_per_node"), "ports_per_node"),
    **dict.fromkeys(("intra", "intra_node", "nvlink"), "inside"),
    **dict.fromkeys(("inter", "inter_node", "fabric"), "network"),
}


def meant(name: str, known: Iterable[str]) -> str:
    """The known name that an unknown one is nearest to, as a question; empty if none is near.

    >>> meant("rnig", ["ring", "tree"]), meant("bandwidth", ["latency", "rate"]), meant("pigeon", ["ring"])
    (": did you mean 'ring'?", ": did you mean 'rate'?", '')
    """
    known = list(known)
    near = [each for each in (SYNONYMS.get(name),) if each in known] or get_close_matches(name, known, n=1)
    return f": did you mean {near[0]!r}?" if near else ""


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """The message for an unknown name: the nearest known one, and all known ones.

    >>> unknown("parameter", "rnaks", ["ranks", "sizes"])
    "unknown parameter 'rnaks': did you mean 'ranks'? Known are ranks, sizes"
    """
    known = list(known)
    near = meant(name, known)
    return f"unknown {what} {short(name)}{f'{near} Known' if near else '; known'} are {', '.join(known)}"
