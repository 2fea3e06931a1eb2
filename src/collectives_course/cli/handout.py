"""The verb ``handout``: the starter of an assignment of the course."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from collectives.cli import signals
from collectives.cli.options import UsageError, wrong_input
from collectives_course.cli import add_assignment
from collectives_course.verdict import line

if TYPE_CHECKING:
    from collectives_course.assignment import Assignment


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be typed."""
    add_assignment(parser)
    text = "a new folder for the starter; with --nbgrader the folder of a course"
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help=text)
    text = "write source/NAME/NAME.ipynb for nbgrader instead"
    parser.add_argument("--nbgrader", action="store_true", help=text)


def run(arguments: argparse.Namespace) -> None:
    """Write it, and say what to do next."""
    from collectives_course import assignment

    with wrong_input():
        read = assignment.read(arguments.assignment)
        write = _write_notebook if arguments.nbgrader else _write_starter
        try:
            lines = write(read, arguments)
        except OSError as error:
            raise UsageError(f"cannot write the starter to {arguments.output}: {error.strerror}") from None
    for each in lines:
        signals.out(line(each))


def _write_starter(read: "Assignment", arguments: argparse.Namespace) -> list[str]:
    from collectives_course.assignment import write_starter

    write_starter(read, arguments.seed, arguments.output)
    files = ", ".join(read.facts.files)
    return [
        f"{read.facts.title}: edit {files} in {arguments.output}; pytest runs the public tests there",
        f"Grade it: collectives grade {arguments.assignment} {arguments.output} --seed {arguments.seed}",
    ]


def _write_notebook(read: "Assignment", arguments: argparse.Namespace) -> list[str]:
    from collectives_course import nbgrader

    path = nbgrader.export(read, arguments.seed, arguments.output)
    return [
        f"{read.facts.title}: {path}",
        f"Release it: cd {arguments.output} && nbgrader generate_assignment {read.name}",
    ]
