"""What imports what: only downwards, torch only where it must be, and the public names as promised."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import collectives

SOURCE = Path(collectives.__file__).parent
FIGURES = {"style"}
# Each module, and what it may import of ours. A folder's entry holds for all of its files.
MAY_IMPORT = {
    "schedule": set(),
    "units": set(),
    "errors": set(),
    "bounds": set(),
    "results": set(),
    "environment": set(),
    "style": set(),
    "limits": set(),
    "contracts": {"schedule"},
    "algorithms": {"schedule", "limits", "algorithms"},
    "grid": {"schedule"},
    "interpret": {"schedule"},
    "traffic": {"schedule"},
    "layout": {"schedule"},
    "verify": {"schedule", "contracts", "grid", "interpret"},
    "draw": {"schedule", "contracts", "algorithms", "interpret", "layout", *FIGURES},
    "player": {"schedule", "contracts", "algorithms", "grid", "layout", *FIGURES},
    "plot": {"bounds", "units", *FIGURES},
    "machine": {"units", "errors"},
    "clocks": {"schedule"},
    "simulation": {"schedule", "machine", "clocks"},
    "published": set(),
    "nccl": set(),
    "regimes": {"machine", "scaling"},
    "plot_scale": {"plot", "published", "units", *FIGURES},
    "trace": {"schedule", "machine", "simulation"},
    "workers": {"launch"},
    "scaling": {"schedule", "algorithms", "bounds", "machine", "simulation", "units", "workers"},
    "simulator_benchmark": {"machine", "scaling", "workers"},
    "calibration": {"environment", "launch", "machine", "results", "units"},
    "panels": {"plot", "units", *FIGURES},
    "launch": {"units", "launch"},
    "backends": {"schedule", "contracts", "algorithms", "interpret", "bounds", "machine", "launch", "backends"},
    "work": set(),
    "api": {"backends", "work"},
    "bench": {
        *("schedule", "limits", "algorithms", "verify", "bounds", "units", "machine", "environment"),
        *("backends", "launch", "bench"),
    },
    "simulated": {
        *("units", "errors", "results", "environment", "algorithms"),
        *("machine", "scaling", "regimes", "nccl", "simulator_benchmark"),
    },
    "sweep": {"environment", "results", "bench", "launch"},
    "slow_motion": {
        *("algorithms", "units", "machine", "simulation", "calibration", "results", "bench", "sweep"),
        *("backends", "launch", "targets"),
    },
    "targets": {"plot"},
    "plot_slow_motion": {"plot", "units", *FIGURES},
    "straggler": {
        *("schedule", "algorithms", "bench", "environment", "launch", "machine", "results", "simulation", "units"),
    },
    "plot_straggler": {"bounds", "machine", "plot", "units", *FIGURES},
    "experiments": {
        *("backends", "units", "errors", "bench", "sweep", "simulated"),
        *("calibration", "slow_motion", "straggler"),
    },
    "execute": {"errors", "results", "environment", "experiments"},
    "cli": {"algorithms", "launch", "limits", "units", "verify", "workers", "cli"},
}
TORCH = {"backends", "work", "api", "bench", "launch"}
ALWAYS = {"numpy", "collectives"}


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield path.relative_to(SOURCE).parts[0].removesuffix(".py"), ast.parse(path.read_text(encoding="utf8"))


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_every_module_is_in_the_picture() -> None:
    assert {name for name, _ in modules()} == {*MAY_IMPORT, "__init__", "__main__"}


@pytest.mark.parametrize(("name", "tree"), [pair for pair in modules() if pair[0] in MAY_IMPORT])
def test_imports_point_down(name: str, tree: ast.Module) -> None:
    ours = {full.split(".")[1] for full in imported(tree) if full.startswith("collectives.")}
    assert ours <= MAY_IMPORT[name], f"{name} imports {sorted(ours - MAY_IMPORT[name])}"


def test_the_picture_has_no_circles() -> None:
    below = {name: may - {name} for name, may in MAY_IMPORT.items()}
    while below:
        free = {name for name, may in below.items() if not may & set(below)}
        assert free, f"a circle among {sorted(below)}"
        below = {name: may for name, may in below.items() if name not in free}


@pytest.mark.parametrize(("name", "tree"), list(modules()))
def test_torch_stays_where_tensors_are(name: str, tree: ast.Module) -> None:
    roots = {full.split(".")[0] for full in imported(tree)}
    assert "torch" not in roots or name in TORCH
    if name == "schedule":
        assert roots <= {"__future__", "collections", "dataclasses", "numpy"}


def test_importing_the_package_needs_numpy_alone() -> None:
    code = "import sys, collectives; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    plain = subprocess.run(
        [sys.executable, "-c", "import sys, numpy; print(*sorted({name.split('.')[0] for name in sys.modules}))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    foreign = set(found) - set(plain) - set(sys.stdlib_module_names) - ALWAYS
    assert foreign == set()


def test_public_names() -> None:
    assert collectives.__all__ == sorted(collectives.__all__)
    assert set(collectives.__all__) == {
        *("ALGORITHMS", "Machine", "Schedule", "ScheduleError", "Step", "grid", "simulate", "verify"),
        *("broadcast", "scatter", "gather", "reduce", "all_reduce"),
        *("all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor"),
        *("all_to_all", "all_to_all_single"),
    }
    assert all(callable(getattr(collectives, name)) for name in collectives.__all__ if name != "ALGORITHMS")
    with pytest.raises(AttributeError, match="no attribute 'all_reduced'"):
        collectives.all_reduced  # noqa: B018, the access is what is tested


def test_functions_stay_short() -> None:
    """The bar: no body over 40 lines, and nine of ten within 25."""
    lengths = []
    for name, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                length = (node.end_lineno or 0) - body[0].lineno + 1 if body else 0
                assert length <= 40, f"{name}.{node.name} has {length} lines"
                lengths.append(length)
    lengths.sort()
    assert lengths[len(lengths) // 2] <= 6
    assert lengths[len(lengths) * 9 // 10] <= 25
