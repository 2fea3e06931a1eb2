"""A process in the sandbox: what it can do and see, which system calls its filter lets through, what its rank says."""

import errno
import json
import os
import socket
import struct
import sys
import tempfile
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

from collectives_course import assignment, rank, sandbox, seccomp, wire
from collectives_course.grade import grade
from collectives_course.sandbox import Limits, RankProcess
from collectives_course.submission import Submission
from collectives_course.verdict import Crashed, TimedOut
from command import finished
from course import test_hostile
from course.hostile_rings import HOSTILE
from course.wrong import ASSIGNMENTS
from places import ROOT

REFERENCE = ASSIGNMENTS / "ring" / "reference"
PROBE = Path(__file__).with_name("sandbox_probe.py")
ANOTHER_USER = 65_533
ATTACKS = {
    "asks again and again": "timeout",
    "its first thread ends": "crashed",
    "memory that no limit sees": "blocked",
}
integration = pytest.mark.integration
needs_sandbox = pytest.mark.usefixtures("sandbox")


def probe() -> dict[str, Any]:
    """Return what the probe prints, in the place of a rank, without the words of the audit hook."""
    with sandbox._filter() as filter_fd:
        typed = sandbox.command(
            REFERENCE, Limits(memory=512 << 20), 2, sandbox.FIRST_USER - 1, filter_fd
        )
        started = [*typed[: typed.index("-m")], "-c", PROBE.read_text()]
        environment = {"PATH": os.environ["PATH"]}
        ran = finished(started, pass_fds=[filter_fd], env=environment)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


@integration
@needs_sandbox
def test_nothing_works_and_little_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLECTIVES_SECRET", "SECRET")
    found = probe()
    assert "SECRET" not in str(found.pop("variables"))
    assert found.pop("memory") < 512
    assert found == {
        "worked": [],
        "processes": [1, 2],
        "capabilities": [0, 0, 0, 0],
        "root": False,
        "open": 3,  # its input, and the two outputs
    }


def as_another_user(*typed: str) -> list[str]:
    """A command as another user, for whom Python is in sight also where it is in root's home."""
    home = ["--perms", "0755", "--tmpfs", "/root"] if sys.base_prefix.startswith("/root/") else []
    seen = (
        [*sandbox._folders(sys.base_prefix), "--ro-bind", sys.base_prefix, sys.base_prefix]
        if home
        else []
    )
    ids = [
        f"--reuid={ANOTHER_USER}",
        f"--regid={ANOTHER_USER}",
        "--clear-groups",
        "--inh-caps=-all",
    ]
    return [
        "bwrap",
        "--dev-bind",
        "/",
        "/",
        *home,
        *seen,
        "--die-with-parent",
        "--",
        "setpriv",
        *ids,
        "--",
        *typed,
    ]


@needs_sandbox
@pytest.mark.extended
@pytest.mark.skipif(os.geteuid() != 0, reason="all other tests run as another user already")
def test_another_user_than_root_grades_too(tmp_path: Path) -> None:
    code = (
        "import json, sys; from pathlib import Path; from course import test_sandbox as t\n"
        "print(json.dumps([t.probe()['worked'], t.points(), t.attacked()]))"
    )
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": paths,
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": "/tmp",
    }
    command = as_another_user(sys.executable, "-c", code)
    ran = finished(command, env=environment, cwd="/")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == [[], 100, ATTACKS]


def attacked() -> dict[str, str]:
    """How the first criterion of a few attacks ends."""
    found = {}
    for hostile in HOSTILE:
        if hostile.name in ATTACKS:
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "ring.py").write_text(
                    hostile.text((REFERENCE / "ring.py").read_text())
                )
                found[hostile.name] = (
                    grade(test_hostile.ring(hostile), Path(folder)).verdicts[0].status
                )
    return found


def points(sandboxed: bool = True) -> float:
    return grade(assignment.read(ASSIGNMENTS / "ring"), REFERENCE, 3, sandboxed).points


@pytest.mark.extended
def test_without_a_sandbox() -> None:
    assert points(sandboxed=False) == 100


@integration
def test_without_a_sandbox_a_rank_is_ended(tmp_path: Path) -> None:
    (tmp_path / "ring.py").write_text("def f(comm):\n    while True: pass\n")
    submission = Submission(tmp_path, "ring.py", {}, limit=0.5, sandboxed=False)
    with pytest.raises(TimedOut, match=r"ring.py, line 2"):
        submission.run("f", [[]])
    (process,) = submission.ranks(1)
    submission.close()
    assert not psutil.pid_exists(process.process.pid)


@integration
@needs_sandbox
def test_ranks_have_one_memory_together(tmp_path: Path) -> None:
    (tmp_path / "ring.py").write_text(
        "import time\n\ndef f(_, n):\n    kept = bytearray(2 * n)\n    time.sleep(1)\n"
    )
    tmp_path.chmod(0o755)
    submission = Submission(tmp_path, "ring.py", {}, limits=Limits(memory=512 << 20), limit=30.0)
    submission.run("f", [[40 << 20]] * 3)
    with pytest.raises(
        Crashed,
        match=r"memory of all ranks: got \d{3},\d{3},\d{3} bytes, expected at most 536,870,91",
    ):
        submission.run("f", [[90 << 20]] * 3)
    submission.close()


@integration
@needs_sandbox
def test_a_process_is_killed_whole_and_twice(tmp_path: Path) -> None:
    process = RankProcess(tmp_path, Limits())
    process.wait_until_ready()
    started = psutil.Process(process.process.pid).children(recursive=True)
    process.kill()
    process.kill()
    assert started
    assert not any(each.is_running() for each in started)


def test_ranks_have_users_of_their_own_that_nobody_else_can_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "USED", tmp_path / "ranks.lock")  # as if this were root
    monkeypatch.setattr(sandbox, "USERS", 40)
    made = [sandbox._own_user() for _ in range(40)]
    assert sorted(number for number, _ in made) == [
        *range(sandbox.FIRST_USER, sandbox.FIRST_USER + 40)
    ]
    assert (tmp_path / "ranks.lock").stat().st_mode & 0o777 == 0o600
    with pytest.raises(sandbox.SandboxError, match="no number of a user is free"):
        sandbox._own_user()
    for _, held in made:
        held.close()
    sandbox._own_user()[1].close()


@needs_sandbox
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ((seccomp, "has_filter", lambda: False), "no filter of system calls"),
        (
            (sandbox.shutil, "which", lambda name: None if name == "setpriv" else name),
            "setpriv missing",
        ),
        ((sandbox.shutil, "which", lambda _name: None), "apt-get install bubblewrap"),
        ((sandbox.sys, "platform", "darwin"), "needs Linux"),
    ],
)
def test_without_a_sandbox_nothing_is_graded_and_the_reason_is_told(
    changed: tuple[Any, str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*changed)
    with pytest.raises(sandbox.SandboxError, match=f"no sandbox: .*{message}"):
        grade(assignment.read(ASSIGNMENTS / "ring"), tmp_path)


def test_the_line_in_a_stack() -> None:
    def line(printed: str) -> int:
        process = RankProcess.__new__(RankProcess)
        process.printed = printed.encode()
        return process._line("ring.py")

    first = '  File "/submission/ring.py", line 12 in helper\n  File "/submission/ring.py", line 7 in all_reduce\n'
    other = '  File "/submission/ring.py", line 99 in thread\n  File "/usr/lib/threading.py", line 5 in run\n'
    assert (
        line(
            f"Timeout (0:00:01)!\nThread 0x01 (most recent call first):\n{other}\nThread 0x02 (…):\n{first}"
        )
        == 12
    )
    assert line(f"Timeout (0:00:01)!\nThread 0x02 (most recent call first):\n{first}") == 12
    for harmless in (
        "",
        'File "ring.py", line x in',
        '  File "/a/ring.py", line 99999999999 in f',
        "Thread 0x" * 9,
    ):
        assert line(harmless) == 0


# The filter of system calls, run by a small interpreter of the packet filter.

X86, ARM = 0xC000003E, 0xC00000B7
EPERM, ENOSYS, AGAIN, ALLOW = (
    seccomp.REFUSE,
    seccomp.MISSING,
    seccomp.FAIL | errno.EAGAIN,
    seccomp.ALLOW,
)
MACHINES = [("x86_64", X86, 0), ("aarch64", ARM, 1)]


def verdict(machine: str, architecture: int, number: int, *arguments: int) -> int:
    program = list(struct.iter_unpack("<HBBI", seccomp.program(machine)))
    data = struct.pack("<IIQ6Q", number, architecture, 0, *arguments, *[0] * (6 - len(arguments)))
    at = value = 0
    while True:
        code, yes, no, k = program[at]
        at += 1
        if code == seccomp.LOAD:
            (value,) = struct.unpack_from("<I", data, k)
        elif code == seccomp.RETURN:
            return int(k)
        else:
            holds = {
                seccomp.EQUAL: value == k,
                seccomp.AT_LEAST: value >= k,
                seccomp.ANY_BIT: bool(value & k),
            }[code]
            at += yes if holds else no


@pytest.mark.parametrize(("machine", "architecture", "table"), MACHINES)
def test_what_is_not_allowed_is_refused(machine: str, architecture: int, table: int) -> None:
    allowed = {numbers[table] for numbers in seccomp.ALLOWED.values() if numbers[table] >= 0}
    special = {
        each[table] for each in (seccomp.CLONE3, seccomp.FUTEX, seccomp.MADVISE, seccomp.MMAP)
    }
    for number in range(512):
        later = number >= seccomp.FIRST_UNKNOWN
        expected = ENOSYS if later else ALLOW if number in allowed else EPERM
        if number not in special:
            assert verdict(machine, architecture, number, *[2**31] * 6) == expected, number


@pytest.mark.parametrize(("machine", "architecture", "table"), MACHINES)
@pytest.mark.parametrize(
    ("call", "arguments", "expected"),
    [
        ("CLONE", (0x3D0F00,), ALLOW),  # what pthread_create asks for
        ("CLONE", (0x1200011,), EPERM),  # what fork asks for
        ("CLONE", (0x10000011,), EPERM),  # a namespace of users
        ("CLONE3", (), ENOSYS),
        # Private, and of no file.
        *(("MMAP", (0, 4096, 3, flags), ALLOW) for flags in (0x02, 0x22)),
        # Shared, of no file, validated.
        *(("MMAP", (0, 4096, 3, flags), EPERM) for flags in (0x01, 0x21, 0x03)),
        *(("FUTEX", (0, op), AGAIN) for op in (0, 1, 256 + 9)),
        *(("FUTEX", (0, op), ALLOW) for op in (128, 129)),
        ("MADVISE", (0, 0, 4), ALLOW),
        *(("MADVISE", (0, 0, advice), EPERM) for advice in (21, 22)),  # of the page cache
        ("FCNTL", (3, 1), ALLOW),
        *(("FCNTL", (3, command), EPERM) for command in (6, 1024)),
        ("PRCTL", (15,), ALLOW),
        ("PRCTL", (1,), EPERM),
        ("IOCTL", (0, 0x5401), ALLOW),  # is it a terminal
        ("IOCTL", (0, 0x80086601), EPERM),  # flags of a file on the disk
    ],
)
def test_arguments_decide(
    machine: str,
    architecture: int,
    table: int,
    call: str,
    arguments: tuple[int, ...],
    expected: int,
) -> None:
    assert verdict(machine, architecture, getattr(seccomp, call)[table], *arguments) == expected


def test_calls_that_nobody_needs_are_refused() -> None:
    # sendmsg, modify_ldt, io_setup, vmsplice, name_to_handle_at; of the page cache: fadvise64,
    # preadv2, mincore, …
    for number in (46, 154, 206, 278, 303, 221, 327, 27, 187, 277):
        assert verdict("x86_64", X86, number) == EPERM
    assert verdict("x86_64", X86, 451) == ENOSYS  # cachestat
    assert verdict("x86_64", 0x40000003, 1) == EPERM  # the table of 32 bits
    assert verdict("x86_64", X86, 0x40000001) == ENOSYS  # x32


@integration
def test_the_library_waits_by_the_same_call_on_every_machine_that_has_a_filter() -> None:
    code = "import platform, sys; from importlib import reload; from collectives.engine import system\n"
    code += "for platform.machine in [lambda name=name: name for name in sys.argv[1:]]: print(reload(system).FUTEX)"
    printed = finished([sys.executable, "-c", code, *seccomp.MACHINES], check=True).stdout
    assert [int(each) for each in printed.split()] == [
        seccomp.FUTEX[table] for table, _ in seccomp.MACHINES.values()
    ]


# A rank's end: how an error is told, and what is loaded.


def answer(function: Any, watch: rank.Watch = rank.nullcontext) -> Any:
    module = ModuleType("submission")
    module.call = function  # type: ignore[attr-defined]
    task = {"file": "test_sandbox.py", "call": "call", "arguments": [], "size": 0}
    ours, theirs = socket.socketpair()
    with ours, theirs:
        return wire.unpack(rank.answer(task, wire.Connection(ours), lambda _file: module, watch))


class UnreadableError(BaseException):
    def __str__(self) -> str:
        raise self


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (ValueError("no"), "crashed", "ValueError: no"),
        (ValueError("x" * 10**7), "crashed", f"ValueError: {'x' * 2000}"),
        (SystemExit(0), "crashed", "SystemExit: 0"),
        (KeyboardInterrupt(), "crashed", "KeyboardInterrupt: "),
        (UnreadableError(), "crashed", "UnreadableError: its text cannot be read"),
        (NotImplementedError("add"), "unfinished", "NotImplementedError: add"),
        (rank.ForbiddenError("x is forbidden"), "blocked", "ForbiddenError: x is forbidden"),
        (OSError(errno.EPERM, "no"), "blocked", "PermissionError: [Errno 1] no"),
        (OSError(errno.EROFS, "no"), "blocked", "OSError: [Errno 30] no"),
        (OSError(errno.ENOSPC, "no"), "crashed", "OSError: [Errno 28] no"),
        (
            ModuleNotFoundError("no torch", name="torch.nn"),
            "blocked",
            "ModuleNotFoundError: no torch",
        ),
        (ModuleNotFoundError("no x", name="x"), "crashed", "ModuleNotFoundError: no x"),
    ],
)
def test_errors_in_words(error: BaseException, kind: str, text: str) -> None:
    def f() -> None:
        raise error

    line = f.__code__.co_firstlineno + 1
    assert answer(f) == {"op": "raise", "kind": kind, "text": text, "line": line}


def test_a_value_that_cannot_be_sent_is_an_error_of_the_function() -> None:
    assert "cannot be sent" in answer(lambda: object())["text"]
    loop: list[Any] = []
    loop.append(loop)
    assert answer(lambda: loop)["kind"] == "crashed"


def test_what_was_hushed_up_and_what_is_left() -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="mine")
    assert "a socket is forbidden" in answer(lambda: 1, rank.watcher(["a socket"]))["text"]
    assert answer(lambda: 1, rank.watcher([]))["value"] == 1
    left = answer(thread.start, rank.watcher([]))["text"]
    end.set()
    assert left == "RuntimeError: the function has returned, its threads still run: mine"


def test_an_import_that_failed_fails_again(tmp_path: Path) -> None:
    load = rank.loader(tmp_path)
    (tmp_path / "broken_submission.py").write_text("x = 1 +\n")
    for name in ("broken_submission.py", "broken_submission.py", "missing_submission.py"):
        with pytest.raises((SyntaxError, FileNotFoundError)):
            load(name)
    (tmp_path / "whole_submission.py").write_text("x = 1\n")
    assert load("whole_submission.py") is load("whole_submission.py")
