"""The verb ``read``: logs and dumps of a job become an answer: what they say, what is wrong, and what to try next."""

import argparse
from pathlib import Path
from typing import Any

from collectives.cli.options import add_json, wrong_input
from collectives.cli.signals import out, out_row


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be typed."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="of one job, in any order; nothing in them is run")
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """A row for each finding. Raises UsageError for a file that cannot be read or is of no known kind."""
    from collectives.logs.read import read

    kind = ""
    with wrong_input():
        for name, found in read([Path(file) for file in arguments.files]):
            row = {"source": name, **found._asdict(), "at": [str(place) for place in found.at]}
            if name != kind and not arguments.json:
                out(f"{name}:")
            kind = name
            out_row(row, line(row), arguments.json)


def line(row: dict[str, Any]) -> str:
    """A row as the terminal shows it."""
    first = f"  {row['kind']}: {row['found']}" + (f" ({', '.join(row['at'])})" if row["at"] else "")
    more = [f"      {word}: {row[name]}" for name, word in (("follows", "so"), ("next", "try")) if row[name]]
    return "\n".join([first, *more])
