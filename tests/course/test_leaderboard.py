"""A class's ranking: one race for all, recorded and repeatable; whoever has no proved schedule has no place."""

import json
from pathlib import Path

import pytest

from collectives.cli import main
from collectives_course import assignment
from collectives_course.assignment import AssignmentError
from collectives_course.leaderboard import ranking
from course.wrong import ASSIGNMENTS
from course.wrong_leaderboard import WRONG

NAMED = {each.name: each for each in WRONG}


def submit(folder: Path, name: str, wrong: str) -> None:
    (folder / name).mkdir(parents=True)
    NAMED[wrong].write("leaderboard", "fastest.py", folder / name)


def test_an_assignment_without_a_score_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AssignmentError, match="got ring, expected one with a criterion 'score'"):
        ranking(assignment.read(ASSIGNMENTS / "ring"), tmp_path)


def test_a_folder_without_submissions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected a folder with a folder for each"):
        ranking(assignment.read(ASSIGNMENTS / "leaderboard"), tmp_path)


@pytest.mark.integration
@pytest.mark.usefixtures("sandbox")
def test_the_same_seed_gives_the_same_ranking_and_a_new_run_another_race(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    submit(tmp_path, "anna", "ten million chunks")
    submit(tmp_path, "berta", "the ring for everything")
    submit(tmp_path, "carl", "knows nothing of nodes")
    submit(tmp_path, "dora", "the ring for everything")
    typed = ["leaderboard", str(ASSIGNMENTS / "leaderboard"), str(tmp_path), "--json"]
    assert main(typed) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["submission"] for row in rows] == ["carl", "berta", "dora", "anna"]
    assert [row["place"] for row in rows] == [1, 2, 2, None]
    assert rows[1]["score"] == rows[2]["score"] > rows[0]["score"] > 1
    assert rows[-1]["status"] == "failed"
    assert "10,000,000 chunks" in rows[-1]["message"]
    seed = rows[0]["seed"]
    assert main([*typed, "--seed", str(seed)]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == rows
    assert main([*typed[:-1], "--seed", str(seed + 1)]) == 0
    table = capsys.readouterr()
    assert f"repeat with --seed {seed + 1}" in table.err
    assert f"{rows[0]['score']:.3f}" not in table.out
