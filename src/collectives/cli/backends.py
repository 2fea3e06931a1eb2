"""The verb ``backends``: which back ends are here, and why one is not."""

import argparse

from collectives.cli.options import add_json
from collectives.cli.signals import out_row


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be typed."""
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """A row for each back end."""
    from collectives.backends import BACKENDS, presence

    for found in map(presence, BACKENDS):
        here = f"{found.version} on {found.devices}" if found.absent is None else f"absent: {found.absent}"
        out_row(found._asdict(), f"{found.backend:<10}  {here}", arguments.json)
