"""A grade as JSON, for Gradescope, as text for a terminal and as files; a class as a table and as a summary."""

import csv
import io
import json
import shutil
import textwrap
from collections.abc import Iterable
from pathlib import Path
from statistics import mean, median
from typing import Any

from pydantic import TypeAdapter, ValidationError

from collectives.errors import explain
from collectives.files import replace
from collectives.schemas import VERSION, version_of
from collectives_course.report_html import html
from collectives_course.verdict import (
    NO_SANDBOX,
    SIGNS,
    Grade,
    Verdict,
    number,
    out_of,
    passed,
    percent,
    shown,
    signed,
    ungraded,
)

NARROWEST, WIDEST = 60, 100  # columns
HEAD = "{:>2} {:<8}{:>6} / {:<6}"
INDENT = " " * len(HEAD.format("", "", "", ""))
FORMULA = tuple("=+-@＝＋－＠")  # a spreadsheet computes a cell that begins with one of them
Cell = str | float

GRADE = TypeAdapter(Grade)
DERIVED = ("version", "points", "of")  # in the file for its readers; a Grade computes them


def as_json(grade: Grade) -> dict[str, Any]:
    """The grade as values that JSON has, by the schema "grade" of `collectives.schemas`.

    >>> value = as_json(Grade("ring", "Ring all-reduce", "alice", 7, ()))
    >>> value["version"], value["submission"], value["points"]
    (1, 'alice', 0.0)
    """
    grade = shown(grade)
    sums = {"version": VERSION, "points": float(grade.points), "of": float(grade.of)}
    return {**sums, **GRADE.dump_python(grade, mode="json")}


def from_json(value: dict[str, Any], name: str = "grade") -> Grade:
    """The grade that `as_json` gave. Raises ValueError, which begins with ``name``, for anything else."""
    if not isinstance(value, dict):
        raise ValueError(f"{name}: got {type(value).__name__}, expected an object")
    version_of(value, name)
    try:
        return GRADE.validate_python({key: each for key, each in value.items() if key not in DERIVED})
    except ValidationError as error:
        raise ValueError(f"{name}: {explain(error)}") from None


def read(path: Path) -> Grade:
    """The grade in a ``grade.json``. Raises FileNotFoundError, or ValueError for a damaged file."""
    try:
        value = json.loads(path.read_text(encoding="utf8"))
    except ValueError as error:
        raise ValueError(f"{path}: got {error}, expected JSON") from None
    return from_json(value, str(path))


def gradescope(grade: Grade) -> dict[str, Any]:
    """The grade as the ``results.json`` that Gradescope's harness reads from an autograder.

    A criterion is one of its tests. Gradescope knows ``passed`` and ``failed``; our status is in the output and a tag.
    A criterion that was not graded has no score.
    The format is in Gradescope's documentation, https://gradescope-autograders.readthedocs.io/en/latest/specs/.
    """
    grade = shown(grade)
    return {
        "score": grade.points,
        "execution_time": round(sum(verdict.seconds for verdict in grade.verdicts)),
        "output": "\n".join([f"{grade.title}: {passed(grade)}", *grade.notes]),
        "output_format": "text",
        "test_output_format": "text",
        "test_name_format": "text",
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "extra_data": {"version": VERSION, "assignment": grade.assignment, "seed": grade.seed, "secret": grade.secret},
        "tests": [_test(number, verdict) for number, verdict in enumerate(grade.verdicts, 1)],
    }


def _test(place: int, verdict: Verdict) -> dict[str, Any]:
    summary = f"{signed(verdict)}: {out_of(verdict)}"
    graded = {
        "score": verdict.points,
        "max_score": verdict.of,
        "status": "passed" if verdict.status == "passed" else "failed",
    }
    return {
        **(graded if verdict.status != "ungraded" else {}),
        "name": verdict.text,
        "name_format": "text",
        "number": str(place),
        "output": "\n\n".join(filter(None, [summary, verdict.message, str(verdict.details.get("grid", ""))])),
        "output_format": "text",
        "tags": [verdict.criterion, verdict.status],
        "visibility": "visible",
    }


def write(grade: Grade, folder: str | Path) -> list[Path]:
    """Write ``results.json``, ``grade.html`` and ``grade.json``, each whole or not at all; returns their paths.

    ``grade.json`` comes last: where it is, the others are.
    """
    folder = Path(folder)
    texts = {"results.json": _text(gradescope(grade)), "grade.html": html(grade), "grade.json": _text(as_json(grade))}
    folder.mkdir(0o700, parents=True, exist_ok=True)
    for name, text in texts.items():
        replace_text(folder / name, text)
    return [folder / name for name in texts]


def replace_text(path: Path, text: str) -> None:
    """Write a file, whole or not at all, that only its owner can read."""

    def write_to(partial: Path) -> None:
        partial.touch(0o600)
        partial.write_text(text, encoding="utf8")

    replace(path, write_to)


def _text(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def terminal(grade: Grade) -> str:
    """The report, as wide as the terminal but at most 100 columns; control characters are written as escapes.

    >>> sums = Verdict("sum", "Every rank ends with the sum", "failed", 2.5, 5, "rank 1, element 0: got 3, expected 6")
    >>> print(terminal(Grade("ring", "Ring all-reduce", "alice", 7, (sums,))))
    Ring all-reduce: alice
    <BLANKLINE>
     ✗ failed     2.5 / 5     Every rank ends with the sum
                              rank 1, element 0: got 3, expected 6
    <BLANKLINE>
       total      2.5 / 5     50%, 0 of 1 criteria passed
    """
    grade = shown(grade)
    width = min(max(shutil.get_terminal_size((WIDEST, 0)).columns, NARROWEST), WIDEST)
    head = _wrapped(f"{grade.title}: {grade.submission}", width)
    rows = [_row(verdict, width) for verdict in grade.verdicts]
    total = HEAD.format("", "total", number(grade.points), number(grade.of))
    blocks = [head, *rows, f"{total}{passed(grade)}"]
    notes = grade.notes if grade.sandboxed else (NO_SANDBOX, *grade.notes)
    return "\n\n".join([*blocks, *(_wrapped(f"Note: {note}", width) for note in notes)])


def _row(verdict: Verdict, width: int) -> str:
    head = HEAD.format(SIGNS[verdict.status], verdict.status, number(verdict.points), number(verdict.of))
    lines = [_wrapped(verdict.text, width, head)]
    if verdict.message:
        lines.append(_wrapped(verdict.message, width, INDENT))
    if grid := verdict.details.get("grid"):
        lines.append("\n" + textwrap.indent(str(grid), "    "))
    return "\n".join(lines)


def _wrapped(text: str, width: int, first: str = "") -> str:
    """Every line of a text wrapped; all but the first begin below the end of ``first``."""
    indent = " " * len(first)
    lines = [
        wrapped
        for line in text.split("\n")
        for wrapped in textwrap.wrap(line, width, initial_indent=indent, subsequent_indent=indent) or [""]
    ]
    return first + "\n".join(lines)[len(first) :]


def class_table(grades: Iterable[Grade]) -> str:
    """CSV with a row for each submission, sorted by name: the points of each criterion, their sum, and what was missed.

    A criterion that a submission's assignment lacks, or that was not graded, is an empty cell, and what was not graded
    leaves the percentage empty, too. Text is quoted, numbers are not.

    >>> missed = Verdict("steps", "2 (p - 1) steps", "timeout", 0, 4)
    >>> print(class_table([Grade("ring", "Ring", "=1+1", 7, (missed,))]), end="")
    "submission","steps","total","out of","percent","not passed"
    "'=1+1",0.0,0.0,4.0,0.0,"steps: timeout"
    """
    sorted_grades = _sorted(grades)
    criteria = _criteria(sorted_grades)
    rows = [_cells(grade, criteria) for grade in sorted_grades]
    head: list[Cell] = ["submission", *criteria, "total", "out of", "percent", "not passed"]
    written = io.StringIO()
    csv.writer(written, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n").writerows(
        [[_guarded(cell) for cell in row] for row in [head, *rows]]
    )
    return written.getvalue()


def class_summary(grades: Iterable[Grade]) -> str:
    """Mean and median of the points of those graded wholly, and for each criterion how many of its submissions passed.

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
    points = [grade.points for grade in sorted_grades if not ungraded(grade)]
    of = max(grade.of for grade in sorted_grades)
    some = "1 submission" if len(sorted_grades) == 1 else f"{len(sorted_grades)} submissions"
    missing = len(sorted_grades) - len(points)
    parts = [f"{missing} not graded, or not wholly"] if missing else []
    if points:
        parts.append(f"mean {number(mean(points))}, median {number(median(points))} of {number(of)} points")
    head = f"{some}: {'; '.join(parts)}"
    criteria = _criteria(sorted_grades)
    width = max(map(len, ["criterion", *criteria]))
    rates = [f"{criterion:<{width}}  {_rate(criterion, sorted_grades)}" for criterion in criteria]
    return "\n".join([head, "", f"{'criterion':<{width}}  passed", *rates])


def _sorted(grades: Iterable[Grade]) -> list[Grade]:
    return sorted((shown(grade) for grade in grades), key=lambda grade: grade.submission)


def _criteria(grades: list[Grade]) -> list[str]:
    """All criteria, in the order in which they come first."""
    return list(dict.fromkeys(verdict.criterion for grade in grades for verdict in grade.verdicts))


def _cells(grade: Grade, criteria: list[str]) -> list[Cell]:
    points = {verdict.criterion: verdict.points for verdict in grade.verdicts if verdict.status != "ungraded"}
    missed = [f"{verdict.criterion}: {verdict.status}" for verdict in grade.verdicts if verdict.status != "passed"]
    share = percent(grade)
    sums = [_two(grade.points), _two(grade.of), "" if share is None else round(share, 1)]
    each = [_two(points[criterion]) if criterion in points else "" for criterion in criteria]
    return [grade.submission, *each, *sums, "; ".join(missed)]


def _two(value: float) -> float:
    return round(float(value), 2)


def _guarded(cell: Cell) -> Cell:
    """A text that a spreadsheet would compute, with an apostrophe before it."""
    return f"'{cell}" if isinstance(cell, str) and cell.lstrip().startswith(FORMULA) else cell


def _rate(criterion: str, grades: list[Grade]) -> str:
    asked: list[Verdict] = [each for grade in grades for each in grade.verdicts if each.criterion == criterion]
    met, missing = (sum(verdict.status == status for verdict in asked) for status in ("passed", "ungraded"))
    return f"{met} of {len(asked)}  " + (f"{missing} not graded" if missing else f"{100 * met / len(asked):3.0f}%")
