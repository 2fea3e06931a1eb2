"""Starters: the reference solution without what lies between its markers, the public tests, and the seed's variant.

Between ``# solution`` and ``# end`` the reference has what a student is to write. The starter raises an error there
that says what is missing, so it can be imported. What the reference has between ``# reference only`` and ``# end``,
such as functions of its own, the starter does not have.

A program that students repair has its fault between ``# instead`` and ``# end``, as comments. The starter then has
these lines as code, and neither the solution nor a marker shows where the fault is.
"""

import re
import shutil
from pathlib import Path

from collectives_course.assignment import Assignment, AssignmentError, need_outside

SOLUTION = re.compile(
    r"^(?P<indent> *)# solution(?:: (?P<say>.*))?\n(?:.*\n)*?"
    r"(?:(?P=indent)# instead\n(?P<fault>(?:.*\n)*?))?(?P=indent)# end\n",
    re.MULTILINE,
)

ONLY = re.compile(r"^# reference only\n(?:.*\n)*?# end\n+", re.MULTILINE)


def without_solution(text: str) -> str:
    r"""A reference solution's text as the starter has it.

    >>> print(without_solution("def f():\n    # solution: add them\n    return 1\n    # end\n"), end="")
    def f():
        raise NotImplementedError("add them")

    >>> text = "def f(n):\n    # solution\n    return n\n    # instead\n    # n += 1\n    # return n\n    # end\n"
    >>> print(without_solution(text), end="")
    def f(n):
        n += 1
        return n
    """
    made = ONLY.sub("", SOLUTION.sub(_instead, text))
    if any(marker in made for marker in ("# solution", "# instead", "# reference only", "# end\n")):
        raise AssignmentError("markers of a reference solution: expected '# solution' and '# end' in pairs")
    return made


def _instead(found: re.Match[str]) -> str:
    if found["fault"] is None:
        return f'{found["indent"]}raise NotImplementedError("{found["say"] or "your turn"}")\n'
    return re.sub(r"^( *)# ?", r"\1", found["fault"], flags=re.MULTILINE)


def write(assignment: Assignment, seed: int, folder: Path) -> None:
    """Write the starter for a seed into a new folder.

    Raises AssignmentError where the folder exists and is not empty, or is in the assignment's own folder.
    """
    need_outside(assignment, folder)
    if folder.exists() and any(folder.iterdir()):
        raise AssignmentError(f"folder: got {folder}, which is not empty, expected a new one")
    folder.mkdir(parents=True, exist_ok=True)
    for each in sorted((assignment.folder / "reference").rglob("*")):
        if each.is_file() and "__pycache__" not in each.parts:
            _write_starter(each, folder / each.relative_to(assignment.folder / "reference"))
    public = assignment.folder / "public"
    if public.is_dir():
        shutil.copytree(public, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "variant.py").write_text(variant_text(assignment, seed), encoding="utf8")


def _write_starter(reference: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if reference.suffix == ".py":
        target.write_text(without_solution(reference.read_text(encoding="utf8")), encoding="utf8")
    else:
        shutil.copyfile(reference, target)


def variant_text(assignment: Assignment, seed: int) -> str:
    """The module ``variant.py``: the numbers of this course, which differ from seed to seed.

    The seed itself is not there: it would give a submission the hidden tests' data.
    """
    lines = [f"{name.upper()} = {value!r}" for name, value in assignment.variant(seed).items()]
    head = f'"""The numbers of your course\'s variant of: {assignment.facts.title}. You need not edit this file."""'
    return "\n".join([head, "", *lines, ""])
