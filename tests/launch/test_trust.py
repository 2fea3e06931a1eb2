"""Another user of the machine tries to have a launch run his code, or to stop it, and reads every command line."""

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from command import finished, started
from places import TASKS, free_port
from sweep import each

pytestmark = pytest.mark.integration

HERE = Path(__file__).parent
EVIL = "import os, pathlib\npathlib.Path(os.environ['EVIL']).touch()\n"

Report = dict[str, list[Any]]


@pytest.fixture(autouse=True)
def _paths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ranks could import what a stranger names, and would leave a file."""
    (tmp_path / "evil.py").write_text(EVIL)
    monkeypatch.setenv("EVIL", str(tmp_path / "executed"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TASKS), str(tmp_path), *sys.path]))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


@contextmanager
def stranger(wish: str, tag: str, *ports: int) -> Iterator[Report]:
    """What the stranger has found is there after the block."""
    report: Report = {}
    command = [sys.executable, str(HERE / "stranger.py"), wish, tag, *map(str, ports)]
    with started(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield report
        process.stdin.close()
        report |= json.loads(process.stdout.readline())


LAUNCH = """
import json, secrets, sys
made, token = [], secrets.token_hex
secrets.token_hex = lambda *given: made.append(token(*given)) or made[-1]
from collectives.launch import launch
job = {"do": "raise", "later": 3}  # no rank does, and the store can be attacked for three seconds
events = launch("unwell", job, 2, where=sys.argv[1], timeout=200)
print(json.dumps([events, made]))
"""


@pytest.mark.parametrize(
    ("where", "wish"),
    each(
        [("loopback", "run"), ("mpirun", "run"), ("horovodrun", "stop")], few=[("loopback", "run")]
    ),
)
def test_a_stranger_gets_nothing_executed_stops_nobody_and_reads_no_secret(
    where: str, wish: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tag, mine = f"tag-{secrets.token_hex(8)}", secrets.token_hex(32)
    monkeypatch.setenv("TAG", tag)
    monkeypatch.setenv("COLLECTIVES_SECRET", mine)
    with stranger(wish, tag) as report:
        run = [sys.executable, "-c", LAUNCH, where]
        done = finished(run)
    assert not (tmp_path / "executed").exists()
    assert done.returncode == 0, done.stderr
    events, made = json.loads(done.stdout)
    assert len(events[0]["pids"]) == 2
    assert sum("collectives.launch." in command for command in report["commands"]) >= 1
    assert len(report["attacked"]) >= 1
    assert len(made) >= (where != "loopback")
    assert not [
        text
        for text in report["commands"] + report["keys"]
        if any(each in text for each in [mine, *made])
    ]
    assert not list(tmp_path.glob(".collectives-*"))


DRIVE = """
import json, sys
from collectives.launch import launch
for ranks in (1, 3):
    print(json.dumps(launch("unwell", {"do": "nothing"}, ranks, where="torchrun", timeout=200)))
raise SystemExit(5)
"""


@pytest.mark.extended  # nearly a minute of launches
def test_a_stranger_at_torchrun_s_store_gets_nothing_executed_and_stops_nobody(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tag, mine = f"tag-{secrets.token_hex(8)}", secrets.token_hex(32)
    monkeypatch.setenv("TAG", tag)
    monkeypatch.setenv("COLLECTIVES_SECRET", mine)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    port = free_port()
    where = ["--nnodes=1", "--nproc-per-node=3", "--master-addr=127.0.0.1", f"--master-port={port}"]
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        *where,
        "-m",
        "collectives.launch.torchrun",
    ]
    with stranger("run", tag, port) as report:
        run = [*command, sys.executable, "-c", DRIVE]
        done = finished(run)
    assert not (tmp_path / "executed").exists()
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert [len(each[0]["pids"]) for each in events] == [1, 3], done.stderr
    assert "exitcode  : 5" in done.stderr
    assert "collectives/hub" in report["keys"]
    assert port in report["attacked"]
    assert sum("collectives.launch.rank torchrun" in command for command in report["commands"]) >= 1
    assert not [text for text in report["commands"] + report["keys"] if mine in text]
