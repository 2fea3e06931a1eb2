"""The course's verbs: what they print and write, and what they say about wrong input."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from collectives_course import grade as grading
from command import Capture, run, started
from course.tiny import graded, hand_in, write

COURSE = ("handout", "grade", "grade-all")


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    hand_in(tmp_path / "class", ada="42", bob="41")
    return str(write(tmp_path))


def typed(verb: str, tiny: str, folder: Path) -> list[str]:
    more = {
        "handout": ["--output", folder / "new"],
        "grade": [folder / "class" / "ada", "--unsafe"],
    }
    return [
        verb,
        tiny,
        *map(str, more.get(verb, [folder / "class", "--unsafe", "--output", folder / "out"])),
    ]


def test_handout_writes_a_starter_for_the_seed_once(
    capsys: Capture, tiny: str, tmp_path: Path
) -> None:
    code, out, err = run(capsys, *typed("handout", tiny, tmp_path), "--seed", "5")
    assert code == 0
    assert err == ""
    assert "edit answer.py" in out
    assert f"collectives grade {tiny} {tmp_path}/new --seed 5" in out
    assert {path.name for path in (tmp_path / "new").iterdir()} == {
        "answer.py",
        "test_answer.py",
        "variant.py",
    }
    assert 'raise NotImplementedError("say 42")' in (tmp_path / "new" / "answer.py").read_text()
    assert "NUMBER = 5" in (tmp_path / "new" / "variant.py").read_text()
    (tmp_path / "new" / "answer.py").write_text("my work")
    code, out, err = run(capsys, *typed("handout", tiny, tmp_path))
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert "which is not empty, expected a new one" in err
    assert (tmp_path / "new" / "answer.py").read_text() == "my work"


def test_handout_writes_a_notebook(capsys: Capture, tiny: str, tmp_path: Path) -> None:
    code, out, err = run(capsys, *typed("handout", tiny, tmp_path), "--nbgrader", "--seed", "5")
    notebook = tmp_path / "new" / "source" / "tiny" / "tiny.ipynb"
    assert code == 0
    assert err == ""
    assert str(notebook) in out
    cells = "".join(cell["source"] for cell in json.loads(notebook.read_text())["cells"])
    assert "NUMBER = 5" in cells
    assert '"--seed", "' in cells
    assert '"--seed", "5"' not in cells  # the hidden tests have a seed of their own
    code, _, err = run(capsys, *typed("handout", tiny, tmp_path), "--nbgrader")
    assert code == 2
    assert "which exists, expected a new one" in err


@pytest.mark.parametrize("output", ["file", "file/new", "n" * 300, "tiny/public/new", "tiny"])
@pytest.mark.parametrize("more", [[], ["--nbgrader"]])
def test_handout_to_an_odd_folder(
    capsys: Capture, tiny: str, tmp_path: Path, output: str, more: list[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    code, out, err = run(capsys, "handout", tiny, "--output", f"{tmp_path}/{output}", *more)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert (
        "expected one outside of" if output.startswith("tiny") else "cannot write the starter to"
    ) in err
    assert [
        each for each in sorted(tmp_path.rglob("*")) if "__pycache__" not in each.parts
    ] == before


def test_grade_all_writes_names_on_one_line_and_says_what_it_skips(
    capsys: Capture, tiny: str, tmp_path: Path
) -> None:
    hand_in(tmp_path / "class", **{"\x1b[2Jeve\n\rada": "42", "__MACOSX": "42", ".git": "42"})
    code, _, err = run(capsys, *typed("grade-all", tiny, tmp_path))
    assert code == 0
    assert err.startswith("skipped, not students' folders: .git, __MACOSX\n")
    assert "3 of 3" in err
    assert r"\x1b[2Jeve\n\rada: 8 of 8" in err
    assert not set(err) & {"\x1b", "\r"}


def test_grade_all_says_whom_it_could_not_grade(
    capsys: Capture, tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def faulty(*_: Any, **__: Any) -> Any:
        raise RecursionError("too deep")

    monkeypatch.setattr(grading, "grade", faulty)
    code, out, err = run(capsys, *typed("grade-all", tiny, tmp_path), "--json")
    rows = [json.loads(row) for row in out.splitlines()]
    fault = "not graded: grader's fault: RecursionError: too deep"
    assert code == 1
    assert [row["verdicts"][0]["message"] for row in rows] == [fault] * 2
    assert "by the grader's fault: ada, bob; the same command tries again" in err
    assert (tmp_path / "out" / "class.csv").exists()


def test_grade_prints_a_report_or_one_line_of_json_and_writes_the_same(
    capsys: Capture, tiny: str, tmp_path: Path
) -> None:
    code, out, err = run(capsys, *typed("grade", tiny, tmp_path))
    assert code == 0
    assert err == ""
    assert "graded without a sandbox" in out
    assert "passed       8 / 8     It is 42." in out
    output = tmp_path / "report"
    code, out, err = run(
        capsys,
        "grade",
        tiny,
        f"{tmp_path}/class/bob",
        "--unsafe",
        "--json",
        "--output",
        str(output),
    )
    assert code == 0
    assert out.count("\n") == 1
    assert err == ""
    assert {path.name for path in output.iterdir()} == {"grade.json", "results.json", "grade.html"}
    assert json.loads(out) == json.loads((output / "grade.json").read_text())
    assert json.loads(out)["points"] == 2
    assert json.loads(out)["of"] == 8
    assert json.loads((output / "results.json").read_text())["score"] == 2


def test_grade_all_prints_rows_and_says_its_progress_elsewhere(
    capsys: Capture, tiny: str, tmp_path: Path
) -> None:
    code, out, err = run(capsys, *typed("grade-all", tiny, tmp_path), "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [(row["submission"], row["points"]) for row in rows] == [("ada", 8), ("bob", 2)]
    assert "2 of 2" in err
    assert f"class table: {tmp_path}/out/class.csv" in err
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "ada",
        "bob",
        "class.csv",
        "secret.txt",
    }
    assert (
        "2 submissions: mean 5, median 5 of 8 points"
        in run(capsys, *typed("grade-all", tiny, tmp_path))[1]
    )


def test_a_folder_without_the_file_is_an_error_and_its_report_is_written(
    capsys: Capture, tiny: str, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    typed = "grade", tiny, str(tmp_path / "empty"), "--unsafe", "--output", str(tmp_path / "report")
    code, out, err = run(capsys, *typed)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert "which has no answer.py, expected answer.py" in err
    assert json.loads((tmp_path / "report" / "results.json").read_text())["score"] == 0


def test_grade_all_takes_ids_of_a_learning_system(
    capsys: Capture, tiny: str, tmp_path: Path
) -> None:
    (tmp_path / "ids.csv").write_text("id,submission\n4711,bob\n")
    code, _, _ = run(
        capsys, *typed("grade-all", tiny, tmp_path), "--ids", str(tmp_path / "ids.csv")
    )
    table = (tmp_path / "out" / "class.csv").read_text().splitlines()
    assert code == 0
    assert [row.split(",")[:2] for row in table] == [
        ['"submission"', '"id"'],
        ['"ada"', '""'],
        ['"bob"', '"4711"'],
    ]


@pytest.mark.parametrize("text", ["name,id\nbob,1\n", "submission,id\nbob,1\nbob,2\n", None])
def test_odd_ids_are_refused(capsys: Capture, tiny: str, tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "ids.csv").write_text(text)
    code, _, err = run(
        capsys, *typed("grade-all", tiny, tmp_path), "--ids", str(tmp_path / "ids.csv")
    )
    assert code == 2
    assert err.count("\n") == 1
    assert "ids: got" in err


@pytest.mark.parametrize("verb", COURSE)
@pytest.mark.parametrize("name", ["rings", "assignment.yaml", ""])
def test_an_unknown_assignment_is_refused(
    capsys: Capture, tiny: str, tmp_path: Path, verb: str, name: str
) -> None:
    code, out, err = run(capsys, *typed(verb, str(tmp_path / name), tmp_path))
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert "which has no assignment.yaml" in err
    assert name == "assignment.yaml" or not name or "known: tiny" in err
    assert not (tmp_path / "new").exists()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("verb", COURSE)
@pytest.mark.parametrize("seed", ["-1", "2147483648", "seven", "1.5"])
def test_a_seed_out_of_range_is_refused(
    capsys: Capture, tiny: str, tmp_path: Path, verb: str, seed: str
) -> None:
    code, out, err = run(capsys, *typed(verb, tiny, tmp_path), f"--seed={seed}")
    assert code == 2
    assert out == ""
    assert f"got '{seed}', expected a whole number from 0 to 2,147,483,647" in err
    assert graded(tmp_path) == 0


@pytest.mark.parametrize("verb", COURSE[1:])
def test_a_missing_folder_is_refused(capsys: Capture, tiny: str, tmp_path: Path, verb: str) -> None:
    code, out, err = run(
        capsys, verb, tiny, f"{tmp_path}/nobody", "--unsafe", "--output", f"{tmp_path}/out"
    )
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert f"got {tmp_path}/nobody, expected a folder" in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("verb", COURSE[1:])
def test_without_a_sandbox_nothing_is_graded(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tiny: str, tmp_path: Path, verb: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    folder = tmp_path / "class" / ("ada" if verb == "grade" else "")
    code, out, err = run(capsys, verb, tiny, str(folder), "--output", f"{tmp_path}/out")
    assert code == 1
    assert out == ""
    assert err.count("\n") == 1
    assert "no sandbox: bubblewrap" in err
    assert "--unsafe grades without one" in err
    assert graded(tmp_path) == 0
    assert not (tmp_path / "out").exists()


@pytest.mark.integration
def test_a_killed_run_goes_on(capsys: Capture, tiny: str, tmp_path: Path) -> None:
    """Killed while a check waits, so that some grades are there and others are not."""
    hand_in(tmp_path / "class", eve="42", zoe="41")
    criteria = tmp_path / "tiny" / "criteria.py"
    waiting = "import os, time\n\n\ndef is_42(submission):\n"
    waiting += "    time.sleep(30 * ('WAIT' in os.environ and 'return 41' in "
    waiting += "(submission.folder / 'answer.py').read_text()))\n"
    criteria.write_text(criteria.read_text().replace("def is_42(submission):\n", waiting))
    command = [sys.executable, "-m", "collectives", *typed("grade-all", tiny, tmp_path)]
    with started(command, env={**os.environ, "WAIT": "1"}, stderr=-1) as process:
        assert process.stderr is not None
        said = process.stderr.readline().decode()
        assert "1 of 4" in said
        process.kill()
    name = "ada" if "ada: 8 of 8" in said else "eve"
    first = (tmp_path / "out" / name / "grade.json").stat().st_mtime_ns
    assert not (tmp_path / "out" / "class.csv").exists()
    code, out, _ = run(capsys, *typed("grade-all", tiny, tmp_path), "--json")
    assert code == 0
    assert [json.loads(line)["points"] for line in out.splitlines()] == [8, 2, 8, 2]
    assert (tmp_path / "out" / name / "grade.json").stat().st_mtime_ns == first
    assert (tmp_path / "out" / "class.csv").exists()
