"""Additions in a copy of the repository, each as CONTRIBUTING.md says: which files it touches, and that it runs."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

from collectives.bench import results
from places import ROOT

pytestmark = pytest.mark.timeout(600)
PACKAGE = Path("src/collectives")

ALGORITHM = '''

def mirrored(p: int) -> Schedule:
    """Ring all-reduce in the other direction: rank p - 1 - r does what rank r does in `all_reduce`."""
    forward = all_reduce(p)

    def step(t: int) -> Step:
        rows = forward.step(t)
        return Step(p - 1 - rows.src, p - 1 - rows.dst, rows.chunk, rows.count, rows.add)

    return Schedule("all_reduce", p, forward.k, forward.nsteps, step)
'''
MACHINE = """\
name: two-rooms
source: made up for a test
ranks_per_node: 2
inside: {latency: 1us, rate: 100GB/s}
network: {latency: 5us, overhead: 500ns, rate: 25GB/s}
"""
BACKEND = '''"""Sums by gathering all contributions, on every rank."""

import torch
from torch import distributed as dist

from collectives.backends import Call


def perform(call: Call) -> None:
    """All-reduce of sums."""
    given = call.given()
    parts = [torch.empty_like(given) for _ in range(dist.get_world_size(call.group))]
    dist.all_gather(parts, given, group=call.group)
    call.wanted().copy_(torch.stack(parts).sum(dim=0))
'''
EXPERIMENT = '''"""How long a ring takes, by the number of ranks."""

from collectives.bench.environment import record
from collectives.bench.parameters import Parameters, Ranks
from collectives.bench.results import write
from collectives.machine import machine
from collectives.simulator.scaling import Case, row


class Rings(Parameters):
    """The parameters of ``rings``."""

    ranks: list[Ranks]
    output: str


def measure(rings: Rings) -> None:
    """Simulate, and write rows and record under ``rings.output``."""
    rows = [row(Case("all_reduce", "ring", p, 8, machine("textbook"))) for p in rings.ranks]
    write(rings.output, rows, {"parameters": rings.model_dump(), "environment": [record()]})
'''
PARAMETERS = 'ranks = [2]\noutput = "results/mine/rings"'
CELLS = """\
from collectives.experiments import checked
from collectives.experiments.rings.experiment import Rings, measure

measure(checked(Rings, globals()))
"""


class Copy:
    """The repository's sources in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ignored = shutil.ignore_patterns("__pycache__", "results", ".ipynb_checkpoints")
        for name in ("src", "experiments"):
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        self.before = self.files()

    def files(self) -> dict[str, bytes]:
        found = (path for path in self.folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        return {path.relative_to(self.folder).as_posix(): path.read_bytes() for path in found}

    def touched(self) -> dict[str, int]:
        """Files that are new or changed, and how many lines each has got."""
        now = self.files()
        assert set(self.before) <= set(now)
        old = {name: self.before.get(name, b"").count(b"\n") for name in now}
        return {name: now[name].count(b"\n") - old[name] for name in now if now[name] != self.before.get(name)}

    def append(self, name: Path, text: str) -> None:
        with (self.folder / name).open("a", encoding="utf8") as file:
            file.write(text)

    def insert(self, name: Path, after: str, line: str) -> None:
        """A line after the first one that begins like this."""
        lines = (self.folder / name).read_text(encoding="utf8").splitlines(keepends=True)
        nth = next(nth for nth, each in enumerate(lines) if each.startswith(after))
        (self.folder / name).write_text("".join([*lines[: nth + 1], f"{line}\n", *lines[nth + 1 :]]), encoding="utf8")

    def collectives(self, line: str) -> str:
        found = os.environ | {"PYTHONPATH": str(self.folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "collectives", *line.split()]
        done = subprocess.run(
            command, cwd=self.folder, env=found, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def rows(self, line: str) -> list[dict[str, Any]]:
        return [json.loads(each) for each in self.collectives(f"{line} --json").splitlines()]


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path)


def test_an_algorithm_is_a_function_and_an_entry(copy: Copy) -> None:
    table = PACKAGE / "algorithms" / "__init__.py"
    copy.append(PACKAGE / "algorithms" / "ring.py", ALGORITHM)
    copy.insert(table, '    ("all_reduce", "ring")', '    ("all_reduce", "mirrored"): ring.mirrored,')
    assert copy.touched() == {
        "src/collectives/algorithms/ring.py": ALGORITHM.count("\n"),
        "src/collectives/algorithms/__init__.py": 1,
    }
    proved = [row["algorithm"] for row in copy.rows("verify --all --max-ranks 4")]
    assert "mirrored" in proved
    assert "+0<1" in copy.collectives("show all_reduce mirrored -p 4")
    assert "mirrored" in [row["algorithm"] for row in copy.rows("list -p 4")]
    there, back = (copy.rows(f"simulate all_reduce {name} -p 6 --bytes 64K")[0] for name in ("ring", "mirrored"))
    assert there["seconds"] == back["seconds"]
    rows = copy.rows("bench --algorithm mirrored auto --machine textbook --ranks 3 --bytes 64 --repetitions 2")
    assert [row["wrong"] for row in rows] == [0, 0]
    assert rows[0]["algorithm"] == "mirrored"


def test_a_machine_is_a_file(copy: Copy) -> None:
    copy.append(PACKAGE / "machines" / "two-rooms.yaml", MACHINE)
    assert copy.touched() == {"src/collectives/machines/two-rooms.yaml": 5}
    (row,) = copy.rows("simulate all_reduce ring -p 4 --machine two-rooms --bytes 8")
    assert row["machine"] == "two-rooms"
    (row,) = copy.rows("bench --algorithm auto --machine two-rooms --ranks 2 --bytes 64 --repetitions 2")
    assert row["bound_us"] > 0


def test_a_back_end_is_a_module_and_an_entry(copy: Copy) -> None:
    """Its transport is one that `presence` knows; a new transport is a function there."""
    copy.append(PACKAGE / "backends" / "gathered.py", BACKEND)
    entry = '    "gathered": Entry("collectives.backends.gathered", "gloo", lacks=("avg", "prod", "max", "min")),'
    copy.insert(PACKAGE / "backends" / "__init__.py", '    "gloo": ', entry)
    assert copy.touched() == {
        "src/collectives/backends/gathered.py": BACKEND.count("\n"),
        "src/collectives/backends/__init__.py": 1,
    }
    (found,) = (row for row in copy.rows("backends") if row["backend"] == "gathered")
    assert found["absent"] is None
    rows = copy.rows("bench --backend gathered gloo --ranks 3 --bytes 64 --repetitions 2")
    assert [(row["backend"], row["wrong"]) for row in rows] == [("gathered", 0), ("gloo", 0)]


def test_an_experiment_is_a_folder_a_notebook_and_an_entry(copy: Copy) -> None:
    table, presets = PACKAGE / "experiments" / "__init__.py", Path("experiments/presets/quick.yaml")
    (copy.folder / PACKAGE / "experiments" / "rings").mkdir()
    copy.append(PACKAGE / "experiments" / "rings" / "__init__.py", '"""How long a ring takes."""\n')
    copy.append(PACKAGE / "experiments" / "rings" / "experiment.py", EXPERIMENT)
    copy.insert(table, "EXPERIMENTS: ", '    "rings": Rings,')
    copy.insert(
        table, "from collectives.experiments.massive", "from collectives.experiments.rings.experiment import Rings"
    )
    copy.append(presets, "\nrings:\n  ranks: [2, 3]\n")
    parameters, cell = (nbformat.v4.new_code_cell(text) for text in (PARAMETERS, CELLS))
    parameters.metadata.tags = ["parameters"]
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    nbformat.write(
        nbformat.v4.new_notebook(cells=[parameters, cell], metadata=kernel), copy.folder / "experiments" / "rings.ipynb"
    )
    assert set(copy.touched()) == {
        "experiments/presets/quick.yaml",
        "experiments/rings.ipynb",
        "src/collectives/experiments/__init__.py",
        "src/collectives/experiments/rings/__init__.py",
        "src/collectives/experiments/rings/experiment.py",
    }
    assert copy.touched()["src/collectives/experiments/__init__.py"] == 2
    copy.collectives("run experiments/rings.ipynb --preset quick")
    rows, record = results.read(copy.folder / "experiments" / "results" / "quick" / "rings")
    assert rows.ranks.tolist() == [2, 3]
    assert record["parameters"]["ranks"] == [2, 3]
