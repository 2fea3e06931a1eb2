"""The verb ``grade``: grade one submission of an assignment, in a sandbox."""

import argparse
import json
from pathlib import Path

from collectives.cli.options import add_json, wrong_input
from collectives.cli.signals import out
from collectives_course.cli import add_assignment, add_unsafe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be typed."""
    add_assignment(parser)
    parser.add_argument("submission", type=Path, help="the student's folder")
    add_unsafe(parser)
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="also write grade.json, results.json, grade.html")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Grade, print, write; 1 if the grader itself failed at a criterion."""
    from collectives_course import assignment, grade, report
    from collectives_course.report import terminal
    from collectives_course.verdict import ungraded

    with wrong_input():
        read = assignment.read(arguments.assignment)
        graded = grade.grade(read, arguments.submission, arguments.seed, not arguments.unsafe)
    if arguments.output:
        report.write(graded, arguments.output)
    out(json.dumps(report.as_json(graded)) if arguments.json else terminal(graded))
    return 1 if ungraded(graded) else 0
