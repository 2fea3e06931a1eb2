"""An assignment: a folder with ``assignment.yaml``, ``handout.md``, ``reference/``, ``public/`` and ``criteria.py``."""

import importlib.util
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from collectives import config
from collectives.errors import explain
from collectives.units import parse_bytes
from collectives_course.criterion import Criterion
from collectives_course.sandbox import Limits

MOST_SEED = 2**31 - 1


class AssignmentError(ValueError):
    """A folder that is no assignment, or one that is not whole."""


class Facts(BaseModel):
    """What ``assignment.yaml`` says. ``files``: those that a student edits; the first has the functions.

    ``answers_follow_seed``: students hand in numbers that are right only for the seed of their starter.
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
    """An assignment as it was read; ``variant(seed)`` gives the numbers that differ from course to course."""

    folder: Path
    facts: Facts
    criteria: tuple[Criterion, ...]
    variant: Callable[[int], dict[str, Any]]

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.name

    @property
    def limits(self) -> Limits:
        """What a process of a submission may use."""
        cpu = max(Limits.cpu, math.ceil(2 * self.facts.limit))  # the last resort, and the time to start is in it
        return Limits(memory=parse_bytes(self.facts.memory), cpu=cpu, packages=tuple(self.facts.packages))


def read(folder: Path) -> Assignment:
    """Read an assignment. Raises AssignmentError where a part is missing or wrong."""
    folder = folder.resolve()
    file = folder / "assignment.yaml"
    if not file.is_file():
        raise AssignmentError(f"assignment: got {folder.name!r}, which has no assignment.yaml{_nearby(folder)}")
    try:
        facts = Facts.model_validate(config.read_yaml(file))
    except ValidationError as error:
        raise AssignmentError(f"{file}: {explain(error)}") from None
    module = _criteria(folder)
    return Assignment(folder, facts, tuple(module.CRITERIA), getattr(module, "variant", _no_variant))


def need_outside(assignment: Assignment, folder: Path) -> None:
    """Raise AssignmentError for a folder in the assignment's own, from which later starters could take it."""
    if folder.resolve().is_relative_to(assignment.folder):
        raise AssignmentError(f"folder: got {folder}, expected one outside of {assignment.folder}")


def _no_variant(_seed: int) -> dict[str, Any]:
    return {}


def _nearby(folder: Path) -> str:
    parent = folder.parent if folder.parent.is_dir() else Path("assignments")
    known = sorted(each.parent.name for each in parent.glob("*/assignment.yaml"))
    return f"; known: {', '.join(known)}" if known else "; expected a folder of assignments/"


def _criteria(folder: Path) -> ModuleType:
    name = f"collectives_assignment_{folder.name.replace('-', '_')}"
    # The folder as a package, so that criteria.py may import files beside it: ``from .truths import truth``.
    spec = importlib.util.spec_from_file_location(
        name, folder / "criteria.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None or not (folder / "criteria.py").is_file():
        raise AssignmentError(f"assignment: {folder.name} has no criteria.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
