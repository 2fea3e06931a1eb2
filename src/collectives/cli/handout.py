"""The verb ``handout``: the starter of an assignment."""

import argparse
from pathlib import Path

from collectives.cli import ending
from collectives.cli.grade import add_assignment
from collectives.cli.options import wrong_input


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be typed."""
    add_assignment(parser)
    text = "a new folder for the starter"
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help=text)


def run(arguments: argparse.Namespace) -> None:
    """Write it, and say what to do next."""
    from collectives.grading import assignment, starter

    with wrong_input():
        read = assignment.read(arguments.assignment)
        starter.write(read, arguments.seed, arguments.output)
    files = ", ".join(read.facts.files)
    ending.out(f"{read.facts.title}: edit {files} in {arguments.output}; pytest runs the public tests there")
    ending.out(f"Grade it: collectives grade {arguments.assignment} {arguments.output} --seed {arguments.seed}")
