"""The verb ``grade``: grade one submission of an assignment."""

import argparse
import json
from pathlib import Path

from collectives.cli.options import add_json, whole, wrong_input


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be typed."""
    add_assignment(parser)
    parser.add_argument("submission", type=Path, help="the student's folder")
    add_grading(parser)
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="also write grade.json, results.json, grade.html")
    add_json(parser)


def add_assignment(parser: argparse.ArgumentParser) -> None:
    """The assignment and its seed."""
    parser.add_argument("assignment", type=Path, help="a folder of assignments/, for example assignments/ring")
    most = 2**31 - 1
    parser.add_argument("--seed", type=whole(most, 0), default=0, help="your course's number (default 0)", metavar="N")


def add_grading(parser: argparse.ArgumentParser) -> None:
    """How submissions are run."""
    text = "run without a sandbox, as your own user: only for submissions that you have read"
    parser.add_argument("--unsafe", action="store_true", help=text)


def run(arguments: argparse.Namespace) -> None:
    """Grade, print, write."""
    from collectives.grading import assignment, grade, report

    with wrong_input():
        graded = grade.grade(
            assignment.read(arguments.assignment), arguments.submission, arguments.seed, not arguments.unsafe
        )
    if arguments.output:
        report.write(graded, arguments.output)
    print(json.dumps(report.as_json(graded)) if arguments.json else report.terminal(graded))
