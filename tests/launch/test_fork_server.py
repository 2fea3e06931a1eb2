"""The fork server of this machine: kept between launches, one per environment, and gone with its launcher."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from test_launch import nobody_has

from collectives.launch import forks, launch
from command import finished
from places import PATIENCE, TASKS

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not forks.IS_SUPPORTED, reason="fork servers need Linux"),
]

MINE = """
import os, random
import numpy
from torch import distributed as dist

def run(settings, report):
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, (SAID, random.random(), numpy.random.rand()))
    report({"said": everyone})
"""


def server(environment: dict[str, str] | None = None) -> int:
    """The process of the server that a launch would use."""
    return forks.fork_server(environment or {}).process.pid


def own_module(folder: Path, said: str, monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    (folder / "my_ranks.py").write_text(f"SAID = {said!r}\n{MINE}")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    events = launch("my_ranks", {}, 3, timeout=PATIENCE)
    return next(event["said"] for event in events if "said" in event)


def test_a_server_serves_all_launches_of_one_environment() -> None:
    first = server()
    assert server({"NCCL_ALGO": "Tree"}) == first
    assert server({"OMP_NUM_THREADS": "2"}) != first


@pytest.mark.parametrize("is_reaped", [False, True])
def test_a_server_that_was_killed_is_replaced(
    is_reaped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "UTC")  # a server of this test's own
    killed = server()
    os.kill(killed, signal.SIGKILL)
    os.waitid(os.P_PID, killed, os.WEXITED | os.WNOWAIT * (not is_reaped))
    events = launch("unwell", {"do": "nothing"}, 2, timeout=PATIENCE)
    assert len(next(event["pids"] for event in events if "pids" in event)) == 2
    assert server() != killed


def test_an_edited_module_is_read_anew_and_ranks_draw_their_own_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for said in ("before", "and after"):
        everyone = own_module(tmp_path, said, monkeypatch)
        assert [each[0] for each in everyone] == [said] * 3
        assert len({each[1] for each in everyone}) == len({each[2] for each in everyone}) == 3


ENDING = """
from collectives.launch import launch
launch("unwell", {"do": "nothing"}, 2, timeout=200)
print("done", flush=True)
"""


def test_a_server_ends_with_its_process(tmp_path: Path) -> None:
    own = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(TASKS), *sys.path]),
        "OWN": str(tmp_path),
    }
    done = finished([sys.executable, "-W", "error", "-c", ENDING], env=own)
    assert (done.stdout, done.stderr) == ("done\n", "")
    assert nobody_has("OWN", str(tmp_path))
