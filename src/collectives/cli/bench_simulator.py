"""The verb ``bench-simulator``: how fast the simulator is."""

import argparse

from collectives.cli.options import add_json
from collectives.cli.signals import out, out_row


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be typed."""
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """A row for each case."""
    from collectives.simulator.speed import HEADING, benchmark, lines

    if not arguments.json:
        out(HEADING)
    benchmark(lambda row: out_row(row, lines(row), arguments.json))
