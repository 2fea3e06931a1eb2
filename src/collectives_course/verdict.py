"""Verdicts and grades: how a criterion and a submission came out, and harmless text, points and signs for reports."""

import unicodedata
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Status = Literal["passed", "failed", "timeout", "crashed", "blocked", "ungraded"]
STATUSES: tuple[Status, ...] = get_args(Status)
# Control characters could clear a terminal, format characters reverse the order of letters, and
# half a surrogate pair cannot be written as UTF-8.
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
    """One criterion: ``points`` out of ``of``.

    ``details`` may have ``grid`` (text) and ``player`` (schedule data).
    """

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

    ``secret``: the hexadecimal number from which the test data were drawn; `grade` with it gives
    the same points.
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
        """Return the sum over all criteria."""
        return sum(verdict.points for verdict in self.verdicts)

    @property
    def of(self) -> float:
        """Return the points of all criteria together, graded or not."""
        return sum(verdict.of for verdict in self.verdicts)

    @property
    def ungraded(self) -> int:
        """Return the number of criteria that the grader failed at."""
        return sum(verdict.status == "ungraded" for verdict in self.verdicts)

    @property
    def percent(self) -> float | None:
        """Return the points per hundred, or None if a criterion is not graded, because its points are then unknown."""
        return None if self.ungraded or not self.of else 100 * self.points / self.of


def printable(text: str) -> str:
    r"""Escape a text's control, format and surrogate characters.

    Line breaks stay, tabs become spaces.

    >>> printable("expected\t10\r\ngot\x1b[32m 10")
    'expected        10\ngot\\x1b[32m 10'
    """
    text = text.replace("\r\n", "\n").expandtabs()
    return "".join(
        each if each == "\n" or unicodedata.category(each) not in UNSAFE else _escape(each)
        for each in text
    )


def line(text: str) -> str:
    r"""Return `printable` text on one line.

    >>> line("alice\npassed")
    'alice\\npassed'
    """
    return printable(text).replace("\n", "\\n")


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()
