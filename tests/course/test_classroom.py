"""A class: graded once, again only where something changed, and on from where a run was cut off."""

import csv
import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from collectives_course import assignment, submission
from collectives_course import grade as grading
from collectives_course.assignment import Assignment
from collectives_course.grade import grade, grade_class
from collectives_course.verdict import Grade
from course.tiny import graded, hand_in, write
from course.wrong import ASSIGNMENTS
from course.wrong_ring import WRONG

CLASS, SEED = 4, 3


@pytest.fixture
def tiny(tmp_path: Path) -> Assignment:
    hand_in(tmp_path / "class", ada="42", bob="41", eve="7", zoe="42")
    return assignment.read(write(tmp_path))


def points(tiny: Assignment, tmp_path: Path, seed: int = 0) -> dict[str, float]:
    made = grade_class(tiny, tmp_path / "class", tmp_path / "out", seed, sandboxed=False)
    return {each.submission: each.points for each in made}


def test_a_second_run_grades_nothing_again(tiny: Assignment, tmp_path: Path) -> None:
    first = points(tiny, tmp_path)
    assert first == {"ada": 8, "bob": 2, "eve": 0, "zoe": 8}
    assert graded(tmp_path) == 4
    assert points(tiny, tmp_path) == first
    assert graded(tmp_path) == 4


def test_what_has_changed_is_graded_again(tiny: Assignment, tmp_path: Path) -> None:
    points(tiny, tmp_path)
    hand_in(tmp_path / "class", eve="42")
    assert points(tiny, tmp_path)["eve"] == 8
    assert graded(tmp_path) == 5
    (tmp_path / "class" / "eve" / "notes.txt").write_text("not looked at")
    points(tiny, tmp_path)
    assert graded(tmp_path) == 5
    points(tiny, tmp_path, seed=1)
    assert graded(tmp_path) == 9
    criteria = tiny.folder / "criteria.py"
    criteria.write_text(criteria.read_text().replace('"answer", 8', '"answer", 4'))
    assert points(assignment.read(tiny.folder), tmp_path, seed=1) == {"ada": 4, "bob": 1, "eve": 4, "zoe": 4}
    assert graded(tmp_path) == 13


def test_a_repaired_grader_grades_again(tiny: Assignment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points(tiny, tmp_path)
    repaired = shutil.copytree(grading.LIBRARY / "collectives_course", tmp_path / "src" / "collectives_course")
    (repaired / "world.py").write_text("repaired = True\n")
    monkeypatch.setattr(grading, "LIBRARY", tmp_path / "src")
    grading._library.cache_clear()
    points(tiny, tmp_path)
    grading._library.cache_clear()
    assert graded(tmp_path) == 8


def test_nobody_else_reads_the_secret_and_the_grades(tiny: Assignment, tmp_path: Path) -> None:
    def modes() -> dict[str, int]:
        found = [tmp_path / "out", *(tmp_path / "out").rglob("*")]
        return {each.name: each.stat().st_mode & 0o077 for each in found}

    points(tiny, tmp_path)
    assert len(modes()) > 5
    assert set(modes().values()) == {0}
    (tmp_path / "out" / "secret.txt").chmod(0o644)  # of an older release
    points(tiny, tmp_path)
    assert set(modes().values()) == {0}


def test_a_run_that_was_cut_off_goes_on(tiny: Assignment, tmp_path: Path) -> None:
    def cut(done: int, of: int, _: Grade) -> None:
        assert of == 4
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        grade_class(tiny, tmp_path / "class", tmp_path / "out", sandboxed=False, on_grade=cut)
    assert 2 <= graded(tmp_path) <= 4
    assert not (tmp_path / "out" / "class.csv").exists()
    assert points(tiny, tmp_path) == {"ada": 8, "bob": 2, "eve": 0, "zoe": 8}
    assert graded(tmp_path) == 4


@pytest.mark.parametrize("name", ["graded-from.txt", "grade.json"])
@pytest.mark.parametrize("text", [None, "{"])
def test_a_grade_that_is_not_whole_is_made_again(tiny: Assignment, tmp_path: Path, name: str, text: str | None) -> None:
    first = points(tiny, tmp_path)
    file = tmp_path / "out" / "bob" / name
    file.unlink()
    if text:
        file.write_text(text)
    assert points(tiny, tmp_path) == first
    assert graded(tmp_path) == 5


def test_the_table_has_a_row_for_each_student(tiny: Assignment, tmp_path: Path) -> None:
    hand_in(tmp_path / "class", **{"=1+1": "42"})
    (tmp_path / "class" / "eve" / "answer.py").unlink()
    (tmp_path / "class" / "README").write_text("not a submission")
    points(tiny, tmp_path)
    rows = table(tmp_path / "out")
    assert [row["submission"] for row in rows] == ["'=1+1", "ada", "bob", "eve", "zoe"]
    assert [float(row["total"]) for row in rows] == [8, 8, 2, 0, 8]
    assert {row["out of"] for row in rows} == {"8.0"}
    assert [row["not passed"] for row in rows] == ["", "", "answer: failed", "answer: failed", ""]
    for name in ("results.json", "grade.html", "grade.json"):
        assert (tmp_path / "out" / "eve" / name).is_file()
    assert "answer.py is missing" in (tmp_path / "out" / "eve" / "grade.json").read_text()


def test_a_folder_that_is_a_link_takes_nobody_s_row(tiny: Assignment, tmp_path: Path) -> None:
    for name, target in {"mallory": "ada", "nobody": "nowhere", "file": "ada/answer.py"}.items():
        (tmp_path / "class" / name).symlink_to(target)
    for _ in range(2):  # graded, and read back
        made = points(tiny, tmp_path)
        assert made == {"ada": 8, "bob": 2, "eve": 0, "file": 0, "mallory": 0, "nobody": 0, "zoe": 8}
    assert "is behind a symbolic link" in (tmp_path / "out" / "mallory" / "grade.json").read_text()


def test_a_name_that_is_written_in_two_ways_has_two_rows(tiny: Assignment, tmp_path: Path) -> None:
    hand_in(tmp_path / "class", **{"a\nb": "42", "a\\nb": "41"})
    for _ in range(2):
        points(tiny, tmp_path)
        totals = {row["submission"]: float(row["total"]) for row in table(tmp_path / "out")}
        assert (totals[r"a\nb"], totals[r"a\\nb"]) == (8, 2)


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

    monkeypatch.setattr(submission.os, "open", refused)
    assert points(tiny, tmp_path) == {"ada": 8, "bob": 2, "eve": 0, "zoe": 8}
    assert "answer.py cannot be read: Permission denied" in (tmp_path / "out" / "eve" / "grade.json").read_text()


def test_folders_that_no_student_handed_in(tiny: Assignment, tmp_path: Path) -> None:
    hand_in(tmp_path / "class", **{".git": "42", "__MACOSX": "42", ".ipynb_checkpoints": "42"})
    assert set(points(tiny, tmp_path)) == {"ada", "bob", "eve", "zoe"}
    assert submission.skipped(tmp_path / "class") == [".git", ".ipynb_checkpoints", "__MACOSX"]


def test_a_submission_that_is_called_as_the_table(tiny: Assignment, tmp_path: Path) -> None:
    hand_in(tmp_path / "class", **{"class.csv": "42", "grade.json": "42"})
    made = points(tiny, tmp_path)
    assert (made["class.csv"], made["grade.json"], made["ada"]) == (0, 8, 8)
    assert {row["submission"]: float(row["total"]) for row in table(tmp_path / "out")} == made


@pytest.mark.parametrize("output", ["class", "class/grades", ".", "class/../class/ada"])
def test_grades_and_submissions_lie_apart(tiny: Assignment, tmp_path: Path, output: str) -> None:
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match="expected a folder that neither has the submissions nor is in"):
        grade_class(tiny, tmp_path / "class", tmp_path / output, sandboxed=False)
    with pytest.raises(ValueError, match="expected one outside of"):
        grade_class(tiny, tmp_path / "class", tiny.folder / "public" / "grades", sandboxed=False)
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
    assert points(tiny, tmp_path) == {"ada": 8, "bob": 0, "eve": 0, "zoe": 8}
    (row,) = (row for row in table(tmp_path / "out") if row["submission"] == "bob")
    assert (row["out of"], row["percent"], row["not passed"]) == ("8.0", "", "answer: ungraded")
    monkeypatch.undo()
    assert points(tiny, tmp_path)["bob"] == 2


def test_a_folder_without_submissions_is_refused(tiny: Assignment, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for folder in ("empty", "missing"):
        with pytest.raises(ValueError, match=rf"submissions: got .*{folder}, expected a folder with a folder"):
            grade_class(tiny, tmp_path / folder, tmp_path / "out", sandboxed=False)
    assert not (tmp_path / "out").exists()


def table(output: Path) -> list[dict[str, str]]:
    with (output / "class.csv").open(encoding="utf8", newline="") as file:
        return list(csv.DictReader(file))


def mixed_class(ring: Assignment, folder: Path) -> dict[str, dict[str, str]]:
    """A class for the ring: the reference, the starter and wrong rings; and the criteria that each misses."""
    missed: dict[str, dict[str, str]] = {}
    for number in range(CLASS):
        student = folder / f"student-{number:02}"
        kind = number % (len(WRONG) + 2)
        if kind == 0:
            shutil.copytree(ring.folder / "reference", student)
            missed[student.name] = {}
        elif kind == 1:
            assignment.write_starter(ring, SEED, student)
            missed[student.name] = {"*": "failed"}
        else:
            student.mkdir()
            WRONG[kind - 2].write("ring", ring.facts.files[0], student)
            missed[student.name] = WRONG[kind - 2].fails
    return missed


@pytest.mark.usefixtures("sandbox")
@pytest.mark.extended
def test_each_submission_of_a_class_misses_its_own_criteria(tmp_path: Path) -> None:
    ring = assignment.read(ASSIGNMENTS / "ring")
    missed = mixed_class(ring, tmp_path / "class")
    grade_class(ring, tmp_path / "class", tmp_path / "out", SEED)
    rows = {row["submission"]: row for row in table(tmp_path / "out")}
    for name, fails in missed.items():
        for each in ring.criteria:
            got, passes = float(rows[name][each.name]), fails.get(each.name, fails.get("*", "passed")) == "passed"
            assert (got == each.points) if passes else (got < each.points), (name, each.name, rows[name])
    assert len(rows) == CLASS


@pytest.mark.usefixtures("sandbox")
@pytest.mark.extended
def test_the_same_submission_gets_the_same_grade_every_time(tmp_path: Path) -> None:
    wrong = next(each for each in WRONG if "bytes" in each.fails)
    wrong.write("ring", "ring.py", tmp_path)
    ring = assignment.read(ASSIGNMENTS / "ring")
    grades = [grade(ring, tmp_path, SEED) for _ in range(2)]
    assert 0 < grades[0].points < 100
    told = {
        tuple((each.criterion, each.status, each.points, each.message) for each in made.verdicts) for made in grades
    }
    assert len(told) == 1
