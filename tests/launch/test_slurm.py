"""A real Slurm of four nodes on this machine, and the job scripts of experiments/slurm/ submitted to it.

The daemons and all jobs live in namespaces whose first process is tests/slurm/cluster.sh. It ends when this process
does, however that ends, and with it everything in them: processes, ports, host names, the files in /run.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import pytest

from collectives.bench.results import read
from collectives.experiments.data_parallel import sentences
from collectives.launch import slurm, torchrun
from collectives.launch.request import Request
from places import ROOT

pytestmark = pytest.mark.extended

CLUSTER = ROOT / "tests" / "slurm" / "cluster.sh"
NAMESPACES = ["--pid", "--net", "--mount", "--uts"]
NEEDED = {"slurmctld": "slurm-wlm", "slurmd": "slurm-wlm", "munged": "munge", "ip": "iproute2", "nsenter": "util-linux"}
READY_SECONDS, JOB_SECONDS, GONE_SECONDS = 60, 150, 10
SMALL = ["-p", "sizes=[4, 64K]", "-p", "repetitions=3"]

# Run a command on the cluster in a folder, with these variables as well.
Inside = Callable[..., str]


def lacking() -> str | None:
    """Why there can be no cluster here."""
    if packages := {package: None for program, package in NEEDED.items() if shutil.which(program) is None}:
        return f"no Slurm here: apt-get install {' '.join(packages)}"
    if os.geteuid() != 0:
        return "Slurm's daemons and their namespaces need root"
    allowed = subprocess.run(["unshare", *NAMESPACES, "--fork", "true"], capture_output=True, text=True, check=False)
    return f"no namespaces here: {allowed.stderr.strip()}" if allowed.returncode else None


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    if reason := lacking():
        pytest.skip(reason)
    log = tmp_path_factory.mktemp("slurm") / "log"
    until_we_end = ["setpriv", "--pdeathsig", "KILL", "unshare", *NAMESPACES, "--fork", "--kill-child", "--mount-proc"]
    with log.open("w") as file, subprocess.Popen([*until_we_end, str(CLUSTER)], stdout=file, stderr=file) as process:
        try:
            yield entered(process, log)
        finally:
            first = first_process(process)
            process.kill()
            wait_until(lambda: not Path(f"/proc/{first}").exists(), GONE_SECONDS, "the cluster is not gone")


def entered(process: subprocess.Popen[bytes], log: Path) -> Inside:
    """Wait until all nodes are there."""

    def run(*command: str, folder: Path = ROOT, **variables: str) -> str:
        enter = ["nsenter", "--target", str(first_process(process)), "--all", f"--wd={folder}", *command]
        environment = os.environ | {"SLURM_CONF": "/run/slurm.conf", "VENV": sys.prefix} | variables
        return subprocess.run(enter, env=environment, capture_output=True, text=True, timeout=60, check=True).stdout

    def idle() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            return run("sinfo", "--noheader", "--states=idle", "--format=%D").strip() == "4"
        except subprocess.CalledProcessError:
            return False

    wait_until(idle, READY_SECONDS, f"no four nodes are there; the daemons say:\n{log.read_text()[-2000:]}")
    return run


def first_process(process: subprocess.Popen[bytes]) -> int:
    """The first process in the namespaces, which unshare has forked."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    wait_until(lambda: bool(children.read_text()), GONE_SECONDS, "unshare has started nothing")
    return int(children.read_text().split()[0])


def wait_until(is_so: Callable[[], bool], seconds: float, otherwise: str) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder like a checkout, for jobs to run in and to leave their results in."""
    ignore = shutil.ignore_patterns("results")
    shutil.copytree(ROOT / "experiments", tmp_path / "experiments", ignore=ignore)
    return tmp_path


def submit(inside: Inside, folder: Path, *arguments: str, **variables: str) -> tuple[str, str, str]:
    """Submit a job and wait for its end: its number, its state with its exit code, and what it printed."""
    job = inside("sbatch", "--parsable", *arguments, folder=folder, **variables).strip()
    shown: dict[str, str] = {}

    def ended() -> bool:
        shown.update(pair.split("=", 1) for pair in inside("scontrol", "show", "job", job).split() if "=" in pair)
        return shown["JobState"] not in {"PENDING", "RUNNING", "CONFIGURING", "COMPLETING"}

    wait_until(ended, JOB_SECONDS, f"job {job} has not ended")
    return job, f"{shown['JobState']} {shown['ExitCode']}", Path(shown["StdOut"]).read_text()


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
    assert max(sentences.differences(rows).values()) < 1e-5
    assert sentences.same_again(rows) == "Every loss equals the undisturbed one, bit for bit."
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
        slurm.command(4)
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/srun")
    with pytest.raises(ImportError, match=r"not within a Slurm job; submit one with sbatch"):
        slurm.command(4)
    with pytest.raises(ImportError, match="not within torchrun; start this command by"):
        torchrun.launch(Request("nodes", {}, 2, 1, {}, lambda _: None))
