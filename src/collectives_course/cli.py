"""The verbs that the course adds to the command line: a class each, without instances."""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collectives.cli import add_json, out, out_row, whole
from collectives_course.verdict import line

if TYPE_CHECKING:
    from collectives_course.assignment import Assignment
    from collectives_course.verdict import Grade

SEED = whole(2**31 - 1, 0)


class Handout:
    """The verb ``handout``: the starter of an assignment of the course."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Add the command's options."""
        _add_assignment(parser)
        text = "a new folder for the starter; with --nbgrader the folder of a course"
        parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help=text)
        text = "write source/NAME/NAME.ipynb for nbgrader instead"
        parser.add_argument("--nbgrader", action="store_true", help=text)

    @staticmethod
    def run(arguments: argparse.Namespace) -> None:
        """Write the starter, and say what to do next."""
        from collectives_course import assignment

        read = assignment.read(arguments.assignment)
        try:
            lines = (
                _write_notebook(read, arguments)
                if arguments.nbgrader
                else _write_starter(read, arguments)
            )
        except OSError as error:
            raise ValueError(
                f"cannot write the starter to {arguments.output}: {error.strerror}"
            ) from None
        for each in lines:
            out(line(each))


class GradeOne:
    """The verb ``grade``: grade one submission of an assignment, in a sandbox."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Add the command's options."""
        _add_assignment(parser)
        parser.add_argument("submission", type=Path, help="the student's folder")
        _add_unsafe(parser)
        text = "also write grade.json, results.json, grade.html"
        parser.add_argument("--output", type=Path, metavar="FOLDER", help=text)
        add_json(parser)

    @staticmethod
    def run(arguments: argparse.Namespace) -> int:
        """Grade, print, write.

        Return 1 if the grader itself failed at a criterion. A missing file is an error.
        """
        from collectives_course import assignment, grade, report

        read = assignment.read(arguments.assignment)
        graded = grade.grade(read, arguments.submission, arguments.seed, not arguments.unsafe)
        if arguments.output:
            report.write(graded, arguments.output)
        folder, names = arguments.submission, read.facts.files
        missing = [name for name in names if not os.path.lexists(folder / name)]
        if missing:
            raise ValueError(
                f"submission: got {folder}, which has no {missing[0]}, expected {', '.join(names)}"
            )
        out(json.dumps(report.as_json(graded)) if arguments.json else report.terminal(graded))
        return 1 if graded.ungraded else 0


class GradeAll:
    """The verb ``grade-all``: grade a class: a folder of submissions."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Add the command's options."""
        _add_assignment(parser)
        _add_submissions(parser)
        text = "where the grades go; the same command goes on where a cut one ended"
        parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help=text)
        text = "a table with the columns submission and id, whose ids class.csv gets, too"
        parser.add_argument("--ids", type=Path, metavar="FILE.csv", help=text)
        _add_unsafe(parser)
        add_json(parser)

    @staticmethod
    def run(arguments: argparse.Namespace) -> int:
        """Grade every submission, and sum the class up.

        Return 1 if the grader itself failed at one.
        """
        from collectives_course import assignment, grade, report, submission

        def progress(done: int, of: int, graded: "Grade") -> None:
            _note(f"{done:>4} of {of}  {graded.submission}: {graded.points:g} of {graded.of:g}")

        read = assignment.read(arguments.assignment)
        names = submission.skipped(arguments.submissions)
        if names:
            _note(f"skipped, not students' folders: {', '.join(names)}")
        asked = read, arguments.submissions, arguments.output, arguments.seed, not arguments.unsafe
        ids = report.read_ids(arguments.ids) if arguments.ids else None
        grades = grade.grade_class(*asked, on_grade=progress, ids=ids)
        if arguments.json:
            for each in grades:
                out(json.dumps(report.as_json(each)))
        else:
            out(report.class_summary(grades))
        lost = [each.submission for each in grades if each.ungraded]
        if lost:
            _note(
                f"not graded, or not wholly, by the grader's fault: {', '.join(lost)}; the same command tries again"
            )
        _note(f"grades: {arguments.output}, class table: {arguments.output / 'class.csv'}")
        return 1 if lost else 0


class Leaderboard:
    """The verb ``leaderboard``: rank a folder of submissions on a new secret machine."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Add the command's options."""
        text = "a folder of assignments/ that has a score: assignments/leaderboard"
        parser.add_argument("assignment", type=Path, help=text)
        _add_submissions(parser)
        text = "repeat an earlier run, which printed this number (default: a new one for every run)"
        parser.add_argument("--seed", type=SEED, help=text, metavar="N")
        _add_unsafe(parser)
        add_json(parser)

    @staticmethod
    def run(arguments: argparse.Namespace) -> None:
        """Grade each submission in the same race, then print the table."""
        from collectives_course import assignment
        from collectives_course.leaderboard import ranking

        read = assignment.read(arguments.assignment)
        asked = read, arguments.submissions, arguments.seed, not arguments.unsafe
        rows = ranking(*asked, lambda row: _note(f"{row['submission']}: {row['status']}"))
        if not arguments.json:
            out(f"{'place':>5}  {'score':>7}  submission")
        for row in rows:
            out_row(row, _ranked(row), arguments.json)
        _note(f"score: time over the bound; repeat with --seed {rows[0]['seed']}")


def _add_assignment(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "assignment", type=Path, help="a folder of assignments/, for example assignments/ring"
    )
    text = "the number of your course's variant (default 0)"
    parser.add_argument("--seed", type=SEED, default=0, help=text, metavar="N")


def _add_submissions(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("submissions", type=Path, help="a folder with a folder for each student")


def _add_unsafe(parser: argparse.ArgumentParser) -> None:
    text = "run without a sandbox, as your own user: only for submissions that you have read"
    parser.add_argument("--unsafe", action="store_true", help=text)


def _note(text: str) -> None:
    """Print a note on standard error, with nothing in it that a terminal would obey."""
    print(line(text), file=sys.stderr, flush=True)


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


def _ranked(row: dict[str, Any]) -> str:
    """Return a row as the terminal shows it, with nothing in it that could control the terminal."""
    if row["score"] is None:
        return f"{'-':>5}  {'-':>7}  {line(row['submission'])}: {row['status']}, {line(row['message'])[:200]}"
    return f"{row['place']:>5}  {row['score']:>7.3f}  {line(row['submission'])}"
