"""Print a report of ``make gpu-check``, and draw the times of NCCL's ring and tree on emulated hosts.

python -m collectives_book.gpu_report FILE     prints what FILE holds; its figure is an SVG beside
it
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from collectives.units import format_bytes, many
from collectives_book import one_gpu
from collectives_book.figures.kit import Rows
from collectives_book.figures.statements import us

# What the first line says of a machine, and how many characters of a text in the file are printed.
VERSIONS = ("nccl", "cuda", "torch", "python", "commit", "system", "usable_cores")
MAX_LETTERS = 300

# What a table says of NCCL's own choice.
CHOICES = {"default": "own choice"}


def main(arguments: list[str]) -> int:
    """Print a report and write its figure.

    Returns 2, after one line, for a file that is no report.
    """
    if len(arguments) != 1:
        print(
            f"gpu_report: got {many(len(arguments), 'argument')}, expected one file",
            file=sys.stderr,
        )
        return 2
    try:
        report = one_gpu.read(arguments[0])
        rows = one_gpu.rows_of_report(arguments[0])
    except (OSError, ValueError) as error:
        print(f"gpu_report: {error}", file=sys.stderr)
        return 2
    for line in [*_machine(report.machine), *_parts(report), *tables(rows)]:
        print(line)
    measured = one_gpu.rings_and_trees(rows)
    if not measured.empty:
        figure = Path(arguments[0]).with_suffix(".svg")
        figure.write_bytes(one_gpu.times(measured).light)
        print(f"\nThe figure is {figure}")
    return 0


def _machine(machine: dict[str, Any]) -> Iterator[str]:
    yield from (plain(f"{name}: {machine[name]}") for name in VERSIONS if name in machine)
    for command, lines in machine.items():
        if command.startswith("nvidia-smi --query-gpu") and isinstance(lines, list):
            yield from (plain(f"GPU {line}") for line in lines[1:])


def _parts(report: one_gpu.Report) -> Iterator[str]:
    """Yield a line for each part, and below it what is wrong, what failed and what a cut cable did."""
    for name, part in report.parts.items():
        yield plain(f"{name:<14}{part.result}, {part.seconds:.1f} s")
        for event in part.events:
            if "error" in event or event.get("wrong"):
                yield plain(f"    {event}")
            elif "exit" in event:
                rank = event.get("rank")
                seconds = event.get("seconds")
                ended = f"ended {seconds} s after the cut with exit code {event['exit']}"
                yield plain(f"    rank {rank} {ended}")
            elif isinstance(event.get("finding"), dict):
                finding = event["finding"]
                yield plain(f"    {finding.get('kind')}: {finding.get('found')}")


def tables(rows: Rows) -> Iterator[str]:
    """Yield the median times as text, a table for each kind of hosts: a line for each size, a column for what ran."""
    if rows.empty:
        yield "The report has no times of all-reduces: these parts were skipped, or are missing in an earlier version."
    kinds = rows.groupby(["where", "hosts", "ranks"], sort=False)
    for (where, hosts, ranks), some in kinds:
        yield f"\n{many(ranks, 'rank')} as {many(hosts, 'host')} by {where}, median times:"
        named = some.assign(
            size=some.bytes.map(format_bytes),
            of=[_column(row) for row in some.itertuples()],
            time=some.median_us.map(us),
        )
        wide = named.pivot_table("time", "size", "of", aggfunc="first", sort=False)
        yield wide.fillna("").to_string()
        wrong = int(some.wrong.sum())
        if wrong:
            yield f"{wrong:,} elements were wrong"


def _column(row: Any) -> str:
    told = " with a file" if row.topology_file else ""
    return f"{row.backend} {CHOICES.get(row.algorithm, row.algorithm)}{told}"


def plain(text: str) -> str:
    r"""Return a text of a stranger's file without control characters, which a terminal obeys, cut if it is long.

    >>> plain("\x1b[31mred")
    '?[31mred'
    """
    return "".join(each if each.isprintable() else "?" for each in text[:MAX_LETTERS])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
