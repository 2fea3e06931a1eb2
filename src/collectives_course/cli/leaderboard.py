"""The verb ``leaderboard``: rank a folder of submissions on a new secret machine."""

import argparse
from pathlib import Path
from typing import Any

from collectives.cli.options import add_json, wrong_input
from collectives.cli.signals import killing_children, out, out_row
from collectives_course.cli import SEED, add_submissions, add_unsafe, note
from collectives_course.verdict import line as printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be typed."""
    parser.add_argument(
        "assignment", type=Path, help="a folder of assignments/ that has a score: assignments/leaderboard"
    )
    add_submissions(parser)
    text = "repeat an earlier run, which printed this number (default: a new one for every run)"
    parser.add_argument("--seed", type=SEED, help=text, metavar="N")
    add_unsafe(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Grade each in the same race, then print the table."""
    from collectives_course import assignment
    from collectives_course.leaderboard import ranking

    with wrong_input():
        read = assignment.read(arguments.assignment)
        with killing_children():
            rows = ranking(read, arguments.submissions, arguments.seed, not arguments.unsafe, _say)
    if not arguments.json:
        out(f"{'place':>5}  {'score':>7}  submission")
    for row in rows:
        out_row(row, line(row), arguments.json)
    note(f"score: time over the bound; repeat with --seed {rows[0]['seed']}")


def line(row: dict[str, Any]) -> str:
    """A row as the terminal shows it; text of a submission without what could control the terminal."""
    if row["score"] is None:
        return f"{'-':>5}  {'-':>7}  {printable(row['submission'])}: {row['status']}, {printable(row['message'])[:200]}"
    return f"{row['place']:>5}  {row['score']:>7.3f}  {printable(row['submission'])}"


def _say(row: dict[str, Any]) -> None:
    note(f"{row['submission']}: {row['status']}")
