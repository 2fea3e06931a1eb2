"""Verdicts: how a criterion, and a whole submission, came out."""

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Status = Literal["passed", "failed", "timeout", "crashed", "blocked", "ungraded"]
STATUSES: tuple[Status, ...] = get_args(Status)


def plain(text: str) -> str:
    r"""The text without characters that a terminal would obey or that no file can hold.

    >>> plain("a\x1b[2Jb\ud800\n")
    'a�[2Jb�\n'
    """
    return "".join(each if each.isprintable() or each in "\n\t" else "\N{REPLACEMENT CHARACTER}" for each in text)


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
    """The grader's own fault, or the machine's: nobody loses points for it."""

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
        """What all criteria that were graded give together."""
        return sum(verdict.of for verdict in self.verdicts if verdict.status != "ungraded")
