"""Assignments graded as in a page: wrong submissions get the verdicts that the grader's own tests expect."""

from pathlib import Path
from typing import Any

import pytest

from collectives_course import assignment, schedules, submission
from collectives_course.world import World
from course import wrong_ring, wrong_trees
from course.wrong import ASSIGNMENTS, Wrong
from places import ROOT

SEED, SECRET = 3, "5"
# With these data of the ring's criteria a right sum adds infinities of different signs.
INFINITIES_MEET = "01008fb2b70277869ba58137237a7ca4"
# What only a process of its own can show.
ELSEWHERE = {"timeout", "ungraded"}


def cases() -> list[Any]:
    """Every wrong or unusual submission whose verdict needs no process."""
    ring = [("ring", wrong) for wrong in (*wrong_ring.WRONG, *wrong_ring.RIGHT)]
    trees = [("trees", wrong) for wrong in wrong_trees.WRONG]
    return [
        pytest.param(name, wrong, id=f"{name}-{wrong.name}")
        for name, wrong in ring + trees
        if not wrong.bypass and not ELSEWHERE & set(wrong.statuses.values())
    ]


@pytest.fixture(autouse=True)
def _page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the grader's modules run ranks as a page does."""
    monkeypatch.syspath_prepend(str(ROOT / "chapters" / "_ext"))
    from in_page import graded

    monkeypatch.setattr(graded, "ASSIGNMENTS", ASSIGNMENTS)
    monkeypatch.setattr(submission, "RankProcess", graded.Rank)
    monkeypatch.setattr(World, "selector", graded.Turns)
    monkeypatch.setattr(schedules, "player_details", lambda _call, _schedule: {})


def text_of(name: str, wrong: Wrong, folder: Path) -> str:
    file = f"{name}.py"
    wrong.write(name, file, folder)
    return (folder / file).read_text(encoding="utf8")


@pytest.mark.parametrize(("name", "wrong"), cases())
def test_a_page_gives_the_grader_s_verdicts(name: str, wrong: Wrong, tmp_path: Path) -> None:
    from in_page import graded

    text = text_of(name, wrong, tmp_path)
    found = graded.verdicts(name, SEED, text, SECRET)
    for verdict in found:
        expected = wrong.status(verdict.criterion)
        assert verdict.status == expected, verdict
        part = wrong.says.get(verdict.criterion, "")
        assert part in verdict.message


@pytest.mark.parametrize("name", ["ring", "trees"])
def test_the_reference_gets_all_points_and_the_starter_none(name: str) -> None:
    from in_page import exercises, graded

    reference = ASSIGNMENTS / name / "reference" / f"{name}.py"
    right = graded.verdicts(name, 7, reference.read_text(encoding="utf8"), INFINITIES_MEET)
    statuses = {it.status for it in right}
    assert statuses == {"passed"}
    start = exercises.asked_of(f"assignments/{name}")["start"]
    assert "# solution" not in start
    found = graded.verdicts(name, 7, start)
    assert all(it.message.startswith("not written yet") for it in found)
    assert assignment.read(ASSIGNMENTS / name).facts.files == [f"{name}.py"]
