"""What results of benchmarks say: each table's facts and faults, and the tables that differ from the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from collectives.logs.benchmarks import curves, rows, text
from collectives.logs.benchmarks.compare import differences
from collectives.logs.benchmarks.expected import below_preset
from collectives.logs.benchmarks.table import MOST_TABLES, Table, hints_of
from collectives.logs.benchmarks.words import about, again, percent, sizes, span, times_as_long, title
from collectives.logs.finding import MOST_NAMED, Finding, LogError, Place, lines_of, named, numbered
from collectives.units import duration, format_bytes, many

# NCCL changes from LL to LL128 and to Simple at sizes in this range: by machine, ranks and version.
PROTOCOLS_CHANGE = (1 << 12, 1 << 28)

# Times that scatter more than this from size to size say little about one size.
NOISY = 0.12

# A fit needs this many sizes, and this factor between the least and the largest.
LEAST_SIZES, LEAST_SPAN = 4, 8

# A run that ended early has rows up to a size whose successor was asked for.
LEAST_MISSING = 1.0


def begins(start: bytes) -> bool:
    """Whether a file that begins so has results of nccl-tests, rccl-tests or `collectives bench --json`."""
    return rows.is_report(start) or rows.is_ours(start) or text.begins(start)


def findings_of(paths: Sequence[Path]) -> Iterator[Finding]:
    """The findings in the tables that these files have together.

    Raises OSError, and LogError if no file has a table.
    """
    found = [table for path in paths for table in tables_of(path)][:MOST_TABLES]
    if not found:
        raise LogError(
            f"{named([str(path) for path in paths])}: got no rows of a benchmark, expected size, time and rates"
        )
    return findings(found)


def tables_of(path: Path) -> list[Table]:
    """The tables of a file. Raises OSError and LogError."""
    hints = hints_of(path)
    with path.open("rb") as file:
        start = file.read(1 << 20)
        if rows.is_report(start):
            data = start + file.read(rows.MOST_BYTES)
            return rows.report(data.decode("utf8", "replace"), str(path), hints)
        if rows.is_ours(start):
            file.seek(0)
            lines = iter(lambda: file.readline(rows.LONGEST_ROW).decode("utf8", "replace"), "")
            return rows.ours(numbered(lines, str(path)))
    return [*text.tables(lines_of([path]), hints)]


def findings(tables: Sequence[Table]) -> Iterator[Finding]:
    """Facts of the first tables, then what is wrong with any.

    >>> from collectives.logs.benchmarks.text import tables
    >>> from collectives.logs.finding import numbered
    >>> text = ["# size count type redop root time algbw busbw #wrong", "1024 256 float sum -1 20.0 0.05 0.05 3"]
    >>> [one.kind for one in findings([*tables(numbered(text, "a.log"), ["all_reduce"])])]
    ['table', 'wrong']
    """
    shown = [table for table in tables if len(table.nbytes)]
    for table in shown[:MOST_NAMED]:
        yield from _facts(table)
    if (more := len(shown) - MOST_NAMED) > 0:
        yield Finding("table", f"{many(more, 'more table')}; what is wrong with them follows, too")
    faults = chain.from_iterable(_faults(table) for table in tables)
    yield from _limited(chain(faults, differences(shown)))


def _limited(found: Iterable[Finding]) -> Iterator[Finding]:
    """The first findings of each kind, and how many more there are."""
    count: dict[str, int] = {}
    for one in found:
        count[one.kind] = count.get(one.kind, 0) + 1
        if count[one.kind] <= MOST_NAMED:
            yield one
    for kind, times in count.items():
        if times > MOST_NAMED:
            yield Finding(kind, f"{many(times - MOST_NAMED, 'more table')} with such a finding")


def _facts(table: Table) -> Iterator[Finding]:
    yield Finding("table", f"{title(table)}: {many(len(table.nbytes), 'size')}, {span(table)}", at=(table.head.at,))
    nbytes, rate = table.nbytes, table.busbw
    if table.ranks == 1 or len(nbytes) < LEAST_SIZES or nbytes[-1] < LEAST_SPAN * nbytes[0]:
        return
    top = int(rate.argmax())
    line = curves.fit(nbytes, table.seconds)
    over = f"fitted over {many(len(nbytes), 'size')}, {span(table)}, median error {percent(line.error)}"
    speed = f"{table.factor / line.per_byte / 1e9:.3g} GB/s" if line.per_byte > 0 else "no cost per byte"
    yield Finding("fit", f"latency {duration(line.latency)} and busbw {speed}, {over}", at=(table.head.at,))
    half, most = (format_bytes(curves.first_above(nbytes, rate, share)) for share in (0.5, 0.9))
    knee = "no knee among these sizes"
    if nbytes[0] < line.knee < nbytes[-1]:
        knee = f"latency and bytes cost alike at {about(line.knee)}"
    peak = f"peak busbw {rate[top]:.3g} GB/s at {format_bytes(nbytes[top])}"
    yield Finding("knee", f"{peak}, half of it from {half}, 90 % from {most}; {knee}", at=(table.places[top],))


def _faults(table: Table) -> Iterator[Finding]:
    yield from _failed(table)
    if not len(table.nbytes):
        return
    yield from _wrong(table)
    if table.ranks == 1:
        yield _one_rank(table)
        return
    noise = curves.noise(table.nbytes, table.columns)
    if noise > NOISY:
        yield Finding(
            "noise",
            f"{title(table)}: times scatter by {percent(noise)} from size to size",
            "one size says little here",
            f"measure on idle hosts, with more iterations: {again(table, table.nbytes[0], table.nbytes[-1])}",
            (table.head.at,),
        )
    odd = curves.shape(table.nbytes, table.columns)
    yield from (_dip(table, dip) for dip in odd.dips)
    if odd.disturbed:
        yield _disturbed(table, odd.disturbed)
    yield from _in_place(table)
    yield from below_preset(table)


def _failed(table: Table) -> Iterator[Finding]:
    head, nbytes = table.head, table.nbytes
    last = f"after {format_bytes(nbytes[-1])}" if len(nbytes) else "before the first size"
    if head.failure:
        at, said = head.failure
        follows = f"the run ended {last}"
        yield Finding("failed", f"{title(table)}: {said}", follows, "run it again with NCCL_DEBUG=INFO", (at,))
    elif not head.is_whole and head.last and (not len(nbytes) or _next(table) <= head.last):
        place = table.places[-1] if len(nbytes) else head.at
        follows = "the run was stopped, hangs, or its output was cut"
        found = f"{title(table)}: the table ends {last}, expected sizes to {format_bytes(head.last)}"
        first = _next(table) if len(nbytes) else 8.0
        yield Finding("ends early", found, follows, f"NCCL_DEBUG=INFO {again(table, first, first)}", (place,))


def _next(table: Table) -> float:
    """The bytes after the last size: a step further, or as far as the last step if it added bytes."""
    nbytes = table.nbytes
    if table.head.step > 1:
        return float(nbytes[-1] * table.head.step)
    return float(2 * nbytes[-1] - nbytes[-2]) if len(nbytes) > 1 else float(nbytes[-1] + LEAST_MISSING)


def _wrong(table: Table) -> Iterator[Finding]:
    bad = np.flatnonzero(np.nan_to_num(table.wrong) > 0)
    if len(bad):
        count = int(min(table.wrong[bad].sum(), 1e18))
        places: tuple[Place, ...] = tuple(table.places[i] for i in bad[:MOST_NAMED])
        found = f"{title(table)}: {many(count, 'wrong element')} at {sizes(table.nbytes[bad])}"
        first, last = table.nbytes[bad[0]], table.nbytes[bad[-1]]
    elif table.head.bad:
        places, found = (table.head.at,), f"{title(table)}: {many(int(table.head.bad), 'value')} out of bounds"
        first, last = table.nbytes[0], table.nbytes[-1]
    else:
        return
    follows = "memory, a link or the library corrupts data, and training on these devices does, too"
    advice = f"repeat with NCCL_PROTO=Simple and on half of the hosts: {again(table, first, last)}"
    yield Finding("wrong", found, follows, advice, places)


def _one_rank(table: Table) -> Finding:
    follows = "no data moved; if a launcher started several processes, each ran a benchmark of its own"
    advice = "build nccl-tests with `make MPI=1`, or ask for more devices with -g"
    return Finding("one rank", f"{title(table)}: one rank", follows, advice, (table.head.at,))


def _dip(table: Table, dip: curves.Dip) -> Finding:
    nbytes, rate = table.nbytes, table.busbw
    fall = f"{rate[dip.before]:.3g} GB/s at {format_bytes(nbytes[dip.before])} to {rate[dip.lowest]:.3g} GB/s"
    found = f"{title(table)}: busbw falls from {fall} at {format_bytes(nbytes[dip.lowest])}"
    until = nbytes[-1] if dip.after is None else nbytes[dip.after]
    least, most = PROTOCOLS_CHANGE
    if least <= nbytes[dip.before] <= most and table.head.program == "nccl-tests":
        follows = "NCCL changes its protocol, from LL to LL128 to Simple, or its algorithm in this range of sizes"
        advice = f"compare NCCL_PROTO=LL, LL128 and Simple: {again(table, nbytes[dip.before], until)}"
    else:
        follows = "messages of these sizes contend for something, such as a switch's buffers or memory"
        advice = f"see whether it repeats: {again(table, nbytes[dip.before], until)}"
    end = "does not recover" if dip.after is None else f"recovers at {format_bytes(until)}"
    places = (table.places[dip.before], table.places[dip.lowest])
    return Finding("fall" if dip.after is None else "dip", f"{found}, and {end}", follows, advice, places)


def _disturbed(table: Table, at: list[int]) -> Finding:
    there = sizes(table.nbytes[at])
    if at == [0]:
        follows, more = "the first size pays for what is set up late", "with more warm-ups (-w)"
    else:
        follows, more = "something else ran then, or these sizes are special", "and see whether it repeats"
    advice = f"run it again, {more}: {again(table, table.nbytes[max(at[0] - 1, 0)], table.nbytes[at[-1]])}"
    times = f"{duration(float(table.columns[-1][at[0]]))} in place" if len(table.columns) > 1 else ""
    told = (
        f"{duration(float(table.seconds[at[0]]))} out of place, {times}"
        if times
        else duration(float(table.seconds[at[0]]))
    )
    found = f"{title(table)}: disturbed at {there} ({told}{', the first' if len(at) > 1 else ''})"
    return Finding("disturbed", found, follows, advice, tuple(table.places[i] for i in at[:MOST_NAMED]))


def _in_place(table: Table) -> Iterator[Finding]:
    if len(table.columns) < 2:
        return
    for part in curves.unlike(table.seconds, table.in_place):
        first, last = table.nbytes[part.first], table.nbytes[part.last]
        over = f"{format_bytes(first)} to {format_bytes(last)}"
        yield Finding(
            "in place",
            f"{title(table)}: in place takes {times_as_long(part.factor)} out of place, {over}",
            "one way uses another path, such as buffers that are registered or a copy",
            f"measure the way that your program uses; repeat: {again(table, first, last)}",
            (table.places[part.first], table.places[part.last]),
        )
