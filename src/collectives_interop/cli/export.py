"""The verb ``export``: a schedule for the tools of others."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from collectives import units
from collectives.cli import TIMEOUT, limit, out, size, whole
from collectives.cli.proofs import proved
from collectives.cli.schedules import OF_SCHEDULE, add_schedule, refuse, write
from collectives.core.schedule import Schedule
from collectives_interop import msccl, tuner
from collectives_interop.program import SLOTS

if TYPE_CHECKING:
    from collectives.machine import Machine

# What each format takes, beyond collective, algorithm and -p.
TAKES = {
    "msccl": ("dialect", "protocol"),
    "goal": ("machine", "bytes"),
    "nccl-tuner": ("machine", "nodes", "bytes", "rows"),
    "ncclx-tuner": ("machine", "nodes", "bytes", "rows"),
}
# What a tuner's file takes if its times are measured: rows do not say the nodes that NCCLX needs.
OF_ROWS = {"nccl-tuner": ("rows",), "ncclx-tuner": ("rows", "nodes")}
OPTIONS = ("bytes", "dialect", "machine", "nodes", "protocol", "rows")

# For the tuner: sizes are four times as large each.
SIZES = [4**i for i in range(4, 16)]
NODES = [2, 4, 8, 16]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_schedule(parser, units.MAX_RANKS_SHOWN, nargs="?")
    formats = (
        "MSCCL XML, proved before it is written; GOAL, for LogGOPSim; "
        "the file of NCCL's example tuner, or of NCCLX's"
    )
    parser.add_argument("--to", choices=tuple(TAKES), required=True, help=formats)
    parser.add_argument(
        "--dialect", choices=tuple(msccl.DIALECTS), help="msccl: what reads it (default rccl)"
    )
    parser.add_argument(
        "--protocol", choices=tuple(SLOTS), help="msccl: NCCL's protocol (default Simple)"
    )
    parser.add_argument("--machine", help="goal, tuners: whose network it is (default textbook)")
    nodes = " ".join(str(number) for number in NODES)
    parser.add_argument(
        "--nodes",
        nargs="+",
        type=whole(units.MAX_RANKS),
        help=f"tuners: of the machine (default {nodes}); ncclx-tuner: of the rows",
    )
    parser.add_argument(
        "--bytes", nargs="+", type=size, help="goal: one size; tuners: default 256 B to 1 GiB"
    )
    parser.add_argument(
        "--rows", metavar="FILE.parquet", help="tuners: instead of a machine, rows of `bench`"
    )
    parser.add_argument("--output", metavar="FILE", help="left out: standard output")


def run(arguments: argparse.Namespace) -> None:
    """Write the schedule into a file, or on standard output."""
    _check_options(arguments)
    with limit(arguments.timeout or TIMEOUT, "export"):
        text = _text(arguments)
    if arguments.output is None:
        out(text.rstrip("\n"))
    else:
        write(Path(arguments.output), text)


def _check_options(arguments: argparse.Namespace) -> None:
    """Raise ValueError for an option of another format, or of another source of times."""
    is_tuner = arguments.to in tuner.FORMATS
    taken = TAKES[arguments.to]
    refused = list(OF_SCHEDULE) if is_tuner else []
    if is_tuner and arguments.algorithm is not None:
        raise ValueError(
            f"--to {arguments.to} takes no algorithm: got {arguments.algorithm}, expected none"
        )
    if is_tuner and arguments.rows is not None:
        taken = OF_ROWS[arguments.to]
    others = [option for option in OPTIONS if option not in taken]
    refuse(arguments, others + refused, f"--to {arguments.to}")
    if arguments.collective is None or (not is_tuner and arguments.algorithm is None):
        raise ValueError("export: got no algorithm, expected one, such as all_reduce two_tree")


def _text(arguments: argparse.Namespace) -> str:
    if arguments.to in tuner.FORMATS:
        return _tuner(arguments)
    schedule = proved(arguments)
    if arguments.to == "goal":
        return _goal(schedule, arguments)
    name = f"{arguments.collective}_{arguments.algorithm}"
    return msccl.text(schedule, name, arguments.dialect or "rccl", arguments.protocol or "Simple")


def _machine(arguments: argparse.Namespace) -> "Machine":
    from collectives.machine import machine

    return machine(arguments.machine or "textbook")


def _goal(schedule: Schedule, arguments: argparse.Namespace) -> str:
    """Return the program.

    Print LogGOPSim's parameters for the machine's network on standard error.
    """
    from collectives_interop.goal import goal, loggp

    if arguments.bytes is None or len(arguments.bytes) != 1:
        raise ValueError(f"--bytes: got {arguments.bytes}, expected one size")
    machine = _machine(arguments)
    parameters = loggp(machine.network)._asdict()
    options = " ".join(f"-{name} {value}" for name, value in parameters.items())
    text = goal(schedule, arguments.bytes[0])
    longest = 2**31 - 1
    print(
        f"LogGOPSim {options} -S {longest}: times in picoseconds on {machine.name}", file=sys.stderr
    )
    return text


def _tuner(arguments: argparse.Namespace) -> str:
    """Return the file for NCCL's example tuner, or for NCCLX's."""
    collective, to = arguments.collective, arguments.to
    if arguments.rows is not None:
        path = Path(arguments.rows)
        times = tuner.measured(path, collective)
        if arguments.nodes is not None:
            if len(arguments.nodes) > 1:
                raise ValueError(f"--nodes of rows: got {arguments.nodes}, expected one number")
            times = [time._replace(nodes=arguments.nodes[0]) for time in times]
        return tuner.tuner(times, f"measured: {path.name}", to)
    if collective != "all_reduce":
        raise ValueError(f"--to {to}: got {collective}, expected all_reduce, or --rows of another")
    machine = _machine(arguments)
    nodes, sizes = arguments.nodes or NODES, arguments.bytes or SIZES
    times = tuner.simulated(machine, nodes, sizes)
    named = arguments.machine or "textbook"
    return tuner.tuner(times, f"simulated by `collectives` on {named}", to)
