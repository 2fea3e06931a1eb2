"""An assignment as a source folder of nbgrader: a notebook with the handout, cells to fill in, and tests with points.

A cell writes each file, because ranks are processes of their own, which import it. nbgrader runs
all cells as the instructor, outside any sandbox: a student's cell could change the points. If you
cannot trust the class, collect the files and run `collectives grade-all`.

The exported ring was tried with nbgrader 0.9.6, in an environment that has `collectives` and pytest
as well::

    nbgrader generate_assignment ring           # source/ring -> release/ring, without solutions and
    hidden tests cp -r release/ring submitted/alice/ring     # what a student would fill in and hand
    back nbgrader autograde ring && nbgrader export  # -> autograded/alice/ring, grades.csv

The reference got 100 points of 100, the untouched release none, and a ring whose mean did not
divide 90.
"""

import ast
import json
import re
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from secrets import randbelow
from typing import Any

from collectives_course.assignment import (
    MAX_SEED,
    REFERENCE_ONLY,
    SOLUTION,
    Assignment,
    AssignmentError,
    check_outside,
    write_starter,
)
from collectives_course.submission import Criterion

KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
CONFIG = """c = get_config()
c.Execute.timeout = 900  # seconds for a cell; one cell waits until all hidden tests have run
"""
CHECK = """# check("FILE::TEST") runs one of the public tests; where it fails, the error shows what pytest printed.
import subprocess, sys

def check(test):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr"""
# -P: a file that the student calls collectives.py is not the grader.
GRADE = """# The grader runs here; its tests are hidden.
### BEGIN HIDDEN TESTS
import json, subprocess, sys
command = [sys.executable, "-P", "-m", "collectives", "grade", {assignment}, ".", "--seed", "{seed}", "--json"]
ran = subprocess.run(command, capture_output=True, text=True)
assert ran.stdout, ran.stderr
verdicts = {{verdict["criterion"]: verdict for verdict in json.loads(ran.stdout)["verdicts"]}}
### END HIDDEN TESTS"""
# nbgrader takes a last value from 0 to the cell's points as partial credit, and an error as none.
CRITERION = """# {text}
### BEGIN HIDDEN TESTS
print(verdicts[{name}]["status"], verdicts[{name}]["message"], sep=": ")
verdicts[{name}]["points"]
### END HIDDEN TESTS"""
# nbgrader replaces a solution by an error, which would end the file where no function is around it.
OUTSIDE_FUNCTIONS = """try:  # functions of your own, if you like, instead of these lines
    ### BEGIN SOLUTION
{text}
    ### END SOLUTION
except NotImplementedError:
    pass


"""

# What a handout has that Markdown lacks: the book's directives and roles. Text is put back as it
# was, which needs no parser: markdown-it-py gives tokens, and neither knows these nor writes
# Markdown.
HEAD = re.compile(r"\A---\n(?:.*\n)*?---\n")
# The end of a fence is as long as its beginning, so a fence inside another is shorter.
DIRECTIVE = re.compile(
    r"^(?P<fence>`{3,}|:{3,})\{(?P<name>[\w-]+)\} *(?P<title>.*)\n(?P<body>(?:.*\n)*?)(?P=fence)$",
    re.MULTILINE,
)
OPTIONS = re.compile(r"\A(?::[\w-]+:.*\n|\n)+")
LINK = re.compile(
    r"(?<!!)\[(?P<text>[^\]]+)\]\((?!https?://)[^)\s]*(?:\.md|\.html|\.ipynb|#)[^)\s]*\)"
)
ROLE = re.compile(r"\{[\w:-]+\}`(?:/chapters/)?(?P<text>[^`<]+?)(?: *<[^`>]*>)?`")
PICTURE = re.compile(r"^!\[.*\]\(.*\)$\n?", re.MULTILINE)
SHOWN = {
    "code-block": "```{title}\n{body}```",
    "literalinclude": "",
    "figure": "",
    "image": "",
    "code-cell": "",
}
OTHERWISE = "**{title}**\n\n{body}"

Cell = dict[str, Any]


def export(assignment: Assignment, seed: int, course: str | Path) -> Path:
    """Write ``source/NAME`` into the folder of an nbgrader course, and return the path of its notebook.

    Students see ``seed``. The hidden tests have another one, drawn here, unless the answers follow
    the seed. Each criterion becomes a hidden test that gives the points of `collectives grade`; the
    public tests, which students see, give none. A course without ``nbgrader_config.py`` gets one,
    because nbgrader gives a cell 30 seconds unless it says more. Raises AssignmentError, before
    anything is written, where the folder exists or a part is missing.
    """
    check_outside(assignment, Path(course))
    target = Path(course) / "source" / assignment.name
    handout = assignment.folder / "handout.md"
    if target.exists():
        raise AssignmentError(f"folder: got {target}, which exists, expected a new one")
    if not handout.is_file():
        raise AssignmentError(f"assignment: {assignment.name} has no handout.md")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=course, prefix=".exporting-") as temporary:
        folder = Path(temporary) / assignment.name
        write_starter(assignment, seed, folder)
        _write_notebook(assignment, seed, handout.read_text(encoding="utf8"), folder)
        folder.rename(target)
    config = Path(course) / "nbgrader_config.py"
    if not config.exists():
        config.write_text(CONFIG, encoding="utf8")
    return target / f"{assignment.name}.ipynb"


def _write_notebook(assignment: Assignment, seed: int, handout: str, folder: Path) -> None:
    """Write the notebook in place of the starter's files that its cells write.

    Others stay next to it.
    """
    import nbformat

    cells = [
        _cell("handout", "locked", prose(handout)),
        *_files(assignment, folder),
        *_given(folder),
        *_hidden(assignment, seed if assignment.facts.answers_follow_seed else randbelow(MAX_SEED)),
    ]
    metadata = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    notebook = {"nbformat": 4, "nbformat_minor": 5, "metadata": metadata, "cells": cells}
    nbformat.validate(notebook)
    text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
    (folder / f"{assignment.name}.ipynb").write_text(text, encoding="utf8")


def _cell(identity: str, kind: str, text: str, **given: Any) -> Cell:
    """Return a cell with metadata by version 3 of nbgrader's schema.

    ``kind``: "locked", "solution" or "grade".
    """
    chosen = {
        "grade": kind == "grade",
        "solution": kind == "solution",
        "locked": kind != "solution",
        "task": False,
    }
    metadata = {"nbgrader": {"schema_version": 3, "grade_id": identity, **chosen, **given}}
    return {"cell_type": "markdown", "id": identity, "metadata": metadata, "source": text}


def _code(identity: str, kind: str, text: str, **given: Any) -> Cell:
    return _cell(identity, kind, text, **given) | {
        "cell_type": "code",
        "execution_count": None,
        "outputs": [],
    }


def _files(assignment: Assignment, folder: Path) -> Iterator[Cell]:
    """Yield a cell for each file that students edit, except notebooks, which stay next to this one.

    nbgrader can remove a solution. It neither knows a file without one nor puts a fault in its
    place, so the cells of such files have no metadata, and the text that students get.
    """
    for number, name in enumerate(assignment.facts.files, 1):
        reference = (assignment.folder / "reference" / name).read_text(encoding="utf8")
        if name.endswith(".ipynb"):
            continue
        found = list(SOLUTION.finditer(reference)) if name.endswith(".py") else []
        is_removed = bool(found) and all(each["fault"] is None for each in found)
        cell = _writing(
            folder / name,
            f"file-{number}",
            "solution",
            with_regions(reference) if is_removed else "",
        )
        yield cell if is_removed else cell | {"metadata": {}}


def _writing(file: Path, identity: str, kind: str, text: str = "") -> Cell:
    """Return a cell that writes the file with its text, or another, in place of the file."""
    text = text or file.read_text(encoding="utf8")
    file.unlink()
    return _code(identity, kind, f"%%writefile {file.name}\n{text.rstrip()}")


def with_regions(reference: str) -> str:
    r"""Return a reference solution's text with nbgrader's markers instead of ours.

    >>> print(with_regions("def f():\n    # solution: add them\n    return 1\n    # end\n"), end="")
    def f():
        # add them
        ### BEGIN SOLUTION
        return 1
        ### END SOLUTION
    """
    return SOLUTION.sub(_region, REFERENCE_ONLY.sub(_region_of_functions, reference))


def _region(found: re.Match[str]) -> str:
    indent, say = found["indent"], found["say"]
    solution = "".join(found[0].splitlines(keepends=True)[1:-1])
    comment = f"{indent}# {say}\n" if say else ""
    return f"{comment}{indent}### BEGIN SOLUTION\n{solution}{indent}### END SOLUTION\n"


def _region_of_functions(found: re.Match[str]) -> str:
    functions = found[0].rstrip().splitlines()[1:-1]
    return OUTSIDE_FUNCTIONS.format(text=textwrap.indent("\n".join(functions).rstrip(), "    "))


def _given(folder: Path) -> Iterator[Cell]:
    """Yield cells that write the variant's numbers and the public tests, and cells that run them."""
    texts = {each.name: each.read_text(encoding="utf8") for each in sorted(folder.glob("*.py"))}
    for name in texts:
        yield _writing(folder / name, f"given-{Path(name).stem}", "locked")
    yield _code("check", "locked", CHECK)
    tests = []
    for name, text in texts.items():
        tests += [f"{name}::{test}" for test in _tests(text)]
    for number, test in enumerate(tests, 1):
        yield _code(f"public-{number}", "grade", f'check("{test}")', points=0)


def _tests(text: str) -> list[str]:
    functions = (each.name for each in ast.parse(text).body if isinstance(each, ast.FunctionDef))
    return [name for name in functions if name.startswith("test_")]


def _hidden(assignment: Assignment, seed: int) -> Iterator[Cell]:
    """Yield a cell that grades, and one for each criterion that gives its points."""
    yield _code(
        "grade",
        "grade",
        GRADE.format(assignment=json.dumps(str(assignment.folder)), seed=seed),
        points=0,
    )
    for number, criterion in enumerate(assignment.criteria, 1):
        yield _code(f"criterion-{number}", "grade", _criterion(criterion), points=criterion.points)


def _criterion(criterion: Criterion) -> str:
    return CRITERION.format(text=" ".join(criterion.text.split()), name=json.dumps(criterion.name))


def prose(handout: str) -> str:
    r"""Return a handout without front matter, code cells and pictures, with directives and links to pages as text.

    >>> print(prose("---\nkernel\n---\n# Ring\n\n```{code-cell} ipython3\n1 + 1\n```\n\nSee [trees](../trees.md).\n"))
    # Ring
    <BLANKLINE>
    See trees.
    >>> print(prose("Read {doc}`/chapters/ring-all-reduce`.\n"))
    Read ring-all-reduce.
    >>> print(prose("````{dropdown} A hint\n:open:\n\nCut it.\n```python\nx = 1\n```\n````\n"))
    **A hint**
    <BLANKLINE>
    Cut it.
    ```python
    x = 1
    ```
    """
    text = HEAD.sub("", handout)
    while (replaced := DIRECTIVE.sub(_shown, text)) != text:
        text = replaced
    text = PICTURE.sub("", text)
    for named in (LINK, ROLE):
        text = named.sub(r"\g<text>", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def _shown(found: re.Match[str]) -> str:
    title = found["title"] or found["name"].capitalize()
    body = OPTIONS.sub("", found["body"])
    return SHOWN.get(found["name"], OTHERWISE).format(title=title, body=body)
