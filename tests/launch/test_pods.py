"""The command of the TrainJob's pods, run as Kubeflow Trainer's torch-distributed runtime has two pods run it.

The runtime sets PET_… for torchrun, and Kubernetes the job's name and the secret. Here both pods
are on this machine, without GPUs, so each starts two ranks of our back end.
"""

import os
import shutil
import socket
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from collectives.bench.results import read
from command import started
from places import PATIENCE, ROOT

pytestmark = pytest.mark.integration

PRESET = """
all-reduce-sweep:
  ranks: 4
  sizes: [4, 64K]
  algorithms: [ring]
  backends: [p2p]
  repetitions: 3
  where: torchrun
"""


def pods(folder: Path, name: str, port: int) -> list[str]:
    """Run the job of this name in two pods, and return what each has printed."""
    trainer = yaml.safe_load((ROOT / "experiments" / "kubernetes" / "trainjob.yaml").read_text())[
        "spec"
    ]["trainer"]
    command = [*trainer["command"], *(each.replace("$(JOB)", name) for each in trainer["args"])]
    runtime = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "2", "PET_MASTER_ADDR": "127.0.0.1"}
    given = {
        "PET_MASTER_PORT": f"{port}",
        "COLLECTIVES_SECRET": "0123456789abcdef" * 4,
        "OMP_NUM_THREADS": "1",
    }
    programs = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    environment = os.environ | runtime | given | programs
    files = [folder / f"{name}-{rank}.log" for rank in range(2)]
    with ExitStack() as stack:
        processes = []
        for rank, file in enumerate(files):
            log = stack.enter_context(file.open("w"))
            own = environment | {"PET_NODE_RANK": f"{rank}"}
            process = started(command, cwd=folder, env=own, stdout=log, stderr=log)
            processes.append(stack.enter_context(process))
        codes = [process.wait(PATIENCE) for process in processes]
    texts = [file.read_text() for file in files]
    assert codes == [0, 0], texts
    return texts


def test_two_pods_measure_and_the_job_is_created_again(tmp_path: Path) -> None:
    shutil.copytree(
        ROOT / "experiments", tmp_path / "experiments", ignore=shutil.ignore_patterns("results")
    )
    (tmp_path / "experiments" / "presets" / "kubernetes.yaml").write_text(PRESET)
    for name in ("collectives-x7k2p", "collectives-b4q9w"):
        # Nobody else is given its port at once.
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        pods(tmp_path, name, port)
        rows, record = read(tmp_path / "experiments" / "results" / name / "all-reduce-sweep")
        assert rows.bytes.tolist() == [4, 65536]
        assert set(rows.ranks) == {4}
        assert rows.wrong.sum() == 0
        assert rows.error.isna().all()
        assert len(record["environment"]) == 4
