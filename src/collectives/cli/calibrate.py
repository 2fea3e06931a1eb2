"""The verb ``calibrate``: a machine file from messages between two ranks."""

import argparse
import sys

from collectives import units
from collectives.cli.options import TIMEOUT, seconds, whole, wrong_input
from collectives.cli.signals import out


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be typed."""
    ranks, repetitions = whole(units.MOST_RANKS_STARTED, 2), whole(units.MOST_REPETITIONS)
    parser.add_argument("--name", default="calibrated", help="the machine's name (default calibrated)")
    parser.add_argument("--where", default="loopback", help="what starts the ranks (default loopback)")
    parser.add_argument("--ranks", type=ranks, default=2, help="the first and the last are measured (default 2)")
    parser.add_argument("--repetitions", type=repetitions, default=50, help="of each message (default 50)")
    parser.add_argument("--timeout", type=seconds, default=TIMEOUT, help=f"seconds (default {TIMEOUT:g})")


def run(arguments: argparse.Namespace) -> None:
    """The machine file on standard output, and the messages that the link was fitted to on standard error."""
    from collectives.bench.calibration import SIZES, deviations, machine_of, measured, trust
    from collectives.machine import text
    from collectives.units import duration, format_bytes

    with wrong_input():
        rows = measured(arguments.where, arguments.ranks, SIZES, arguments.repetitions, arguments.timeout)
    made = machine_of(rows, arguments.name, arguments.where)
    deviating = deviations(rows, made.network)
    for row in deviating:
        each = duration(row["each"]) if row["each"] > 0 else "unknown"
        one_way = f"{format_bytes(row['bytes']):>8} {duration(row['one_way']):>8} one way, {each:>8} each"
        print(f"{one_way} in a burst; the fit: {duration(row['fit']):>8} ({row['off']:+.0%})", file=sys.stderr)
    print(trust(deviating), file=sys.stderr)
    out(text(made).rstrip("\n"))
