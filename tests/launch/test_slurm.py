"""The job scripts of experiments/slurm/ submitted to a real Slurm of four nodes on this machine."""

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

from collectives.bench.results import read
from collectives.launch import torchrun
from collectives.launch.programs import srun_command
from collectives.launch.request import Request
from collectives_book.data_parallel import figures
from places import ROOT
from slurm.four_nodes import Inside, cluster, lacking, submit

pytestmark = pytest.mark.extended

SMALL = ["-p", "sizes=[4, 64K]", "-p", "algorithms=[ring]", "-p", "backends=[p2p]", "-p", "repetitions=3"]


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    if reason := lacking():
        pytest.skip(reason)
    with cluster(tmp_path_factory.mktemp("slurm") / "log") as run:
        yield run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder like a checkout, for jobs to run in and to leave their results in."""
    ignore = shutil.ignore_patterns("results")
    shutil.copytree(ROOT / "experiments", tmp_path / "experiments", ignore=ignore)
    return tmp_path


def experiment(folder: Path, name: str, where: str, ranks: int) -> None:
    """The notebook ran to its end, and its rows are right."""
    stem = folder / "experiments" / "results" / name / "all-reduce-sweep"
    executed = nbformat.read(stem.with_suffix(".ipynb"), 4)
    assert executed.metadata.papermill.exception is None
    rows, record = read(stem)
    assert set(rows["where"]) == {where}
    assert set(rows.ranks) == {ranks}
    assert sorted(set(rows.bytes)) == [4, 65536]
    assert rows.wrong.sum() == 0
    assert rows.error.isna().all()
    assert len(record["environment"]) == ranks
    assert not re.findall(r"controller|\bn[1-4]\b", str(record)), "whose machine it is, is not recorded"


def test_papermill_on_one_node_runs_ranks_on_all(inside: Inside, folder: Path) -> None:
    script = ["--nodes=4", "--ntasks-per-node=1", "experiments/slurm/papermill.sbatch"]
    notebook = "experiments/all-reduce-sweep.ipynb"
    job, state, log = submit(inside, folder, *script, notebook, "slurm-cpu", *SMALL)
    assert state == "COMPLETED 0:0", log
    assert "4 ranks by slurm: 64 KiB measured, 2 of 2" in log
    experiment(folder, f"slurm-cpu-{job}", "slurm", 4)


def test_a_training_on_all_nodes_resumes_after_a_killed_rank(inside: Inside, folder: Path) -> None:
    fewer = ["-p", "steps=12", "-p", "killed_at=8", "-p", "every=3", "-p", "batches=[256, 1024]", "-p", "epochs=1"]
    script = ["--nodes=4", "--ntasks-per-node=1", "experiments/slurm/papermill.sbatch"]
    job, state, log = submit(inside, folder, *script, "experiments/data-parallel.ipynb", "slurm-cpu", *fewer)
    assert state == "COMPLETED 0:0", log
    rows, record = read(folder / "experiments" / "results" / f"slurm-cpu-{job}" / "data-parallel")
    assert set(rows[rows.part == "training"].ranks) == {1, 4}
    assert max(figures.differences(rows).values()) < 1e-5
    assert figures.changed(rows) == 0
    assert rows.said.dropna().tolist() == ["rank 3 of 4 was lost: Killed"]
    assert len(record["environment"]) == 4


def test_torchrun_with_one_task_a_node(inside: Inside, folder: Path) -> None:
    command = ["-m", "collectives.launch.torchrun", "collectives", "run", "experiments/all-reduce-sweep.ipynb"]
    options = ["--preset", "slurm-cpu", "-p", "where=torchrun", "-p", "ranks=3", *SMALL, "--output", "by-torchrun"]
    _, state, log = submit(inside, folder, "experiments/slurm/torchrun.sbatch", *command, *options)
    assert state == "COMPLETED 0:0", log
    experiment(folder, "by-torchrun", "torchrun", 3)


@pytest.mark.parametrize("launcher", ["mpirun", "horovodrun"])
def test_other_launchers(inside: Inside, folder: Path, launcher: str) -> None:
    script = ["experiments/slurm/mpirun.sbatch", "experiments/all-reduce-sweep.ipynb", "slurm-cpu"]
    job, state, log = submit(inside, folder, *script, *SMALL, LAUNCHER=launcher)
    assert state == "COMPLETED 0:0", log
    experiment(folder, f"{launcher}-slurm-cpu-{job}", launcher, 4)


SPREAD = """
from collectives.launch import launch
print(launch("nodes", {}, 5, where="slurm", timeout=60))
launch("nodes", {"do": "killed", "rank": 2}, 5, where="slurm", timeout=60)
"""


def test_ranks_are_spread_evenly_and_a_lost_one_ends_the_job(inside: Inside, folder: Path) -> None:
    (folder / "spread.py").write_text(SPREAD)
    wrap = ["--nodes=4", "--ntasks-per-node=2", f"--wrap={sys.executable} spread.py"]
    _, state, log = submit(
        inside, folder, *wrap, PYTHONPATH=os.pathsep.join([str(ROOT / "tests" / "ranks"), *sys.path])
    )
    assert "{'nodes': ['n1', 'n1', 'n2', 'n3', 'n4']}" in log
    assert state == "FAILED 1:0"
    assert "RankError: rank 2 of 5 was lost: Killed" in log
    assert "timed out after" not in log, "nobody waited for a timeout"


def test_where_there_is_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ImportError, match="srun is not installed: this machine does not belong to a Slurm cluster"):
        srun_command(4)
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/srun")
    with pytest.raises(ImportError, match=r"not within a Slurm job; submit one with sbatch"):
        srun_command(4)
    with pytest.raises(ImportError, match="not within torchrun; start this command by"):
        torchrun.launch(Request("nodes", {}, 2, 1, {}, lambda _: None))
