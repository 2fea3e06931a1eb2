"""The job scripts of experiments/slurm/ submitted to a real Slurm of four nodes on this machine."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

from collectives.bench.results import read
from collectives.launch import torchrun
from collectives.launch.programs import need_launcher, srun_command
from collectives.launch.request import Request
from collectives_book.data_parallel import figures
from places import ROOT, TASKS
from slurm.four_nodes import (
    JOB_SECONDS,
    Inside,
    cluster,
    lacking,
    outcome,
    queue,
    submit,
    wait_until,
)

pytestmark = pytest.mark.extended

SMALL = [
    "-p",
    "sizes=[4, 64K]",
    "-p",
    "algorithms=[ring]",
    "-p",
    "backends=[p2p]",
    "-p",
    "repetitions=3",
]


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
    assert all(rank["set"]["SLURM_JOB_ID"] for rank in record["environment"]), (
        "a slow node can be found"
    )


SITE = """
# A site's file: not written for `set -u`.
[ -z "$NO_SUCH_VARIABLE" ]
export OF_THE_SITE=modules
"""
PROLOG = """#!/bin/bash
cd "$SLURM_SUBMIT_DIR"
echo "$OF_THE_SITE $CUDA_VISIBLE_DEVICES $SLURM_CPUS_PER_TASK" > "prolog-$SLURMD_NODENAME-$SLURM_LOCALID"
"""


def test_a_rank_for_each_gpu_with_the_site_s_variables_srun_s_arguments_and_an_interpreter(
    inside: Inside, folder: Path
) -> None:
    (folder / "site.sh").write_text(SITE)
    for name, text in (
        ("prolog", PROLOG),
        (
            "python",
            f'#!/bin/bash\ntouch $SLURM_SUBMIT_DIR/python-$SLURM_PROCID\n{sys.executable} "$@"',
        ),
    ):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    variables = {
        "SETUP": "./site.sh",
        "COLLECTIVES_SRUN_ARGS": f"--task-prolog={folder}/prolog --comment='two words'",
        "COLLECTIVES_PYTHON": f"{folder}/python",
    }
    script = ["--gpus-per-node=2", "experiments/slurm/papermill.sbatch"]
    notebook = "experiments/all-reduce-sweep.ipynb"
    job, state, log = submit(inside, folder, *script, notebook, "slurm-cpu", *SMALL, **variables)
    assert state == "COMPLETED 0:0", log
    assert "4 ranks by slurm: 64 KiB measured, 2 of 2" in log
    experiment(folder, f"slurm-cpu-{job}", "slurm", 4)
    tasks = {path.name: path.read_text() for path in folder.glob("prolog-*")}
    assert tasks == {
        f"prolog-n{node}-{task}": "modules 0,1 4\n" for node in (1, 2) for task in (0, 1)
    }
    assert len([*folder.glob("python-?")]) == 4


TAKEN = """
from collectives.launch import launch
print(launch("gpus", {}, 4, where="slurm", timeout=60))
"""


@pytest.mark.parametrize("shown", ["--gpus-per-task=1", "--gpus-per-node=2"])
def test_each_rank_takes_a_gpu_of_its_own(inside: Inside, folder: Path, shown: str) -> None:
    (folder / "taken.py").write_text(TAKEN)
    wrap = ["--nodes=2", "--ntasks-per-node=2", shown, f"--wrap={sys.executable} taken.py"]
    _, state, log = submit(
        inside, folder, *wrap, PYTHONPATH=os.pathsep.join([str(TASKS), *sys.path])
    )
    assert state == "COMPLETED 0:0", log
    assert "{'taken': ['n1 0', 'n1 1', 'n2 0', 'n2 1']}" in log


HALTING = """#!/bin/bash
if [ "$SLURM_PROCID" = 0 ] && [ -z "${SLURM_RESTART_COUNT:-}" ]; then
    (until grep -qs '"rows"' "$SLURM_SUBMIT_DIR"/experiments/results/*/*.jsonl; do sleep 0.01; done; kill -STOP $$) &
fi
exec "$REAL_PYTHON" "$@"
"""


@pytest.mark.timeout(600)
def test_a_requeued_job_goes_on_where_it_was(inside: Inside, folder: Path) -> None:
    """A rank halts once the first size is measured, and the job is requeued.

    Only the second is measured then.
    """
    (folder / "halting").write_text(HALTING)
    (folder / "halting").chmod(0o755)
    variables = {"COLLECTIVES_PYTHON": f"{folder}/halting", "REAL_PYTHON": sys.executable}
    two = [
        "-p",
        "sizes=[4, 16M]",
        "-p",
        "algorithms=[ring]",
        "-p",
        "backends=[p2p]",
        "-p",
        "repetitions=20",
    ]
    notebook = "experiments/all-reduce-sweep.ipynb"
    job = queue(
        inside,
        folder,
        "experiments/slurm/papermill.sbatch",
        notebook,
        "slurm-cpu",
        *two,
        **variables,
    )
    results = folder / "experiments" / "results" / f"slurm-cpu-{job}"

    def first_is_there() -> bool:
        return any('"rows"' in path.read_text() for path in results.glob("*.jsonl"))

    wait_until(first_is_there, JOB_SECONDS, "the first size has no rows")
    inside("scontrol", "requeue", job)
    wait_until(
        lambda: "JobState=PENDING" in inside("scontrol", "show", "job", job),
        30,
        "it is not requeued",
    )
    inside("scontrol", "update", f"job={job}", "StartTime=now")
    state, log = outcome(inside, job, seconds=2 * JOB_SECONDS)
    assert state == "COMPLETED 0:0", log
    assert log.count("): running") == 2, "the first run's lines are kept"
    assert "1 of 2 cases were measured before" in log
    rows, _ = read(results / "all-reduce-sweep")
    assert rows.bytes.tolist() == [4, 16 << 20]
    assert rows.error.isna().all()


@pytest.mark.timeout(600)
def test_tasks_of_an_array_share_a_folder_and_one_alone_is_requeued(
    inside: Inside, folder: Path
) -> None:
    """Two tasks run at the same time, on two nodes each.

    The one whose rank halts is requeued, and the other's stay.
    """
    second = HALTING.replace("*/*.jsonl", "*/task-1/*.jsonl").replace(
        "= 0 ]", '= 0 ] && [ "$SLURM_ARRAY_TASK_ID" = 1 ]'
    )
    (folder / "halting").write_text(second)
    (folder / "halting").chmod(0o755)
    variables = {
        "COLLECTIVES_PYTHON": f"{folder}/halting",
        "REAL_PYTHON": sys.executable,
        "SIZES": "4 64 1K 16M",
    }
    few = ["-p", "algorithms=[ring]", "-p", "backends=[p2p]", "-p", "repetitions=3"]
    script = ["--array=0-1", "--ntasks-per-node=1", "experiments/slurm/array.sbatch"]
    array = queue(
        inside,
        folder,
        *script,
        "experiments/all-reduce-sweep.ipynb",
        "slurm-cpu",
        *few,
        **variables,
    )
    results = folder / "experiments" / "results" / f"slurm-cpu-{array}"

    def is_halted() -> bool:
        return any('"rows"' in path.read_text() for path in results.glob("task-1/*.jsonl"))

    wait_until(is_halted, JOB_SECONDS, "task 1 has no rows of its first size")
    done = results / "task-0" / "all-reduce-sweep.ipynb"
    wait_until(done.exists, JOB_SECONDS, "task 0 has not ended")
    first = [path.stat().st_mtime_ns for path in sorted(done.parent.iterdir())]
    task = f"{array}_1"
    inside("scontrol", "requeue", task)
    wait_until(
        lambda: "JobState=PENDING" in inside("scontrol", "show", "job", task),
        30,
        "it is not requeued",
    )
    inside("scontrol", "update", f"job={task}", "StartTime=now")
    state, log = outcome(inside, task, seconds=2 * JOB_SECONDS)
    assert state == "COMPLETED 0:0", log
    assert "1 of 2 cases were measured before" in log
    rows = [read(results / f"task-{nth}" / "all-reduce-sweep")[0] for nth in (0, 1)]
    assert [each.bytes.tolist() for each in rows] == [[4, 1024], [64, 16 << 20]]
    assert all(each.error.isna().all() and not each.wrong.any() for each in rows)
    assert [path.stat().st_mtime_ns for path in sorted(done.parent.iterdir())] == first, (
        "task 0 has not run again"
    )


def test_a_training_on_all_nodes_resumes_after_a_killed_rank(inside: Inside, folder: Path) -> None:
    fewer = [
        "-p",
        "steps=12",
        "-p",
        "killed_at=8",
        "-p",
        "every=3",
        "-p",
        "batches=[256, 1024]",
        "-p",
        "epochs=1",
    ]
    script = ["--nodes=4", "--ntasks-per-node=1", "experiments/slurm/papermill.sbatch"]
    job, state, log = submit(
        inside, folder, *script, "experiments/data-parallel.ipynb", "slurm-cpu", *fewer
    )
    assert state == "COMPLETED 0:0", log
    rows, record = read(folder / "experiments" / "results" / f"slurm-cpu-{job}" / "data-parallel")
    assert set(rows[rows.part == "training"].ranks) == {1, 4}
    assert max(figures.differences(rows).values()) < 1e-5
    assert figures.changed(rows) == 0
    assert rows.said.dropna().tolist() == ["rank 3 of 4 was lost: Killed"]
    assert len(record["environment"]) == 4


def test_torchrun_with_one_task_a_node(inside: Inside, folder: Path) -> None:
    command = [
        "-m",
        "collectives.launch.torchrun",
        "collectives",
        "run",
        "experiments/all-reduce-sweep.ipynb",
    ]
    options = [
        "--preset",
        "slurm-cpu",
        "-p",
        "where=torchrun",
        "-p",
        "ranks=3",
        *SMALL,
        "--output",
        "by-torchrun",
    ]
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
        inside, folder, *wrap, PYTHONPATH=os.pathsep.join([str(TASKS), *sys.path])
    )
    assert "{'nodes': ['n1', 'n1', 'n2', 'n3', 'n4']}" in log
    assert state == "FAILED 1:0"
    assert "RankError: rank 2 of 5 was lost: Killed" in log
    assert "timed out after" not in log, "nobody waited for a timeout"


def test_where_there_is_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(
        ImportError, match="srun is not installed: this machine does not belong to a Slurm cluster"
    ):
        srun_command(4)
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/srun")
    with pytest.raises(ImportError, match=r"not within a Slurm job; submit one with sbatch"):
        srun_command(4)
    need_launcher("slurm", queued=True)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    need_launcher("slurm")
    monkeypatch.setenv("COLLECTIVES_SRUN_ARGS", "--container-image='an image' --cpu-bind=none")
    assert srun_command(3)[-2:] == ["--container-image=an image", "--cpu-bind=none"]
    monkeypatch.setenv("COLLECTIVES_SRUN_ARGS", "--container-image='an image")
    with pytest.raises(
        ValueError, match=r"invalid COLLECTIVES_SRUN_ARGS: got .*: No closing quotation"
    ):
        srun_command(3)
    with pytest.raises(ImportError, match="not within torchrun; start this command by"):
        torchrun.launch(Request("nodes", {}, 2, 1, {}, lambda _: None))
