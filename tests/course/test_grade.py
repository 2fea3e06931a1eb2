"""A submission is graded whatever it consists of, and a class once.

Again only where something has changed.
"""

import csv
import errno
import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from collectives_course import assignment, sandbox
from collectives_course import grade as grading
from collectives_course import submission as submitting
from collectives_course.assignment import Assignment, AssignmentError, without_solution
from collectives_course.grade import grade, grade_class
from collectives_course.submission import (
    Criterion,
    HandedIn,
    Submission,
    read_files,
    reading,
    skipped,
)
from collectives_course.verdict import Failed, Grade, TimedOut
from course.tiny import graded, hand_in, write
from course.wrong import ASSIGNMENTS
from course.wrong_ring import WRONG

Check = Callable[[Submission], Any]
CLASS, SEED = 4, 3
POINTS = {"ada": 8, "bob": 2, "eve": 0, "zoe": 8}


def ring(*checks: Check) -> Assignment:
    """The ring with criteria that start no process."""
    read = assignment.read(ASSIGNMENTS / "ring")
    return replace(
        read, criteria=tuple(Criterion(str(i), 10, "", check) for i, check in enumerate(checks))
    )


def passes(_submission: Submission) -> None:
    pass


@pytest.fixture
def answered(tmp_path: Path) -> Path:
    """A submission of the ring."""
    (tmp_path / "ring.py").write_text("x = 1")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "starter"),
    [
        (
            "def f():\n    # solution: first\n    return 1\n\n    # a comment\n    # end\n\n\n"
            "class A:\n    def g(self):\n        # solution\n        return 2\n        # end\n        x = 3\n",
            'def f():\n    raise NotImplementedError("first")\n\n\n'
            'class A:\n    def g(self):\n        raise NotImplementedError("your turn")\n        x = 3\n',
        ),
        (
            "a = 1\n\n\n# reference only\ndef helper():\n    return 1\n\n\n# end\n\n\nb = 2\n",
            "a = 1\n\n\nb = 2\n",
        ),
        ("# solution\nx = 1\n", None),
        ("x = 1\n# end\n", None),
        ("# reference only\nx = 1\n", None),
        ("def f():\n    # solution\n    x = 1\n# end\n", None),
    ],
)
def test_a_starter_has_no_solution(text: str, starter: str | None) -> None:
    if starter is not None:
        assert without_solution(text) == starter
    else:
        with pytest.raises(AssignmentError, match="in pairs"):
            without_solution(text)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        *((name, "is a symbolic link, expected a file") for name in ("link", "dangling")),
        *(
            (name, "is a folder, a pipe or a device, expected a file")
            for name in ("pipe", "socket", "folder")
        ),
        ("folder-link/target", "is behind a symbolic link or a file, expected folders"),
        ("missing", "is missing in the submission"),
        ("blank", "is empty: begin with the starter's file"),
        ("large", "has 4,294,967,296 bytes, expected at most 1,048,576"),
    ],
)
def test_files_that_are_not_read(name: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "target").write_text("x = 1")
    (tmp_path / "link").symlink_to("target")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "folder-link").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    os.mknod(tmp_path / "socket", stat.S_IFSOCK | 0o600)
    (tmp_path / "folder").mkdir()
    (tmp_path / "blank").write_text(" \n\t\n")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(4 << 30)
    os.link(tmp_path / "target", tmp_path / "hard")
    assert read_files(tmp_path, ["hard", name]) == HandedIn(problem=f"{name} {says}")
    assert read_files(tmp_path, ["hard"]).files == {"hard": b"x = 1"}
    assert "is behind a symbolic link" in read_files(tmp_path / "folder-link", ["target"]).problem


def test_an_instructor_may_grade_a_link(answered: Path) -> None:
    (answered / "linked").symlink_to(answered)
    made = grade(ring(passes), answered / "linked", sandboxed=False)
    assert made.submission == "linked"
    assert made.points == 10


def test_a_file_that_grows_or_becomes_a_link_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    monkeypatch.setattr(
        submitting.os,
        "fstat",
        lambda number: (asked(number), file.write_bytes(b"x" * (2 << 20)))[0],
    )
    assert "expected at most 1,048,576" in read_files(tmp_path, ["a.py"]).problem


def test_a_rank_gets_the_starter_with_the_files_that_students_edit(answered: Path) -> None:
    def check(submission: Submission) -> dict[str, Any]:
        folder = submission.folder
        names = sorted(each.name for each in folder.iterdir())
        modes = [each.stat().st_mode & 0o777 for each in (folder.parent, folder)]
        return {"names": names, "modes": modes, "variant": (folder / "variant.py").read_text()}

    for name in ("variant.py", "numpy.py", "sitecustomize.py", "criteria.py"):
        (answered / name).write_text("raise SystemExit")
    for name in ("collectives/__init__.py", "__pycache__/ring.cpython-311.pyc"):
        (answered / name).parent.mkdir()
        (answered / name).write_text("raise SystemExit")
    (verdict,) = grade(ring(check), answered, 5, sandboxed=False).verdicts
    assert verdict.details["names"] == ["ring.py", "test_ring.py", "variant.py"]
    assert verdict.details["modes"] == [0o700, 0o755]  # no other user enters the folder above
    found: dict[str, object] = {}
    exec(verdict.details["variant"], found)
    assert {name.lower(): found[name] for name in ("DIRECTION", "SHIFT")} == ring().variant(5)


def test_a_submission_that_has_used_its_time_in_some_criteria_is_not_run_in_the_others(
    answered: Path,
) -> None:
    def uses_much(submission: Submission) -> None:
        submission._processes.append(
            SimpleNamespace(channel=SimpleNamespace(meter=used), kill=lambda: None)
        )  # type: ignore[arg-type]

    used = SimpleNamespace(spent=60.0, waited=0.0)
    made = ring(uses_much, uses_much, passes, passes)
    assert grade(made, answered, sandboxed=False).points == 40
    used.spent = 101.0  # the ring has 4 times 10 times 5 s
    verdicts = grade(made, answered, sandboxed=False).verdicts
    assert [each.status for each in verdicts] == ["passed", "passed", "timeout", "timeout"]
    assert verdicts[-1].message == "not run: the criteria before have used 202 s of at most 200 s"


@pytest.mark.parametrize(("waited", "status"), [(100.0, "timeout"), (300.0, "ungraded")])
def test_a_submission_whose_calls_take_too_long_is_not_run_in_the_other_criteria(
    waited: float, status: str, answered: Path
) -> None:
    def takes_long(submission: Submission) -> None:
        submission.called, submission.waited = 401.0, waited  # the ring has 4 times 20 times 5 s

    made = ring(takes_long, passes, passes, passes)
    verdicts = grade(made, answered, sandboxed=False).verdicts
    assert [each.status for each in verdicts] == ["passed", *[status] * 3]


@pytest.mark.parametrize(
    "error", [TypeError, KeyError, AssertionError, MemoryError, OSError, sandbox.SandboxError]
)
def test_a_fault_of_the_grader_costs_no_points_and_grading_goes_on(
    error: type[Exception], answered: Path
) -> None:
    def check(_submission: Submission) -> None:
        raise error("\x1b[2J" * 10_000)

    made = grade(ring(check, passes), answered, sandboxed=False)
    first, second = made.verdicts
    assert first.status == "ungraded"
    assert first.points == 0
    assert second.status == "passed"
    assert second.points == 10
    assert first.message.startswith(
        f"not graded: grader's fault: {error.__name__} (test_grade.py, line "
    )
    assert len(first.message) <= submitting.MAX_MESSAGE
    assert "\x1b" not in first.message
    assert made.points == 10
    assert made.of == 20


def test_a_student_s_fault_has_a_share_of_the_points(answered: Path) -> None:
    def unreadable(_submission: Submission) -> None:
        with reading("bounds(3)"):
            int("three")

    def partly(_submission: Submission) -> None:
        raise Failed("two of three", share=2 / 3)

    first, second = grade(ring(unreadable, partly), answered, sandboxed=False).verdicts
    assert first.status == "failed"
    assert first.of == 10
    assert "bounds(3): the value returned cannot be read: ValueError" in first.message
    assert second.points == 6.67


def test_data_come_from_a_secret_which_the_grade_tells(answered: Path) -> None:
    def check(submission: Submission) -> dict[str, str]:
        return {"data": submission.random.bytes(8).hex()}

    def data(secret: str = "") -> tuple[str, str]:
        made = grade(ring(check), answered, 3, sandboxed=False, secret=secret)
        return made.secret, made.verdicts[0].details["data"]

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


@pytest.fixture
def tiny(tmp_path: Path) -> Assignment:
    hand_in(tmp_path / "class", ada="42", bob="41", eve="7", zoe="42")
    return assignment.read(write(tmp_path))


def points(tiny: Assignment, tmp_path: Path, seed: int = 0) -> dict[str, float]:
    made = grade_class(tiny, tmp_path / "class", tmp_path / "out", seed, sandboxed=False)
    return {each.submission: each.points for each in made}


def table(tmp_path: Path) -> dict[str, dict[str, str]]:
    with (tmp_path / "out" / "class.csv").open(encoding="utf8", newline="") as file:
        return {row["submission"]: row for row in csv.DictReader(file)}


def test_only_what_has_changed_is_graded_again(
    tiny: Assignment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        assert points(tiny, tmp_path) == POINTS
        assert graded(tmp_path) == 4
    hand_in(tmp_path / "class", eve="42")
    assert points(tiny, tmp_path)["eve"] == 8
    (tmp_path / "class" / "eve" / "notes.txt").write_text("not looked at")
    points(tiny, tmp_path)
    assert graded(tmp_path) == 5
    points(tiny, tmp_path, seed=1)
    assert graded(tmp_path) == 9
    criteria = tiny.folder / "criteria.py"
    criteria.write_text(criteria.read_text().replace('"answer", 8', '"answer", 4'))
    tiny = assignment.read(tiny.folder)
    assert points(tiny, tmp_path, seed=1) == {"ada": 4, "bob": 1, "eve": 4, "zoe": 4}
    assert graded(tmp_path) == 13
    repaired = shutil.copytree(
        grading.LIBRARY / "collectives_course", tmp_path / "src" / "collectives_course"
    )
    (repaired / "world.py").write_text("repaired = True\n")
    monkeypatch.setattr(grading, "LIBRARY", tmp_path / "src")
    grading._library.cache_clear()
    points(tiny, tmp_path, seed=1)
    grading._library.cache_clear()
    assert graded(tmp_path) == 17


def test_nobody_else_reads_the_secret_and_the_grades(tiny: Assignment, tmp_path: Path) -> None:
    for _ in range(2):
        points(tiny, tmp_path)
        found = [tmp_path / "out", *(tmp_path / "out").rglob("*")]
        assert len(found) > 5
        assert {each.stat().st_mode & 0o077 for each in found} == {0}
        (tmp_path / "out" / "secret.txt").chmod(0o644)  # of an older release


def test_a_run_that_was_cut_off_goes_on(tiny: Assignment, tmp_path: Path) -> None:
    def cut(done: int, of: int, _: Grade) -> None:
        assert of == 4
        if done == 2:
            raise KeyboardInterrupt

    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as other:
        with pytest.raises(KeyboardInterrupt):
            grade_class(tiny, tmp_path / "class", tmp_path / "out", sandboxed=False, on_grade=cut)
        assert other.poll() is None  # whose processes are not the grader's live on
    before, kept = graded(tmp_path), len([*(tmp_path / "out").glob("*/graded-from.txt")])
    # One in work is not kept, because its ranks may have been killed.
    assert 2 <= kept <= before <= 4
    assert not (tmp_path / "out" / "class.csv").exists()
    assert points(tiny, tmp_path) == POINTS
    assert graded(tmp_path) == before + 4 - kept


@pytest.mark.parametrize("name", ["graded-from.txt", "grade.json"])
@pytest.mark.parametrize("text", [None, "{"])
def test_a_grade_that_is_not_whole_is_made_again(
    tiny: Assignment, tmp_path: Path, name: str, text: str | None
) -> None:
    points(tiny, tmp_path)
    file = tmp_path / "out" / "bob" / name
    file.unlink()
    if text:
        file.write_text(text)
    assert points(tiny, tmp_path) == POINTS
    assert graded(tmp_path) == 5


def test_every_folder_has_a_row_of_its_own(tiny: Assignment, tmp_path: Path) -> None:
    """Formulas, links, names that are written in two ways, names of the class's own files, and none for no student."""
    skip = {".git": "42", "__MACOSX": "42", ".ipynb_checkpoints": "42"}
    hand_in(
        tmp_path / "class",
        **{"=1+1": "42", "a\nb": "42", "a\\nb": "41", "class.csv": "42", "grade.json": "42"} | skip,
    )
    (tmp_path / "class" / "eve" / "answer.py").unlink()
    (tmp_path / "class" / "README").write_text("not a submission")
    for name, target in {"mallory": "ada", "nobody": "nowhere", "file": "ada/answer.py"}.items():
        (tmp_path / "class" / name).symlink_to(target)
    expected = POINTS | {"=1+1": 8, r"a\nb": 8, r"a\\nb": 2, "class.csv": 0, "grade.json": 8}
    expected |= dict.fromkeys(("mallory", "nobody", "file"), 0)
    for _ in range(2):  # graded, and read back
        assert points(tiny, tmp_path) == expected
        rows = table(tmp_path)
        assert {
            name.removeprefix("'"): float(row["total"]) for name, row in rows.items()
        } == expected
        assert {row["out of"] for row in rows.values()} == {"8.0"}
        assert [rows[name]["not passed"] for name in ("ada", "bob")] == ["", "answer: failed"]
    for name in ("results.json", "grade.html", "grade.json"):
        assert (tmp_path / "out" / "eve" / name).is_file()
    assert "answer.py is missing" in (tmp_path / "out" / "eve" / "grade.json").read_text()
    assert "is behind a symbolic link" in (tmp_path / "out" / "mallory" / "grade.json").read_text()
    assert skipped(tmp_path / "class") == sorted(skip)


@pytest.mark.parametrize("unreadable", ["eve", "eve/answer.py"])
def test_what_cannot_be_read_is_that_student_s_fault(
    tiny: Assignment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unreadable: str
) -> None:
    opened = os.open

    def refused(path: str | Path, *arguments: int, **more: int) -> int:  # root may read everything
        beside = more.get("dir_fd")
        above = "" if beside is None else Path(f"/proc/self/fd/{beside}").readlink()
        if Path(above, path) == tmp_path / "class" / unreadable:
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(path, *arguments, **more)

    monkeypatch.setattr(submitting.os, "open", refused)
    assert points(tiny, tmp_path) == POINTS
    assert (
        "answer.py cannot be read: Permission denied"
        in (tmp_path / "out" / "eve" / "grade.json").read_text()
    )


@pytest.mark.parametrize(
    "output", ["class", "class/grades", ".", "class/../class/ada", "tiny/public/grades"]
)
def test_grades_and_submissions_lie_apart(tiny: Assignment, tmp_path: Path, output: str) -> None:
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(
        ValueError,
        match=r"expected a folder that neither has the submissions|expected one outside of",
    ):
        grade_class(tiny, tmp_path / "class", tmp_path / output, sandboxed=False)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_grade_that_a_student_hands_in_is_not_believed(tiny: Assignment, tmp_path: Path) -> None:
    points(tiny, tmp_path)
    for name in ("graded-from.txt", "grade.json"):
        shutil.copy(tmp_path / "out" / "ada" / name, tmp_path / "class" / "eve" / name)
    shutil.rmtree(tmp_path / "out")
    assert points(tiny, tmp_path)["eve"] == 0


def test_a_fault_of_the_grader_ends_one_submission(
    tiny: Assignment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def faulty(assignment: Assignment, folder: Path, *arguments: Any, **more: Any) -> Grade:
        if folder.name == "bob":
            raise OSError("no space left on device")
        return grade(assignment, folder, *arguments, **more)

    monkeypatch.setattr(grading, "grade", faulty)
    assert points(tiny, tmp_path) == POINTS | {"bob": 0}
    row = table(tmp_path)["bob"]
    assert row["out of"] == "8.0"
    assert row["percent"] == ""
    assert row["not passed"] == "answer: ungraded"
    monkeypatch.undo()
    assert points(tiny, tmp_path)["bob"] == 2


@pytest.mark.parametrize("folder", ["empty", "missing"])
def test_a_folder_without_submissions_is_refused(
    tiny: Assignment, tmp_path: Path, folder: str
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        ValueError, match=rf"submissions: got .*{folder}, expected a folder with a folder"
    ):
        grade_class(tiny, tmp_path / folder, tmp_path / "out", sandboxed=False)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("sandbox")
@pytest.mark.extended
def test_each_submission_of_a_class_misses_its_own_criteria(tmp_path: Path) -> None:
    made = assignment.read(ASSIGNMENTS / "ring")
    shutil.copytree(made.folder / "reference", tmp_path / "class" / "reference")
    wrongs = {each.name: each for each in WRONG[:CLASS]}
    for name, wrong in wrongs.items():
        (tmp_path / "class" / name).mkdir()
        wrong.write("ring", "ring.py", tmp_path / "class" / name)
    (tmp_path / "out").mkdir()
    # Which other criteria notice may depend on what they draw.
    (tmp_path / "out" / "secret.txt").write_text("5")
    grade_class(made, tmp_path / "class", tmp_path / "out", SEED)
    rows = table(tmp_path)
    assert len(rows) == CLASS + 1
    for name, row in rows.items():
        passed = {each.name for each in made.criteria if float(row[each.name]) == each.points}
        status = wrongs[name].status if name in wrongs else lambda _name: "passed"
        right = {each.name for each in made.criteria if status(each.name) == "passed"}
        assert passed == right, (name, row)


@pytest.mark.usefixtures("sandbox")
@pytest.mark.extended
def test_the_same_submission_gets_the_same_grade_every_time(tmp_path: Path) -> None:
    # Its messages show no data.
    wrong = next(each for each in WRONG if each.name == "passes whole tensors")
    wrong.write("ring", "ring.py", tmp_path)
    first, second = (grade(assignment.read(ASSIGNMENTS / "ring"), tmp_path, SEED) for _ in range(2))
    assert 0 < first.points < 100
    for one, other in zip(first.verdicts, second.verdicts, strict=True):
        assert one.status == other.status
        assert one.points == other.points
        assert one.message == other.message
