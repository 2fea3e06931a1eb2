"""A wrong submission fails the criteria that are meant for it, an unusual right one none.

The reference passes all, the untouched starter none.
"""

import importlib
from collections.abc import Container
from dataclasses import replace
from pathlib import Path

import pytest

from collectives_course import assignment
from collectives_course.assignment import Assignment
from collectives_course.grade import grade
from course.wrong import ASSIGNMENTS, Wrong
from sweep import each

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("sandbox")]

NAMES = sorted(each.parent.name for each in ASSIGNMENTS.glob("*/assignment.yaml"))
LONG = ("message-passing", "training")  # assignments whose grading starts many ranks
IMPORTING_TORCH = "training"  # its ranks take seconds to start
QUICK = each(NAMES, few=[name for name in NAMES if name not in LONG])
SEED = 3
SECRET = "5"  # the cases that a criterion draws are the same in every run
SEEDS = each(
    [(name, seed) for name in NAMES for seed in (0, SEED) if seed or name not in LONG],
    few=[(name, SEED) for name in NAMES if name not in LONG],
)


def wrongs(name: str) -> list[Wrong]:
    module = f"course.wrong_{name.replace('-', '_')}"
    found = importlib.import_module(module)
    return [*found.WRONG, *getattr(found, "RIGHT", ())]


def part(made: Assignment, wanted: Container[str] = ()) -> Assignment:
    """The assignment with its first criterion and those wanted.

    With every third one, if none is.
    """
    few = [each for each in made.criteria if each.name in wanted] or made.criteria[3::3]
    return replace(made, criteria=tuple(dict.fromkeys((made.criteria[0], *few))))


def for_wrong(made: Assignment, wrong: Wrong) -> Assignment:
    """The assignment's part that fails, and its first criterion, because each criterion starts its ranks anew.

    A right submission gets all criteria, and so does a wrong one whose points count.
    """
    if (
        not wrong.fails
        or wrong.points is not None
        or ("*" in wrong.statuses and made.name != IMPORTING_TORCH)
    ):
        return made
    return part(made, () if "*" in wrong.statuses else wrong.statuses)


def cases() -> list[object]:
    marks = {True: (), False: (pytest.mark.extended,)}
    return [
        pytest.param(
            name, wrong, id=f"{name}-{wrong.name}", marks=marks[wrong.is_quick and name not in LONG]
        )
        for name in NAMES
        for wrong in wrongs(name)
    ]


@pytest.mark.parametrize(("name", "wrong"), cases())
def test_a_wrong_submission_fails_what_it_should(name: str, wrong: Wrong, tmp_path: Path) -> None:
    made = for_wrong(assignment.read(ASSIGNMENTS / name), wrong)
    wrong.write(name, made.facts.files[0], tmp_path)
    graded = grade(made, tmp_path, SEED, sandboxed=not wrong.bypass, secret=SECRET)
    expected = {each.criterion: wrong.status(each.criterion) for each in graded.verdicts}
    assert {*wrong.statuses} <= {"*", *expected}
    assert {each.criterion: each.status for each in graded.verdicts} == expected, [
        v.message for v in graded.verdicts
    ]
    said = {each.criterion: each.message for each in graded.verdicts}
    assert not {name: said[name] for name, part in wrong.says.items() if part not in said[name]}
    assert wrong.points in (None, graded.points)


@pytest.mark.parametrize(("name", "seed"), SEEDS)
def test_the_reference_passes_everything(name: str, seed: int) -> None:
    graded = grade(assignment.read(ASSIGNMENTS / name), ASSIGNMENTS / name / "reference", seed)
    assert not [each for each in graded.verdicts if each.status != "passed"]
    assert graded.points == graded.of == 100


@pytest.mark.parametrize("name", QUICK)
def test_the_untouched_starter_gets_nothing_and_is_told_so(name: str, tmp_path: Path) -> None:
    made = assignment.read(ASSIGNMENTS / name)
    made = part(made) if name in LONG else made
    assignment.write_starter(made, SEED, tmp_path / "starter")
    graded = grade(made, tmp_path / "starter", SEED)
    assert graded.points == 0
    said = [each.message for each in graded.verdicts]
    # A program that students repair fails by its fault, which is in the starter.
    repairs = [each.message for each in graded.verdicts if each.criterion.endswith("-repaired")]
    assert all(message.startswith("not written yet") for message in said if message not in repairs)
    assert all(repairs)


@pytest.mark.parametrize("name", NAMES)
def test_a_blank_file_is_named(name: str, tmp_path: Path) -> None:
    made = assignment.read(ASSIGNMENTS / name)
    for file in made.facts.files:
        (tmp_path / file).write_text("\n")
    graded = grade(made, tmp_path, SEED)
    assert {each.message for each in graded.verdicts} == {
        f"{made.facts.files[0]} is empty: begin with the starter's file"
    }
