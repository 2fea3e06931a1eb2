"""The verb ``simulate``: how long a schedule takes on a machine."""

import argparse
import sys
from collections import Counter
from typing import TYPE_CHECKING

from collectives import units
from collectives.bounds import busbw
from collectives.cli.options import add_json, size, wrong_input
from collectives.cli.schedules import RANKS, add_schedule, complete, limited, need_options
from collectives.cli.signals import out_row
from collectives.files import need_new_or_file
from collectives.schedule import Schedule
from collectives.units import duration

if TYPE_CHECKING:
    from collectives.machine import Machine
    from collectives.simulator.scaling import Case

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
    with limited(arguments, [arguments.collective, arguments.algorithm]), wrong_input():
        _simulate(arguments)


def _simulate(arguments: argparse.Namespace) -> None:
    from collectives.autotune import MOST_SIMULATED
    from collectives.machine import machine
    from collectives.simulator.scaling import Case, line, row, schedule
    from collectives.simulator.trace import trace

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
    if p <= MOST_SIMULATED:
        _compare(case, made["seconds"])


def _compare(case: "Case", seconds: float) -> None:
    """Say on standard error how many ports of a node an algorithm leaves idle, and which one would be the fastest."""
    from collectives.autotune import choose
    from collectives.simulator.scaling import schedule

    used, ports = _ports(schedule(case._replace(segments=1)), case.machine), case.machine.ports
    if not 0 < used < ports:
        return
    text = f"collectives: {case.algorithm} sends through {used} of the {ports} network ports of a node"
    best = choose(case.collective, case.ranks, case.bytes, on=case.machine)
    if best.seconds and best.seconds < seconds:
        rate = busbw(case.collective, case.ranks, case.bytes, best.seconds)
        text += f"; the fastest, {best.algorithm}, takes {duration(best.seconds)}, busbw {rate:.3g} GB/s"
    print(text, file=sys.stderr)


def _ports(of: Schedule, on: "Machine") -> int:
    """Return how many network ports the ranks of a node send through, of the node that uses most."""
    g, used = on.ranks_per_node, set[int]()
    for step in of.steps():
        sender = step.src[step.src // g != step.dst // g]
        used.update((sender // g * on.ports + sender % g * on.ports // g).tolist())
    return max(Counter(port // on.ports for port in used).values(), default=0)
