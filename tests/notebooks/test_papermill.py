"""Every notebook of the repository runs by plain papermill, without `collectives run`."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
import yaml

from places import ROOT

pytestmark = pytest.mark.extended

EXPERIMENTS = ROOT / "experiments"
QUICK = yaml.safe_load((EXPERIMENTS / "presets" / "quick.yaml").read_text())

# What makes the quick preset quicker: every cell still runs, on fewer points.
FEWER: dict[str, dict[str, Any]] = {
    "all-reduce-sweep": {"ranks": 2, "sizes": [4, "1K"], "repetitions": 3},
    "collectives-sweep": {"ranks": 2, "sizes": ["1K"], "backends": ["p2p", "gloo"], "repetitions": 3},
    "massive-scale": {"ranks": [96, 192], "map_nodes": [2, 4], "map_sizes": [8, "4K"]},
    "bench-simulator": {"cases": 2},
    "straggler": {"hosts": 2, "slow_host": 1, "positions": [0], "sizes": ["4K"], "repetitions": 1},
    "calibration": {"sizes": [8, "1K", "64K"], "repetitions": 3},
    "scaling": {"hosts": [2], "sizes": [4, "1K"], "backends": ["gloo"], "repetitions": 1},
    "data-parallel": {"ranks": 2, "steps": 8, "killed_at": 5, "every": 2, "batches": [256, 1024], "epochs": 1},
}


@pytest.mark.parametrize("name", sorted(path.stem for path in EXPERIMENTS.glob("*.ipynb")))
def test_a_notebook_runs_by_plain_papermill(name: str, tmp_path: Path) -> None:
    """As in its own first cell: parameters on the command line, the executed notebook and its rows where they say."""
    shutil.copy(EXPERIMENTS / f"{name}.ipynb", tmp_path / "in.ipynb")
    parameters = QUICK[name] | FEWER.get(name, {}) | {"output": "results/rows"}
    command = [sys.executable, "-m", "papermill", "in.ipynb", "out.ipynb", "-y", yaml.safe_dump(parameters)]
    # The kernel is the Python that runs the tests, and reads no settings of this user's.
    kernel = os.environ | {"IPYTHONDIR": str(tmp_path / "ipython")}
    done = subprocess.run(
        [*command, "-k", "python3"], cwd=tmp_path, env=kernel, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert nbformat.read(tmp_path / "out.ipynb", 4).metadata.papermill.exception is None
    assert list((tmp_path / "results").iterdir()), "it wrote no rows"
