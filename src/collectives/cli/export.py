"""The verb ``export``: a schedule for the tools of others."""

import argparse
import sys
from pathlib import Path
from typing import Any

from collectives import units
from collectives.cli import signals
from collectives.cli.options import TIMEOUT, UsageError, size, whole, wrong_input
from collectives.cli.schedules import add_schedule, built
from collectives.cli.signals import out
from collectives.files import need_new_or_file, replace
from collectives.formats.nccl_tuner import ANY, COLLECTIVES, Time, known, nvls
from collectives.formats.nccl_tuner import text as tuner_file
from collectives.formats.program import SLOTS
from collectives.schedule import Schedule
from collectives.verify import need_cells, verify

# What each format takes, beyond collective, algorithm and -p.
TAKES = {
    "msccl": ("dialect", "protocol"),
    "goal": ("machine", "bytes"),
    "nccl-tuner": ("machine", "nodes", "bytes", "rows"),
}
OF_SCHEDULE = ("algorithm", "ranks", "root", "segments")
DIALECTS = ("rccl", "msccl-tools")

# What NCCL has, the faster one for few bytes first. Sizes are four times as large each.
ALGORITHMS = ("hierarchical_tree", "ring")
SIZES = [4**i for i in range(4, 16)]
NODES = [2, 4, 8, 16]
# What is read of measured rows.
MEASURED = ["collective", "backend", "algorithm", "ranks", "bytes", "median_us"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be typed."""
    add_schedule(parser, units.MOST_RANKS_SHOWN, nargs="?")
    formats = "MSCCL XML, proved before it is written; GOAL, for LogGOPSim; the file of NCCL's example tuner"
    parser.add_argument("--to", choices=tuple(TAKES), required=True, help=formats)
    parser.add_argument("--dialect", choices=DIALECTS, help="msccl: what reads it (default rccl)")
    parser.add_argument("--protocol", choices=tuple(SLOTS), help="msccl: NCCL's protocol (default Simple)")
    nodes, shown = whole(units.MOST_RANKS), " ".join(map(str, NODES))
    parser.add_argument("--machine", help="goal, nccl-tuner: whose network it is (default textbook)")
    parser.add_argument("--nodes", nargs="+", type=nodes, help=f"nccl-tuner: of the machine (default {shown})")
    parser.add_argument("--bytes", nargs="+", type=size, help="goal: one size; nccl-tuner: default 256 B to 1 GiB")
    parser.add_argument("--rows", metavar="FILE.parquet", help="nccl-tuner: instead of a machine, rows of `bench`")
    parser.add_argument("--output", metavar="FILE", help="left out: standard output")


def run(arguments: argparse.Namespace) -> None:
    """The schedule as a file, or on standard output."""
    _need_taken(arguments)
    with signals.limit(arguments.timeout or TIMEOUT, "export"):
        text = _tuner(arguments) if arguments.to == "nccl-tuner" else _program(arguments)
    if arguments.output is None:
        out(text.rstrip("\n"))
    else:
        write(Path(arguments.output), text)


def _need_taken(arguments: argparse.Namespace) -> None:
    """Raise UsageError for an option of another format, or of another source of times."""
    taken = {*TAKES[arguments.to]} | {*(() if arguments.to == "nccl-tuner" else OF_SCHEDULE)}
    if arguments.rows is not None and arguments.to == "nccl-tuner":
        taken = {"rows"}
    for option in sorted({each for options in (*TAKES.values(), OF_SCHEDULE) for each in options} - taken):
        if (value := getattr(arguments, option)) is not None:
            raise UsageError(f"--to {arguments.to} takes no {option} here: got {value}, expected none")
    if arguments.collective is None or (arguments.to != "nccl-tuner" and arguments.algorithm is None):
        raise UsageError("export: got no algorithm, expected one, such as all_reduce two_tree")


def _program(arguments: argparse.Namespace) -> str:
    from collectives.formats import msccl_export

    schedule = built(arguments)
    with wrong_input():
        need_cells(schedule.p, schedule.k)
    verify(schedule)
    name = f"{arguments.collective}_{arguments.algorithm}"
    with wrong_input():
        if arguments.to == "goal":
            return _goal(schedule, arguments)
        return msccl_export.text(schedule, name, arguments.dialect or "rccl", arguments.protocol or "Simple")


def _goal(schedule: Schedule, arguments: argparse.Namespace) -> str:
    """The program; on standard error LogGOPSim's parameters for the machine's network."""
    from collectives.formats import goal
    from collectives.machine import machine

    if arguments.bytes is None or len(arguments.bytes) != 1:
        raise ValueError(f"--bytes: got {arguments.bytes}, expected one size")
    on = machine(arguments.machine or "textbook")
    options = " ".join(f"-{name} {value}" for name, value in goal.loggp(on.network)._asdict().items())
    text = goal.text(schedule, arguments.bytes[0])
    print(f"LogGOPSim {options} -S {2**31 - 1}: times in picoseconds on {on.name}", file=sys.stderr)
    return text


def _tuner(arguments: argparse.Namespace) -> str:
    """The file for NCCL's example tuner."""
    with wrong_input():
        if arguments.rows is not None:
            return tuner_file(
                _measured(Path(arguments.rows), arguments.collective), f"measured: {Path(arguments.rows).name}"
            )
        times = _simulated(arguments)
        return tuner_file(times, f"simulated by `collectives` on {arguments.machine or 'textbook'}")


def _simulated(arguments: argparse.Namespace) -> list[Time]:
    from collectives.machine import machine
    from collectives.simulator.scaling import regimes

    if arguments.collective != "all_reduce":
        raise UsageError(f"--to nccl-tuner: got {arguments.collective}, expected all_reduce, or --rows of another")
    on = machine(arguments.machine or "textbook")
    rows = regimes([on], arguments.nodes or NODES, arguments.bytes or SIZES, ALGORITHMS)
    switched = [nvls(*_where(row, on), on.inside.rate, on.ports * on.network.rate) for row in rows if on.inside]
    return [_time(row, on) for row in rows] + switched


def _where(row: dict[str, Any], on: Any) -> tuple[int, int, int]:
    """Return the nodes, ranks and bytes of a row."""
    return row["ranks"] // on.ranks_per_node, row["ranks"], row["bytes"]


def _time(row: dict[str, Any], on: Any) -> Time:
    names = known(row["algorithm"], _protocol(row, on))
    if names is None:
        raise RuntimeError(f"NCCL has no {row['algorithm']}")
    return Time(row["collective"], *names, *_where(row, on), row["seconds"])


def _protocol(row: dict[str, Any], on: Any) -> str:
    """Return the protocol of the machine that the largest message has, which is one chunk for ring and tree."""
    from collectives.simulator.scaling import Case, schedule
    from collectives.simulator.simulation import simulate

    made = schedule(Case(row["collective"], row["algorithm"], row["ranks"], row["bytes"], on, row["segments"]))
    return simulate(made, on, row["bytes"], row["algorithm"]).protocol


def _measured(path: Path, collective: str) -> list[Time]:
    """The rows of one back end by algorithms that NCCL has, and by its own choice: NCCL's rows, if they are there."""
    from collectives.bench.results import table

    if collective not in COLLECTIVES:
        raise UsageError(f"--to nccl-tuner: got {collective}, expected one of {', '.join(COLLECTIVES)}")
    try:
        rows = table(path, MEASURED).to_pandas().to_dict("records")
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path}: {' '.join(str(error).split())[:200]}") from None
    found = [
        (
            str(row.get("backend")),
            Time(collective, *names, ANY, int(row["ranks"]), int(row["bytes"]), row["median_us"] / 1e6),
        )
        for row in rows
        if row.get("collective") == collective and row.get("median_us", 0) > 0
        for names in [known(str(row.get("algorithm")))]
        if names is not None
    ]
    backends = sorted({backend for backend, time in found if time.algorithm})
    if len(backends) > 1 and "nccl" not in backends:
        raise UsageError(f"back ends of {path}: got {', '.join(backends)}, expected nccl or one alone")
    return [time for backend, time in found if backend == ("nccl" if "nccl" in backends else backends[0])]


def write(path: Path, text: str) -> None:
    """The text as a file, whole or not at all. Raises UsageError for a path that cannot be one."""
    try:
        with wrong_input():
            need_new_or_file(path)
            replace(path, lambda partial: partial.write_text(text))
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
    print(f"{path}: {len(text):,} bytes", file=sys.stderr)
