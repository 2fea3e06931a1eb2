"""The tiers of tests: each is part of the next, the last is everything, and a unit test starts no process."""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable

import pytest

from places import ROOT

TIERS = ("unit", "test", "test-all")


def collected(*arguments: str) -> set[str]:
    command = [sys.executable, "-m", "pytest", *arguments, "--collect-only", "--quiet"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=True)
    return {line for line in done.stdout.splitlines() if "::" in line}


def arguments(tier: str) -> list[str]:
    """What `make TIER` gives to pytest."""
    plan = subprocess.run(
        ["make", "-n", "-o", "env", "-o", "book", tier], cwd=ROOT, capture_output=True, text=True, check=True
    )
    (command,) = (line for line in plan.stdout.splitlines() if "-m pytest" in line)
    return shlex.split(command.partition("-m pytest")[2])


@pytest.mark.extended
def test_each_tier_is_part_of_the_next_and_the_last_is_everything() -> None:
    unit, test, everything = (collected(*arguments(tier)) for tier in TIERS)
    assert set() < unit < test < everything
    assert not {"-m", "-k", "--deselect", "--ignore"}.intersection(arguments(TIERS[-1]))


def test_continuous_integration_runs_the_last_tier_and_ends_with_its_summary() -> None:
    commands = (ROOT / ".ci" / "run").read_text().splitlines()
    assert "step make check" in commands
    assert "step make book" in commands
    assert commands[-1] == f"make {TIERS[-1]}"


@pytest.mark.parametrize("start", [lambda: subprocess.run([sys.executable, "-c", ""], check=True), os.fork])
def test_a_unit_test_that_starts_a_process_fails(start: Callable[[], object]) -> None:
    with pytest.raises(pytest.fail.Exception, match="starts a process: mark it with"):
        start()
