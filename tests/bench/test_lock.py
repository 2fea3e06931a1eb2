"""One process at a time measures into an output: others wait or are told who does, and nothing is lost."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from collectives.bench.lock import locked
from collectives.bench.results import read
from collectives.bench.sweep import Keep, measure_missing
from command import started
from places import comes_true

HELD = """
import sys, time
from collectives.bench.lock import locked
with locked(sys.argv[1], "same"):
    print("held", flush=True)
    time.sleep(600)
"""


def measure(left: list[int], keep: Keep) -> None:
    for case in left:
        keep({"rows": [{"case": case}]})


def run(stem: Path, cases: list[int], by: Any = measure) -> None:
    measure_missing(stem, [{"cases": cases}], cases, by)


def cases(stem: Path) -> list[int]:
    return [int(case) for case in read(stem)[0].case]


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_another_measurement_into_the_same_output_is_refused_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    other = rf"rows: process {os.getpid()} on \S+ \(Slurm job 17\) is measuring there with other parameters"

    def interrupted(left: list[int], keep: Keep) -> None:
        with pytest.raises(FileExistsError, match=other):
            run(tmp_path / "rows", [7])
        measure(left, keep)

    run(tmp_path / "rows", [5, 6], interrupted)
    assert cases(tmp_path / "rows") == [5, 6]
    assert files(tmp_path) == ["rows.json", "rows.parquet"]


def test_the_same_measurement_is_waited_for_and_not_made_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def never(_: list[int], __: Keep) -> None:
        pytest.fail("measured twice")

    second = threading.Thread(target=run, args=(tmp_path / "rows", [5, 6], never))
    told: list[str] = []

    def is_waiting() -> bool:
        told.append(capfd.readouterr().err)
        return f"rows: waiting for process {os.getpid()} on " in "".join(told)

    def slow(left: list[int], keep: Keep) -> None:
        second.start()
        assert comes_true(is_waiting)
        measure(left, keep)

    run(tmp_path / "rows", [5, 6], slow)
    second.join()
    assert cases(tmp_path / "rows") == [5, 6]
    assert files(tmp_path) == ["rows.json", "rows.parquet"]


def test_after_a_failure_the_one_that_waited_goes_on_there(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    second = threading.Thread(target=run, args=(tmp_path / "rows", [5, 6]))

    def fails(left: list[int], keep: Keep) -> None:
        second.start()
        assert comes_true(lambda: "waiting" in capfd.readouterr().err)
        keep({"rows": [{"case": left[0], "by": "the first"}]})
        raise RuntimeError("a rank died")

    with pytest.raises(RuntimeError, match="a rank died"):
        run(tmp_path / "rows", [5, 6], fails)
    second.join()
    rows, _ = read(tmp_path / "rows")
    assert list(rows.case) == [5, 6]
    assert list(rows.by.notna()) == [True, False]


def test_a_lock_is_held_by_one_at_a_time_while_its_file_comes_and_goes(tmp_path: Path) -> None:
    inside: list[int] = []

    def hold(me: int) -> None:
        for _ in range(30):
            with locked(tmp_path / "rows", "same"):
                inside.append(me)
                os.sched_yield()
                assert inside == [me]
                inside.clear()

    failures: list[Any] = []
    hook, threading.excepthook = threading.excepthook, failures.append
    try:
        threads = [threading.Thread(target=hold, args=(me,)) for me in range(6)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    finally:
        threading.excepthook = hook
    assert not failures
    assert files(tmp_path) == []


def test_without_locks_rows_are_measured_and_the_danger_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("collectives.bench.lock.flock", none)
    run(tmp_path / "rows", [5])
    assert "rows: its file system has no locks (No locks available)" in capsys.readouterr().err
    assert cases(tmp_path / "rows") == [5]
    assert files(tmp_path) == ["rows.json", "rows.parquet"]


@pytest.mark.integration
def test_a_process_that_is_killed_holds_no_lock(tmp_path: Path) -> None:
    with started(
        [sys.executable, "-c", HELD, str(tmp_path / "rows")], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with (tmp_path / ".rows.lock").open("rb") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert files(tmp_path) == [".rows.lock"]
    with locked(tmp_path / "rows", "other"):
        pass
    assert files(tmp_path) == []
