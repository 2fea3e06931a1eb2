"""The public names and the command line are those that are recorded: no one changes by accident.

``PYTHONPATH=tests python tests/repository/test_public.py > tests/repository/command_line.txt`` records the command
line again; `make golden` the signatures.
"""

import argparse
import difflib
import json
import re
from collections.abc import Iterator
from pathlib import Path

from collectives.cli import VERBS, parser
from places import ROOT, script

RECORDED = Path(__file__).with_name("command_line.txt")


def command_line() -> Iterator[str]:
    """A line for each verb's argument, the options by name: how many values, which are allowed, and the default."""
    (verbs,) = (each for each in parser(VERBS)._actions if isinstance(each, argparse._SubParsersAction))
    for verb, of in verbs.choices.items():
        told = [each for each in of._actions if each.dest != "help"]
        yield from (f"{verb} {argument(each)}" for each in told if not each.option_strings)
        yield from sorted(f"{verb} {argument(each)}" for each in told if each.option_strings)


def argument(action: argparse.Action) -> str:
    names = "/".join(action.option_strings) or action.dest
    told = {"values": action.nargs, "one of": action.choices, "default": action.default}
    return " ".join([names, *(f"{name} {value}" for name, value in told.items() if value is not None)])


def test_the_command_line_is_the_recorded_one() -> None:
    before, now = RECORDED.read_text(encoding="utf8").splitlines(), list(command_line())
    assert now == before, "\n".join(difflib.unified_diff(before, now, "recorded", "now", lineterm=""))


def test_the_signatures_are_the_recorded_ones() -> None:
    recorder = script("golden")
    recorded = json.loads(recorder.GOLDEN.read_text(encoding="utf8"))
    before = {name: value for name, value in recorded.items() if name.startswith("public: ")}
    now = recorder.recorded({"public": recorder.public})
    assert recorder.differences(before, now) == []


def test_a_changed_option_is_seen() -> None:
    changed = argparse.ArgumentParser().add_argument("-p", "--ranks", type=int, nargs="+", default=[4], choices=[4, 8])
    assert argument(changed) == "-p/--ranks values + one of [4, 8] default [4]"
    assert argument(argparse.ArgumentParser().add_argument("--json", action="store_true")) == (
        "--json values 0 default False"
    )


def test_the_readme_names_the_variables_that_are_read() -> None:
    read = {
        name
        for path in (ROOT / "src").rglob("*.py")
        for name in re.findall(r'^\w+ = "(COLLECTIVES_\w+)"', path.read_text(encoding="utf8"), flags=re.MULTILINE)
    }
    internal = {"COLLECTIVES_HUB"}  # from a launcher to its own processes
    (section,) = re.findall(
        r"^## What stays compatible\n(.*?)^## ", (ROOT / "README.md").read_text(), flags=re.MULTILINE | re.DOTALL
    )
    assert set(re.findall(r"COLLECTIVES_\w+", section)) == read - internal


if __name__ == "__main__":
    print(*command_line(), sep="\n")
