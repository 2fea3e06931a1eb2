"""What imports what: only downwards, inside the folders too; torch only where it must be; the public names."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import collectives

SOURCE = Path(collectives.__file__).parent
# Each module, and what it may import of ours. A folder's entry holds for all of its files.
MAY_IMPORT = {
    "algorithms": {"limits", "schedule"},
    "api": {"backends"},
    "autotune": {"bounds", "machine"},
    "backends": {"algorithms", "autotune", "contracts", "interpret", "launch", "schedule"},
    "bench": {
        *(
            "algorithms",
            "autotune",
            "backends",
            "bounds",
            "launch",
            "limits",
            "machine",
            "schedule",
            "statistics",
            "units",
            "verify",
        )
    },
    "bounds": set(),
    "cli": {"algorithms", "emulator", "limits", "plain_yaml", "processes", "units", "verify"},
    "compiled": set(),
    "contracts": {"schedule"},
    "emulator": {"compiled", "processes", "units"},
    "errors": set(),
    "experiments": {
        *(
            "algorithms",
            "autotune",
            "backends",
            "bench",
            "bounds",
            "emulator",
            "errors",
            "figures",
            "launch",
            "machine",
            "plain_yaml",
            "simulator",
            "units",
        )
    },
    "figures": {"algorithms", "contracts", "grid", "interpret", "schedule", "statistics", "units"},
    "grid": {"schedule"},
    "interpret": {"schedule"},
    "launch": {"emulator", "processes"},
    "limits": set(),
    "machine": {"errors", "plain_yaml", "units"},
    "plain_yaml": set(),
    "processes": set(),
    "schedule": set(),
    "simulator": {"algorithms", "bounds", "compiled", "machine", "processes", "schedule", "units"},
    "statistics": set(),
    "traffic": {"schedule"},
    "units": {"errors"},
    "verify": {"contracts", "grid", "interpret", "schedule"},
}
# Inside the folders, in the same way: each module, and what it may import of its own folder. "__init__" is the folder's
# own file; a folder in a folder counts as one module there and has a table of its own.
INSIDE = {
    "algorithms": {
        "__init__": {"bruck", "direct", "from_file", "halving", "hierarchical", "ring", "tree"},
        "binary_tree": set(),
        "bruck": set(),
        "direct": set(),
        "from_file": set(),
        "halving": set(),
        "hierarchical": {"binary_tree", "ring", "tree"},
        "ring": set(),
        "tree": {"binary_tree", "ring"},
    },
    "backends": {
        "__init__": set(),
        "background": set(),
        "exchange": set(),
        "horovod": {"__init__", "exchange"},
        "mpi": {"__init__", "open_mpi"},
        "nccl": set(),
        "open_mpi": {"tuning"},
        "p2p": {"__init__", "exchange"},
        "presence": {"__init__", "nccl"},
        "torch_native": {"__init__"},
        "tuning": {"__init__"},
    },
    "backends.p2p": {
        "__init__": {"batches", "compile", "connection", "execute", "mesh", "program", "reduce", "signature"},
        "address": set(),
        "batches": {"connection", "program", "reduce"},
        "compile": {"program", "step_messages"},
        "connection": {"signature"},
        "execute": {"connection", "mesh", "program", "reduce", "signature"},
        "guests": set(),
        "mesh": {"address", "connection", "guests", "outgoing", "signature"},
        "outgoing": {"connection"},
        "program": set(),
        "reduce": set(),
        "signature": {"reduce"},
        "step_messages": {"program"},
    },
    "bench": {
        "__init__": set(),
        "calibration": {"environment", "parameters", "results"},
        "data": set(),
        "environment": set(),
        "gpu_cases": {"__init__", "data", "measure"},
        "gpu_check": {"__init__", "environment"},
        "measure": {"__init__", "data", "environment"},
        "parameters": set(),
        "ping_pong": set(),
        "results": set(),
        "straggling": {"__init__", "measure"},
        "sweep": {"__init__", "environment", "results", "table"},
        "table": {"__init__"},
    },
    "cli": {
        "__init__": set(),
        "ending": set(),
        "parser": set(),
        "proving": set(),
    },
    "emulator": {
        "__init__": {"hosts", "limits"},
        "check": {"__init__", "probe"},
        "command": {"__init__", "check", "limits"},
        "devices": {"events", "forwarding", "hosts", "network", "queues"},
        "events": {"network"},
        "fabric": {"devices", "forwarding", "hosts", "network"},
        "forwarding": {"events", "network", "queues"},
        "hosts": set(),
        "limits": set(),
        "network": set(),
        "probe": set(),
        "queues": {"network"},
    },
    "experiments": {
        "__init__": {"massive_scale", "scaling", "straggler"},
        "execute": {"__init__"},
        "massive_scale": set(),
        "scaling": set(),
        "straggler": set(),
    },
    "experiments.massive_scale": {
        "__init__": set(),
        "experiment": {"nccl"},
        "figures": {"published"},
        "nccl": set(),
        "published": set(),
    },
    "experiments.scaling": {
        "__init__": set(),
        "experiment": {"targets"},
        "figures": set(),
        "targets": set(),
    },
    "experiments.straggler": {
        "__init__": set(),
        "experiment": set(),
        "figures": set(),
    },
    "figures": {
        "__init__": set(),
        "layout": set(),
        "measured": {"statements", "style"},
        "panels": {"measured", "statements", "style"},
        "player": {"layout", "style"},
        "schedules": {"layout", "style"},
        "statements": set(),
        "style": set(),
    },
    "launch": {
        "__init__": set(),
        "address": set(),
        "channel": set(),
        "cluster": {"cluster_mpirun", "fork_server", "loopback", "mpirun"},
        "cluster_mpirun": {"fork_server", "loopback", "mpirun"},
        "command": {"channel", "tasks"},
        "fork_client": set(),
        "fork_server": {"fork_client", "rank"},
        "horovodrun": {"address", "command", "secret"},
        "hub": {"channel"},
        "loopback": {"address"},
        "mpirun": {"address", "command", "secret", "tasks"},
        "rank": {"address", "channel", "secret", "tasks"},
        "secret": set(),
        "slurm": {"address", "command", "secret"},
        "tasks": set(),
        "torchrun": {"address", "channel", "command", "hub", "secret"},
    },
    "processes": {
        "__init__": set(),
        "parent_death": set(),
        "supervise": set(),
        "workers": {"parent_death"},
    },
    "simulator": {
        "__init__": set(),
        "clocks": {"links", "ports"},
        "links": set(),
        "ports": {"links"},
        "regimes": {"scaling"},
        "repeats": {"clocks", "links", "steady_state"},
        "scaling": {"simulation"},
        "simulation": {"clocks", "links", "repeats"},
        "speed": {"scaling"},
        "steady_state": {"clocks", "links", "ports"},
        "trace": {"simulation"},
    },
}
PICTURES = {"": MAY_IMPORT, **INSIDE}
# Who has what imported or run by its name, which no import statement shows: what ranks run, what starts them, a back
# end's module. These arrows may point anywhere, but each is listed here.
BY_NAME = {
    "": {"api", "machine", "simulator.simulation"},
    "backends": {"backends.horovod", "backends.mpi", "backends.p2p", "backends.torch_native"},
    "bench": {"bench.measure"},
    "bench.calibration": {"bench.ping_pong"},
    "bench.gpu_check": {"bench.gpu_cases"},
    "emulator": {"emulator.fabric"},
    "experiments.straggler.experiment": {"bench.straggling"},
    "launch": {
        *(
            "launch.cluster",
            "launch.horovodrun",
            "launch.loopback",
            "launch.mpirun",
            "launch.slurm",
            "launch.torchrun",
        )
    },
    "launch.command": {"launch.rank"},
    "launch.fork_server": {"launch.fork_server"},
    "launch.loopback": {"launch.rank"},
    "launch.tasks": {"bench.gpu_cases", "bench.measure", "bench.ping_pong", "bench.straggling"},
    "launch.torchrun": {"launch.rank", "launch.torchrun"},
}
TORCH = {"backends", "work", "api", "bench", "launch"}
ALWAYS = {"numpy", "collectives"}


@cache
def modules(source: Path = SOURCE) -> dict[str, ast.Module]:
    """Every file: its name as in ``collectives.NAME``, where a folder's own file has the folder's."""
    found = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text(encoding="utf8"))
    return found


def unit(name: str, folder: str) -> str | None:
    """A module as its folder's table has it; None for a module of another folder."""
    if name == folder:
        return "__init__"
    if folder and not name.startswith(f"{folder}."):
        return None
    return name.removeprefix(f"{folder}." if folder else "").split(".")[0]


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are written from the root"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def named(tree: ast.AST) -> Iterator[str]:
    """The modules that a module's strings name, as ``python -m`` and `importlib` take them.

    Docstrings do not count, nor public names in messages, such as "collectives.Schedule".
    """
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            found = (full.rstrip(".") for full in re.findall(r"\bcollectives\.\w[\w.]*", node.value))
            yield from (full for full in found if full.removeprefix("collectives.") not in collectives.__all__)


def of_ours(full: str, known: set[str]) -> str | None:
    """The module that a dotted name lies in; None for a name that is not ours."""
    parts = full.split(".")
    if parts[0] != "collectives":
        return None
    return next(name for end in range(len(parts), 0, -1) if (name := ".".join(parts[1:end])) in known)


def arrows(source: Path, folder: str) -> set[tuple[str, str]]:
    """Which module of a folder imports which other one of it."""
    trees = modules(source)
    whole = {(name, of_ours(full, set(trees))) for name, tree in trees.items() for full in imported(tree)}
    both = {(unit(name, folder), unit(other, folder)) for name, other in whole if other is not None}
    return {(one, other) for one, other in both if one and other and one != other}


def named_arrows(source: Path) -> set[tuple[str, str]]:
    return {(name, full.removeprefix("collectives.")) for name, tree in modules(source).items() for full in named(tree)}


@pytest.mark.parametrize("folder", PICTURES)
def test_every_module_is_in_the_picture(folder: str) -> None:
    units = {unit(name, folder) for name in modules()} - {None}
    assert units == {*PICTURES[folder], *(() if folder else ("__init__", "__main__"))}


def test_no_name_of_a_folder_hides_a_module_of_it() -> None:
    """Importing a submodule binds its name in its folder, over a function of the same name that was there."""
    bound_later = {"grid", "verify", "mesh", "signature"}  # by the package itself, after the modules
    for folder in {path.parent for path in SOURCE.rglob("__init__.py")}:
        tree = ast.parse((folder / "__init__.py").read_text(encoding="utf8"))
        within = ".".join(folder.relative_to(SOURCE.parent).parts)
        modules_here = {path.stem for path in folder.glob("*.py")} | {
            path.parent.name for path in folder.glob("*/*.py")
        }
        names = {full.rpartition(".")[2] for full in imported(tree) if full.rpartition(".")[0] != within}
        names |= {each.name for each in tree.body if isinstance(each, ast.FunctionDef | ast.ClassDef)}
        assert names & modules_here <= bound_later, folder


def test_every_folder_has_a_picture() -> None:
    assert {name for name in modules() if (SOURCE / name.replace(".", "/")).is_dir()} == set(PICTURES)


@pytest.mark.parametrize("folder", PICTURES)
def test_imports_point_down(folder: str) -> None:
    may = {"": {"__init__": set(MAY_IMPORT), "__main__": set(MAY_IMPORT)}}.get(folder, {}) | PICTURES[folder]
    assert [f"{one} imports {other}" for one, other in arrows(SOURCE, folder) if other not in may[one]] == []


@pytest.mark.parametrize("folder", PICTURES)
def test_the_picture_has_no_circles(folder: str) -> None:
    below = {name: may - {name} for name, may in PICTURES[folder].items()}
    while below:
        free = {name for name, may in below.items() if not may & set(below)}
        assert free, f"a circle among {sorted(below)}"
        below = {name: may for name, may in below.items() if name not in free}


def test_who_is_started_by_name_exists_and_is_in_the_table() -> None:
    found = named_arrows(SOURCE)
    assert {other for _, other in found} <= set(modules())
    assert found == {(name, other) for name, others in BY_NAME.items() for other in others}


def test_an_arrow_that_points_up_is_seen(tmp_path: Path) -> None:
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "__init__.py").write_text("")
    (tmp_path / "room" / "low.py").write_text("def late():\n    from collectives.room import high")
    (tmp_path / "room" / "high.py").write_text(
        '"""As `python -m collectives.room.not_counted`."""\nRUN = ["-m", "collectives.room.low"]\n'
        'import collectives.room.low\nHELP = f"start {RUN} by -m collectives.rum"; A = "a collectives.Schedule."'
    )
    assert arrows(tmp_path, "room") == {("low", "high"), ("high", "low")}
    assert named_arrows(tmp_path) == {("room.high", "room.low"), ("room.high", "rum")}


@pytest.mark.parametrize(("name", "tree"), list(modules().items()))
def test_torch_stays_where_tensors_are(name: str, tree: ast.Module) -> None:
    roots = {full.split(".")[0] for full in imported(tree)}
    assert "torch" not in roots or unit(name, "") in TORCH
    if name == "schedule":
        assert roots <= {"__future__", "collections", "dataclasses", "functools", "numpy", "typing"}


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
    for name, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                length = (node.end_lineno or 0) - body[0].lineno + 1 if body else 0
                assert length <= 40, f"{name}.{node.name} has {length} lines"
                lengths.append(length)
    lengths.sort()
    assert lengths[len(lengths) // 2] <= 6
    assert lengths[len(lengths) * 9 // 10] <= 25


# What turns bytes into code. A peer's bytes may reach these only if it is authenticated, so nothing calls them at all.
EXECUTES = {"pickle", "cloudpickle", "marshal", "shelve", "eval", "exec", "all_gather_object", "gather_object"}
EXECUTES |= {"broadcast_object_list", "scatter_object_list", "send_object_list", "recv_object_list", "rpc"}
# A user's own schedule is a file on this machine.
RUNS_FILES = {"runpy": {"algorithms.from_file"}}


def used(tree: ast.AST) -> set[str]:
    """Every name that a module reads or imports, and every attribute that it asks for."""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return names | {part for full in imported(tree) for part in full.split(".")}


def test_nothing_executes_what_a_peer_sends() -> None:
    found = {name: used(tree) for name, tree in modules().items()}
    assert {name: names & EXECUTES for name, names in found.items() if names & EXECUTES} == {}
    for function, where in RUNS_FILES.items():
        assert {name for name, names in found.items() if function in names} == where


def test_what_executes_is_seen() -> None:
    assert used(ast.parse("import pickle as p\ndist.all_gather_object([], x)\neval(y)")) >= {
        *("pickle", "all_gather_object", "eval")
    }
