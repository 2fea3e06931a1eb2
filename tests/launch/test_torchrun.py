"""Two nodes that torchrun joins as in the pods of a TrainJob: rank 0's process drives, all of them run its ranks."""

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from test_launch import is_gone, nobody_has

from command import PIPES, finished, started
from places import PATIENCE, TASKS, free_port

pytestmark = pytest.mark.integration

DRIVE = """
import json
from collectives.launch import RankError, launch
print(json.dumps(launch("unwell", {"do": "nothing"}, 3, where="torchrun", timeout=200)))
for rank, do, timeout in ((1, "killed", 200), (2, "raise", 200), (0, "sleep", 25)):
    try:
        launch("unwell", {"do": do, "rank": rank}, 3, where="torchrun", timeout=timeout)
    except RankError as error:
        print(json.dumps(str(error)))
try:
    launch("unwell", {}, 9, where="torchrun", timeout=200)
except RankError as error:
    print(json.dumps(str(error)))
raise SystemExit(5)
"""


@contextmanager
def nodes() -> Iterator[list[subprocess.Popen[str]]]:
    """Two nodes with two processes each, told where they are by the variables that Kubeflow Trainer sets."""
    port = str(free_port())
    same = {
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "2",
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": port,
    }
    ranks = str(TASKS)
    same |= {"COLLECTIVES_SECRET": secrets.token_hex(16)}
    same |= {"PYTHONPATH": os.pathsep.join([ranks, *sys.path]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "-m", "collectives.launch.torchrun"]
    both = [os.environ | same | {"PET_NODE_RANK": str(node)} for node in range(2)]
    with ExitStack() as stack:
        drive = [*command, sys.executable, "-c", DRIVE]
        yield [stack.enter_context(started(drive, env=own, **PIPES)) for own in both]


WAIT = """
from collectives.launch import launch
say = lambda event: print(event.get("pids", ""), flush=True)
launch("unwell", {"do": "wait"}, 2, where="torchrun", timeout=200, on_event=say)
"""


def test_nothing_outlives_a_torchrun_that_is_killed(tmp_path: Path) -> None:
    ranks = str(TASKS)
    own = os.environ | {
        "PYTHONPATH": os.pathsep.join([ranks, *sys.path]),
        "HOME": str(tmp_path),
        "OWN": str(tmp_path),
    }
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    run = [*command, "-m", "collectives.launch.torchrun", sys.executable, "-c", WAIT]
    with started(run, env=own, stdout=subprocess.PIPE) as torchrun:
        assert torchrun.stdout is not None
        pids = json.loads(torchrun.stdout.readline())
        torchrun.kill()
        assert len(pids) == 2
        assert all(is_gone(pid) for pid in pids)
        torchrun.wait()
        assert nobody_has("OWN", str(tmp_path))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "command: got none, expected one after `-m collectives.launch.torchrun`"),
        (["no-such-program", "x"], "cannot start no-such-program: No such file or directory"),
        (
            [
                *f"{sys.executable} -m collectives bench all_reduce -p 4 --bytes 4 --where torchrun".split()
            ],
            "collectives: too few torchrun processes: got 1, expected at least 4",
        ),
    ],
    ids=["no command", "no program", "too many ranks"],
)
def test_what_cannot_run_is_one_line(words: list[str], said: str, tmp_path: Path) -> None:
    where = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    where |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "HOME": str(tmp_path)}
    command = [sys.executable, "-m", "collectives.launch.torchrun", *words]
    done = finished(command, env=os.environ | where)
    assert done.returncode != 0
    assert done.stderr.startswith(said)
    assert "Traceback" not in done.stderr


def test_a_process_whose_torchrun_was_killed_before_it_began_ends_at_once(tmp_path: Path) -> None:
    where = {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "HOME": str(tmp_path),
    }
    where |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    command = [sys.executable, "-m", "collectives.launch.torchrun", "true"]
    done = finished(command, env=os.environ | where)
    assert done.returncode == 1
    assert done.stderr.startswith("torchrun's store: got no answer from 127.0.0.1:")


@pytest.mark.extended  # a minute of launches
def test_every_process_runs_ranks_and_rank_0_s_command_decides_how_it_ends() -> None:
    with nodes() as (first, second):
        (out, err), _ = (
            first.communicate(timeout=2 * PATIENCE),
            second.communicate(timeout=PATIENCE),
        )
    events, killed, raised, late, too_many = (
        json.loads(line) for line in out.splitlines() if line.startswith(("[", '"'))
    )
    assert len(set(next(event["pids"] for event in events if "pids" in event))) == 3
    assert killed.startswith("rank 1 of 3 was killed by SIGKILL")
    assert raised.startswith("rank 2 of 3 ended with exit code 1; its last lines:")
    assert "ValueError: a bug on purpose" in raised
    assert late.startswith("rank 0 of 3 and 2 more timed out after"), (
        "they are ended, and torchrun's processes go on"
    )
    assert too_many == "too few torchrun processes: got 4, expected at least 9"
    assert first.returncode == 1
    assert "exitcode  : 5" in err
