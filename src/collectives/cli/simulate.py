"""The verb ``simulate``: how long a schedule takes on a machine."""

import argparse
import sys

from collectives import units
from collectives.cli.options import UsageError, add_json, size, wrong_input
from collectives.cli.schedules import RANKS, add_schedule, complete, limited, need_options
from collectives.cli.signals import out_row

SIZES = ("8", "64K", "64M")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be typed."""
    add_schedule(parser, units.MOST_RANKS)
    parser.add_argument(
        "--machine", default="textbook", help="a preset, mesh:5x5, or your own NAME.yaml (default textbook)"
    )
    default, shown = [size(text) for text in SIZES], " ".join(SIZES)
    parser.add_argument("--bytes", nargs="+", type=size, default=default, help=f"sizes (default {shown})")
    parser.add_argument("--trace", metavar="FILE.json", help="every message, for chrome://tracing or ui.perfetto.dev")
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """A row for each size, and a trace of it if asked for."""
    try:
        with limited(arguments, [arguments.collective, arguments.algorithm]), wrong_input():
            _simulate(arguments)
    except BrokenPipeError:
        raise
    except OSError as error:
        verb = "write" if error.filename == arguments.trace else "read"
        raise UsageError(f"cannot {verb} {error.filename}: {error.strerror}") from None


def _simulate(arguments: argparse.Namespace) -> None:
    from collectives.machine import machine
    from collectives.simulator.scaling import Case, line, row, schedule
    from collectives.simulator.trace import need_new_or_file, trace

    complete(arguments)
    need_options(arguments)
    names, on = (arguments.collective, arguments.algorithm), machine(arguments.machine)
    p = arguments.ranks or (on.ranks_per_node if on.links else RANKS)
    if arguments.trace:
        need_new_or_file(arguments.trace)
        if len(arguments.bytes) > 1:
            raise ValueError("a trace shows one size: give one with --bytes")
    for nbytes in arguments.bytes:
        case = Case(*names, p, nbytes, on, arguments.segments, arguments.root)
        made = row(case)
        out_row(made, line(made), arguments.json)
        if arguments.trace:
            trace(arguments.trace, schedule(case._replace(segments=made["segments"])), on, nbytes, case.algorithm)
            print(f"{arguments.trace}: open it in ui.perfetto.dev or chrome://tracing", file=sys.stderr)
