"""What a submission may consist of, and that a check which fails over a value is no end of the grading."""

import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from collectives_course import assignment, sandbox
from collectives_course import grade as grading
from collectives_course import submission as submitting
from collectives_course.grade import grade
from collectives_course.submission import Criterion, HandedIn, Submission, read_files, reading
from collectives_course.verdict import Failed, TimedOut
from course.wrong import ASSIGNMENTS

Check = Callable[[Submission], Any]


def ring(*checks: Check) -> assignment.Assignment:
    """The ring with criteria that start no process."""
    read = assignment.read(ASSIGNMENTS / "ring")
    return replace(read, criteria=tuple(Criterion(str(i), 10, "", check) for i, check in enumerate(checks)))


def passes(_submission: Submission) -> None:
    pass


def folder(path: Path) -> Path:
    path.mkdir()
    return path


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("link", "is a symbolic link, expected a file"),
        ("dangling", "is a symbolic link, expected a file"),
        ("pipe", "is a folder, a pipe or a device, expected a file"),
        ("socket", "is a folder, a pipe or a device, expected a file"),
        ("folder", "is a folder, a pipe or a device, expected a file"),
        ("missing", "is missing in the submission"),
        ("blank", "is empty: begin with the starter's file"),
        ("large", "has 4,294,967,296 bytes, expected at most 1,048,576"),
    ],
)
def test_files_that_are_not_read(name: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "target").write_text("x = 1")
    (tmp_path / "link").symlink_to("target")
    (tmp_path / "dangling").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe")
    os.mknod(tmp_path / "socket", stat.S_IFSOCK | 0o600)
    (tmp_path / "folder").mkdir()
    (tmp_path / "blank").write_text(" \n\t\n")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(4 << 30)
    os.link(tmp_path / "target", tmp_path / "hard")
    assert read_files(tmp_path, ["hard", name]) == HandedIn(problem=f"{name} {says}")
    assert read_files(tmp_path, ["hard"]).files == {"hard": b"x = 1"}


def test_a_folder_above_that_is_a_link(tmp_path: Path) -> None:
    (folder(tmp_path / "elsewhere") / "a.py").write_text("x = 1")
    submission = folder(tmp_path / "submission")
    (submission / "src").symlink_to(tmp_path / "elsewhere")
    assert "src/a.py is behind a symbolic link" in read_files(submission, ["src/a.py"]).problem
    linked = tmp_path / "linked"
    linked.symlink_to(tmp_path / "elsewhere")
    assert "a.py is behind a symbolic link" in read_files(linked, ["a.py"]).problem
    (tmp_path / "elsewhere" / "ring.py").write_text("x = 1")
    graded = grade(ring(passes), linked, sandboxed=False)  # the instructor's own link
    assert (graded.submission, graded.points) == ("linked", 10)


def test_a_file_that_grows_or_becomes_a_link_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Swapped between any two system calls: what was opened is what is judged and graded."""
    (tmp_path / "secret").write_text("the grader's own")
    file = tmp_path / "a.py"
    file.write_text("x = 1")
    asked = os.fstat

    def swap(number: int) -> os.stat_result:
        found = asked(number)
        file.unlink(missing_ok=True)
        file.symlink_to(tmp_path / "secret")
        return found

    monkeypatch.setattr(submitting.os, "fstat", swap)
    assert read_files(tmp_path, ["a.py"]).files == {"a.py": b"x = 1"}
    assert "is a symbolic link" in read_files(tmp_path, ["a.py"]).problem
    file.unlink()
    file.write_bytes(b"x" * 10)
    monkeypatch.setattr(submitting.os, "fstat", lambda number: (asked(number), file.write_bytes(b"x" * (2 << 20)))[0])
    assert "expected at most 1,048,576" in read_files(tmp_path, ["a.py"]).problem


def test_only_files_that_students_edit_are_taken(tmp_path: Path) -> None:
    for name in ("ring.py", "variant.py", "numpy.py", "sitecustomize.py", "criteria.py"):
        (tmp_path / name).write_text("raise SystemExit")
    (folder(tmp_path / "collectives") / "__init__.py").write_text("raise SystemExit")
    cache = folder(tmp_path / "__pycache__")
    (cache / "ring.cpython-311.pyc").write_bytes(b"x")
    tree = tmp_path / "tree"
    grading._make_tree(ring(), read_files(tmp_path, ["ring.py"]), 3, tree)
    assert sorted(each.name for each in tree.iterdir()) == ["ring.py", "test_ring.py", "variant.py"]
    assert (tree / "ring.py").read_text() == "raise SystemExit"
    assert "DIRECTION" in (tree / "variant.py").read_text()


def test_no_other_user_enters_the_folder_of_a_submission(tmp_path: Path) -> None:
    def check(submission: Submission) -> dict[str, int]:
        folder = submission.folder
        return {name: each.stat().st_mode & 0o777 for name, each in (("above", folder.parent), ("itself", folder))}

    (tmp_path / "ring.py").write_text("x = 1")
    (verdict,) = grade(ring(check), tmp_path, sandboxed=False).verdicts
    assert verdict.details == {"above": 0o700, "itself": 0o755}


def test_every_criterion_says_what_is_wrong_with_the_files(tmp_path: Path) -> None:
    graded = grade(ring(passes, passes), tmp_path, sandboxed=False)
    assert [each.message for each in graded.verdicts] == ["ring.py is missing in the submission"] * 2
    assert graded.points == 0


def test_a_submission_that_has_used_its_time_in_some_criteria_is_not_run_in_the_others(tmp_path: Path) -> None:
    def uses_much(submission: Submission) -> None:
        submission._processes.append(SimpleNamespace(channel=SimpleNamespace(meter=used), kill=lambda: None))  # type: ignore[arg-type]

    used = SimpleNamespace(spent=60.0)
    (tmp_path / "ring.py").write_text("x = 1")
    verdicts = grade(ring(uses_much, uses_much, uses_much, passes), tmp_path, sandboxed=False).verdicts
    assert [each.status for each in verdicts] == ["passed"] * 4
    used.spent = 101.0  # the ring has 4 times 10 times 5 s
    verdicts = grade(ring(uses_much, uses_much, passes, passes), tmp_path, sandboxed=False).verdicts
    assert [each.status for each in verdicts] == ["passed", "passed", "timeout", "timeout"]
    assert verdicts[-1].message == "not run: the criteria before have used 202 s of at most 200 s"


@pytest.mark.parametrize("error", [TypeError, KeyError, AssertionError, MemoryError, OSError, sandbox.SandboxError])
def test_a_fault_of_the_grader_costs_no_points_and_grading_goes_on(error: type[Exception], tmp_path: Path) -> None:
    def check(_submission: Submission) -> None:
        raise error("\x1b[2J" * 10_000)

    (tmp_path / "ring.py").write_text("x = 1")
    graded = grade(ring(check, passes), tmp_path, sandboxed=False)
    first, second = graded.verdicts
    assert (first.status, first.points, second.status, second.points) == ("ungraded", 0, "passed", 10)
    assert first.message.startswith(f"not graded: grader's fault: {error.__name__} (test_grade.py, line ")
    assert len(first.message) <= grading.MAX_MESSAGE
    assert "\x1b" not in first.message
    assert (graded.points, graded.of) == (10, 20)


def test_a_value_that_a_check_cannot_read_is_the_students_fault(tmp_path: Path) -> None:
    def check(_submission: Submission) -> None:
        with reading("bounds(3)"):
            int("three")

    (tmp_path / "ring.py").write_text("x = 1")
    (verdict,) = grade(ring(check), tmp_path, sandboxed=False).verdicts
    assert (verdict.status, verdict.of) == ("failed", 10)
    assert "bounds(3): the value returned cannot be read: ValueError" in verdict.message


def test_data_come_from_a_secret_which_the_grade_tells(tmp_path: Path) -> None:
    def check(submission: Submission) -> dict[str, str]:
        return {"data": submission.random.bytes(8).hex()}

    def data(secret: str = "") -> tuple[str, str]:
        graded = grade(ring(check), tmp_path, 3, sandboxed=False, secret=secret)
        return graded.secret, graded.verdicts[0].details["data"]

    (tmp_path / "ring.py").write_text("x = 1")
    first, second = data(), data()
    assert first[0] != second[0]
    assert first[1] != second[1]
    assert data(first[0]) == first
    with pytest.raises(ValueError, match="secret: got 'xyz', expected a hexadecimal number"):
        data("xyz")


@pytest.mark.parametrize(("spent", "error"), [(0.1, sandbox.SandboxError), (9.0, TimedOut)])
def test_a_rank_that_starts_late_is_charged_only_if_others_compute(
    spent: float, error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Started:
        def __init__(self, *_: Any) -> None:
            self.is_late = bool(submission._processes)
            self.channel = SimpleNamespace(meter=SimpleNamespace(spent=spent, look=lambda: None))

        def wait_until_ready(self) -> None:
            if self.is_late:
                raise TimedOut("a rank did not start within 300 s")

    submission = Submission(tmp_path, "ring.py", {})
    monkeypatch.setattr(submitting, "RankProcess", Started)
    submission.ranks(1)
    with pytest.raises(error):
        submission.ranks(2)


def test_a_share_of_the_points(tmp_path: Path) -> None:
    def check(_submission: Submission) -> None:
        raise Failed("two of three", share=2 / 3)

    (tmp_path / "ring.py").write_text("x = 1")
    graded = grade(ring(check), tmp_path, sandboxed=False)
    assert graded.points == 6.67


def test_without_a_sandbox_it_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "unavailable", lambda: "bubblewrap is not installed")
    with pytest.raises(sandbox.SandboxError, match="no sandbox: bubblewrap is not installed"):
        grade(ring(passes), tmp_path)
    with pytest.raises(ValueError, match="expected a folder"):
        grade(ring(passes), tmp_path / "nowhere")
