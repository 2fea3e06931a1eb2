"""Grade a submission: the student's files in a fresh starter, one criterion after the other, each in new sandboxes."""

import secrets
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from collectives_course import sandbox, submitted
from collectives_course.assignment import Assignment, write_starter
from collectives_course.criterion import Criterion, Submission
from collectives_course.submitted import HandedIn, SubmissionError
from collectives_course.verdict import EndedError, Failed, Grade, TimedOut, Ungraded, Verdict, line, printable

MOST_MESSAGE = 4000
MOST_SPENT = 10  # times the limit, for each criterion: what all ranks may use in all criteria together


def grade(
    assignment: Assignment,
    folder: Path,
    seed: int = 0,
    sandboxed: bool = True,
    on_verdict: Callable[[Verdict], None] | None = None,
    secret: str = "",
    handed_in: HandedIn | None = None,
) -> Grade:
    """All verdicts on the submission in a folder; ``on_verdict`` gets each as soon as there is one.

    The test data are drawn from ``secret``, a hexadecimal number that no rank sees; a new one, if it is empty.
    ``handed_in``: the folder's files, if they have been read already. The folder itself may be a link.

    Raises SandboxError where this machine has no sandbox and one is wanted, and ValueError if the folder is missing.
    """
    if handed_in is None and not folder.is_dir():
        raise ValueError(f"submission: got {folder}, expected a folder")
    if sandboxed:
        sandbox.need()
    secret = _hexadecimal(secret or secrets.token_hex(16))
    handed_in = handed_in or submitted.read(folder.resolve(), assignment.facts.files)
    with tempfile.TemporaryDirectory(prefix="collectives-grade-") as temporary:
        tree = Path(temporary) / "tree"
        ungradable: EndedError | None = None
        try:
            _make_tree(assignment, handed_in, seed, tree)
        except SubmissionError as error:
            ungradable = Failed(str(error))
        verdicts, spent, most = [], 0.0, MOST_SPENT * assignment.facts.limit * len(assignment.criteria)
        for criterion in assignment.criteria:
            if spent > most:
                ungradable = TimedOut(f"not run: the criteria before have used {spent:.0f} s of at most {most:.0f} s")
            if ungradable:
                verdict = _verdict(criterion, ungradable, 0.0)
            else:
                submission = _submission(assignment, tree, seed, sandboxed, secret)
                verdict = _graded(criterion, submission)
                spent += submission.spent
            verdicts.append(verdict)
            if on_verdict:
                on_verdict(verdict)
    return Grade(assignment.name, assignment.facts.title, name_of(folder), seed, tuple(verdicts), sandboxed, (), secret)


def _hexadecimal(secret: str) -> str:
    try:
        return f"{int(secret, 16):032x}"
    except ValueError:
        raise ValueError(f"secret: got {secret!r:.60}, expected a hexadecimal number") from None


def not_run(assignment: Assignment, folder: Path, seed: int, sandboxed: bool, why: EndedError) -> Grade:
    """The grade of a submission that was not run: each criterion ended in this way."""
    verdicts = tuple(_verdict(each, why, 0.0) for each in assignment.criteria)
    return Grade(assignment.name, assignment.facts.title, name_of(folder), seed, verdicts, sandboxed)


def faulty(assignment: Assignment, folder: Path, seed: int, sandboxed: bool, error: Exception) -> Grade:
    """The grade of a submission at which the grader failed: no criterion is graded."""
    why = Ungraded(f"not graded: grader's fault: {type(error).__name__}: {error}")
    return not_run(assignment, folder, seed, sandboxed, why)


def name_of(folder: Path) -> str:
    r"""The folder's own name, of "." too and of a link, as text that no other name has.

    >>> name_of(Path("a\nb")), name_of(Path(r"a\nb"))
    ('a\\nb', 'a\\\\nb')
    """
    name = folder.resolve().name if folder.name in ("", "..") else folder.name
    return line(name.replace("\\", r"\\"))


def _make_tree(assignment: Assignment, handed_in: HandedIn, seed: int, tree: Path) -> None:
    """The starter for this seed, and in it the files that the student may edit; others are not looked at."""
    if handed_in.problem:
        raise SubmissionError(handed_in.problem)
    write_starter(assignment, seed, tree)
    for name, data in handed_in.files.items():
        (tree / name).write_bytes(data)
    let_others_read(tree)


def let_others_read(tree: Path) -> None:
    """A sandbox runs as another user. Outside of it nobody passes the folder above, which only its owner may enter."""
    for each in (tree, *tree.rglob("*")):
        each.chmod(0o755 if each.is_dir() else 0o644)


def _submission(assignment: Assignment, tree: Path, seed: int, sandboxed: bool, secret: str) -> Submission:
    facts, variant = assignment.facts, assignment.variant(seed)
    return Submission(tree, facts.files[0], variant, seed, assignment.limits, facts.limit, sandboxed, secret)


def _graded(criterion: Criterion, submission: Submission) -> Verdict:
    """The verdict on one criterion. Any error of a check but an EndedError is the grader's fault or the machine's."""
    start = time.monotonic()
    ended: EndedError | None = None
    details: dict[str, Any] = {}
    try:
        details = criterion.check(submission) or {}
    except EndedError as error:
        ended = error
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}, line {last.lineno}"
        ended = Ungraded(f"not graded: grader's fault: {type(error).__name__} ({where}): {error}")
    finally:
        submission.close()
    return _verdict(criterion, ended, time.monotonic() - start, details)


def _verdict(
    criterion: Criterion, ended: EndedError | None, seconds: float, details: dict[str, Any] | None = None
) -> Verdict:
    if ended is None:
        points = criterion.points
        return Verdict(criterion.name, criterion.text, "passed", points, points, "", seconds, details or {})
    points = round(criterion.points * ended.share, 2)
    message = printable(str(ended))[:MOST_MESSAGE]
    return Verdict(
        criterion.name, criterion.text, ended.status, points, criterion.points, message, seconds, ended.details
    )
