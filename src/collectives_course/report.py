"""A grade as JSON, for Gradescope, as text for a terminal and as a page, and a class as a table and as a summary.

The page loads nothing. It has every criterion with its message, the marked grid, and the schedule
to play. Its template ``report.html`` escapes all text, and its policy allows only the scripts whose
digests it names.
"""

import csv
import io
import json
import re
import shutil
import textwrap
from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import replace
from hashlib import sha256
from math import isfinite
from pathlib import Path
from statistics import mean, median
from typing import Any

from jinja2 import Environment, PackageLoader
from pydantic import TypeAdapter, ValidationError

from collectives.core.contracts import CONTRACTS
from collectives.errors import explain
from collectives.files import replace as replace_file
from collectives.schemas import VERSION, version_of
from collectives_course.verdict import Grade, Status, Verdict, line, printable

SIGNS: dict[Status, str] = {
    "passed": "✓",
    "failed": "✗",
    "timeout": "◷",
    "crashed": "!",
    "blocked": "⊘",
    "ungraded": "?",
}
NO_SANDBOX = "graded without a sandbox: the submission could have changed this result"

NARROWEST, WIDEST = 60, 100  # columns
HEAD = "{:>2} {:<8}{:>6} / {:<6}"
INDENT = " " * len(HEAD.format("", "", "", ""))
FORMULA = tuple("=+-@＝＋－＠")  # a spreadsheet computes a cell that begins with one of them
Cell = str | float

GRADE = TypeAdapter(Grade)
DERIVED = ("version", "points", "of")  # in the file for its readers; a Grade computes them

STATIC = Path(__file__).parents[2] / "chapters" / "_static"  # in a checkout; a wheel has no player
SCRIPTS = (  # in this order, as on the book's pages
    "player-schedule.js",
    "player-words.js",
    "player-stage.js",
    "player-cells.js",
    "player-controls.js",
    "player.js",
)
STYLE = "player.css"
THEME = """
const dark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => { document.documentElement.dataset.theme = dark.matches ? "dark" : "light"; };
dark.addEventListener("change", follow);
follow();
"""

PAGES = Environment(
    loader=PackageLoader("collectives_course", ""), autoescape=True, trim_blocks=True
)

Schedules = dict[int, dict[str, Any]]  # by the criterion's place: what the player's script expects


def as_json(grade: Grade) -> dict[str, Any]:
    """Return the grade as values that JSON has, by the schema "grade" of `collectives.schemas`.

    >>> value = as_json(Grade("ring", "Ring all-reduce", "alice", 7, ()))
    >>> value["version"], value["submission"], value["points"]
    (1, 'alice', 0.0)
    """
    grade = shown(grade)
    sums = {"version": VERSION, "points": float(grade.points), "of": float(grade.of)}
    return {**sums, **GRADE.dump_python(grade, mode="json")}


def from_json(value: dict[str, Any], name: str = "grade") -> Grade:
    """Return the grade that `as_json` gave.

    Raises ValueError, which begins with ``name``, for anything else.
    """
    if not isinstance(value, dict):
        raise ValueError(f"{name}: got {type(value).__name__}, expected an object")
    version_of(value, name)
    try:
        return GRADE.validate_python(
            {key: each for key, each in value.items() if key not in DERIVED}
        )
    except ValidationError as error:
        raise ValueError(f"{name}: {explain(error)}") from None


def read(path: Path) -> Grade:
    """Read the grade in a ``grade.json``.

    Raises FileNotFoundError, or ValueError for a damaged file.
    """
    try:
        value = json.loads(path.read_text(encoding="utf8"))
    except ValueError as error:
        raise ValueError(f"{path}: got {error}, expected JSON") from None
    return from_json(value, str(path))


def gradescope(grade: Grade) -> dict[str, Any]:
    """Return the grade as the ``results.json`` that Gradescope's harness reads from an autograder.

    A criterion is one of its tests. Gradescope knows ``passed`` and ``failed``; our status is in
    the output and a tag. A criterion that was not graded has no score. The format is in
    Gradescope's documentation, https://gradescope-autograders.readthedocs.io/en/latest/specs/.
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
        "extra_data": {
            "version": VERSION,
            "assignment": grade.assignment,
            "seed": grade.seed,
            "secret": grade.secret,
        },
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
        "output": "\n\n".join(
            filter(None, [summary, verdict.message, str(verdict.details.get("grid", ""))])
        ),
        "output_format": "text",
        "tags": [verdict.criterion, verdict.status],
        "visibility": "visible",
    }


def write(grade: Grade, folder: str | Path) -> list[Path]:
    """Write ``results.json``, ``grade.html`` and ``grade.json``, each whole or not at all.

    Returns their paths.

    ``grade.json`` comes last: where it is, the others are.
    """
    folder = Path(folder)
    texts = {
        "results.json": _text(gradescope(grade)),
        "grade.html": html(grade),
        "grade.json": _text(as_json(grade)),
    }
    folder.mkdir(0o700, parents=True, exist_ok=True)
    for name, text in texts.items():
        replace_text(folder / name, text)
    return [folder / name for name in texts]


def replace_text(path: Path, text: str) -> None:
    """Write a file, whole or not at all, that only its owner can read."""

    def write_to(partial: Path) -> None:
        partial.touch(0o600)
        partial.write_text(text, encoding="utf8")

    replace_file(path, write_to)


def _text(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def terminal(grade: Grade) -> str:
    """Return the report, as wide as the terminal but at most 100 columns.

    Control characters are escaped.

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
    head = HEAD.format(
        SIGNS[verdict.status], verdict.status, number(verdict.points), number(verdict.of)
    )
    lines = [_wrapped(verdict.text, width, head)]
    if verdict.message:
        lines.append(_wrapped(verdict.message, width, INDENT))
    grid = verdict.details.get("grid")
    if grid:
        lines.append("\n" + textwrap.indent(str(grid), "    "))
    return "\n".join(lines)


def _wrapped(text: str, width: int, first: str = "") -> str:
    """Wrap every line of a text. All but the first begin below the end of ``first``."""
    indent = " " * len(first)
    lines: list[str] = []
    for paragraph in text.split("\n"):
        wrapped = textwrap.wrap(paragraph, width, initial_indent=indent, subsequent_indent=indent)
        lines += wrapped or [""]
    return first + "\n".join(lines)[len(first) :]


def class_table(grades: Iterable[Grade], ids: Mapping[str, str] | None = None) -> str:
    """Return CSV with a row for each submission, by name: the points of each criterion, their sum, what was missed.

    With ``ids`` the second column has a learning system's name of each student, empty for one that
    is not there. A criterion that a submission's assignment lacks, or that was not graded, is an
    empty cell, and what was not graded leaves the percentage empty, too. Text is quoted, numbers
    are not.

    >>> missed = Verdict("steps", "2 (p - 1) steps", "timeout", 0, 4)
    >>> print(class_table([Grade("ring", "Ring", "=1+1", 7, (missed,))]), end="")
    "submission","steps","total","out of","percent","not passed"
    "'=1+1",0.0,0.0,4.0,0.0,"steps: timeout"
    """
    sorted_grades = _sorted(grades)
    criteria = _criteria(sorted_grades)
    rows = [_cells(grade, criteria) for grade in sorted_grades]
    id_column: list[Cell] = []
    if ids is not None:
        id_column = ["id"]
        rows = [
            [row[0], ids.get(grade.submission, ""), *row[1:]]
            for grade, row in zip(sorted_grades, rows, strict=True)
        ]
    head: list[Cell] = [
        "submission",
        *id_column,
        *criteria,
        "total",
        "out of",
        "percent",
        "not passed",
    ]
    written = io.StringIO()
    csv.writer(written, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n").writerows(
        [[_guarded(cell) for cell in row] for row in [head, *rows]]
    )
    return written.getvalue()


def read_ids(path: Path) -> dict[str, str]:
    """Return the id of each submission from a CSV file with the columns ``submission`` and ``id``, in any order.

    Raises ValueError for a file that cannot be read or has no such columns, and for a submission
    that is there twice.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            table = csv.DictReader(file)
            rows = [(row.get("submission"), row.get("id")) for row in table]
    except (OSError, UnicodeError, csv.Error) as error:
        raise ValueError(f"ids: got {path}, which cannot be read: {error}") from None
    if not {"submission", "id"} <= {*(table.fieldnames or ())}:
        raise ValueError(f"ids: got {path}, expected a table with the columns submission and id")
    ids = {name: number or "" for name, number in rows if name}
    if len(ids) < len([name for name, _ in rows if name]):
        raise ValueError(f"ids: got {path}, expected each submission once")
    return ids


def class_summary(grades: Iterable[Grade]) -> str:
    """Return mean and median of the points of those graded wholly, and how many passed each criterion.

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
    points = [grade.points for grade in sorted_grades if not grade.ungraded]
    of = max(grade.of for grade in sorted_grades)
    some = "1 submission" if len(sorted_grades) == 1 else f"{len(sorted_grades)} submissions"
    missing = len(sorted_grades) - len(points)
    parts = [f"{missing} not graded, or not wholly"] if missing else []
    if points:
        parts.append(
            f"mean {number(mean(points))}, median {number(median(points))} of {number(of)} points"
        )
    head = f"{some}: {'; '.join(parts)}"
    criteria = _criteria(sorted_grades)
    width = max(map(len, ["criterion", *criteria]))
    rates = [f"{criterion:<{width}}  {_rate(criterion, sorted_grades)}" for criterion in criteria]
    return "\n".join([head, "", f"{'criterion':<{width}}  passed", *rates])


def _sorted(grades: Iterable[Grade]) -> list[Grade]:
    return sorted((shown(grade) for grade in grades), key=lambda grade: grade.submission)


def _criteria(grades: list[Grade]) -> list[str]:
    """Return all criteria, in the order in which they come first."""
    criteria: dict[str, None] = {}  # each once, in their order
    for grade in grades:
        criteria |= dict.fromkeys(verdict.criterion for verdict in grade.verdicts)
    return list(criteria)


def _cells(grade: Grade, criteria: list[str]) -> list[Cell]:
    points = {
        verdict.criterion: verdict.points
        for verdict in grade.verdicts
        if verdict.status != "ungraded"
    }
    missed = [
        f"{verdict.criterion}: {verdict.status}"
        for verdict in grade.verdicts
        if verdict.status != "passed"
    ]
    share = grade.percent
    sums = [_two(grade.points), _two(grade.of), "" if share is None else round(share, 1)]
    each = [_two(points[criterion]) if criterion in points else "" for criterion in criteria]
    return [grade.submission, *each, *sums, "; ".join(missed)]


def _two(value: float) -> float:
    return round(float(value), 2)


def _guarded(cell: Cell) -> Cell:
    """Put an apostrophe before a text that a spreadsheet would compute."""
    return f"'{cell}" if isinstance(cell, str) and cell.lstrip().startswith(FORMULA) else cell


def _rate(criterion: str, grades: list[Grade]) -> str:
    asked: list[Verdict] = []
    for grade in grades:
        asked += [verdict for verdict in grade.verdicts if verdict.criterion == criterion]
    met, missing = (
        sum(verdict.status == status for verdict in asked) for status in ("passed", "ungraded")
    )
    return f"{met} of {len(asked)}  " + (
        f"{missing} not graded" if missing else f"{100 * met / len(asked):3.0f}%"
    )


def html(grade: Grade) -> str:
    """Return the grade as the text of an HTML file.

    Schedules are playable if the repository's player is there.
    """
    grade = shown(grade)
    schedules = (
        _schedules(grade) if all((STATIC / name).exists() for name in (*SCRIPTS, STYLE)) else {}
    )
    scripts, styles = _player(schedules) if schedules else ([], [])
    return PAGES.get_template("report.html").render(
        grade=grade,
        notes=[*([] if grade.sandboxed else [f"{NO_SANDBOX.capitalize()}."]), *grade.notes],
        schedules=schedules,
        scripts=scripts,
        styles=styles,
        policy=_policy(scripts),
        **{each.__name__: each for each in (out_of, passed, signed)},
    )


def _policy(scripts: list[str]) -> str:
    digests = [
        f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" for script in scripts
    ]
    allowed = " ".join(digests) or "'none'"
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src {allowed}; base-uri 'none'; form-action 'none'"


def _name(place: int, verdict: Verdict) -> str:
    """Name a criterion for the player's list of schedules: unique, and safe in any attribute.

    >>> _name(3, Verdict("two-tree <b>", "", "passed", 1, 1))
    '3_two_tree_b'
    """
    return f"{place}_{re.sub('[^a-z0-9]+', '_', verdict.criterion.lower()).strip('_')}"


def _schedules(grade: Grade) -> Schedules:
    found: Schedules = {}
    for place, verdict in enumerate(grade.verdicts, 1):
        data = verdict.details.get("player")
        if (
            isinstance(data, dict)
            and data.get("collective") in CONTRACTS
            and isinstance(data.get("p"), int)
        ):
            found[place] = data | {"algorithm": _name(place, verdict)}
    return found


def _player(schedules: Schedules) -> tuple[list[str], list[str]]:
    """Return the scripts and styles that play the schedules."""
    known: dict[str, dict[str, Any]] = {}
    for each in schedules.values():
        known.setdefault(each["collective"], {})[each["algorithm"]] = {str(each["p"]): each}
    # "<" could end the script, or open a comment in it.
    data = json.dumps(known, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    *scripts, style = ((STATIC / name).read_text(encoding="utf8") for name in (*SCRIPTS, STYLE))
    return [THEME, f"window.schedules = {data};", "\n".join(scripts)], [style]


def shown(grade: Grade) -> Grade:
    r"""Return the grade with printable text and plain JSON values as details.

    No report may show another.

    >>> shown(Grade("ring", "Ring", "mallory\x1b[2J", 1, ())).submission
    'mallory\\x1b[2J'
    """
    return replace(
        grade,
        assignment=line(grade.assignment),
        title=line(grade.title),
        submission=line(grade.submission),
        verdicts=tuple(
            replace(
                each,
                criterion=line(each.criterion),
                text=line(each.text),
                message=printable(each.message),
                details=json_value(each.details),
            )
            for each in grade.verdicts
        ),
        notes=tuple(printable(note) for note in grade.notes),
    )


def json_value(value: Any) -> Any:
    """Return a value as JSON has it, its text `printable`.

    What JSON lacks (infinity, NaN, types) becomes text.

    >>> import numpy as np
    >>> json_value({"steps": (np.int64(6), float("inf")), "sent": np.arange(2)})
    {'steps': [6, 'inf'], 'sent': [0, 1]}
    """
    if hasattr(value, "tolist"):  # of numpy
        value = value.tolist()
    if isinstance(value, dict):
        return {printable(str(key)): json_value(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(each) for each in value]
    if value is None or isinstance(value, int) or (isinstance(value, float) and isfinite(value)):
        return value
    return printable(str(value))


def number(value: float) -> str:
    """Format points with at most two decimals.

    >>> number(12.0), number(20 / 3)
    ('12', '6.67')
    """
    return f"{value:.2f}".rstrip("0").rstrip(".")


def out_of(result: Grade | Verdict) -> str:
    """Describe the points of a grade or a verdict.

    >>> out_of(Verdict("sum", "The sum is right", "failed", 2.5, 5))
    '2.5 of 5 points'
    """
    return f"{number(result.points)} of {number(result.of)} points"


def signed(verdict: Verdict) -> str:
    """Return the status, with its sign before it."""
    return f"{SIGNS[verdict.status]} {verdict.status}"


def passed(grade: Grade) -> str:
    """Describe the share of the points, and how many criteria were met, or not graded.

    >>> passed(Grade("ring", "Ring", "alice", 1, (Verdict("sum", "The sum is right", "passed", 2, 2),)))
    '100%, 1 of 1 criteria passed'
    """
    met, share = sum(verdict.status == "passed" for verdict in grade.verdicts), grade.percent
    missing = f", {grade.ungraded} not graded: the grader's fault" if grade.ungraded else ""
    return f"{'' if share is None else f'{share:.0f}%, '}{met} of {len(grade.verdicts)} criteria passed{missing}"
