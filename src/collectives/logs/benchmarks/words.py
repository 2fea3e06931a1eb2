"""Phrases of the findings in benchmarks: a table's name, its sizes, and a command that measures some of them again."""

from __future__ import annotations

from collections.abc import Iterable

from collectives.logs.benchmarks.table import PROGRAMS, Table
from collectives.logs.finding import named
from collectives.units import format_bytes, many

NAMES = {ours: theirs for theirs, ours in PROGRAMS.items() if ours}


def title(table: Table) -> str:
    """The collective, its ranks, hosts and devices, as far as they are known."""
    ranks = many(table.ranks, "rank") if table.ranks else "ranks that are not named"
    on = f" of {named(table.hosts)}" if table.hosts else ""
    devices = f" ({named(table.devices)})" if table.devices else ""
    label = f", {table.label}" if table.label else ""
    return f"{table.collective or 'a collective'} on {ranks}{on}{devices}{label}"


def span(table: Table) -> str:
    """The least and the largest size."""
    return " to ".join(dict.fromkeys(format_bytes(float(size)) for size in (table.nbytes[0], table.nbytes[-1])))


def sizes(nbytes: Iterable[float]) -> str:
    """Sizes, many of them shortened.

    >>> sizes([1024, 4096])
    '1 KiB, 4 KiB'
    """
    return named([format_bytes(float(size)) for size in nbytes])


def about(nbytes: float) -> str:
    """A size to two digits.

    >>> about(4_600_000), about(900)
    ('4.4 MiB', '900 B')
    """
    number, unit = format_bytes(nbytes).split()
    return f"{float(f'{float(number):.2g}'):g} {unit}"


def percent(share: float) -> str:
    """A share.

    >>> percent(0.456)
    '46 %'
    """
    return f"{share:.0%}".replace("%", " %")


def times_as_long(factor: float) -> str:
    """How long a time is against another one.

    >>> times_as_long(1.4), times_as_long(0.5)
    ('1.4 times as long as', '0.5 times as long as')
    """
    return f"{factor:.2g} times as long as"


def again(table: Table, first: float, last: float) -> str:
    """The command that measures these sizes again."""
    low, high = int(first), int(last)
    if table.head.command:
        return f"`{table.head.command} --bytes {low}{f' {high}' if high > low else ''} --repetitions 100`"
    program = f"{NAMES.get(table.collective, 'all_reduce')}_perf"
    return f"`{program} -b {low} -e {high} -f 2 -w 20 -n 100`"
