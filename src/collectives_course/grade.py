"""Grade a submission, or a class: every folder of a folder, several at a time, and only what is not graded yet.

The student's files are put into a fresh starter, and one criterion after the other runs them, each
in new sandboxes.
"""

import os
import secrets
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import cache, partial
from pathlib import Path
from threading import Event

from collectives.digests import code, digest
from collectives.processes import descendants, kill_descendants
from collectives_course import report, sandbox
from collectives_course.assignment import Assignment, check_outside, write_starter
from collectives_course.sandbox import SandboxError
from collectives_course.submission import (
    HandedIn,
    Submission,
    read_files,
    submissions_in,
)
from collectives_course.verdict import (
    EndedError,
    Failed,
    Grade,
    TimedOut,
    Ungraded,
    Verdict,
    line,
)
from collectives_course.world import out_of_patience

# Times the limit, for each criterion: what all ranks may use in all criteria together.
MAX_SPENT = 10
# Times the limit, for each criterion: how long all calls of all criteria may take together.
MAX_CALLED = 20
# A rank is a process, and a submission has up to eight of them.
CORES_EACH = 2
LIBRARY = Path(__file__).parents[1]
GRADED_FROM = "graded-from.txt"
TABLE = "class.csv"
SECRET = "secret.txt"


def grade(
    assignment: Assignment,
    folder: Path,
    seed: int = 0,
    sandboxed: bool = True,
    on_verdict: Callable[[Verdict], None] | None = None,
    secret: str = "",
    handed_in: HandedIn | None = None,
) -> Grade:
    """Grade the submission in a folder. ``on_verdict`` gets each verdict as soon as there is one.

    The test data are drawn from ``secret``, a hexadecimal number that no rank sees; a new one, if
    it is empty. ``handed_in``: the folder's files, if they have been read already. The folder
    itself may be a link.

    Raises SandboxError where this machine has no sandbox and one is wanted, and ValueError if the
    folder is missing.
    """
    if handed_in is None and not folder.is_dir():
        raise ValueError(f"submission: got {folder}, expected a folder")
    if sandboxed:
        sandbox.check_available()
    secret = _hexadecimal(secret or secrets.token_hex(16))
    handed_in = handed_in or read_files(folder.resolve(), assignment.facts.files)
    with tempfile.TemporaryDirectory(prefix="collectives-grade-") as temporary:
        tree = Path(temporary) / "tree"
        ungradable: EndedError | None = Failed(handed_in.problem) if handed_in.problem else None
        if not ungradable:
            _make_tree(assignment, handed_in, seed, tree)
        facts, variant = assignment.facts, assignment.variant(seed)
        verdicts, spent, waited, called = [], 0.0, 0.0, 0.0
        whole = facts.limit * len(assignment.criteria)
        for criterion in assignment.criteria:
            if spent > MAX_SPENT * whole:
                most = MAX_SPENT * whole
                ungradable = TimedOut(
                    f"not run: the criteria before have used {spent:.0f} s of at most {most:.0f} s"
                )
            elif called > MAX_CALLED * whole:
                ungradable = out_of_patience(called, waited)
            if ungradable:
                verdict = criterion.verdict(ungradable, 0.0)
            else:
                submission = Submission(
                    tree,
                    facts.files[0],
                    variant,
                    seed,
                    assignment.limits,
                    facts.limit,
                    sandboxed,
                    secret,
                )
                verdict = criterion.judged(submission)
                spent, waited = spent + submission.spent, waited + submission.waited
                called += submission.called
            verdicts.append(verdict)
            if on_verdict:
                on_verdict(verdict)
    return Grade(
        assignment.name,
        assignment.facts.title,
        name_of(folder),
        seed,
        tuple(verdicts),
        sandboxed,
        (),
        secret,
    )


def _hexadecimal(secret: str) -> str:
    try:
        return f"{int(secret, 16):032x}"
    except ValueError:
        raise ValueError(f"secret: got {secret!r:.60}, expected a hexadecimal number") from None


def or_ungraded(
    graded: Callable[[Path], Grade],
    assignment: Assignment,
    folder: Path,
    seed: int,
    sandboxed: bool,
) -> Grade:
    """Return what ``graded`` gives for a folder of a class, or a grade that says that the grader failed."""
    try:
        return graded(folder)
    except SandboxError:
        raise
    except Exception as error:  # a row for the instructor; the others are graded
        why = Ungraded(f"not graded: grader's fault: {type(error).__name__}: {error}")
        return _not_run(assignment, folder, seed, sandboxed, why)


def _not_run(
    assignment: Assignment, folder: Path, seed: int, sandboxed: bool, why: EndedError
) -> Grade:
    verdicts = tuple(each.verdict(why, 0.0) for each in assignment.criteria)
    return Grade(
        assignment.name, assignment.facts.title, name_of(folder), seed, verdicts, sandboxed
    )


def name_of(folder: Path) -> str:
    r"""Return the folder's own name, of "." too and of a link, as text that no other name has.

    >>> name_of(Path("a\nb")), name_of(Path(r"a\nb"))
    ('a\\nb', 'a\\\\nb')
    """
    name = folder.resolve().name if folder.name in ("", "..") else folder.name
    return line(name.replace("\\", r"\\"))


def _make_tree(assignment: Assignment, handed_in: HandedIn, seed: int, tree: Path) -> None:
    """Write the starter for this seed, and in it the files that the student may edit, but no other of the student's."""
    write_starter(assignment, seed, tree)
    for name, data in handed_in.files.items():
        (tree / name).write_bytes(data)
    let_others_read(tree)


def let_others_read(tree: Path) -> None:
    """Let a sandbox's user read a folder.

    Outside a sandbox nobody passes the folder above, its owner's alone.
    """
    for each in (tree, *tree.rglob("*")):
        each.chmod(0o755 if each.is_dir() else 0o644)


def _in_parallel(
    jobs: dict[str, Callable[[], Grade]],
    stop: Event,
    on_grade: Callable[[int, int, Grade], None] | None,
) -> dict[str, Grade]:
    """Run the jobs, several at a time; return their grades by name.

    Any exception sets ``stop`` and kills the ranks.
    """
    grades: dict[str, Grade] = {}
    others = descendants()
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // CORES_EACH)) as pool:
        try:
            waiting = {pool.submit(job): name for name, job in jobs.items()}
            for done, future in enumerate(as_completed(waiting), 1):
                graded = grades[waiting[future]] = future.result()
                if on_grade:
                    on_grade(done, len(waiting), graded)
        except BaseException:
            stop.set()
            kill_descendants(others)  # no submission is waited for
            pool.shutdown(cancel_futures=True)
            raise
    return grades


def grade_class(
    assignment: Assignment,
    folder: Path,
    output: Path,
    seed: int = 0,
    sandboxed: bool = True,
    on_grade: Callable[[int, int, Grade], None] | None = None,
    ids: Mapping[str, str] | None = None,
) -> list[Grade]:
    """Grade every folder in ``folder``.

    Returns the grades by name, and writes them and ``class.csv`` to ``output``.

    A submission whose files, assignment, seed, sandbox and grader are those of a grade in
    ``output`` is not run again, so a run that was cut off goes on where it ended. ``on_grade`` gets
    how many are done, of how many, and the last grade. All submissions get the same test data, from
    a secret that the first run draws and keeps in ``output``. ``ids``: what a learning system calls
    each folder's student, for a column of ``class.csv``. Hidden folders and ``__MACOSX`` are
    skipped. An error of the grader ends one submission, whose criteria then have the status
    "ungraded". After Ctrl-C no criterion is begun and no grade is written.

    Raises ValueError where there is no submission or one of the two folders is in the other, and
    SandboxError where there is no sandbox.
    """
    submissions = submissions_in(folder)
    _check_apart(folder, output)
    check_outside(assignment, output)
    if sandboxed:
        sandbox.check_available()
    secret, stop = _secret(output), Event()

    def check_going(_verdict: Verdict) -> None:
        if stop.is_set():
            raise KeyboardInterrupt  # its ranks may have been killed: the verdict is none

    def graded_once(each: Path) -> Grade:
        if each.name.casefold() in (TABLE, SECRET):
            wrong = Failed(
                f"the folder is called {each.name} like a file of the class, expected another name"
            )
            return _not_run(assignment, each, seed, sandboxed, wrong)
        target, handed_in = output / each.name, read_files(each, assignment.facts.files)
        mark = _mark(assignment, handed_in, f"{seed} {sandboxed} {secret}")
        try:
            if (target / GRADED_FROM).read_text(encoding="utf8") == mark:
                return report.read(target / "grade.json")
        except (OSError, ValueError):
            pass  # not graded yet, or not wholly
        made = grade(
            assignment, each, seed, sandboxed, check_going, secret=secret, handed_in=handed_in
        )
        report.write(made, target)
        if not made.ungraded:
            report.replace_text(target / GRADED_FROM, mark)
        return made

    grades = _in_parallel(
        {
            each.name: partial(or_ungraded, graded_once, assignment, each, seed, sandboxed)
            for each in submissions
        },
        stop,
        on_grade,
    )
    found = [grades[name] for name in sorted(grades)]
    report.replace_text(output / TABLE, report.class_table(found, ids))
    return found


def _check_apart(folder: Path, output: Path) -> None:
    """Check that neither folder is in the other: a student's grade.json would be believed, and grades graded."""
    inner, outer = output.resolve(), folder.resolve()
    if inner.is_relative_to(outer) or outer.is_relative_to(inner):
        raise ValueError(
            f"output: got {output}, expected a folder that neither has the submissions nor is in {folder}"
        )


def _secret(output: Path) -> str:
    """Return the number from which all test data of this class are drawn: an earlier run's, else a new one."""
    output.mkdir(0o700, parents=True, exist_ok=True)
    kept = output / SECRET
    if not kept.exists():
        report.replace_text(kept, f"{secrets.token_hex(16)}\n")
    kept.chmod(0o600)
    return kept.read_text(encoding="utf8").strip()


def _mark(assignment: Assignment, handed_in: HandedIn, how: str) -> str:
    """Return a digest of all that a grade depends on: grader, assignment, the student's files, seed and secret."""
    files = [
        each for each in sorted(assignment.folder.rglob("*")) if "__pycache__" not in each.parts
    ]
    contents = {
        **{str(each): each.read_bytes() for each in files if each.is_file()},
        **handed_in.files,
    }
    return digest(
        [
            how,
            handed_in.problem,
            _library(),
            [[name, data.hex()] for name, data in contents.items()],
        ]
    )


@cache
def _library() -> list[str]:
    """Return hashes of the library's own code, because a grader that was repaired may grade otherwise."""
    return [code(LIBRARY / package) for package in ("collectives", "collectives_course")]
