"""What a process in the sandbox can do and see when nothing in Python holds it back, as root and as another user."""

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
import pytest

from collectives_course import assignment, sandbox, seccomp
from collectives_course.grade import grade
from collectives_course.sandbox import Limits, RankProcess
from collectives_course.submission import Submission
from collectives_course.verdict import Crashed, TimedOut
from course import test_hostile
from course.hostile_rings import HOSTILE
from course.wrong import ASSIGNMENTS
from places import ROOT

REFERENCE = ASSIGNMENTS / "ring" / "reference"
PROBE = Path(__file__).with_name("sandbox_probe.py")
STRANGER = 65_533
integration = pytest.mark.integration
needs_sandbox = pytest.mark.usefixtures("sandbox")


def probe() -> dict[str, Any]:
    """What the probe prints, in the place of a rank."""
    limits = Limits(memory=512 << 20)
    with sandbox._filter() as filter_fd:
        typed = sandbox.command(REFERENCE, limits, 2, sandbox.FIRST_USER - 1, filter_fd)
        started = [*typed[: typed.index("-m")], "-c", PROBE.read_text()]
        environment = {"PATH": os.environ["PATH"]}
        ran = subprocess.run(started, capture_output=True, text=True, timeout=60, pass_fds=[filter_fd], env=environment)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


@integration
@needs_sandbox
def test_nothing_works_and_little_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLECTIVES_SECRET", "SECRET")
    found = probe()
    assert found["worked"] == []
    assert found["processes"] == [1, 2]
    assert "SECRET" not in str(found["variables"])
    assert found["capabilities"] == [0, 0, 0, 0]
    assert not found["root"]
    assert found["open"] == 3  # its input, and the two outputs
    assert found["memory"] < 512


def as_stranger(*typed: str) -> list[str]:
    """A command as another user, for whom Python is in sight also where it is in root's home."""
    home = ["--perms", "0755", "--tmpfs", "/root"] if sys.base_prefix.startswith("/root/") else []
    seen = [*sandbox._folders(sys.base_prefix), "--ro-bind", sys.base_prefix, sys.base_prefix] if home else []
    ids = [f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups", "--inh-caps=-all"]
    return ["bwrap", "--dev-bind", "/", "/", *home, *seen, "--die-with-parent", "--", "setpriv", *ids, "--", *typed]


@needs_sandbox
@integration
@pytest.mark.extended
@pytest.mark.skipif(os.geteuid() != 0, reason="all other tests run as another user already")
def test_another_user_than_root_grades_too(tmp_path: Path) -> None:
    code = (
        "import json, sys; from pathlib import Path; from course import test_sandbox as t\n"
        "print(json.dumps([t.probe()['worked'], t.points(), t.attacked()]))"
    )
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/tmp"}
    ran = subprocess.run(
        as_stranger(sys.executable, "-c", code), capture_output=True, text=True, timeout=120, env=environment, cwd="/"
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == [[], 100, ATTACKS]


ATTACKS = {
    "asks again and again": "timeout",
    "its first thread ends": "crashed",
    "memory that no limit sees": "blocked",
}


def attacked() -> dict[str, str]:
    """How the first criterion of a few attacks ends."""
    found = {}
    for hostile in HOSTILE:
        if hostile.name in ATTACKS:
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "ring.py").write_text(hostile.text((REFERENCE / "ring.py").read_text()))
                found[hostile.name] = grade(test_hostile.ring(hostile), Path(folder)).verdicts[0].status
    return found


def points(sandboxed: bool = True) -> float:
    return grade(assignment.read(ASSIGNMENTS / "ring"), REFERENCE, 3, sandboxed).points


@integration
@pytest.mark.extended
def test_without_a_sandbox() -> None:
    assert points(sandboxed=False) == 100


@integration
def test_without_a_sandbox_a_rank_is_ended(tmp_path: Path) -> None:
    (tmp_path / "ring.py").write_text("def f(comm):\n    while True: pass\n")
    submission = Submission(tmp_path, "ring.py", {}, limit=0.5, sandboxed=False)
    with pytest.raises(TimedOut, match=r"ring.py, line 2"):
        submission.run("f", [[]])
    (rank,) = submission.ranks(1)
    submission.close()
    assert not psutil.pid_exists(rank.process.pid)


@integration
@needs_sandbox
def test_ranks_have_one_memory_together(tmp_path: Path) -> None:
    (tmp_path / "ring.py").write_text("import time\n\ndef f(_, n):\n    kept = bytearray(2 * n)\n    time.sleep(1)\n")
    tmp_path.chmod(0o755)
    submission = Submission(tmp_path, "ring.py", {}, limits=Limits(memory=512 << 20), limit=30.0)
    submission.run("f", [[40 << 20]] * 3)
    with pytest.raises(
        Crashed, match=r"memory of all ranks: got \d{3},\d{3},\d{3} bytes, expected at most 536,870,912"
    ):
        submission.run("f", [[90 << 20]] * 3)
    submission.close()


@integration
@needs_sandbox
def test_a_process_is_killed_whole_and_twice(tmp_path: Path) -> None:
    rank = RankProcess(tmp_path, Limits())
    rank.wait_until_ready()
    started = psutil.Process(rank.process.pid).children(recursive=True)
    rank.kill()
    rank.kill()
    assert started
    assert not any(each.is_running() for each in started)


@pytest.fixture
def numbers_of_this_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if this were root."""
    monkeypatch.setattr(sandbox, "USED", tmp_path / "ranks.lock")


@pytest.mark.usefixtures("numbers_of_this_test")
def test_ranks_have_users_of_their_own() -> None:
    made = [sandbox._own_user() for _ in range(40)]
    numbers = {number for number, _ in made}
    assert len(numbers) == 40
    assert min(numbers) >= sandbox.FIRST_USER
    assert max(numbers) < sandbox.FIRST_USER + sandbox.USERS
    for _, held in made:
        held.close()


@pytest.mark.usefixtures("numbers_of_this_test")
def test_no_number_of_a_user_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "USERS", 1)
    _, held = sandbox._own_user()
    with held, pytest.raises(sandbox.SandboxError, match="no number of a user is free"):
        sandbox._own_user()
    sandbox._own_user()[1].close()


@pytest.mark.usefixtures("numbers_of_this_test")
def test_no_other_user_can_take_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "USERS", 2)
    monkeypatch.setattr(sandbox, "FIRST_USER", 70_000)
    with socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as second:
        first.bind("\0collectives-rank-70000")  # names that anybody may bind
        second.bind("\0collectives-rank-70001")
        sandbox._own_user()[1].close()
    assert (tmp_path / "ranks.lock").stat().st_mode & 0o777 == 0o600


@needs_sandbox
def test_why_there_is_no_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seccomp, "has_filter", lambda: False)
    assert "no filter of system calls" in sandbox.unavailable()
    monkeypatch.setattr(sandbox.shutil, "which", lambda name: None if name == "setpriv" else name)
    assert "setpriv missing" in sandbox.unavailable()
    monkeypatch.setattr(sandbox.shutil, "which", lambda _name: None)
    assert "apt-get install bubblewrap" in sandbox.unavailable()
    monkeypatch.setattr(sandbox.sys, "platform", "darwin")
    assert "needs Linux" in sandbox.unavailable()


def stack(printed: str) -> int:
    rank = RankProcess.__new__(RankProcess)
    rank.printed = printed.encode()
    return rank._line("ring.py")


def test_the_line_in_a_stack() -> None:
    first = '  File "/submission/ring.py", line 12 in helper\n  File "/submission/ring.py", line 7 in all_reduce\n'
    other = '  File "/submission/ring.py", line 99 in thread\n  File "/usr/lib/threading.py", line 5 in run\n'
    assert stack(f"Timeout (0:00:01)!\nThread 0x01 (most recent call first):\n{other}\nThread 0x02 (…):\n{first}") == 12
    assert stack(f"Timeout (0:00:01)!\nThread 0x02 (most recent call first):\n{first}") == 12
    for harmless in ("", 'File "ring.py", line x in', '  File "/a/ring.py", line 99999999999 in f', "Thread 0x" * 9):
        assert stack(harmless) == 0
