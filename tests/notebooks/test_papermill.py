"""A notebook runs by plain papermill, without `collectives run`, by which `make book` runs them all.

One of each kind: its rows come from ranks, from emulated hosts, or from the simulator.
"""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
import yaml

from command import finished
from places import ROOT

pytestmark = pytest.mark.extended

EXPERIMENTS = ROOT / "experiments"
QUICK = yaml.safe_load((EXPERIMENTS / "presets" / "quick.yaml").read_text())

# What makes the quick preset quicker: every cell still runs, on fewer points.
FEWER: dict[str, dict[str, Any]] = {
    "all-reduce-sweep": {"ranks": 2, "sizes": [4, "1K"], "repetitions": 3},
    "straggler": {"hosts": 2, "slow_host": 1, "positions": [0], "sizes": ["4K"], "repetitions": 1},
}


@pytest.mark.parametrize("name", FEWER)
def test_a_notebook_runs_by_plain_papermill(name: str, tmp_path: Path) -> None:
    """As in its own first cell: parameters on the command line, the executed notebook and its rows where they say."""
    shutil.copy(EXPERIMENTS / f"{name}.ipynb", tmp_path / "in.ipynb")
    parameters = QUICK[name] | FEWER[name] | {"output": "results/rows"}
    command = [
        sys.executable,
        "-m",
        "papermill",
        "in.ipynb",
        "out.ipynb",
        "-y",
        yaml.safe_dump(parameters),
    ]
    # The kernel is the Python that runs the tests, and reads no settings of this user's.
    kernel = os.environ | {"IPYTHONDIR": str(tmp_path / "ipython")}
    done = finished([*command, "-k", "python3"], cwd=tmp_path, env=kernel)
    assert done.returncode == 0, done.stderr[-4000:]
    assert nbformat.read(tmp_path / "out.ipynb", 4).metadata.papermill.exception is None
    assert list((tmp_path / "results").iterdir()), "it wrote no rows"
