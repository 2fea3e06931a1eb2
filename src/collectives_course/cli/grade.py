"""The verb ``grade``: grade one submission of an assignment, in a sandbox."""

import argparse
import json
from pathlib import Path

from collectives.cli.options import add_json, whole, wrong_input
from collectives.cli.signals import out


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be typed."""
    add_assignment(parser)
    parser.add_argument("submission", type=Path, help="the student's folder")
    add_unsafe(parser)
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="also write grade.json, results.json, grade.html")
    add_json(parser)


def add_assignment(parser: argparse.ArgumentParser) -> None:
    """The assignment and its seed."""
    parser.add_argument("assignment", type=Path, help="a folder of assignments/, for example assignments/ring")
    text = "the number of your course's variant (default 0)"
    parser.add_argument("--seed", type=whole(2**31 - 1, 0), default=0, help=text, metavar="N")


def add_unsafe(parser: argparse.ArgumentParser) -> None:
    """How submissions are run."""
    text = "run without a sandbox, as your own user: only for submissions that you have read"
    parser.add_argument("--unsafe", action="store_true", help=text)


def run(arguments: argparse.Namespace) -> int:
    """Grade, print, write; 1 if the grader itself failed at a criterion."""
    from collectives_course import assignment, grade, report
    from collectives_course.report import terminal

    with wrong_input():
        read = assignment.read(arguments.assignment)
        graded = grade.grade(read, arguments.submission, arguments.seed, not arguments.unsafe)
    if arguments.output:
        report.write(graded, arguments.output)
    out(json.dumps(report.as_json(graded)) if arguments.json else terminal(graded))
    return 0 if grade.is_graded(graded) else 1
