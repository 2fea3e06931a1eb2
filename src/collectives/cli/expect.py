"""The verb ``expect``: the times that a collective should take on a machine, and measured ones beside them."""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collectives import units
from collectives.cli import Verb, add_json, csv_text, limit, out, out_row, size, whole
from collectives.cli.schedules import RANKS, add_timeout, save
from collectives.nccl.formulas import GENERATIONS, TITLES, VERSION
from collectives.units import duration, format_bytes, many

if TYPE_CHECKING:
    from collectives.expected import Expected

SIZES = ("8", "1K", "8K", "64K", "256K", "1M", "4M", "16M", "64M", "256M", "1G", "8G")

# Who reads tables of nccl-tests: the entry point of this name, of this group.
GROUP, READER = "collectives.tables", "nccl-tests"
# Of a log with more sizes than this, one for each power of two counts.
MAX_SIZES = 32

# What stands behind a schedule that ranks cannot run.
MARK = "(NCCL only)"

AFTER = f"""\
NCCL's column has what its own formulas say (tuning.cc and search.cc of NCCL {VERSION}), by which it chooses, with the
channels it has at most; they count no launch of a kernel. The fastest schedule is simulated, with the cost of a call if
the machine's file has one. {MARK} is one in which switches add, which NCCL runs and ranks cannot; it is tried up to 256
ranks where the file has a protocol for nvls_tree, and may be faster than the bound, in which no switch adds. With
--rows, a size below three quarters of what NCCL's formulas say is marked, with what to check first."""

Row = dict[str, Any]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = AFTER
    parser.add_argument("collective", help="such as all_reduce")
    parser.add_argument("--machine", required=True, help="a preset, or your own NAME.yaml")
    parser.add_argument(
        "--nodes",
        type=whole(units.MAX_RANKS),
        help=f"nodes (default: those of the log, else 1, or {RANKS} if a node is one rank)",
    )
    parser.add_argument(
        "--gpus", type=whole(units.MAX_RANKS), help="of each node that take part (default all)"
    )
    parser.add_argument(
        "--bytes", nargs="+", type=size, help=f"sizes (default {SIZES[0]} B to {SIZES[-1]}iB)"
    )
    parser.add_argument(
        "--generation",
        choices=tuple(GENERATIONS),
        help="of the GPUs, for NCCL's formulas (default: by the machine's name)",
    )
    parser.add_argument(
        "--algorithms",
        nargs="+",
        metavar="NAME",
        help=f"that NCCL may take: {' '.join(TITLES)} (default: those it takes by itself)",
    )
    parser.add_argument(
        "--rows",
        metavar="LOG",
        help="measured: what nccl-tests printed, or its JSON, or `bench --json`",
    )
    parser.add_argument(
        "--svg", metavar="NAME", help="draw the rates: NAME-light.svg, NAME-dark.svg"
    )
    add_timeout(parser)
    printed = parser.add_mutually_exclusive_group()
    printed.add_argument("--csv", action="store_true", help="the table as CSV on standard output")
    add_json(printed)


def _run(arguments: argparse.Namespace) -> None:
    """Print a row for each size, then what to check of those that fall short, and draw the rates if asked to."""
    from collectives.expected import asked, rows
    from collectives.machine import machine

    on = machine(arguments.machine)
    gpus = arguments.gpus or on.ranks_per_node
    measured: Mapping[int, float] = {}
    nodes = arguments.nodes or (1 if gpus > 1 else RANKS)
    if arguments.rows:
        if arguments.bytes:
            raise ValueError("--bytes: got some, expected none, because --rows has sizes")
        ranks, measured = _measured(Path(arguments.rows), arguments.collective)
        nodes = arguments.nodes or (-(-ranks // gpus) if ranks else nodes)
        if ranks not in (0, nodes * gpus):
            raise ValueError(
                f"ranks of {arguments.rows}: got {ranks}, "
                f"expected {nodes * gpus}: {many(nodes, 'node')} of {many(gpus, 'GPU')}"
            )
    sizes = list(measured) or arguments.bytes or [size(text) for text in SIZES]
    what = asked(
        arguments.collective,
        arguments.machine,
        nodes,
        gpus,
        arguments.generation,
        arguments.algorithms,
    )
    is_text = not (arguments.json or arguments.csv)
    found = []
    with limit(arguments.timeout, "expect"):
        if is_text:
            out(_heading(what, bool(measured)))
        for row in rows(what, sizes, measured):
            found.append(row)
            if not arguments.csv:
                out_row(row, "" if arguments.json else _line(row), arguments.json)
    if arguments.csv:
        listed = [row | {"checks": " ".join(row.get("checks", ()))} for row in found]
        out(csv_text(listed), end="")
    if is_text:
        for line in _checks(found):
            out(line)
    if arguments.svg:
        from collectives.figures.expected import rates

        save(rates(found), Path(arguments.svg))


def _measured(path: Path, collective: str) -> tuple[int, dict[int, float]]:
    """Return how many ranks measured a collective in a log, 0 if it does not say, and the seconds by size.

    Raises ValueError for a file without a table of the collective, or with several.
    """
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    found = entry_points(group=GROUP, name=READER)
    if not found:
        raise ValueError(f"--rows {path}: got no installed package that reads tables of {READER}")
    (reader,) = found
    tables = [table for table in reader.load()(path) if len(table.nbytes)]
    alike = [table for table in tables if table.collective in (collective, "")]
    if len(alike) != 1:
        others = ", ".join(sorted({table.collective or "unknown" for table in tables})) or "none"
        raise ValueError(
            f"tables of {collective} in {path}: got {len(alike)} (tables: {others}), expected one"
        )
    (table,) = alike
    pairs = zip(table.nbytes.tolist(), table.times[0].tolist(), strict=True)
    return table.ranks, _few({int(nbytes): seconds for nbytes, seconds in pairs})


def _few(measured: dict[int, float]) -> dict[int, float]:
    """Return these times, of too many sizes the largest one up to each power of two.

    >>> sorted(_few({n: 1.0 for n in range(1, 100)}))
    [1, 2, 4, 8, 16, 32, 64, 99]
    """
    if len(measured) <= MAX_SIZES:
        return measured
    of_power = {(nbytes - 1).bit_length(): nbytes for nbytes in sorted(measured)}
    return {nbytes: measured[nbytes] for nbytes in of_power.values()}


def _heading(what: "Expected", is_measured: bool) -> str:
    """Return what is asked, why NCCL has no column if it has none, and the names of the columns."""
    from collectives.expected import why_not

    ranks = what.nodes * what.gpus
    head = (
        f"{what.collective} on {ranks:,} ranks: {many(what.nodes, 'node')} of {many(what.gpus, 'GPU')}, "
        f"{what.machine.name}; busbw in GB/s"
    )
    if what.job is None:
        head += f"; no column of NCCL: {why_not(what.collective, what.machine)}"
    nccl, ours = (f"NCCL {VERSION}", "time", "busbw"), ("fastest schedule", "time", "busbw")
    columns = _columns("size", nccl, ours)
    columns += f" {'bound':>8}  {'limit':<14}"
    if is_measured:
        columns += f" {'measured':>8} {'busbw':>6}  of expected"
    return f"{head}\n{columns.rstrip()}"


def _columns(nbytes: str, nccl: tuple[str, str, str], ours: tuple[str, str, str]) -> str:
    """Return the columns before the bound: a size, then choice, time and rate of NCCL, and the same of ours."""
    choice, time, rate = nccl
    schedule, seconds, busbw = ours
    of_nccl = f"{choice:<20} {time:>8} {rate:>6}"
    return f"{nbytes:>8}  {of_nccl}  {schedule:<34} {seconds:>8} {busbw:>6}"


def _line(row: Row) -> str:
    nccl = ("", "", "")
    if row["nccl_algorithm"]:
        title = TITLES[row["nccl_algorithm"]]
        choice = f"{title}/{row['nccl_protocol']} ({row['nccl_channels']})"
        nccl = (choice, duration(row["nccl_seconds"]), _rate(row["nccl_busbw"]))
    segments = f" *{row['segments']}" if row["segments"] > 1 else ""
    who = f" {MARK}" if row["switches_add"] else ""
    schedule = row["algorithm"] + segments + who
    ours = (schedule, duration(row["seconds"]), _rate(row["busbw"]))
    line = _columns(format_bytes(row["bytes"]), nccl, ours)
    line += f" {duration(row['bound']):>8}  {row['limit']:<14}"
    if "share" in row:
        line += f" {duration(row['measured_seconds']):>8} {_rate(row['measured_busbw']):>6}"
        line += f"  {row['share']:.0%}"
        if row["checks"]:
            line += f" short: {', '.join(row['checks'])}"
    return line.rstrip()


def _rate(gbs: float) -> str:
    digits = 2 if gbs < 10 else 1 if gbs < 100 else 0
    return f"{gbs:.{digits}f}"


def _checks(rows: Sequence[Row]) -> Iterable[str]:
    """Yield a line for each cause that a row names."""
    from collectives.expected import CHECKS

    named = {name for row in rows for name in row.get("checks", ())}
    for name, text in CHECKS.items():
        if name in named:
            yield f"{name}: {text}"


EXPECT = Verb(_add_arguments, _run)
