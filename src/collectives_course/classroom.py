"""Grade a class: every folder of a folder, several at a time, and only what has not been graded yet."""

import hashlib
import os
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import cache
from pathlib import Path
from threading import Event

from collectives_course import report, sandbox, submitted
from collectives_course.assignment import Assignment, need_outside
from collectives_course.grade import faulty, grade, not_run
from collectives_course.sandbox import SandboxError
from collectives_course.submitted import HandedIn
from collectives_course.verdict import Failed, Grade, Verdict, ungraded

# A rank is a process, and a submission has up to eight of them.
CORES_EACH = 2
LIBRARY = Path(__file__).parents[1]
GRADED_FROM = "graded-from.txt"
TABLE = "class.csv"
SECRET = "secret.txt"


def grade_class(
    assignment: Assignment,
    folder: Path,
    output: Path,
    seed: int = 0,
    sandboxed: bool = True,
    on_grade: Callable[[int, int, Grade], None] | None = None,
    stop: Event | None = None,
) -> list[Grade]:
    """Grade every folder in ``folder``; returns the grades by name, and writes them and ``class.csv`` to ``output``.

    A submission whose files, assignment, seed, sandbox and grader are those of a grade in ``output`` is not run again,
    so a run that was cut off goes on where it ended. ``on_grade`` gets how many are done, of how many, and the last
    grade. All submissions get the same test data, from a secret that the first run draws and keeps in ``output``.
    Hidden folders and ``__MACOSX`` are skipped. An error of the grader ends one submission, whose criteria then have
    the status "ungraded". Once ``stop`` is set, no criterion is begun and no grade is written.

    Raises ValueError where there is no submission or one of the two folders is in the other, and SandboxError where
    there is no sandbox.
    """
    submissions = submitted.submissions(folder)
    _need_apart(folder, output)
    need_outside(assignment, output)
    if sandboxed:
        sandbox.need()
    secret, stop = _secret(output), stop or Event()
    grades: dict[str, Grade] = {}
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // CORES_EACH)) as pool:
        try:
            waiting = {
                pool.submit(_row, assignment, each, output, seed, sandboxed, secret, stop): each.name
                for each in submissions
            }
            for done, future in enumerate(as_completed(waiting), 1):
                graded = grades[waiting[future]] = future.result()
                if on_grade:
                    on_grade(done, len(waiting), graded)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    found = [grades[name] for name in sorted(grades)]
    report.replace_text(output / TABLE, report.class_table(found))
    return found


def _need_apart(folder: Path, output: Path) -> None:
    """A student's own grade.json would be believed, and grades would be graded."""
    inner, outer = output.resolve(), folder.resolve()
    if inner.is_relative_to(outer) or outer.is_relative_to(inner):
        raise ValueError(f"output: got {output}, expected a folder that neither has the submissions nor is in {folder}")


def _secret(output: Path) -> str:
    """The number from which all test data of this class are drawn: the one of an earlier run, else a new one."""
    output.mkdir(0o700, parents=True, exist_ok=True)
    kept = output / SECRET
    if not kept.exists():
        report.replace_text(kept, f"{secrets.token_hex(16)}\n")
    kept.chmod(0o600)
    return kept.read_text(encoding="utf8").strip()


def _row(
    assignment: Assignment, folder: Path, output: Path, seed: int, sandboxed: bool, secret: str, stop: Event
) -> Grade:
    """The grade of one submission, whatever is wrong with it."""
    try:
        if folder.name.casefold() in (TABLE, SECRET):
            wrong = Failed(f"the folder is called {folder.name} like a file of the class, expected another name")
            return not_run(assignment, folder, seed, sandboxed, wrong)
        return _grade_once(assignment, folder, output, seed, sandboxed, secret, stop)
    except SandboxError:
        raise
    except Exception as error:  # a row for the instructor; the others are graded
        return faulty(assignment, folder, seed, sandboxed, error)


def _grade_once(
    assignment: Assignment, folder: Path, output: Path, seed: int, sandboxed: bool, secret: str, stop: Event
) -> Grade:
    def need_going(_verdict: Verdict) -> None:
        if stop.is_set():
            raise KeyboardInterrupt  # its ranks may have been killed: the verdict is none

    target = output / folder.name
    handed_in = submitted.read(folder, assignment.facts.files)
    mark = _digest(assignment, handed_in, f"{seed} {sandboxed} {secret}")
    try:
        if (target / GRADED_FROM).read_text(encoding="utf8") == mark:
            return report.read(target / "grade.json")
    except (OSError, ValueError):
        pass  # not graded yet, or not wholly
    graded = grade(assignment, folder, seed, sandboxed, need_going, secret=secret, handed_in=handed_in)
    report.write(graded, target)
    if not ungraded(graded):
        report.replace_text(target / GRADED_FROM, mark)
    return graded


def _digest(assignment: Assignment, handed_in: HandedIn, how: str) -> str:
    """Of everything that the grade depends on: the grader, the assignment, the student's files, seed and secret."""
    digest = hashlib.sha256(f"{how} {handed_in.problem!r}".encode())
    for name, data in (*_files(assignment.folder), *handed_in.files.items(), *_library()):
        digest.update(f"\n{name!r} {len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()


@cache
def _library() -> tuple[tuple[str, bytes], ...]:
    """Return the library's own code, because a grader that was repaired may grade otherwise."""
    return (*_files(LIBRARY / "collectives"), *_files(LIBRARY / "collectives_course"))


def _files(folder: Path) -> list[tuple[str, bytes]]:
    found = [each for each in sorted(folder.rglob("*")) if each.is_file() and "__pycache__" not in each.parts]
    return [(str(each.relative_to(folder)), each.read_bytes()) for each in found]
