"""An assignment: a folder with ``assignment.yaml``, ``handout.md``, ``reference/``, ``public/`` and ``criteria.py``.

Its starter is the reference solution without what lies between its markers, the public tests, and
the seed's variant. Between ``# solution`` and ``# end`` the reference has what a student is to
write. The starter raises an error there that says what is missing, so it can be imported. What the
reference has between ``# reference only`` and ``# end``, such as functions of its own, the starter
does not have.

A program that students repair has its fault between ``# instead`` and ``# end``, as comments. The
starter then has these lines as code, and neither the solution nor a marker shows where the fault
is.
"""

import importlib.util
import json
import math
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from collectives import config
from collectives.errors import explain
from collectives.units import parse_bytes
from collectives_course.sandbox import Limits
from collectives_course.submission import Criterion
from collectives_course.verdict import Failed

MAX_SEED = 2**31 - 1
SOLUTION = re.compile(
    r"^(?P<indent> *)# solution(?:: (?P<say>.*))?\n(?:.*\n)*?"
    r"(?:(?P=indent)# instead\n(?P<fault>(?:.*\n)*?))?(?P=indent)# end\n",
    re.MULTILINE,
)

REFERENCE_ONLY = re.compile(r"^# reference only\n(?:.*\n)*?# end\n+", re.MULTILINE)


class AssignmentError(ValueError):
    """A folder that is no assignment, or one that is not whole."""


class Facts(BaseModel):
    """The content of ``assignment.yaml``.

    ``files``: those that a student edits. The first has the functions.

    ``answers_follow_seed``: students hand in numbers that are right only for the seed of their
    starter.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    hours: str
    files: Annotated[list[str], Field(min_length=1)]
    packages: list[str] = ["numpy"]
    memory: str = "1G"
    limit: Annotated[float, Field(gt=0, le=600)] = 5.0
    answers_follow_seed: bool = False


@dataclass(frozen=True)
class Assignment:
    """An assignment as it was read.

    ``variant(seed)`` gives the numbers that differ from course to course.
    """

    folder: Path
    facts: Facts
    criteria: tuple[Criterion, ...]
    variant: Callable[[int], dict[str, Any]]

    @property
    def name(self) -> str:
        """Return the folder's name."""
        return self.folder.name

    @property
    def limits(self) -> Limits:
        """Return what a process of a submission may use."""
        # The last resort, and the time to start is in it.
        cpu = max(Limits.cpu, math.ceil(2 * self.facts.limit))
        return Limits(
            memory=parse_bytes(self.facts.memory), cpu=cpu, packages=tuple(self.facts.packages)
        )


def read(folder: Path) -> Assignment:
    """Read an assignment. Raises AssignmentError where a part is missing or wrong."""
    folder = folder.resolve()
    file = folder / "assignment.yaml"
    if not file.is_file():
        raise AssignmentError(
            f"assignment: got {folder.name!r}, which has no assignment.yaml{_nearby(folder)}"
        )
    try:
        facts = Facts.model_validate(config.read_yaml(file))
    except ValidationError as error:
        raise AssignmentError(f"{file}: {explain(error)}") from None
    module = _criteria(folder)
    return Assignment(
        folder, facts, tuple(module.CRITERIA), getattr(module, "variant", lambda _seed: {})
    )


def check_outside(assignment: Assignment, folder: Path) -> None:
    """Raise AssignmentError for a folder in the assignment's own, from which later starters could take it."""
    if folder.resolve().is_relative_to(assignment.folder):
        raise AssignmentError(f"folder: got {folder}, expected one outside of {assignment.folder}")


def _nearby(folder: Path) -> str:
    parent = folder.parent if folder.parent.is_dir() else Path("assignments")
    known = sorted(each.parent.name for each in parent.glob("*/assignment.yaml"))
    return f"; known: {', '.join(known)}" if known else "; expected a folder of assignments/"


class _NeverCached(SourceFileLoader):
    """Load a file as it stands: bytecode would be that of an edit in the same second, of the same length."""

    def path_stats(self, path: Any) -> Any:
        """Say that nothing is known of the file, so that bytecode is neither read nor written."""
        raise OSError(path)


def _criteria(folder: Path) -> ModuleType:
    name = f"collectives_assignment_{folder.name.replace('-', '_')}"
    file = folder / "criteria.py"
    # The folder as a package, so that criteria.py may import files next to it: ``from .truths
    # import truth``.
    spec = importlib.util.spec_from_file_location(
        name, file, loader=_NeverCached(name, str(file)), submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None or not file.is_file():
        raise AssignmentError(f"assignment: {folder.name} has no criteria.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def without_solution(text: str) -> str:
    r"""Return a reference solution's text as the starter has it.

    >>> print(without_solution("def f():\n    # solution: add them\n    return 1\n    # end\n"), end="")
    def f():
        raise NotImplementedError("add them")

    >>> text = "def f(n):\n    # solution\n    return n\n    # instead\n    # n += 1\n    # return n\n    # end\n"
    >>> print(without_solution(text), end="")
    def f(n):
        n += 1
        return n
    """
    kept = REFERENCE_ONLY.sub("", SOLUTION.sub(_instead, text))
    if any(marker in kept for marker in ("# solution", "# instead", "# reference only", "# end\n")):
        raise AssignmentError(
            "markers of a reference solution: expected '# solution' and '# end' in pairs"
        )
    return kept


def _instead(found: re.Match[str]) -> str:
    if found["fault"] is None:
        return f'{found["indent"]}raise NotImplementedError("{found["say"] or "your turn"}")\n'
    return re.sub(r"^( *)# ?", r"\1", found["fault"], flags=re.MULTILINE)


def write_starter(assignment: Assignment, seed: int, folder: Path) -> None:
    """Write the starter for a seed into a new folder.

    Raises AssignmentError where the folder exists and is not empty, or is in the assignment's own
    folder.
    """
    check_outside(assignment, folder)
    if folder.exists() and any(folder.iterdir()):
        raise AssignmentError(f"folder: got {folder}, which is not empty, expected a new one")
    folder.mkdir(parents=True, exist_ok=True)
    for each in sorted((assignment.folder / "reference").rglob("*")):
        if each.is_file() and "__pycache__" not in each.parts:
            _write_starter_file(each, folder / each.relative_to(assignment.folder / "reference"))
    public = assignment.folder / "public"
    if public.is_dir():
        shutil.copytree(
            public, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    (folder / "variant.py").write_text(variant_text(assignment, seed), encoding="utf8")


def _write_starter_file(reference: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if reference.suffix == ".py":
        target.write_text(without_solution(reference.read_text(encoding="utf8")), encoding="utf8")
    else:
        shutil.copyfile(reference, target)


def variant_text(assignment: Assignment, seed: int) -> str:
    """Return the text of ``variant.py``: the numbers of this course, which differ from seed to seed.

    The seed itself is not there: it would give a submission the hidden tests' data.
    """
    lines = [f"{name.upper()} = {value!r}" for name, value in assignment.variant(seed).items()]
    head = f'"""The numbers of your course\'s variant of: {assignment.facts.title}. You need not edit this file."""'
    return "\n".join([head, "", *lines, ""])


Report = TypeVar("Report", bound=BaseModel)


def read_report(path: Path, kind: type[Report], command: str) -> Report:
    """Read the JSON report of a submission.

    Raises Failed if ``command`` has not written it, or its form is wrong.
    """
    try:
        found = json.loads(path.read_text(encoding="utf8"))
    except (ValueError, RecursionError) as error:
        raise Failed(f"{path.name}: {str(error)[:200]}") from None
    if found == {"written": False}:
        raise Failed(f"not written yet: {command}")
    try:
        return kind.model_validate(found)
    except ValidationError as error:
        raise Failed(f"{path.name}: {explain(error)[:500]}") from None
