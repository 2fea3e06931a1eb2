"""The name of a back end is tested in its own file alone: adding one is a file and an entry."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import collectives
from collectives.backends import BACKENDS, backend
from collectives.bench import OURS
from collectives_book.figures.measured import label

SOURCE = Path(collectives.__file__).parents[1]
# The experiment scaling holds our rows against those of libraries that it names.
MAY_NAME = {"collectives_book/scaling/targets.py"}
# "nccl" is a kind of process group there, beside "gloo": what carries its messages.
MAY_NAME |= {"collectives/engine/compiled_call.py"}
# NCCL's tuner reads what NCCL itself took, where that was measured.
MAY_NAME |= {"collectives_interop/tuner.py"}
# NCCL itself is the subject of its slow motion.
MAY_NAME |= {"collectives_book/one_gpu.py"}
# In PyTorch's dumps gloo's calls, whoever made them, have states of their own.
MAY_NAME |= {"collectives_logs/flight_dump.py"}


def own_files() -> set[str]:
    """The files of the back ends' objects; a package's other files are its own, too."""
    paths = [entry.partition(":")[0].replace(".", "/") for entry in BACKENDS.values()]
    return {f"{path}.py" for path in paths} | {
        str(file.relative_to(SOURCE)) for path in paths for file in (SOURCE / path).glob("*.py")
    }


def compared(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and text of every string that is compared, looked for, matched, or asked for as a beginning or an end."""
    for node in ast.walk(tree):
        within: list[ast.AST] = []
        if isinstance(node, ast.Compare):
            within = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            within = [node.value]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            within = node.args if node.func.attr in ("startswith", "endswith", "isin") else []
        for each in (each for one in within for each in getattr(one, "elts", [one])):
            if isinstance(each, ast.Constant) and isinstance(each.value, str):
                yield each.lineno, each.value.strip(".:")


def test_no_other_file_tests_the_name_of_a_back_end() -> None:
    own = own_files() | MAY_NAME
    found = [
        f"{path.relative_to(SOURCE)}:{line} tests {text!r}"
        for path in sorted(SOURCE.rglob("*.py"))
        if str(path.relative_to(SOURCE)) not in own
        for line, text in compared(ast.parse(path.read_text(encoding="utf8")))
        if text in BACKENDS
    ]
    assert found == []


@pytest.mark.parametrize(
    "code",
    [
        "name == 'mpi'",
        "'mpi' in names",
        "name in ('p2p', 'mpi')",
        "path.endswith('.mpi')",
        "rows.isin(['mpi'])",
    ],
)
def test_a_name_that_is_tested_is_seen(code: str) -> None:
    assert "mpi" in {text for _, text in compared(ast.parse(code))}


def test_a_default_is_no_test() -> None:
    assert list(compared(ast.parse("backends = ['mpi']; launch(where='mpi')"))) == []


def test_back_ends_are_told_apart_in_figures() -> None:
    ones = [backend(name) for name in BACKENDS]
    assert len({one.mark for one in ones}) == len(ones)
    assert len({one.title for one in ones}) == len(ones)
    ours = [backend(name) for name in OURS]
    assert len({label(one.name, "ring") for one in ours}) == len(ours)
    marks = [one.mark for one in ones] + [one.auto_mark for one in ours]
    assert len(set(marks)) == len(marks)
