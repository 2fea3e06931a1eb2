"""Grade a class: every folder of a folder, several at a time, and only what has not been graded yet."""

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from collectives.bench.results import replace
from collectives.grading import report
from collectives.grading.assignment import Assignment
from collectives.grading.class_table import class_table
from collectives.grading.grade import grade
from collectives.grading.verdict import Grade

# A rank is a process, and a submission has up to eight of them.
CORES_EACH = 2
GRADED_FROM = "graded-from.txt"


def grade_class(
    assignment: Assignment,
    folder: Path,
    output: Path,
    seed: int = 0,
    sandboxed: bool = True,
    told: Callable[[int, int, Grade], None] | None = None,
) -> list[Grade]:
    """Grade every folder in ``folder``; returns the grades by name, and writes them and ``class.csv`` to ``output``.

    A submission whose files, assignment, seed and sandbox are those of a grade in ``output`` is not run again, so a
    run that was cut off goes on where it ended. ``told`` hears how many are done, of how many, and the last grade.
    Raises ValueError where there is no submission, and SandboxError where there is no sandbox.
    """
    submissions = sorted(each for each in folder.iterdir() if each.is_dir()) if folder.is_dir() else []
    if not submissions:
        raise ValueError(f"submissions: got {folder}, expected a folder with a folder for each student")
    grades: dict[str, Grade] = {}
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // CORES_EACH)) as pool:
        try:
            waiting = [pool.submit(_grade_once, assignment, each, output, seed, sandboxed) for each in submissions]
            for done, future in enumerate(as_completed(waiting), 1):
                graded = future.result()
                grades[graded.submission] = graded
                if told:
                    told(done, len(waiting), graded)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    found = [grades[name] for name in sorted(grades)]
    replace(output / "class.csv", lambda partial: partial.write_text(class_table(found), encoding="utf8"))
    return found


def _grade_once(assignment: Assignment, folder: Path, output: Path, seed: int, sandboxed: bool) -> Grade:
    target = output / folder.name
    mark = _digest(assignment, folder, seed, sandboxed)
    try:
        if (target / GRADED_FROM).read_text(encoding="utf8") == mark:
            return report.read(target / "grade.json")
    except (OSError, ValueError):
        pass  # not graded yet, or not wholly
    graded = grade(assignment, folder, seed, sandboxed)
    report.write(graded, target)
    replace(target / GRADED_FROM, lambda partial: partial.write_text(mark, encoding="utf8"))
    return graded


def _digest(assignment: Assignment, folder: Path, seed: int, sandboxed: bool) -> str:
    """Of everything that the grade depends on: the assignment's files, the student's, the seed, the sandbox."""
    made = hashlib.sha256(f"{seed} {sandboxed}".encode())
    ours = [each for each in sorted(assignment.folder.rglob("*")) if "__pycache__" not in each.parts]
    for file in (*ours, *(folder / name for name in assignment.facts.files)):
        regular = file.is_file() and not file.is_symlink()
        made.update(f"\n{file.name} {regular}\n".encode())
        if regular:
            with file.open("rb") as opened:
                made.update(opened.read(2 << 20))
    return made.hexdigest()
