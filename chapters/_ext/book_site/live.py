"""Live cells: code that a reader edits and runs in the browser, where the site brings Python for browsers.

`.ci/page_python.py` has put that into `_build/python`; without it no page has a live cell. For each page a file names
the cells, what each needs to run first, and their code, also of those that the page does not show. A page loads it,
like everything else here, at the first click.
"""

import ast
import json
import re
import shutil
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator
from html import escape
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
from docutils import nodes
from in_page.exercises import EXERCISES, Assignment, asked_of
from in_page.imports import packages
from sphinx.util import logging

from book_site.downloads import executed

ROOT = Path(__file__).resolve().parents[3]
PYTHON, IN_PAGE, SOURCES = ROOT / "_build" / "python", ROOT / "chapters/_ext/in_page", ROOT / "src"
LIBRARY = ("collectives", "collectives_book", "collectives_course")
DATA = (".py", ".yaml", ".json")
# What a page's Python has beside the standard library; of pydantic, numba the page has what the simulator needs.
AVAILABLE = {"numpy", "pandas", "matplotlib", "cycler", "seaborn", "yaml", "pydantic", "numba"}
# Modules of ours that read what the site does not bring, or that do what a page cannot: readers import
# modules that start ranks, so the first of a cell's modules in this order names its reason.
ELSEWHERE = {
    "collectives.bench.results": "read recorded rows",
    "collectives_book.computed": "read recorded rows",
    "collectives_book.measured_machines.samples": "read recorded rows",
    "collectives_course.assignment": "read an assignment",
    "collectives.backends": "start ranks",
    "collectives_course.local": "start ranks",
}
FILES = re.compile(r"experiments/|\.\./|\.(csv|jsonl?|parquet|ya?ml)$")
NOT_SHOWN = {"remove-cell", "remove-input"}
# What a page may have that needs Python, and the script that it then loads.
SCRIPTS = {
    "live-cells.js": ("live-cell",),
    "live-answers.js": ("<check-answer", "<python-playground"),
}
AFTER_OURS = 900  # the scripts of all pages, which these use, have 800
EXERCISE = re.compile(r'<check-answer exercise="([\w/-]+)">')
# What a page has of an assignment: no solution.
GRADED = ("assignment.yaml", "criteria.py")


class Cell(NamedTuple):
    """A page's cell: its place in the page's notebook, its code, the cells to run before, and why it is not live."""

    number: int
    source: str
    needs: list[int]
    is_shown: bool
    reason: str


def mark(app: Any, doctree: Any, page: str) -> None:
    """Give each live cell of a page a name, by which its script finds it."""
    live = {cell.number for cell in cells_of(app, page) if cell.is_shown and not cell.reason}
    for node in doctree.findall(nodes.container):
        if node.get("nb_element") == "cell_code" and node["cell_index"] in live:
            node["ids"].append(f"cell-{node['cell_index']}")
            node["classes"].append("live-cell")


def load(app: Any, _page: str, _template: str, context: dict[str, Any], doctree: Any) -> None:
    """Have a page load the scripts of its live cells and exercises; say in an exercise what it asks for."""
    if doctree is None or not PYTHON.exists():
        return
    body = context["body"] = EXERCISE.sub(with_fields, context["body"])
    scripts = [name for name, marks in SCRIPTS.items() if any(mark in body for mark in marks)]
    for script in ["live-python.js", *scripts] if scripts else []:
        app.add_js_file(script, priority=AFTER_OURS, defer="defer")


def with_fields(found: re.Match[str]) -> str:
    """Return the element of an exercise with what its page shows: labels of numbers, and code to begin with."""
    asked = asked_of(found[1])
    written = {name: it if isinstance(it, str) else json.dumps(it) for name, it in asked.items()}
    fields = "".join(f' {name}="{escape(text)}"' for name, text in written.items())
    return f'<check-answer exercise="{found[1]}"{fields}>'


def write(app: Any, failure: Exception | None) -> None:
    """Copy Python to the site, with the library, and write each page's cells; say how many are live."""
    if failure is not None or app.builder.format != "html" or not PYTHON.exists():
        return
    static, counted = Path(app.outdir) / "_static" / "python", Counter[str]()
    shutil.copytree(PYTHON, static, dirs_exist_ok=True, ignore=shutil.ignore_patterns("best.json"))
    pack(static / "library.zip")
    for page in sorted(app.env.found_docs):
        cells = cells_of(app, page)
        counted.update(cell.reason or "live" for cell in cells if cell.is_shown)
        if any(cell.is_shown and not cell.reason for cell in cells):
            counted["pages"] += 1
            named = {cell.number: code_of(cell, cells) for cell in cells}
            path = static / "cells" / f"{page}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(named), encoding="utf8")
    live, pages = counted.pop("live", 0), counted.pop("pages", 0)
    reasons = ", ".join(f"{count} {reason}" for reason, count in counted.most_common())
    text = "live cells: %d on %d pages; not live: %s"
    logging.getLogger(__name__).info(text, live, pages, reasons)


def pack(path: Path) -> None:
    """Write the library, and what runs it in a page, as one file."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(PYTHON / "best.json", "best.json")
        for folder in (IN_PAGE, *(SOURCES / name for name in LIBRARY)):
            base = folder if folder == IN_PAGE else SOURCES
            for file in sorted(folder.rglob("*")):
                if file.suffix in DATA and "__pycache__" not in file.parts:
                    archive.write(file, file.relative_to(base))
        graded = [it.name for it in EXERCISES.values() if isinstance(it, Assignment)]
        for name, file in product(graded, GRADED):
            archive.write(ROOT / "assignments" / name / file, f"assignments/{name}/{file}")


def cells_of(app: Any, page: str) -> list[Cell]:
    """Return the cells of a page that have code; none without Python for browsers, and of a recorded notebook."""
    path = executed(app, page)
    if not PYTHON.exists() or not path.exists() or page.startswith("experiments/"):
        return []
    return list(analyzed(nbformat.read(path, as_version=4).cells))


def analyzed(cells: list[Any]) -> Iterator[Cell]:
    """Yield the code cells of a notebook, with what each needs."""
    made, defined = dict[int, Cell](), dict[str, int]()
    for number, cell in enumerate(cells):
        if cell.cell_type != "code":
            continue
        used, own = names_of(cell.source)
        first = sorted({defined[name] for name in used if name in defined})
        needs = sorted({need for other in first for need in (*made[other].needs, other)})
        reason = reason_of(cell.source) or next(filter(None, (made[it].reason for it in needs)), "")
        is_shown = not NOT_SHOWN & set(cell.metadata.get("tags", []))
        made[number] = Cell(number, cell.source, needs, is_shown, reason)
        defined |= dict.fromkeys(own, number)
        yield made[number]


def code_of(cell: Cell, cells: list[Cell]) -> dict[str, Any]:
    """Return what a page knows of a cell; ``quiet`` is its code where only others need it.

    That has no import of which nothing is used then: most bring Matplotlib for the cell's own figure.
    """
    others = [names_of(other.source)[0] for other in cells if other is not cell]
    body = ast.parse(cell.source).body
    if body and isinstance(body[-1], ast.Expr):
        body.pop()  # its value is not shown
    rest = [it for it in body if not isinstance(it, ast.Import | ast.ImportFrom)]
    used = names_of("\n".join(map(ast.unparse, rest)))[0].union(*others)
    lines = cell.source.splitlines()
    for statement in body:
        if statement not in rest and not bound(statement, local=False) & used:
            for number in range(statement.lineno - 1, statement.end_lineno or 0):
                lines[number] = ""  # the others keep their numbers
    return {"source": cell.source, "quiet": "\n".join(lines), "needs": cell.needs}


def names_of(source: str) -> tuple[set[str], set[str]]:
    r"""Return the names that a cell reads before it has defined them, and those that it defines or changes.

    >>> names_of("import numpy as np\ntable[p] = np.sum(ring(p))")
    ({'ring', 'p', 'table'}, {'table', 'np'})
    """
    read, written = set[str](), set[str]()
    for statement in ast.parse(source).body:
        inside = bound(statement, local=True)
        if isinstance(statement, ast.Assign):  # its value is computed first
            inside = bound(statement.value, local=True)
        elif isinstance(statement, ast.AugAssign):
            inside = set()
            read |= bound(statement.target, local=False) - written
        names = [it for it in ast.walk(statement) if isinstance(it, ast.Name)]
        read |= {it.id for it in names if isinstance(it.ctx, ast.Load)} - inside - written
        written |= bound(statement, local=False) | changed(statement)
    return read, written


# What has names of its own.
SCOPES = (ast.FunctionDef, ast.ClassDef, ast.Lambda, ast.comprehension)


def bound(tree: ast.AST, *, local: bool) -> set[str]:
    """Return the names that a statement binds, and if ``local`` those of the functions and comprehensions in it."""
    found = set[str]()
    if isinstance(tree, ast.Name) and not isinstance(tree.ctx, ast.Load):
        found.add(tree.id)
    elif isinstance(tree, ast.FunctionDef | ast.ClassDef):
        found.add(tree.name)
    elif isinstance(tree, ast.alias):
        found.add(tree.asname or tree.name.partition(".")[0])
    elif isinstance(tree, ast.arg):
        found.add(tree.arg)
    if local or not isinstance(tree, SCOPES):
        found = found.union(*(bound(part, local=local) for part in ast.iter_child_nodes(tree)))
    return found


def changed(tree: ast.AST) -> set[str]:
    """Return the names of values of which a statement sets an item or an attribute."""
    places = [it for it in ast.walk(tree) if isinstance(it, ast.Subscript | ast.Attribute)]
    stored = [it.value for it in places if isinstance(it.ctx, ast.Store)]
    return {each.id for it in stored for each in ast.walk(it) if isinstance(each, ast.Name)}


def reason_of(source: str) -> str:
    """Return why a page cannot run these lines, or nothing."""
    texts = [it.value for it in ast.walk(ast.parse(source)) if isinstance(it, ast.Constant)]
    if any(isinstance(text, str) and FILES.search(text) for text in texts):
        return "read recorded rows"
    needed, modules = packages(source, SOURCES)
    reasons = [reason for module, reason in ELSEWHERE.items() if module in modules]
    if reasons:
        return reasons[0]
    missing = sorted(needed - AVAILABLE - set(sys.stdlib_module_names))
    return f"need {missing[0]}" if missing else ""
