"""No mutation of a file makes its reader fail, or take much memory."""

import sys

import pytest

from collectives_logs.read import KINDS
from command import finished
from logs.mutated import FORMATS
from places import ROOT

MAX_BYTES = 1_000_000_000


def test_every_format_is_mutated() -> None:
    assert {*FORMATS} == {kind.name for kind in KINDS}


@pytest.mark.integration  # seconds
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("number", [300, pytest.param(3000, marks=pytest.mark.extended)])
def test_no_mutation_makes_it_fail_or_take_much_memory(name: str, number: int) -> None:
    command = [sys.executable, "-m", "logs.mutated", name, str(number)]
    done = finished(command, cwd=ROOT / "tests")
    assert done.returncode == 0
    assert done.stderr == ""
    assert int(done.stdout) < MAX_BYTES
