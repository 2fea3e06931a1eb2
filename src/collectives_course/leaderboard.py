"""A class's ranking: every submission in one new race, whose seed is drawn for the run and recorded."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from secrets import randbelow
from typing import Any

from collectives_course import submitted
from collectives_course.assignment import MOST_SEED, Assignment, AssignmentError
from collectives_course.grade import faulty, grade
from collectives_course.sandbox import SandboxError
from collectives_course.verdict import Verdict

Row = dict[str, Any]
CRITERION = "score"


def ranking(
    assignment: Assignment,
    folder: Path,
    seed: int | None = None,
    sandboxed: bool = True,
    told: Callable[[Row], None] | None = None,
) -> list[Row]:
    """A row for each submission (a folder of ``folder``), the best first; ``told`` hears each as soon as there is one.

    The keys of a row: place, submission, score, status, message, sizes, seed. All submissions run in the same race.
    Without a ``seed`` a new one is drawn; the rows have it, so that a run can be repeated.

    The score is the geometric mean, over the sizes, of simulated time over the bound; None where a schedule is not
    proved or there is none. Those are last, by name, and have no place. Equal scores share a place. If the grader
    itself fails at a submission, its status is "ungraded".

    Raises ValueError for a folder that has no submissions, AssignmentError for an assignment that has no score, and
    what `collectives_course.grade.grade` raises.
    """
    scored = _only_score(assignment)
    submissions = submitted.submissions(folder)
    seed = randbelow(MOST_SEED) if seed is None else seed
    rows = []
    for each in submissions:
        rows.append(_row(each.name, _verdict(scored, each, seed, sandboxed), seed))
        if told:
            told(rows[-1])
    return placed(rows)


def _only_score(assignment: Assignment) -> Assignment:
    scored = tuple(each for each in assignment.criteria if each.name == CRITERION)
    if not scored:
        raise AssignmentError(f"assignment: got {assignment.name}, expected one with a criterion {CRITERION!r}")
    return replace(assignment, criteria=scored)


def _verdict(scored: Assignment, folder: Path, seed: int, sandboxed: bool) -> Verdict:
    try:
        handed_in = submitted.read(folder, scored.facts.files)
        return grade(scored, folder, seed, sandboxed, handed_in=handed_in).verdicts[0]
    except SandboxError:
        raise
    except Exception as error:  # a row for the instructor; the others are ranked
        return faulty(scored, folder, seed, sandboxed, error).verdicts[0]


def _row(name: str, verdict: Verdict, seed: int) -> Row:
    score = verdict.details.get("score")
    return {
        "place": None,
        "submission": name,
        "score": score,
        "status": verdict.status if score is None else "passed",
        "message": verdict.message if score is None else "",
        "sizes": verdict.details.get("sizes", []),
        "seed": seed,
    }


def placed(rows: list[Row]) -> list[Row]:
    """The rows in order of their scores, with their places.

    >>> scores = {"a": None, "b": 2.5, "c": 1.5, "d": 1.5}
    >>> rows = [{"submission": name, "score": score} for name, score in scores.items()]
    >>> [(row["place"], row["submission"]) for row in placed(rows)]
    [(1, 'c'), (1, 'd'), (3, 'b'), (None, 'a')]
    """
    scores = [row["score"] for row in rows if row["score"] is not None]
    made = [
        {**row, "place": None if row["score"] is None else 1 + sum(score < row["score"] for score in scores)}
        for row in rows
    ]
    return sorted(made, key=lambda row: (row["place"] is None, row["place"], row["submission"]))
