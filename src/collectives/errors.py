"""Error messages: one plain line for each invalid input, instead of a library's traceback."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic import ValidationError


MAX_SHOWN = 4  # findings in one message


def explain(error: ValidationError) -> str:
    """Return pydantic's findings as ``name: problem, got …``, at most four.

    Those of our own checks have no name.
    """
    lines = []
    for found in error.errors():
        where, what = ".".join(map(str, found["loc"])), found["msg"].removeprefix("Value error, ")
        # Papermill's -p makes no lists.
        if found["type"] == "list_type" and str(found["input"]).startswith("["):
            what += f" (by papermill: -y '{{{where}: {short(found['input'])[1:-1]}}}')"
        lines.append(f"{where}: {what}, got {short(found['input'])}" if where else what)
    more = [f"and {len(lines) - MAX_SHOWN:,} more"] if len(lines) > MAX_SHOWN else []
    return "; ".join([*lines[:MAX_SHOWN], *more])


def short(value: object) -> str:
    """Return a value as a message shows it, cut beyond 80 characters.

    >>> short("64Q"), short("9" * 1000)
    ("'64Q'", "'999999999999999999999999999999999999999… (1,002 characters)")
    """
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:40]}… ({len(shown):,} characters)"


# What other tools call a field of ours, and readers an algorithm.
SYNONYMS = {
    **dict.fromkeys(("bandwidth", "bw", "speed", "throughput"), "rate"),
    **dict.fromkeys(("alpha", "delay"), "latency"),
    **dict.fromkeys(
        ("gpus_per_node", "nproc_per_node", "ntasks_per_node", "ppn", "slots"), "ranks_per_node"
    ),
    **dict.fromkeys(("nics_per_node", "hcas_per_node"), "ports_per_node"),
    **dict.fromkeys(("intra", "intra_node", "nvlink"), "inside"),
    "tree": "binomial",
    **dict.fromkeys(("inter", "inter_node", "fabric"), "network"),
}


def suggest(name: str, known: Iterable[str]) -> str:
    """Return the known name that is nearest to an unknown one, as a question.

    It is empty if none is near.

    >>> suggest("rnig", ["ring", "tree"]), suggest("bandwidth", ["latency", "rate"]), suggest("pigeon", ["ring"])
    (": did you mean 'ring'?", ": did you mean 'rate'?", '')
    """
    known = list(known)
    near = [each for each in (SYNONYMS.get(name),) if each in known] or get_close_matches(
        name, known, n=1
    )
    return f": did you mean {near[0]!r}?" if near else ""


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """Return the message for an unknown name, with the nearest known one and all known ones.

    >>> unknown("parameter", "rnaks", ["ranks", "sizes"])
    "unknown parameter 'rnaks': did you mean 'ranks'? Known are ranks, sizes"
    """
    known = list(known)
    near = suggest(name, known)
    return f"unknown {what} {short(name)}{f'{near} Known' if near else '; known'} are {', '.join(known)}"


def with_extra(error: ModuleNotFoundError, extra: str) -> ModuleNotFoundError:
    """Return the error with the extra that installs the missing package, or as it is for a module of our own.

    >>> str(with_extra(ModuleNotFoundError("No module named 'torch'", name="torch"), "run"))
    "No module named 'torch': pip install 'collective-communication[run]'"
    """
    if str(error.name).startswith("collectives") or "pip install" in str(error):
        return error
    return ModuleNotFoundError(
        f"{error}: pip install 'collective-communication[{extra}]'", name=error.name
    )
