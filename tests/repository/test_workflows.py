"""The workflows: valid, by tag, with least rights, and they run what the repository has."""

import re
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from places import ROOT

FOLDER = ROOT / ".github" / "workflows"
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text(encoding="utf8")) for path in sorted(FOLDER.glob("*.yml"))}
TARGETS = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf8"), re.MULTILINE)
NAMES = pytest.mark.parametrize("name", WORKFLOWS)


def jobs(name: str) -> list[dict[str, Any]]:
    return list(WORKFLOWS[name]["jobs"].values())


def steps(name: str) -> Iterator[dict[str, Any]]:
    for job in jobs(name):
        yield from job["steps"]


def missing(command: str) -> list[str]:
    """What a command names that the repository lacks: targets of make, and files of `.ci`."""
    targets = [word for line in re.findall(r"\bmake ((?:[a-z-]+ ?)+)", command) for word in line.split()]
    files = re.findall(r"\.ci/[\w.]+", command)
    return [each for each in targets if each not in TARGETS] + [each for each in files if not (ROOT / each).is_file()]


@NAMES
def test_what_is_run_is_there(name: str) -> None:
    assert not [lack for step in steps(name) for lack in missing(step.get("run", ""))]
    assert all(("run" in step) != ("uses" in step) for step in steps(name))


@NAMES
def test_actions_are_named_by_their_tag(name: str) -> None:
    used = [step["uses"] for step in steps(name) if "uses" in step]
    assert not [each for each in used if not re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v\d+)", each)]


@NAMES
def test_rights_are_the_least_and_jobs_end(name: str) -> None:
    assert WORKFLOWS[name]["permissions"] == {"contents": "read"}
    assert all(0 < job["timeout-minutes"] <= 180 for job in jobs(name))


@NAMES
def test_no_command_contains_what_a_stranger_could_write(name: str) -> None:
    """An expression in a command is pasted into the shell; a variable is not."""
    assert not [step["run"] for step in steps(name) if "${{" in step.get("run", "")]


def test_checks_run_on_every_python_that_is_promised() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]
    promised = [each.rpartition(" ")[2] for each in project["classifiers"] if re.search(r":: 3\.\d+$", each)]
    assert WORKFLOWS["checks"]["jobs"]["checks"]["strategy"]["matrix"]["python"] == promised


def test_packages_of_the_system_are_those_of_the_whole_run() -> None:
    lines = re.findall(r"^step packages (.*)$", (ROOT / ".ci" / "run").read_text(encoding="utf8"), re.MULTILINE)
    for name in ("checks", "site"):
        (command,) = (step["run"] for step in steps(name) if "apt-get" in step.get("run", ""))
        assert set(command.rpartition("--no-install-recommends ")[2].split()) <= set(" ".join(lines).split())


def test_versions_agree() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]["version"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf8"))["version"] == version
