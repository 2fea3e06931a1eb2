"""``simulate --best``: the fastest schedule that the search finds on a machine, and how the named ones compare."""

import argparse
from typing import TYPE_CHECKING, Any

from collectives.algorithms import candidates
from collectives.cli import limit, out_row
from collectives.cli.schedules import RANKS, refuse
from collectives.core.contracts import CONTRACTS
from collectives.errors import unknown
from collectives.units import duration, format_bytes

if TYPE_CHECKING:
    from collectives.machine import Machine

# Named algorithms that are shown beside the fastest.
SHOWN = 3


def print_fastest(arguments: argparse.Namespace) -> None:
    """Print a row for each size: the fastest schedule, its seconds, the bound, and the best named algorithms.

    Raises ValueError for an algorithm or its options, which `--best` chooses itself, for a
    collective without algorithms, and for more ranks than are simulated.
    """
    from collectives.autotune import MAX_SIMULATED
    from collectives.machine import machine

    collective = arguments.collective
    if collective not in CONTRACTS:
        raise ValueError(unknown("collective", collective, CONTRACTS))
    if arguments.algorithm is not None:
        raise ValueError(f"simulate --best: got {arguments.algorithm}, expected no algorithm")
    refuse(arguments, ("root", "segments", "trace"), "simulate --best")
    on = machine(arguments.machine)
    p = arguments.ranks or max(RANKS, on.ranks_per_node)
    if p > MAX_SIMULATED:
        raise ValueError(f"ranks of --best: got {p:,}, expected at most {MAX_SIMULATED}")
    with limit(arguments.timeout, "simulate"):
        for nbytes in arguments.bytes:
            row = _row(collective, p, nbytes, on)
            out_row(row, _text(row), arguments.json)


def _row(collective: str, p: int, nbytes: int, on: "Machine") -> dict[str, Any]:
    from collectives.autotune import bound, choose
    from collectives.simulator.scaling import Case, row

    choice = choose(collective, p, nbytes, on=on)
    fastest = row(Case(collective, choice.algorithm, p, nbytes, on, choice.segments))
    named = [row(Case(collective, name, p, nbytes, on)) for name in candidates(collective)]
    named.sort(key=lambda each: each["seconds"])
    others = {each["algorithm"]: each["seconds"] for each in named[:SHOWN]}
    return fastest | {"bound": bound(on, collective, p, nbytes), "named": others}


def _text(row: dict[str, Any]) -> str:
    segments = f" in {row['segments']} segments" if row["segments"] > 1 else ""
    lines = [
        f"{row['collective']} on {row['ranks']} ranks of {row['machine']}, {format_bytes(row['bytes'])}: "
        f"{duration(row['seconds'])} simulated, busbw {row['busbw']:.3g} GB/s, by {row['algorithm']}{segments}",
        f"    at least {duration(row['bound'])} by ranks that add; "
        f"busiest: {row['busiest_link']} ({duration(row['busy_seconds'])})",
    ]
    for name, seconds in row["named"].items():
        slower = seconds / row["seconds"] - 1
        compared = f"{slower:.0%} slower" if slower > 0.005 else "as fast"
        lines.append(f"    {name}: {duration(seconds)}, {compared}")
    return "\n".join(lines)
