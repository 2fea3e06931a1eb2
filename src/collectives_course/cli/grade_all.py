"""The verb ``grade-all``: grade a class: a folder of submissions."""

import argparse
import json
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from collectives.cli.options import add_json, wrong_input
from collectives.cli.signals import killing_children, out
from collectives_course.cli import add_assignment, add_submissions, add_unsafe, note

if TYPE_CHECKING:
    from collectives_course.verdict import Grade


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be typed."""
    add_assignment(parser)
    add_submissions(parser)
    text = "where the grades go; the same command goes on where a cut one ended"
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help=text)
    add_unsafe(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Grade every submission, and sum the class up; 1 if the grader itself failed at one."""
    from collectives_course import assignment, report, submitted
    from collectives_course.classroom import grade_class
    from collectives_course.report import class_summary
    from collectives_course.verdict import ungraded

    with wrong_input():
        read = assignment.read(arguments.assignment)
        asked = read, arguments.submissions, arguments.output, arguments.seed, not arguments.unsafe
        if names := submitted.skipped(arguments.submissions):
            note(f"skipped, not students' folders: {', '.join(names)}")
        stop = Event()
        with killing_children(before=stop.set):
            grades = grade_class(*asked, on_grade=_say, stop=stop)
    if arguments.json:
        for graded in grades:
            out(json.dumps(report.as_json(graded)))
    else:
        out(class_summary(grades))
    lost = [graded.submission for graded in grades if ungraded(graded)]
    if lost:
        note(f"not graded, or not wholly, by the grader's fault: {', '.join(lost)}; the same command tries again")
    note(f"grades: {arguments.output}, class table: {arguments.output / 'class.csv'}")
    return 1 if lost else 0


def _say(done: int, of: int, graded: "Grade") -> None:
    note(f"{done:>4} of {of}  {graded.submission}: {graded.points:g} of {graded.of:g}")
