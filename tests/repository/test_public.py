"""The command line is the recorded one: no option changes by accident.

`golden.json` holds the public names.

``PYTHONPATH=tests python tests/repository/test_public.py > tests/repository/command_line.txt``
records it again.
"""

import argparse
import difflib
import re
from collections.abc import Iterator
from pathlib import Path

from collectives.cli import parser, verbs
from places import ROOT

RECORDED = Path(__file__).with_name("command_line.txt")


def command_line() -> Iterator[str]:
    """A line for each verb's argument, the options by name: how many values, which are allowed, and the default."""
    (commands,) = (
        each for each in parser(verbs())._actions if isinstance(each, argparse._SubParsersAction)
    )
    for verb, of in commands.choices.items():
        told = [each for each in of._actions if each.dest != "help"]
        yield from (f"{verb} {argument(each)}" for each in told if not each.option_strings)
        yield from sorted(f"{verb} {argument(each)}" for each in told if each.option_strings)


def argument(action: argparse.Action) -> str:
    names = "/".join(action.option_strings) or action.dest
    told = {"values": action.nargs, "one of": action.choices, "default": action.default}
    return " ".join(
        [names, *(f"{name} {value}" for name, value in told.items() if value is not None)]
    )


def test_the_command_line_is_the_recorded_one() -> None:
    before, now = RECORDED.read_text(encoding="utf8").splitlines(), list(command_line())
    assert now == before, "\n".join(
        difflib.unified_diff(before, now, "recorded", "now", lineterm="")
    )


def test_the_reference_names_the_variables_that_are_read() -> None:
    read = {
        name
        for path in (ROOT / "src").rglob("*.py")
        for name in re.findall(
            r'^\w+ = "(COLLECTIVES_\w+)"', path.read_text(encoding="utf8"), flags=re.MULTILINE
        )
    }
    internal = {"COLLECTIVES_HUB", "COLLECTIVES_SHARE_GPUS"}  # from a launcher to its own processes
    (section,) = re.findall(
        r"^## What stays compatible\n(.*)\Z",
        (ROOT / "chapters" / "reference-api.md").read_text(),
        flags=re.M | re.S,
    )
    assert set(re.findall(r"COLLECTIVES_\w+", section)) == read - internal


if __name__ == "__main__":
    print(*command_line(), sep="\n")
