"""A grade as plain text for a terminal: a line for each criterion, and its message below."""

import shutil
import textwrap

from collectives_course.shown import SIGNS, number, passed, percent, shown
from collectives_course.verdict import Grade, Verdict

NARROWEST, WIDEST = 60, 100  # columns
HEAD = "{:>2} {:<8}{:>6} / {:<6}"
INDENT = " " * len(HEAD.format("", "", "", ""))


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
    blocks = [head, *rows, f"{total}{percent(grade):.0f}%, {passed(grade)}"]
    return "\n\n".join([*blocks, *(_wrapped(note, width) for note in _notes(grade))])


def _notes(grade: Grade) -> list[str]:
    unsafe = [] if grade.sandboxed else ["graded without a sandbox: the submission could have changed this result"]
    return [f"Note: {note}" for note in [*unsafe, *grade.notes]]


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
