"""The fork server of this machine: kept between launches, one per environment, and gone with its launcher."""

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from test_launch import nobody_has

from collectives.launch import fork_client, fork_server, launch
from places import TASKS

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not fork_server.IS_SUPPORTED, reason="fork servers need Linux"),
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
    name = fork_server.fork_server(environment or {}, 60)
    return next(each.process.pid for each in fork_server._servers.values() if each.name == name)


def own_module(folder: Path, said: str, monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    (folder / "my_ranks.py").write_text(f"SAID = {said!r}\n{MINE}")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    events = launch("my_ranks", {}, 3, timeout=60)
    return next(event["said"] for event in events if "said" in event)


def test_a_server_serves_all_launches_of_one_environment() -> None:
    first = server()
    assert server({"NCCL_ALGO": "Tree"}) == first
    assert server({"OMP_NUM_THREADS": "2"}) != first


def test_a_server_that_was_killed_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TASKS), prepend=os.pathsep)
    monkeypatch.setenv("TZ", "UTC")  # a server of this test's own
    killed = server()
    os.kill(killed, signal.SIGKILL)
    os.waitid(os.P_PID, killed, os.WEXITED | os.WNOWAIT)
    events = launch("unwell", {"do": "nothing"}, 2, timeout=60)
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


def test_nobody_can_take_a_server_s_name_before_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:

        def seen_by_all(command: list[str], *rest: Any) -> fork_server.ChildProcess:
            for word in command:  # as `ps` shows it to every user
                stranger = stack.enter_context(socket.socket(socket.AF_UNIX))
                stranger.bind(fork_client.connection(word))
            return start(command, *rest)

        start = fork_server.start
        monkeypatch.setattr(fork_server, "start", seen_by_all)
        assert server({"TZ": "America/Lima"}) > 0


STRANGER = """
import os, socket, sys
os.setuid(65534)
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(chr(0) + "collectives/" + sys.argv[1])
    listener.listen()
    print("listens", flush=True)
    client, _ = listener.accept()
    print(len(client.recv(1 << 16)), flush=True)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user, too")
def test_a_client_passes_nothing_to_another_user_s_server() -> None:
    name = f"stranger-{os.getpid()}"
    with subprocess.Popen([sys.executable, "-c", STRANGER, name], stdout=subprocess.PIPE, text=True) as stranger:
        assert stranger.stdout is not None
        assert stranger.stdout.readline() == "listens\n"
        asked = fork_server.rank_command(name, "loopback", {})
        done = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (1, "no rank: the fork server has ended, or is another user's\n")
        assert stranger.stdout.readline() == "0\n"


def test_a_server_without_a_free_descriptor_goes_on_when_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TASKS), prepend=os.pathsep)
    monkeypatch.setenv("TZ", "Asia/Tokyo")  # a server of this test's own
    pid = server()
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    taken = {int(file.name) for file in Path(f"/proc/{pid}/fd").iterdir()}
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (min({*range(1000)} - taken), limits[1]))
    with ThreadPoolExecutor(1) as pool:
        events = pool.submit(launch, "unwell", {"do": "nothing"}, 2, timeout=60)
        time.sleep(1)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        assert len(next(event["pids"] for event in events.result() if "pids" in event)) == 2
    assert server() == pid


ENDING = """
from collectives.launch import launch
launch("unwell", {"do": "nothing"}, 2, timeout=60)
print("done", flush=True)
"""


def test_a_server_ends_with_its_process(tmp_path: Path) -> None:
    own = os.environ | {"PYTHONPATH": os.pathsep.join([str(TASKS), *sys.path]), "OWN": str(tmp_path)}
    done = subprocess.run([sys.executable, "-W", "error", "-c", ENDING], env=own, capture_output=True, timeout=100)
    assert (done.stdout, done.stderr) == (b"done\n", b"")
    assert nobody_has(f"OWN={tmp_path}")
