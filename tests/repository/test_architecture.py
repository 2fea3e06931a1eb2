"""Import-linter's rules can be broken, and no peer's bytes are run."""

import ast
import os
import re
import shutil
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import collectives
from command import finished
from places import ROOT

SOURCE = Path(collectives.__file__).parents[1]
PACKAGES = (
    "collectives",
    "collectives_book",
    "collectives_course",
    "collectives_interop",
    "collectives_logs",
)


@cache
def modules() -> dict[str, ast.Module]:
    """Every file of the packages by its name; a folder's own file has the folder's."""
    found = {}
    for path in sorted(path for package in PACKAGES for path in (SOURCE / package).rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text(encoding="utf8"))
    return found


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are written from the root"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


# One import that breaks each rule.
BREAKS = {
    "The book and the course": ("collectives_course/wire.py", "import collectives_book"),
    "The course reads": ("collectives_course/verdict.py", "import collectives_logs"),
    "The course grades": ("collectives_course/verdict.py", "import collectives.bench"),
    "Logs are read": ("collectives_logs/ras.py", "import collectives.bench"),
    "Imports point down": ("collectives/units.py", "from collectives import grid"),
    "No circle": ("collectives/figures/style.py", "from collectives.figures import schedules"),
    "Readers of a schedule": (
        "collectives/engine/__init__.py",
        "from collectives.core.verify import verify",
    ),
    "What starts ranks": (
        "collectives/launch/__init__.py",
        "from collectives.core import schedule",
    ),
    "torch stays": ("collectives/simulator/__init__.py", "import torch"),
    "Horovod and MPI": ("collectives/bench/__init__.py", "from mpi4py import MPI"),
}


def test_each_rule_can_be_broken(tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(SOURCE, tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "src" / "collectives" / "annexe.py").write_text("")
    for name, line in BREAKS.values():
        with (tmp_path / "src" / name).open("a") as file:
            file.write(f"\n\ndef late():\n    {line}\n")
    command = [
        Path(sys.executable).with_name("lint-imports"),
        "--no-cache",
        "--no-logo",
        "--config",
        "pyproject.toml",
    ]
    found = os.environ | {"PYTHONPATH": str(tmp_path / "src"), "COLUMNS": "200"}
    done = finished(command, cwd=tmp_path, env=found)
    assert done.returncode == 1
    assert len(re.findall(r" BROKEN( \(.*\))?$", done.stdout, flags=re.MULTILINE)) == len(BREAKS), (
        done.stdout + done.stderr
    )
    for rule in BREAKS:
        assert re.search(rf"^{rule}.* BROKEN( \(.*\))?$", done.stdout, flags=re.MULTILINE), (
            done.stdout
        )
    assert "annexe" in done.stdout, "a new room needs a floor"


def arrows(files: dict[str, ast.Module]) -> dict[str, set[str]]:
    """The modules that each module imports; imports for types alone count, too."""
    found: dict[str, set[str]] = {name: set() for name in files}
    for name, tree in files.items():
        for full in imported(tree):
            while full and full not in files:
                full = full.rpartition(".")[0]
            if full not in ("", name):
                found[name].add(full)
    return found


def test_no_modules_import_each_other() -> None:
    TopologicalSorter(arrows(modules())).prepare()
    planted = modules() | {
        "collectives.core.schedule": ast.parse("def late():\n    import collectives.core.verify")
    }
    with pytest.raises(CycleError):
        TopologicalSorter(arrows(planted)).prepare()


def test_no_name_of_a_folder_hides_a_module_of_it() -> None:
    """Importing a submodule binds its name in its folder, over a function of the same name that was there."""
    # By the package itself, after the modules.
    bound_later = {"mesh", "signature"}
    for folder in {
        path.parent for package in PACKAGES for path in (SOURCE / package).rglob("__init__.py")
    }:
        tree = ast.parse((folder / "__init__.py").read_text(encoding="utf8"))
        within = ".".join(folder.relative_to(SOURCE).parts)
        modules_here = {path.stem for path in folder.glob("*.py")} | {
            path.parent.name for path in folder.glob("*/*.py")
        }
        names = {
            full.rpartition(".")[2] for full in imported(tree) if full.rpartition(".")[0] != within
        }
        names |= {
            each.name for each in tree.body if isinstance(each, ast.FunctionDef | ast.ClassDef)
        }
        assert names & modules_here <= bound_later, folder


@pytest.mark.integration
def test_importing_the_package_needs_numpy_alone() -> None:
    code = "import sys, collectives; print(*{name.split('.')[0] for name in sys.modules})"
    plain = code.replace("collectives", "numpy")
    found, of_numpy = (
        set(finished([sys.executable, "-c", each], check=True).stdout.split())
        for each in (code, plain)
    )
    assert found - of_numpy - set(sys.stdlib_module_names) == {"collectives"}


def pointers(tree: ast.AST) -> Iterator[str]:
    """Whose memory is passed on as an address: variables, or calls that return an array."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node).endswith(".ctypes.data"):
            owner: ast.expr = node
            while isinstance(owner, ast.Attribute | ast.Subscript):
                owner = owner.value
            yield ast.unparse(owner)


def test_compiled_code_passes_addresses_of_its_arguments_only() -> None:
    """An array of its own is freed after its last use: that may be taking its address."""
    found = set()
    for name, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and "compiled" in {
                ast.unparse(each) for each in node.decorator_list
            }:
                arguments = {each.arg for each in node.args.args}
                found |= {f"{name}.{node.name}: {each}" for each in {*pointers(node)} - arguments}
    assert found == set()


# What turns bytes into code. A peer's bytes may reach these only if it is authenticated, so nothing
# calls them at all.
EXECUTES = {
    "cloudpickle",
    "marshal",
    "shelve",
    "eval",
    "exec",
    "all_gather_object",
    "gather_object",
}
EXECUTES |= {
    "broadcast_object_list",
    "scatter_object_list",
    "send_object_list",
    "recv_object_list",
    "rpc",
}
# A user's own schedule is a file on this machine. Dumps are pickles: one module reads them with the
# opcodes of plain values alone, the other one writes them.
WHERE = {
    "runpy": {"collectives.algorithms.from_file"},
    "pickle": {"collectives_logs.flight_dump", "collectives.torch_backend.flight"},
}


def used(tree: ast.AST) -> set[str]:
    """Every name that a module reads or imports, and every attribute that it asks for."""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return names | {part for full in imported(tree) for part in full.split(".")}


def test_nothing_executes_what_a_peer_sends() -> None:
    found = {name: used(tree) for name, tree in modules().items()}
    assert {name: names & EXECUTES for name, names in found.items() if names & EXECUTES} == {}
    for executor, where in WHERE.items():
        assert {name for name, names in found.items() if executor in names} == where
