"""Rows that take long to compute: they are recorded, as measured rows are, and pages read them.

`COMPUTED` names the function that makes the rows of each. ``python .ci/record.py computed NAME``
calls it, and the record has a hash of the code that the rows follow from, so that a gate says when
they are older.
"""

import ast
import hashlib
import importlib
import json
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import yaml

from collectives.bench.results import read, record, write
from collectives.errors import unknown

SOURCES = Path(__file__).resolve().parents[1]
FOLDER = SOURCES.parent / "experiments" / "results" / "reference" / "computed"

# What of the library decides on schedules and their simulated times, and on rounded sums.
SIMULATED = (
    "collectives/algorithms",
    "collectives/core/bounds.py",
    "collectives/machine.py",
    "collectives/machines",
    "collectives/core/schedule.py",
    "collectives/simulator",
)
SEARCHED = (*SIMULATED, "collectives/search.py")
ROUNDED = (
    "collectives/algorithms",
    "collectives/codecs.py",
    "collectives/rounding.py",
    "collectives/core/schedule.py",
    "collectives/core/summation.py",
)


class Computed(NamedTuple):
    """Who makes rows, as ``module:name``, and the files and folders below ``src`` that decide on them beside it."""

    maker: str
    rooms: tuple[str, ...] = SIMULATED


# The rows of an experiment come from its notebook: ``collectives run`` with the preset `computed`.
EXPERIMENT = "massive-scale"
COMPUTED = {
    "after-two-trees": Computed("collectives_book.computed_rows:after_two_trees"),
    "eight-ports": Computed("collectives_book.computed_rows:eight_ports"),
    "eight-ranks": Computed("collectives_book.computed_rows:eight_ranks"),
    EXPERIMENT: Computed(
        "collectives_book.massive_scale.experiment:MassiveScale",
        (*SIMULATED, "collectives_book/nccl_formulas.py", "collectives/nccl/formulas.py"),
    ),
    "rounding-errors": Computed("collectives_book.rounding_errors:computed_rows", ROUNDED),
    "slow-host": Computed("collectives_book.computed_rows:slow_host"),
    "which-all-reduce": Computed("collectives_book.which_all_reduce:computed_rows", SEARCHED),
}


def rows(name: str) -> pd.DataFrame:
    """Return the recorded rows of this name.

    Raises ValueError for a name that is not in `COMPUTED`.
    """
    if name not in COMPUTED:
        raise ValueError(unknown("computed rows", name, COMPUTED))
    return read(FOLDER / name)[0]


def command(name: str) -> str:
    """Return the command that makes rows of this name again."""
    return f"python .ci/record.py computed {name}"


def make(name: str) -> None:
    """Compute the rows of this name, and write them and their record."""
    module, function = COMPUTED[name].maker.split(":")
    found = getattr(importlib.import_module(module), function)()
    for row in found:
        # Rows of one table have the same columns, but machines have links of other names.
        row.pop("bytes_by_link", None)
    settings = [{"computed": COMPUTED[name].maker}]
    write(FOLDER / name, found, {"settings": settings, "environment": [record()]})


def code(name: str) -> str:
    """Return a hash of the code and the machines that rows of this name follow from, without comments and docstrings.

    Of the maker's module it leaves out the functions that make other rows.
    """
    module, function = COMPUTED[name].maker.split(":")
    others = frozenset(each.maker.partition(":")[2] for each in COMPUTED.values()) - {function}
    own = SOURCES / f"{module.replace('.', '/')}.py"
    found = hashlib.sha256(said(own.read_text(encoding="utf8"), others).encode())
    for path in files(COMPUTED[name].rooms):
        text = path.read_text(encoding="utf8")
        found.update(f"{path.relative_to(SOURCES)}\n".encode())
        meant = said(text) if path.suffix == ".py" else json.dumps(yaml.safe_load(text))
        found.update(meant.encode())
    return found.hexdigest()


def files(rooms: Iterable[str]) -> list[Path]:
    """Return the files of code and machines in these rooms, each of which is a file or a folder."""
    found = []
    for room in rooms:
        below = [SOURCES / room] if room.endswith(".py") else (SOURCES / room).rglob("*")
        found += [path for path in below if path.suffix in (".py", ".yaml")]
    return sorted(found)


@cache
def said(text: str, left_out: frozenset[str] = frozenset()) -> str:
    """Return what Python code does, as text: its syntax without comments, docstrings, and the functions left out.

    >>> said("x = 1  # one") == said("x=1"), said("x = 1") == said("x = 2")
    (True, False)
    """
    tree = ast.parse(text)
    tree.body = [node for node in tree.body if getattr(node, "name", None) not in left_out]
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and ast.get_docstring(node) is not None
        ):
            node.body = node.body[1:]
    return ast.dump(tree)


def outdated(folder: Path = FOLDER) -> Iterator[str]:
    """Yield the names whose rows there are not, or whose code was another one."""
    for name in COMPUTED:
        path = folder / f"{name}.json"
        if not path.exists() or json.loads(path.read_text(encoding="utf8")).get("code") != code(
            name
        ):
            yield name
