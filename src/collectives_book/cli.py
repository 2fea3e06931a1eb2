"""The verb ``run``: run experiments (notebooks) with a preset."""

import argparse
import sys
from pathlib import Path
from typing import Any

from collectives.errors import short


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "notebooks",
        nargs="+",
        type=Path,
        help="experiments, such as experiments/scaling.ipynb",
    )
    parser.add_argument(
        "--preset",
        default="quick",
        help="a file in the notebooks' folder presets/ (default quick)",
    )
    parser.add_argument(
        *("-p", "--parameter"),
        action="append",
        default=[],
        type=_assignment,
        metavar="NAME=VALUE",
        help="a value in place of the preset's, as in YAML: -p ranks=8 -p 'sizes=[4, 64K]'",
    )
    folder = "results go to results/NAME, or to a path (default: the preset's name, and a number with -p)"
    parser.add_argument("--output", metavar="NAME|PATH", help=folder)
    left = "overwrite what other parameters or other code left there"
    parser.add_argument("--replace", action="store_true", help=left)
    check = "check all of it and start nothing, as on a login node before sbatch"
    parser.add_argument("--check", action="store_true", help=check)


def _assignment(text: str) -> tuple[str, Any]:
    from collectives.config import parse_yaml

    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"got {short(text)}, expected NAME=VALUE")
    try:
        return name.strip(), parse_yaml(value, f"the value of {name.strip()}")
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run(arguments: argparse.Namespace) -> int:
    """Execute the notebooks. Return 1 if rows failed."""
    from collectives_book import execute

    asked = (
        arguments.notebooks,
        arguments.preset,
        dict(arguments.parameter),
        arguments.output,
    )
    failed = execute.run(*asked, replace=arguments.replace, check=arguments.check)
    if failed:
        print(
            f"collectives: {failed} rows failed; the same command measures them again",
            file=sys.stderr,
        )
    return 1 if failed else 0
