"""Measure how dense the code of each package is, and compare it with limits that only fall.

`make check` runs this file, which prints the table and fails above a limit. Whoever unfolds code
lowers the limits with ``python .ci/density.py --lower``, which never raises one.
"""

import argparse
import ast
import math
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
LIMITS = Path(__file__).with_suffix(".yaml")
FOLDERS = (
    "src/collectives",
    "src/collectives_book",
    "src/collectives_course",
    "src/collectives_interop",
    "src/collectives_logs",
    "assignments",
    "tests",
    ".ci",
)
# Each with its heading. The last three count per 1,000 lines, so they may rise a little when a
# file is deleted: limits are rounded up to whole `STEPS`.
MEASURES = {
    "nodes": "nodes of the syntax tree a line",
    "loops": "comprehensions with two loops",
    "stars": "stars",
    "walruses": "assignment expressions",
}
STEPS = {"nodes": 0.05, "loops": 0.5, "stars": 0.5, "walruses": 0.5}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a syntax tree.

    Docstrings and the marks of reading and writing a name are no code.
    """
    docstrings = {id(text) for text in _docstrings(tree)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.expr_context) and id(node) not in docstrings:
            yield node


def _docstrings(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            statement = node.body[0]
            yield statement
            yield from ast.iter_child_nodes(statement)


def measure(sources: list[str]) -> dict[str, float]:
    r"""Return the measures of these files' texts together, and how many ``statements`` they have.

    >>> text = "def largest(rows):\n    return max(value for row in rows for value in row)\n"
    >>> measure([text])["loops"], measure([text])["statements"]
    (500.0, 2)
    """
    lines = 0
    found: list[ast.AST] = []
    for source in sources:
        lines += sum(bool(line.strip()) for line in source.splitlines())
        found.extend(nodes(ast.parse(source)))

    def share(count: int) -> float:
        return round(1000 * count / max(lines, 1), 2)

    nested = [
        node for node in found if isinstance(node, COMPREHENSIONS) and len(node.generators) > 1
    ]
    return {
        "nodes": round(len(found) / max(lines, 1), 3),
        "loops": share(len(nested)),
        "stars": share(sum(isinstance(node, ast.Starred) for node in found)),
        "walruses": share(sum(isinstance(node, ast.NamedExpr) for node in found)),
        "statements": sum(isinstance(node, ast.stmt) for node in found),
    }


def measured(root: Path = ROOT) -> dict[str, dict[str, float]]:
    """Return the measures of every folder of a checkout."""
    table = {}
    for folder in FOLDERS:
        paths = sorted((root / folder).rglob("*.py"))
        table[folder] = measure([path.read_text(encoding="utf8") for path in paths])
    return table


def faults(
    table: dict[str, dict[str, float]], limits: dict[str, dict[str, float]]
) -> Iterator[str]:
    """Yield a line for each measure above its limit."""
    for folder, values in table.items():
        for name, heading in MEASURES.items():
            if values[name] > limits[folder][name]:
                yield f"{folder}: {heading}: got {values[name]:g}, expected at most {limits[folder][name]:g}"


def lowered(
    table: dict[str, dict[str, float]], limits: dict[str, dict[str, float]]
) -> dict[str, dict[str, float]]:
    """Return the limits, lower where a measure is."""
    lower = {}
    for folder, values in table.items():
        rounded = {
            name: round(math.ceil(values[name] / step) * step, 2) for name, step in STEPS.items()
        }
        lower[folder] = {name: min(rounded[name], limits[folder][name]) for name in MEASURES}
    return lower


def main() -> int:
    """Print the table, and return 1 if a measure is above its limit."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--lower", action="store_true", help="lower the limits to what there is")
    arguments = parser.parse_args()
    limits = yaml.safe_load(LIMITS.read_text(encoding="utf8"))
    table = measured()
    print(f"{'folder':<24}{'nodes':>8}{'loops':>8}{'stars':>8}{'walruses':>10}{'statements':>12}")
    for folder, values in table.items():
        cells = f"{values['nodes']:>8.2f}{values['loops']:>8.1f}{values['stars']:>8.1f}{values['walruses']:>10.1f}"
        print(f"{folder:<24}{cells}{values['statements']:>12,}")
    above = list(faults(table, limits))
    for line in above:
        print(line, file=sys.stderr)
    if arguments.lower:
        LIMITS.write_text(yaml.safe_dump(lowered(table, limits), sort_keys=False), encoding="utf8")
    return bool(above)


if __name__ == "__main__":
    sys.exit(main())
