"""A grade as files: JSON by our schema, which is read back to resume, Gradescope's ``results.json``, and a page."""

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from collectives.bench.results import replace
from collectives.errors import explain
from collectives.schemas import VERSION, version_of
from collectives_course.class_table import class_summary, class_table
from collectives_course.report_html import html
from collectives_course.shown import SIGNS, number, passed, percent, shown
from collectives_course.terminal import terminal
from collectives_course.verdict import Grade, Verdict

__all__ = [
    "as_json",
    "class_summary",
    "class_table",
    "from_json",
    "gradescope",
    "html",
    "read",
    "terminal",
    "write",
]

GRADE = TypeAdapter(Grade)
DERIVED = ("version", "points", "of")  # in the file for its readers; a Grade computes them


def as_json(grade: Grade) -> dict[str, Any]:
    """The grade as values that JSON has, by the schema "grade" of `collectives.schemas`.

    >>> made = as_json(Grade("ring", "Ring all-reduce", "alice", 7, ()))
    >>> made["version"], made["submission"], made["points"]
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
        "output": "\n".join([f"{grade.title}: {passed(grade)}, {percent(grade):.0f}%", *grade.notes]),
        "output_format": "text",
        "test_output_format": "text",
        "test_name_format": "text",
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "extra_data": {"version": VERSION, "assignment": grade.assignment, "seed": grade.seed, "secret": grade.secret},
        "tests": [_test(number, verdict) for number, verdict in enumerate(grade.verdicts, 1)],
    }


def _test(place: int, verdict: Verdict) -> dict[str, Any]:
    summary = f"{SIGNS[verdict.status]} {verdict.status}: {number(verdict.points)} of {number(verdict.of)} points"
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
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        _write(folder / name, text)
    return [folder / name for name in texts]


def _write(path: Path, text: str) -> None:
    replace(path, lambda partial: partial.write_text(text, encoding="utf8"))


def _text(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
