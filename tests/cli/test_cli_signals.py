"""How a command ends from outside: signals, a reader that goes, a full disk, closed streams."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from command import PIPES, finished, started
from places import PATIENCE, ROOT, comes_true
from sweep import each

pytestmark = pytest.mark.integration

COMMAND = [sys.executable, "-m", "collectives"]
WORKING = {
    "verify": "verify --all",
    "simulate": "simulate all_reduce ring -p 1000000 --bytes 8",
    "bench": "bench all_reduce --repetitions 10000 --bytes 4M -p 2",
    "calibrate": "calibrate --repetitions 10000",
}
CHILDREN = {"verify": 1, "simulate": 0, "bench": 2, "calibrate": 2}
WAYS = [("SIGINT", "interrupted", 130), ("SIGTERM", "terminated", 143), ("SIGHUP", "hung up", 129)]

AtWork = tuple[subprocess.Popen[str], list[psutil.Process]]


@contextmanager
def at_work(words: str, children: int, cwd: Path | None = None) -> Iterator[AtWork]:
    """A command that has started so many processes and is at work, and all that it started."""
    with started([*COMMAND, *words.split()], **PIPES, cwd=cwd) as command:
        main = psutil.Process(command.pid)

        def begun() -> bool:
            """Return True once it is past its imports: it has its processes, or has used enough processor time."""
            assert command.poll() is None, command.stderr and command.stderr.read()
            return len(main.children(recursive=True)) >= children and (
                children or sum(main.cpu_times()[:2]) >= 3
            )

        assert comes_true(begun)
        time.sleep(0.3)
        yield command, main.children(recursive=True)


def gone(processes: list[psutil.Process]) -> bool:
    return not psutil.wait_procs(processes, timeout=PATIENCE)[1]


@pytest.mark.parametrize(("how", "said", "code"), WAYS)
@pytest.mark.parametrize("verb", each(WORKING, few=["simulate", "bench"]))
def test_a_signal_ends_a_command_with_one_line(verb: str, how: str, said: str, code: int) -> None:
    with at_work(WORKING[verb], CHILDREN[verb]) as (command, below):
        command.send_signal(getattr(signal, how))
        _, err = command.communicate(timeout=PATIENCE)
        assert command.returncode == code
        assert err == f"collectives: {said}\n"
        assert gone(below)


@pytest.mark.usefixtures("sandbox")
@pytest.mark.parametrize(("how", "said", "code"), [WAYS[0], WAYS[2]])
def test_a_signal_ends_grading_and_leaves_no_grade_and_no_folder(
    how: str, said: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary, student = tmp_path / "temporary", tmp_path / "class" / "ada"
    temporary.mkdir()
    student.mkdir(parents=True)
    monkeypatch.setenv("TMPDIR", str(temporary))
    (student / "ring.py").write_text("import time\n\ntime.sleep(60)\n")
    with at_work(f"grade-all {ROOT}/assignments/ring class --output grades", 2, tmp_path) as (
        command,
        below,
    ):
        command.send_signal(getattr(signal, how))
        _, err = command.communicate(timeout=PATIENCE)
        assert command.returncode == code
        assert err == f"collectives: {said}\n"
        assert gone(below)
    assert [file.name for file in (tmp_path / "grades").iterdir()] == ["secret.txt"]
    assert not list(temporary.iterdir())


def test_workers_end_with_a_killed_parent() -> None:
    with at_work("verify --all", 1) as (command, below):
        command.kill()
        command.communicate(timeout=PATIENCE)
        assert gone(below)


def test_a_notebook_is_ended_with_its_kernel_and_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, temporary = ROOT / "experiments", tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    shutil.copy(source / "all-reduce-sweep.ipynb", tmp_path)
    shutil.copytree(source / "presets", tmp_path / "presets")
    words = "run all-reduce-sweep.ipynb -p repetitions=10000 -p backends=[p2p,gloo]"
    with at_work(words, 3, tmp_path) as (command, below):  # the kernel, and two ranks or more
        command.send_signal(signal.SIGINT)
        _, err = command.communicate(timeout=PATIENCE)
        assert command.returncode == 130
        assert "Traceback" not in err
        assert err.splitlines()[-1] == "collectives: interrupted"
        assert gone(below)
    assert not list(temporary.glob("collectives-*"))


def shell(line: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A line of bash in which C is the command; buffered, as it is for users."""
    own = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = ["bash", "-c", f'C() {{ "{sys.executable}" -m collectives "$@"; }}; {line}']
    return finished(command, cwd=cwd, env=own)


@pytest.mark.parametrize(
    "words",
    [
        "list",
        "list --json",
        "show all_reduce ring",
        "show all_reduce ring --json",
        "--help",
        "list --help",
    ],
)
def test_a_reader_that_goes_ends_it_quietly(words: str) -> None:
    done = shell(f"C {words} | true; echo ${{PIPESTATUS[0]}}")
    assert done.stdout in ("141\n", "0\n")
    assert done.stderr == ""


def test_what_nohup_starts_outlives_its_terminal() -> None:
    done = shell(
        "trap '' HUP; C simulate all_reduce ring -p 100000 --bytes 8 & sleep 0.5; kill -HUP $!; wait $!"
    )
    assert done.returncode == 0
    assert done.stderr == ""


def test_a_reader_that_goes_ends_the_ranks() -> None:
    done = shell(
        "C bench all_reduce --bytes 4 8 --repetitions 2 -p 2 --json 2>/dev/null | true; echo ${PIPESTATUS[0]}"
    )
    assert done.stdout == "141\n"
    assert done.stderr == ""


@pytest.mark.parametrize("words", ["list", "list --json", "show all_reduce ring", "--help"])
def test_a_full_disk_is_one_line_that_names_standard_output(words: str) -> None:
    done = shell(f"C {words} > /dev/full")
    said = "collectives: cannot write to standard output: No space left on device\n"
    assert done.returncode == 1
    assert done.stderr == said


def test_pictures_on_a_full_disk_leave_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "x-steps-dark.svg").write_text("before")
    done = shell(f"ulimit -f 1; trap '' XFSZ; C show all_reduce ring --svg {tmp_path}/x")
    said = f"collectives: cannot write {tmp_path}/x-steps-light.svg and -dark.svg: File too large\n"
    assert done.returncode == 2
    assert done.stderr == said
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [
        ("x-steps-dark.svg", "before")
    ]
