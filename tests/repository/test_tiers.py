"""The tiers of tests: each is part of the next, the last is everything, and a unit test starts no process."""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from functools import cache

import pytest

from places import ROOT

TIERS = ("unit", "test", "test-all")
OPTIONAL = "step packages bubblewrap chromium fonts-dejavu-core iproute2 munge slurm-wlm"
REST = 'make test-all ONLY="extended or needs"'


@cache
def collected(*arguments: str) -> set[str]:
    command = [sys.executable, "-m", "pytest", *arguments, "--collect-only", "--quiet"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=True)
    return {line for line in done.stdout.splitlines() if "::" in line}


def arguments(tier: str) -> list[str]:
    """What `make TIER` gives to pytest, also below a `make` whose options and variables it would inherit."""
    command = ["make", "-n", "-o", "env", "-o", "book", tier]
    environment = {"PATH": os.environ["PATH"]}
    plan = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    (command,) = (line for line in plan.stdout.splitlines() if "-m pytest" in line)
    return shlex.split(command.partition("-m pytest")[2])


@pytest.mark.extended
def test_each_tier_is_part_of_the_next_and_the_last_is_everything() -> None:
    unit, test, everything = (collected(*arguments(tier)) for tier in TIERS)
    assert set() < unit < test < everything
    assert not {"-m", "-k", "--deselect", "--ignore"}.intersection(arguments(TIERS[-1]))


@pytest.mark.extended
def test_continuous_integration_runs_every_test_and_the_quick_ones_before_it_installs_more_than_readme_names() -> None:
    commands = (ROOT / ".ci" / "run").read_text().splitlines()
    steps = ["step make check", "step make book", "step env -u CI make test", OPTIONAL, REST]
    assert sorted(steps, key=commands.index) == steps
    assert commands[-1] == REST
    everything, tested = collected(*arguments(TIERS[-1])), collected(*arguments("test"))
    rest = collected(*arguments(TIERS[-1]), "-m", "extended or needs")
    assert rest < everything == rest | tested


@pytest.mark.parametrize("start", [lambda: subprocess.run([sys.executable, "-c", ""], check=True), os.fork])
def test_a_unit_test_that_starts_a_process_fails(start: Callable[[], object]) -> None:
    with pytest.raises(pytest.fail.Exception, match="starts a process: mark it with"):
        start()
