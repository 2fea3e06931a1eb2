"""The grades of a class: a table as CSV, which no spreadsheet takes for formulas, and a summary as text."""

import csv
import io
from collections.abc import Iterable
from statistics import mean, median

from collectives_course.shown import number, percent, shown
from collectives_course.verdict import Grade, Verdict

FORMULA = tuple("=+-@＝＋－＠")  # a spreadsheet computes a cell that begins with one of them
Cell = str | float


def class_table(grades: Iterable[Grade]) -> str:
    """CSV with a row for each submission, sorted by name: the points of each criterion, their sum, and what was missed.

    A criterion that a submission's assignment lacks, or that was not graded, is an empty cell. Text is quoted, numbers
    are not.

    >>> missed = Verdict("steps", "2 (p - 1) steps", "timeout", 0, 4)
    >>> print(class_table([Grade("ring", "Ring", "=1+1", 7, (missed,))]), end="")
    "submission","steps","total","out of","percent","not passed"
    "'=1+1",0.0,0.0,4.0,0.0,"steps: timeout"
    """
    sorted_grades = _sorted(grades)
    criteria = _criteria(sorted_grades)
    rows = [_row(grade, criteria) for grade in sorted_grades]
    head: list[Cell] = ["submission", *criteria, "total", "out of", "percent", "not passed"]
    written = io.StringIO()
    csv.writer(written, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n").writerows(
        [[_guarded(cell) for cell in row] for row in [head, *rows]]
    )
    return written.getvalue()


def class_summary(grades: Iterable[Grade]) -> str:
    """Mean and median of the points, and for each criterion how many of its submissions passed.

    >>> steps = [Verdict("steps", "", "passed", 4, 4), Verdict("steps", "", "failed", 1, 4)]
    >>> print(class_summary([Grade("ring", "Ring", name, 7, (each,)) for name, each in zip("ab", steps)]))
    2 submissions: mean 2.5, median 2.5 of 4 points
    <BLANKLINE>
    criterion  passed
    steps      1 of 2   50%
    """
    sorted_grades = _sorted(grades)
    if not sorted_grades:
        return "no submissions"
    points = [grade.points for grade in sorted_grades]
    of = max(grade.of for grade in sorted_grades)
    some = "1 submission" if len(points) == 1 else f"{len(points)} submissions"
    head = f"{some}: mean {number(mean(points))}, median {number(median(points))} of {number(of)} points"
    criteria = _criteria(sorted_grades)
    width = max(map(len, ["criterion", *criteria]))
    rates = [f"{criterion:<{width}}  {_rate(criterion, sorted_grades)}" for criterion in criteria]
    return "\n".join([head, "", f"{'criterion':<{width}}  passed", *rates])


def _sorted(grades: Iterable[Grade]) -> list[Grade]:
    return sorted((shown(grade) for grade in grades), key=lambda grade: grade.submission)


def _criteria(grades: list[Grade]) -> list[str]:
    """All criteria, in the order in which they come first."""
    return list(dict.fromkeys(verdict.criterion for grade in grades for verdict in grade.verdicts))


def _row(grade: Grade, criteria: list[str]) -> list[Cell]:
    points = {verdict.criterion: verdict.points for verdict in grade.verdicts if verdict.status != "ungraded"}
    missed = [f"{verdict.criterion}: {verdict.status}" for verdict in grade.verdicts if verdict.status != "passed"]
    sums = [grade.points, grade.of, round(percent(grade), 1)]
    each = [_two(points[criterion]) if criterion in points else "" for criterion in criteria]
    return [grade.submission, *each, *map(_two, sums), "; ".join(missed)]


def _two(value: float) -> float:
    return round(float(value), 2)


def _guarded(cell: Cell) -> Cell:
    """A text that a spreadsheet would compute, with an apostrophe before it."""
    return f"'{cell}" if isinstance(cell, str) and cell.lstrip().startswith(FORMULA) else cell


def _rate(criterion: str, grades: list[Grade]) -> str:
    asked: list[Verdict] = [each for grade in grades for each in grade.verdicts if each.criterion == criterion]
    met = sum(verdict.status == "passed" for verdict in asked)
    return f"{met} of {len(asked)}  {100 * met / len(asked):3.0f}%"
