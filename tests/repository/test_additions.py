"""Additions in a copy of the repository, each as CONTRIBUTING.md says, run."""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

from collectives.bench import results
from command import finished
from places import ROOT

pytestmark = [pytest.mark.extended, pytest.mark.timeout(600)]
PACKAGE = Path("src/collectives")
BOOK = Path("src/collectives_book")
COPIED = ("src", "experiments")

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

from collectives.algorithms import Mark
from collectives.backends import Backend
from collectives.engine.call import Call, Performed


class Gathered(Backend):
    """All-reduce of sums."""

    collectives = ("all_reduce",)
    dtypes = ("float32",)
    ops = ("sum",)
    packages = ("torch",)
    title = "gather and add"
    mark = Mark("#663399", "s")

    def version(self) -> str:
        """Torch's version."""
        import torch

        return f"torch {torch.__version__}"

    def devices(self) -> str:
        """The CPU."""
        return "CPU"

    def perform(self, call: Call) -> Performed:
        """Add up what all ranks have."""
        import torch
        from torch import distributed as dist

        given = call.flat_input()
        parts = [torch.empty_like(given) for _ in range(dist.get_world_size(call.group))]
        dist.all_gather(parts, given, group=call.group)
        call.flat_output().copy_(torch.stack(parts).sum(dim=0))
        return Performed(call.algorithm)


GATHERED = Gathered("gathered")
'''
EXPERIMENT = '''"""How long a ring takes, by the number of ranks."""

from collectives_book.experiment import Experiment, Latency, Ranks, Some
from collectives.machine import Link, Machine
from collectives.simulator.scaling import Case, row


class RingTimes(Experiment):
    """Numbers of ranks, and the latency of their links."""

    ranks: Some[Ranks]
    latency: Latency

    def wanted(self):
        """Return the numbers of ranks."""
        return self.ranks

    def measure(self, left, keep):
        """Simulate a ring on each of them."""
        on = Machine(name="made up", network=Link(latency=self.latency, rate=25e9))
        for p in left:
            keep({"rows": [row(Case("all_reduce", "ring", p, 8, on))]})
'''
CELLS = (
    'ranks = [2]\nlatency = "1us"\noutput = "results/mine/ring-times"',
    "from collectives_book.ring_times import RingTimes\n\nRingTimes.of(globals()).run()",
)


class Copy:
    """The repository's sources in a folder of their own, with what numba has compiled of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in COPIED:
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("results"))

    def append(self, name: Path, text: str) -> None:
        with (self.folder / name).open("a", encoding="utf8") as file:
            file.write(text)

    def insert(self, name: Path, after: str, line: str) -> None:
        """Write a line after the first one that begins like this."""
        lines = (self.folder / name).read_text(encoding="utf8").splitlines(keepends=True)
        nth = next(nth for nth, each in enumerate(lines) if each.startswith(after))
        (self.folder / name).write_text(
            "".join([*lines[: nth + 1], f"{line}\n", *lines[nth + 1 :]]), encoding="utf8"
        )

    def collectives(self, line: str, code: int = 0) -> str:
        """What the command prints.

        With another exit code than 0, what it says on standard error.
        """
        found = os.environ | {"PYTHONPATH": str(self.folder / "src")}
        command = [sys.executable, "-m", "collectives", *line.split()]
        done = finished(command, cwd=self.folder, env=found)
        assert done.returncode == code, done.stderr
        return done.stderr if code else done.stdout

    def rows(self, line: str) -> list[dict[str, Any]]:
        return [json.loads(each) for each in self.collectives(f"{line} --json").splitlines()]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    return Copy(tmp_path_factory.mktemp("copy"))


def test_an_algorithm_is_a_function_and_an_entry_and_a_machine_is_a_file(copy: Copy) -> None:
    copy.append(PACKAGE / "algorithms" / "ring.py", ALGORITHM)
    entry = '    ("all_reduce", "mirrored"): Algorithm(ring.mirrored),'
    copy.insert(
        PACKAGE / "algorithms" / "__init__.py", "        hierarchical.hierarchical_tree", entry
    )
    copy.append(PACKAGE / "machines" / "two-rooms.yaml", MACHINE)
    assert "mirrored" in [row["algorithm"] for row in copy.rows("list -p 4")]
    assert "+0<1" in copy.collectives("show all_reduce mirrored -p 4")
    assert "counted" in copy.collectives("verify all_reduce mirrored -p 5")
    simulate = "simulate all_reduce {} -p 6 --bytes 64K --machine two-rooms"
    there, back = (copy.rows(simulate.format(name))[0] for name in ("ring", "mirrored"))
    assert (there["machine"], there["seconds"]) == ("two-rooms", back["seconds"])
    (row,) = copy.rows("bench all_reduce mirrored -p 3 --bytes 64 --repetitions 2")
    assert (row["algorithm"], row["wrong"]) == ("mirrored", 0)


def test_a_back_end_is_a_file_and_an_entry(copy: Copy) -> None:
    copy.append(PACKAGE / "backends" / "gathered.py", BACKEND)
    entry = '    "gathered": "collectives.backends.gathered:GATHERED",'
    copy.insert(PACKAGE / "backends" / "__init__.py", '    "gloo": ', entry)
    (found,) = (row for row in copy.rows("backends") if row["backend"] == "gathered")
    assert found["absent"] is None
    rows = copy.rows("bench all_reduce --backend gathered gloo -p 3 --bytes 64 --repetitions 2")
    assert [(row["backend"], row["wrong"]) for row in rows] == [("gathered", 0), ("gloo", 0)]
    refused = copy.collectives(
        "bench all_reduce --backend gathered -p 3 --bytes 64 --op max", code=2
    )
    assert "gathered has no 'max'" in refused
    refused = copy.collectives(
        "bench --backend gathered --collective gather --ranks 3 --bytes 64", code=2
    )
    assert "gathered has no 'gather'" in refused


def test_an_experiment_is_a_class_a_notebook_and_two_entries(copy: Copy) -> None:
    copy.append(BOOK / "ring_times.py", EXPERIMENT)
    entry = '    "ring-times": "collectives_book.ring_times:RingTimes",'
    copy.insert(BOOK / "__init__.py", "EXPERIMENTS", entry)
    copy.append(
        Path("experiments/presets/quick.yaml"), "\nring-times:\n  ranks: [2, 3]\n  latency: 5us\n"
    )
    cells = [nbformat.v4.new_code_cell(text) for text in CELLS]
    cells[0].metadata.tags = ["parameters"]
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    made = nbformat.v4.new_notebook(cells=cells, metadata=kernel)
    nbformat.write(made, copy.folder / "experiments" / "ring-times.ipynb")
    refused = copy.collectives(
        "run experiments/ring-times.ipynb --preset quick -p latency=5", code=2
    )
    assert "latency: expected a number with its unit, such as 5us, got 5" in refused
    copy.collectives("run experiments/ring-times.ipynb --preset quick")
    rows, record = results.read(copy.folder / "experiments" / "results" / "quick" / "ring-times")
    assert rows.ranks.tolist() == [2, 3]
    assert record["settings"][0]["latency"] == 5e-6
