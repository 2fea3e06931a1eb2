"""Without the optional programs no test fails: those that need one are skipped, and the last line says why."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from browsers import NAMES
from places import ROOT
from slurm.four_nodes import NEEDED

HIDDEN = {"bwrap", *NAMES, *NEEDED}
# Each file that has tests of a submission in its sandbox, of emulated hosts, of a browser or of Slurm, but the site's.
FOLDERS = ("course", "emulator", "launch/test_slurm.py", "examples")
REASONS = (
    "no sandbox: bubblewrap is not installed; on Debian and Ubuntu: apt-get install bubblewrap",
    "no emulated hosts: nsenter is not installed: install util-linux",
    "no browser: apt-get install chromium",
    "no Slurm here: apt-get install slurm-wlm munge iproute2 util-linux",
)


def without(hidden: set[str], folder: Path) -> str:
    """A search path with every program of this one but these."""
    for program in (each for place in os.get_exec_path() if Path(place).is_dir() for each in Path(place).iterdir()):
        if program.name not in hidden and not (folder / program.name).exists():
            (folder / program.name).symlink_to(program)
    return str(folder)


@pytest.mark.extended
@pytest.mark.timeout(900)
def test_a_machine_without_them_skips_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "CI" and "XDIST" not in name}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(f"tests/{each}" for each in FOLDERS)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment | {"PATH": without(HIDDEN, tmp_path / "bin")},
        capture_output=True,
        text=True,
        timeout=880,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    *_, summary, last = done.stdout.splitlines()
    assert " passed, " in summary
    assert last.startswith("not tested here: ")
    assert [reason for reason in REASONS if reason not in last] == []
