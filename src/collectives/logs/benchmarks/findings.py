"""What results of benchmarks say: each table's facts and faults, and the tables that differ from the others."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from collectives.logs.benchmarks import curves, rows, text
from collectives.logs.benchmarks.compare import against_preset, differences
from collectives.logs.benchmarks.table import MOST_HOSTS, MOST_TABLES, PROGRAM, Floats, Table
from collectives.logs.finding import MOST_NAMED, Finding, LogError, Place, lines_of, named
from collectives.logs.json_stream import CHUNK, plain
from collectives.logs.names import collective_of
from collectives.units import duration, format_bytes, many

if TYPE_CHECKING:
    from collectives.figures.style import Picture

# NCCL changes from LL to LL128 and to Simple at sizes in this range: by machine, ranks and version.
PROTOCOLS_CHANGE = (1 << 12, 1 << 28)
# A change of protocol does not make a size slower by more; and what is made of sends and receives has one protocol.
MOST_FALL, OF_PAIRS = 8.0, ("all_to_all", "send and receive", "gather", "scatter")

# Times that scatter more than this from size to size say little about one size.
NOISY = 0.12

# A fit needs this many sizes, and this factor between the least and the largest.
LEAST_SIZES, LEAST_SPAN = 4, 8


def begins(start: bytes) -> bool:
    """Whether a file that begins so has results of nccl-tests, rccl-tests or `collectives bench --json`."""
    return rows.is_report(start) or rows.has_rows(start) or text.begins(start)


def findings_of(paths: Sequence[Path]) -> Iterator[Finding]:
    """The findings in the tables that these files have together.

    Raises OSError, and LogError if no file has a table.
    """
    found = list(islice(chain.from_iterable(map(tables_of, paths)), MOST_TABLES))
    if not found:
        files = named([str(path) for path in paths])
        raise LogError(f"{files}: got no rows of a benchmark, expected size, time and rates")
    return findings(found)


def tables_of(path: Path) -> Iterator[Table]:
    """The tables of a file; its name may have the collective's. Raises OSError."""
    with path.open("rb") as file:
        start = plain(file.read(CHUNK))
    hints = [collective_of(name) for name in re.findall(PROGRAM, path.name)[:1]]
    if rows.is_report(start):
        return rows.report(path, hints)
    if rows.has_rows(start):
        return rows.rows(lines_of([path], rows.LONGEST_ROW))
    return text.tables(lines_of([path]), hints)


def findings(tables: Sequence[Table]) -> Iterator[Finding]:
    """Facts of the first tables, then what is wrong with any; of several, the findings say which."""
    for table in tables[:MOST_NAMED]:
        yield from _facts(table)
    if (more := len(tables) - MOST_NAMED) > 0:
        yield Finding("table", f"{many(more, 'more table')}; what is wrong with them follows, too")
    faults = (
        one._replace(found=f"{table.title}: {one.found}") if len(tables) > 1 else one
        for table in tables
        for one in _faults(table)
    )
    count: Counter[str] = Counter()
    for one in chain(faults, differences(tables)):
        count[one.kind] += 1
        if count[one.kind] <= MOST_NAMED:
            yield one
    for kind, times in count.items():
        if times > MOST_NAMED:
            yield Finding(kind, f"{many(times - MOST_NAMED, 'more table')} with such a finding")


def _facts(table: Table) -> Iterator[Finding]:
    nbytes, rate, at = table.nbytes, table.busbw, (table.head.at,)
    ranks = many(table.ranks, "rank") if table.ranks else "ranks that are not named"
    on = f" of {named(table.hosts, MOST_HOSTS)}" if table.hosts else ""
    devices = f" ({named(table.devices, MOST_HOSTS)})" if table.devices else ""
    label = f", {table.label}" if table.label else ""
    span = " to ".join(dict.fromkeys(format_bytes(size) for size in (*nbytes[:1], *nbytes[-1:])))
    sizes = f"{many(len(nbytes), 'size')}, {span}" if len(nbytes) else "no size"
    yield Finding("table", f"{table.collective or 'a collective'} on {ranks}{on}{devices}{label}: {sizes}", at=at)
    if table.ranks == 1 or len(nbytes) < LEAST_SIZES or nbytes[-1] < LEAST_SPAN * nbytes[0]:
        return
    latency, per_byte, error = curves.fit(nbytes, table.times[0])
    speed = f"{table.factor / per_byte / 1e9:.3g} GB/s" if per_byte > 0 else "no cost per byte"
    over = f"fitted over {sizes}, median error {error:.0%}"
    line = table.factor * nbytes / (latency + per_byte * nbytes) / 1e9
    said = f"latency {duration(latency)} and busbw {speed}, {over}"
    yield Finding("fit", said, at=at, draw=lambda: _curve(nbytes, rate, line))
    top = int(rate.argmax())
    half, most = (format_bytes(nbytes[(rate >= share * rate[top]).argmax()]) for share in (0.5, 0.9))
    knee = "no knee among these sizes"
    if nbytes[0] * per_byte < latency < nbytes[-1] * per_byte:
        knee = f"latency and bytes cost alike at {_about(latency / per_byte)}"
    peak = f"peak busbw {rate[top]:.3g} GB/s at {format_bytes(nbytes[top])}"
    yield Finding("knee", f"{peak}, half of it from {half}, 90% from {most}; {knee}", at=(table.places[top],))


def _curve(nbytes: Floats, busbw: Floats, fitted: Floats) -> Picture:
    from collectives.logs.pictures import curve

    return curve(nbytes, busbw, fitted)


def _about(nbytes: float) -> str:
    """A size to two digits.

    >>> _about(4_600_000), _about(900)
    ('4.4 MiB', '900 B')
    """
    number, unit = format_bytes(nbytes).split()
    return f"{float(f'{float(number):.2g}'):g} {unit}"


def _faults(table: Table) -> Iterator[Finding]:
    yield from _ended(table)
    if not len(table.nbytes):
        return
    yield from _wrong(table)
    if table.ranks == 1:
        follows = "no data moved; if a launcher started several processes, each ran a benchmark of its own"
        advice = "build nccl-tests with `make MPI=1`, or ask for more devices with -g"
        yield Finding("one rank", "the run has one rank", follows, advice, (table.head.at,))
        return
    noise = curves.noise(table.nbytes, table.times)
    if noise > NOISY:
        found = f"times scatter by {noise:.0%} from size to size"
        advice = f"measure on idle hosts, with more iterations: {table.again(table.nbytes[0], table.nbytes[-1])}"
        yield Finding("noise", found, "one size says little here", advice, (table.head.at,))
    dips, disturbed = curves.odd(table.nbytes, table.times)
    yield from (_dip(table, dip) for dip in dips)
    if disturbed:
        yield _disturbed(table, disturbed)
    if len(table.times) > 1:
        yield from _in_place(table)
    yield from against_preset(table)


def _ended(table: Table) -> Iterator[Finding]:
    """A run that failed, or one without the sizes up to the last that was asked for."""
    head, nbytes = table.head, table.nbytes
    last = f"after {format_bytes(nbytes[-1])}" if len(nbytes) else "before the first size"
    factor = nbytes[-1] / nbytes[-2] if len(nbytes) > 1 else 2.0
    following = factor * nbytes[-1] if len(nbytes) else 8.0
    if head.failure:
        at, said = head.failure
        yield Finding("failed", said, f"the run ended {last}", "run it again with NCCL_DEBUG=INFO", (at,))
    elif not head.is_whole and following <= head.last:
        found = f"the table ends {last}, expected sizes to {format_bytes(head.last)}"
        follows = "the run was stopped, hangs, or its output was cut"
        advice = f"NCCL_DEBUG=INFO {table.again(following, following)}"
        yield Finding("ends early", found, follows, advice, table.places[-1:] or (head.at,))


def _wrong(table: Table) -> Iterator[Finding]:
    bad = np.flatnonzero(table.wrong > 0)
    if len(bad):
        sizes = named([format_bytes(nbytes) for nbytes in table.nbytes[bad]])
        found = f"{many(int(min(table.wrong[bad].sum(), 1e18)), 'wrong element')} at {sizes}"
    elif table.head.bad:
        found = f"{many(table.head.bad, 'value')} out of bounds"
    else:
        return
    nbytes = table.nbytes[bad] if len(bad) else table.nbytes  # nothing says at which sizes
    follows = "a GPU, a link or the library corrupts data: do not train on these devices"
    advice = f"repeat with NCCL_PROTO=Simple and on half of the hosts: {table.again(nbytes[0], nbytes[-1])}"
    yield Finding("wrong", found, follows, advice, _places(table, bad) or (table.head.at,))


def _places(table: Table, at: Iterable[int]) -> tuple[Place, ...]:
    return tuple(table.places[i] for i in islice(at, MOST_NAMED))


def _dip(table: Table, dip: curves.Dip) -> Finding:
    nbytes, rate = table.nbytes, table.busbw
    before, lowest = (f"{rate[i]:.3g} GB/s at {format_bytes(nbytes[i])}" for i in dip[:2])
    until = nbytes[min(dip.after, len(nbytes) - 1)]
    end = f"recovers at {format_bytes(until)}" if dip.after < len(nbytes) else "does not recover"
    least, most = PROTOCOLS_CHANGE
    follows = "messages of these sizes may contend for something, such as a switch's buffers or memory"
    how = "see whether it repeats"
    is_small = rate[dip.before] <= MOST_FALL * rate[dip[1]] and table.collective not in OF_PAIRS
    if is_small and least <= nbytes[dip.before] <= most and not table.head.command:
        follows = "NCCL may change its protocol (LL, LL128, Simple) or its algorithm there, as it does at such sizes"
        how = "compare NCCL_PROTO=LL, LL128 and Simple"
    found = f"busbw falls from {before} to {lowest}, and {end}"
    return Finding("dip", found, follows, f"{how}: {table.again(nbytes[dip.before], until)}", _places(table, dip[:2]))


def _disturbed(table: Table, at: list[int]) -> Finding:
    """Not a fault: something else ran then, these sizes are special, or the first one pays for what is set up late."""
    more = "with more warm-ups (-w)" if at == [0] else "and see whether it repeats"
    advice = f"run it again, {more}: {table.again(table.nbytes[max(at[0] - 1, 0)], table.nbytes[at[-1]])}"
    times = [duration(seconds) for seconds in table.times[:, at[0]]]
    told = " out of place, ".join(times) + " in place" * (len(times) > 1) + ", the first" * (len(at) > 1)
    found = f"times leave the curve at {named([format_bytes(nbytes) for nbytes in table.nbytes[at]])} ({told})"
    return Finding("disturbed", found, "", advice, _places(table, at))


def _in_place(table: Table) -> Iterator[Finding]:
    for start, end, factor in curves.unlike(*table.times):
        first, last = table.nbytes[start], table.nbytes[end]
        over = f"{format_bytes(first)} to {format_bytes(last)}"
        yield Finding(
            "in place",
            f"in place takes {factor:.2g} times as long as out of place, {over}",
            "one way uses another path, such as buffers that are registered or a copy",
            f"measure the way that your program uses; repeat: {table.again(first, last)}",
            _places(table, (start, end)),
        )
