"""The tiers of tests: each is part of the next, the last is everything, and a unit test starts no process."""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from itertools import combinations, pairwise

import pytest

from places import ROOT

TIERS = ("unit", "test", "test-all")
OPTIONAL = "step packages bubblewrap chromium fonts-dejavu-core iproute2 munge slurm-wlm"
MARKS = ("integration", "extended", "needs")
Marks = frozenset[str]
ALL = {Marks(some) for count in range(len(MARKS) + 1) for some in combinations(MARKS, count)}
REST = 'make test-all ONLY="extended or needs"'


def arguments(tier: str) -> list[str]:
    """What `make TIER` gives to pytest, also below a `make` whose options and variables it would inherit."""
    command = ["make", "-n", "-o", "env", "-o", "book", tier]
    environment = {"PATH": os.environ["PATH"]}
    plan = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    (command,) = (line for line in plan.stdout.splitlines() if "-m pytest" in line)
    return shlex.split(command.partition("-m pytest")[2])


def selected(*arguments: str) -> set[Marks]:
    """Which tests pytest's last ``-m`` selects: by the marks that a test may have."""
    expression = dict(pairwise(arguments)).get("-m", "True")
    return {marks for marks in ALL if eval(expression, {name: name in marks for name in MARKS})}


def test_each_tier_is_part_of_the_next_and_the_last_is_everything() -> None:
    unit, test, everything = (selected(*arguments(tier)) for tier in TIERS)
    assert set() < unit < test < everything == ALL
    assert not {"-m", "-k", "--deselect", "--ignore"}.intersection(arguments(TIERS[-1]))


def test_continuous_integration_runs_every_test_and_the_quick_ones_before_it_installs_more_than_readme_names() -> None:
    commands = (ROOT / ".ci" / "run").read_text().splitlines()
    steps = ["step make check", "step make book", "step env -u CI make test", OPTIONAL, REST]
    assert sorted(steps, key=commands.index) == steps
    assert commands[-1] == REST
    tested, rest = selected(*arguments("test")), selected("-m", "extended or needs")
    assert rest < ALL == rest | tested


@pytest.mark.parametrize("start", [lambda: subprocess.run([sys.executable, "-c", ""], check=True), os.fork])
def test_a_unit_test_that_starts_a_process_fails(start: Callable[[], object]) -> None:
    with pytest.raises(pytest.fail.Exception, match="starts a process: mark it with"):
        start()
