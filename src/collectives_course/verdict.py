"""Verdicts and grades: how a criterion and a submission came out, and harmless text, points and signs for reports."""

import unicodedata
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, Literal, get_args

Status = Literal["passed", "failed", "timeout", "crashed", "blocked", "ungraded"]
STATUSES: tuple[Status, ...] = get_args(Status)
SIGNS: dict[Status, str] = {
    "passed": "✓",
    "failed": "✗",
    "timeout": "◷",
    "crashed": "!",
    "blocked": "⊘",
    "ungraded": "?",
}
NO_SANDBOX = "graded without a sandbox: the submission could have changed this result"
# Control characters could clear a terminal, format characters reverse the order of letters, and half a surrogate pair
# cannot be written as UTF-8.
UNSAFE = {"Cc", "Cf", "Cs", "Zl", "Zp"}


class EndedError(Exception):
    """A criterion was not met: how it ended, what to tell the student, and the share of its points all the same."""

    status: Status = "failed"

    def __init__(self, message: str, share: float = 0.0, **details: Any) -> None:
        super().__init__(message)
        self.share = share
        self.details = details


class Failed(EndedError):
    """The submission ran, and did the wrong thing."""


class TimedOut(EndedError):
    """The submission did not end within its limit."""

    status: Status = "timeout"


class Crashed(EndedError):
    """The submission raised an error, or its process ended."""

    status: Status = "crashed"


class Ungraded(EndedError):
    """The grader's own fault, or the machine's: the points are not known."""

    status: Status = "ungraded"


class Blocked(EndedError):
    """The submission tried what the sandbox forbids."""

    status: Status = "blocked"


@dataclass(frozen=True)
class Verdict:
    """One criterion: ``points`` out of ``of``. ``details`` may have ``grid`` (text) and ``player`` (schedule data)."""

    criterion: str
    text: str
    status: Status
    points: float
    of: float
    message: str = ""
    seconds: float = 0.0
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Grade:
    """All verdicts on one submission, in the order of the assignment's criteria.

    ``secret``: the hexadecimal number from which the test data were drawn; `grade` with it gives the same points.
    """

    assignment: str
    title: str
    submission: str
    seed: int
    verdicts: tuple[Verdict, ...]
    sandboxed: bool = True
    notes: tuple[str, ...] = ()
    secret: str = ""

    @property
    def points(self) -> float:
        """The sum over all criteria."""
        return sum(verdict.points for verdict in self.verdicts)

    @property
    def of(self) -> float:
        """Return the points of all criteria together, graded or not."""
        return sum(verdict.of for verdict in self.verdicts)


def shown(grade: Grade) -> Grade:
    r"""The grade with all its text printable and its details plain JSON values; no report may show another.

    >>> shown(Grade("ring", "Ring", "mallory\x1b[2J", 1, ())).submission
    'mallory\\x1b[2J'
    """
    return replace(
        grade,
        assignment=line(grade.assignment),
        title=line(grade.title),
        submission=line(grade.submission),
        verdicts=tuple(_verdict(verdict) for verdict in grade.verdicts),
        notes=tuple(printable(note) for note in grade.notes),
    )


def _verdict(verdict: Verdict) -> Verdict:
    return replace(
        verdict,
        criterion=line(verdict.criterion),
        text=line(verdict.text),
        message=printable(verdict.message),
        details=json_value(verdict.details),
    )


def printable(text: str) -> str:
    r"""The text with control, format and surrogate characters as escapes; line breaks stay, tabs become spaces.

    >>> printable("expected\t10\r\ngot\x1b[32m 10")
    'expected        10\ngot\\x1b[32m 10'
    """
    text = text.replace("\r\n", "\n").expandtabs()
    return "".join(each if each == "\n" or unicodedata.category(each) not in UNSAFE else _escape(each) for each in text)


def line(text: str) -> str:
    r"""`printable` text on one line.

    >>> line("alice\npassed")
    'alice\\npassed'
    """
    return printable(text).replace("\n", "\\n")


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


def json_value(value: Any) -> Any:
    """A value as JSON has it, its text `printable`. What JSON lacks (infinity, NaN, other types) becomes text.

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
    """Points with at most two decimals.

    >>> number(12.0), number(20 / 3)
    ('12', '6.67')
    """
    return f"{value:.2f}".rstrip("0").rstrip(".")


def out_of(result: Grade | Verdict) -> str:
    """The points of a grade or a verdict, in words.

    >>> out_of(Verdict("sum", "The sum is right", "failed", 2.5, 5))
    '2.5 of 5 points'
    """
    return f"{number(result.points)} of {number(result.of)} points"


def signed(verdict: Verdict) -> str:
    """The status, with its sign before it."""
    return f"{SIGNS[verdict.status]} {verdict.status}"


def ungraded(grade: Grade) -> int:
    """Return the number of criteria that the grader failed at."""
    return sum(verdict.status == "ungraded" for verdict in grade.verdicts)


def percent(grade: Grade) -> float | None:
    """Return the points per hundred; None where a criterion is not graded, because its points are then unknown."""
    return None if ungraded(grade) or not grade.of else 100 * grade.points / grade.of


def passed(grade: Grade) -> str:
    """The share of the points, and how many criteria were met, or not graded.

    >>> passed(Grade("ring", "Ring", "alice", 1, (Verdict("sum", "The sum is right", "passed", 2, 2),)))
    '100%, 1 of 1 criteria passed'
    """
    met, share = sum(verdict.status == "passed" for verdict in grade.verdicts), percent(grade)
    missing = f", {ungraded(grade)} not graded: the grader's fault" if ungraded(grade) else ""
    return f"{'' if share is None else f'{share:.0f}%, '}{met} of {len(grade.verdicts)} criteria passed{missing}"
