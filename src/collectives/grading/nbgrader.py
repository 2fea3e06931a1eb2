"""An assignment as a source notebook of nbgrader: the handout, cells to fill in, public tests, a cell per criterion.

A solution cell writes the student's file, because ranks are processes of their own, which import it. nbgrader runs
every cell as the instructor, outside any sandbox: a student's cell could change the points. Where you cannot trust
the class, collect the files and run `collectives grade-all`.

The exported course was tried with nbgrader 0.9.6, in an environment that has `collectives` and pytest as well::

    nbgrader generate_assignment ring           # source/ring -> release/ring, without solutions and hidden tests
    cp -r release/ring submitted/alice/ring     # what a student would fill in and hand back
    nbgrader autograde ring && nbgrader export  # -> autograded/alice/ring, grades.csv

The reference got all points, the release as it was none, and one with half of the functions its partial credit.
"""

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from collectives.bench.results import replace
from collectives.errors import short

SOLUTION, END = "# solution", "# end"  # lines of a reference, around what the student writes
TESTS = "test_public.py"
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
CONFIG = """c = get_config()
c.Execute.timeout = 900  # seconds for a cell; one cell waits until all hidden tests have run
"""
CHECK = f"""# check("test_...") runs one of the public tests; where it fails, the error shows what pytest printed.
import subprocess, sys

def check(test):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"{TESTS}::{{test}}"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr"""
GRADE = """# The grader runs here; its tests are hidden.
### BEGIN HIDDEN TESTS
import json, subprocess, sys
command = [sys.executable, "-P", "-m", "collectives", "grade", {assignment}, ".", "--json"]  # -P: not a file from here
ran = subprocess.run(command, capture_output=True, text=True)
assert ran.stdout, ran.stderr
verdicts = {{verdict["criterion"]: verdict for verdict in json.loads(ran.stdout)["verdicts"]}}
### END HIDDEN TESTS"""
# nbgrader takes a last value from 0 to the cell's points as partial credit, and an error as none.
CRITERION = """# {text}
### BEGIN HIDDEN TESTS
print(verdicts[{criterion}]["status"], verdicts[{criterion}]["message"], sep=": ")
verdicts[{criterion}]["points"]
### END HIDDEN TESTS"""

Cell = dict[str, Any]
Criterion = tuple[str, str, float]  # its name, what it asks for, its points


def export(
    folder: str | Path,
    *,
    name: str,
    title: str,
    handout: str,
    references: Mapping[str, str],
    tests: str,
    criteria: Sequence[Criterion] = (),
    assignment: str | Path = "",
) -> Path:
    """Write ``source/NAME/NAME.ipynb`` into the folder of an nbgrader course, and return its path.

    ``handout`` is Markdown, ``references`` maps the files that students edit to the reference's text, with the
    student's part between lines ``# solution`` and ``# end``. ``tests`` is the text of public pytest tests. Each of
    ``criteria`` becomes a hidden test whose points `collectives grade` gives, by the folder ``assignment``. Without
    criteria every public test gives one point, otherwise none, so that the sum is the grader's.

    A course without ``nbgrader_config.py`` gets one, because nbgrader gives a cell 30 seconds unless it says more.
    Raises ValueError, before anything is written, for a name, markers or tests that cannot be exported.
    """
    import nbformat

    if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise ValueError(f"name of the assignment: got {short(name)}, expected letters, digits, - and _")
    if criteria and not assignment:
        raise ValueError("criteria: got no folder of the assignment, expected the one that `collectives grade` takes")
    cells = [
        _cell("handout", "locked", f"# {title}\n\n{handout.strip()}"),
        *(_solution(number, file, text) for number, (file, text) in enumerate(references.items(), 1)),
        *_public(tests, 0 if criteria else 1),
        *(_hidden(criteria, Path(assignment).resolve()) if criteria else ()),
    ]
    metadata = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    notebook = {"nbformat": 4, "nbformat_minor": 5, "metadata": metadata, "cells": cells}
    nbformat.validate(notebook)
    return _write(Path(folder), name, json.dumps(notebook, indent=1, ensure_ascii=False))


def _write(course: Path, name: str, notebook: str) -> Path:
    path = course / "source" / name / f"{name}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    replace(path, lambda partial: partial.write_text(notebook + "\n", encoding="utf8"))
    config = course / "nbgrader_config.py"
    if not config.exists():
        replace(config, lambda partial: partial.write_text(CONFIG, encoding="utf8"))
    return path


def _cell(identity: str, kind: str, text: str, **given: Any) -> Cell:
    """A cell with metadata by version 3 of nbgrader's schema; ``kind``: "locked", "solution" or "grade"."""
    chosen = {"grade": kind == "grade", "solution": kind == "solution", "locked": kind != "solution", "task": False}
    metadata = {"nbgrader": {"schema_version": 3, "grade_id": identity, **chosen, **given}}
    return {"cell_type": "markdown", "id": identity, "metadata": metadata, "source": text}


def _code(identity: str, kind: str, text: str, **given: Any) -> Cell:
    return _cell(identity, kind, text, **given) | {"cell_type": "code", "execution_count": None, "outputs": []}


def _solution(number: int, file: str, text: str) -> Cell:
    return _code(f"solution-{number}", "solution", f"%%writefile {file}\n{_marked(file, text).rstrip()}")


def _marked(file: str, text: str) -> str:
    """The reference with nbgrader's markers instead of ours."""
    lines = text.splitlines()
    found = [line.strip() for line in lines if line.strip() in (SOLUTION, END)]
    if not found or found != [SOLUTION, END] * (len(found) // 2):
        raise ValueError(f"{file}: markers: got {short(found)}, expected {SOLUTION!r} and {END!r} in turn")
    written = {SOLUTION: "### BEGIN SOLUTION", END: "### END SOLUTION"}
    return "\n".join(line.replace(line.strip(), written.get(line.strip(), line.strip())) for line in lines)


def _public(tests: str, points: float) -> Iterator[Cell]:
    """A cell that writes the tests, one that defines how to run them, and one for each."""
    names = [each.name for each in ast.parse(tests).body if isinstance(each, ast.FunctionDef)]
    names = [name for name in names if name.startswith("test_")]
    if not names:
        raise ValueError("public tests: got no function test_..., expected at least one")
    yield _code("public-tests", "locked", f"%%writefile {TESTS}\n{tests.rstrip()}")
    yield _code("check", "locked", CHECK)
    for name in names:
        yield _code(f"public-{name}", "grade", f'check("{name}")', points=points)


def _hidden(criteria: Sequence[Criterion], assignment: Path) -> Iterator[Cell]:
    """A cell that grades, and one for each criterion that gives its points."""
    yield _code("grade", "grade", GRADE.format(assignment=json.dumps(str(assignment))), points=0)
    for number, (criterion, text, of) in enumerate(criteria, 1):
        text = CRITERION.format(text=" ".join(text.split()), criterion=json.dumps(criterion))
        yield _code(f"criterion-{number}", "grade", text, points=of)
