"""The verbs that the course adds to the command line, a module each, and the arguments that they share."""

import argparse
import sys
from pathlib import Path

from collectives.cli.options import whole
from collectives_course.verdict import line

SEED = whole(2**31 - 1, 0)


def add_assignment(parser: argparse.ArgumentParser) -> None:
    """The assignment and its seed."""
    parser.add_argument("assignment", type=Path, help="a folder of assignments/, for example assignments/ring")
    text = "the number of your course's variant (default 0)"
    parser.add_argument("--seed", type=SEED, default=0, help=text, metavar="N")


def add_submissions(parser: argparse.ArgumentParser) -> None:
    """The folder of a class."""
    parser.add_argument("submissions", type=Path, help="a folder with a folder for each student")


def add_unsafe(parser: argparse.ArgumentParser) -> None:
    """How submissions are run."""
    text = "run without a sandbox, as your own user: only for submissions that you have read"
    parser.add_argument("--unsafe", action="store_true", help=text)


def note(text: str) -> None:
    """Say something on standard error, with nothing in it that a terminal would obey."""
    print(line(text), file=sys.stderr, flush=True)
