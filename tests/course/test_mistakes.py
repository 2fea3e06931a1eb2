"""Twenty and more mistakes for each assignment, honest ones and cheats by p, length or value: all lose points.

Each is a patch of the reference in ``mistakes/ASSIGNMENT.toml``, with its reason. One that is as
good as the reference for its criteria says why in ``as_good``. Ranks are forks of this process.
"""

import importlib
import tomllib
from pathlib import Path
from typing import Any

import pytest

from collectives_course import assignment, submission
from collectives_course.grade import grade
from collectives_course.leaderboard import race
from course.forked import ForkedRank
from course.wrong import ASSIGNMENTS, Wrong
from sweep import each

pytestmark = pytest.mark.integration

FOLDER = Path(__file__).parent / "mistakes"
NAMES = sorted(file.stem for file in FOLDER.glob("*.toml"))
SIMULATED = ("leaderboard", "trees")  # assignments of which one grading takes seconds
IN_A_RANK = {"training": "torch"}  # imported once, before the ranks are forked
SECRET = "5"  # each case that a criterion draws is the same in every run


class Lost(Exception):  # noqa: N818  # no error: it ends a grading as soon as its result is known
    """A criterion was not passed."""


def _stop(verdict: Any) -> None:
    if verdict.status != "passed":
        raise Lost(verdict.criterion)


def mistakes(name: str) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = tomllib.loads(
        (FOLDER / f"{name}.toml").read_text(encoding="utf8")
    )["wrong"]
    return made


def loses(made: assignment.Assignment, mistake: dict[str, Any], folder: Path) -> bool:
    edits = dict(mistake.get("edits", [[mistake.get("old", ""), mistake.get("new", "")]]))
    Wrong(mistake["why"], "*", edits, file=mistake.get("file", "")).write(
        made.name, made.facts.files[0], folder
    )
    try:
        grade(made, folder, 3, sandboxed=False, on_verdict=_stop, secret=SECRET)
    except Lost:
        return True
    return False


@pytest.mark.parametrize("name", each(NAMES, few=[name for name in NAMES if name not in SIMULATED]))
def test_mistakes_lose_points(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name in IN_A_RANK:
        importlib.import_module(IN_A_RANK[name]).set_num_threads(1)
    monkeypatch.setattr(submission, "RankProcess", ForkedRank)
    made = assignment.read(ASSIGNMENTS / name)
    full = []
    for number, mistake in enumerate(mistakes(name)):
        folder = tmp_path / str(number)
        folder.mkdir()
        if not loses(made, mistake, folder):
            full.append(mistake["why"])
    assert full == [mistake["why"] for mistake in mistakes(name) if "as_good" in mistake]


def test_every_assignment_has_twenty_mistakes() -> None:
    assert [file.parent.name for file in sorted(ASSIGNMENTS.glob("*/assignment.yaml"))] == NAMES
    assert all(len(mistakes(name)) >= 20 for name in NAMES)


def test_the_graded_machine_follows_from_no_seed() -> None:
    made = assignment.read(ASSIGNMENTS / "leaderboard")
    shown = {str(made.variant(seed)["machine"]) for seed in range(50)}
    by_seed = {str(race(seed).description()) for seed in range(50)}
    secret = str(race(int("5a" * 16, 16)).description())
    assert secret not in shown | by_seed
