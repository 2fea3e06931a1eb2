"""The wheel in fresh environments, outside any checkout: with numpy alone, then with each extra.

pip installs the wheel with numpy; what an extra needs is linked from the environment of the tests, which has the lock's
versions. tests/repository/test_packaging.py has pip resolve them.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from places import ROOT

pytestmark = [pytest.mark.extended, pytest.mark.timeout(1800)]
LOCK = ROOT / "requirements.lock"
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "COLLECTIVES_TASKS"}}


def done(command: list[str | Path], folder: Path) -> subprocess.CompletedProcess[str]:
    command = [str(each) for each in command]
    return subprocess.run(
        command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=600, check=False
    )


def pip(*arguments: str | Path, folder: Path) -> str:
    ran = done([sys.executable, "-m", "pip", "--no-input", *arguments], folder)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return ran.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT, folder=folder)
    (built,) = folder.glob("*.whl")
    return built


def needed(by: Distribution, extra: str) -> Iterator[Distribution]:
    """What pip would install for an extra of a distribution: what that needs, and what these need."""
    todo, seen = [(by, extra)], set()
    while todo:
        one, asked = todo.pop()
        for requirement in map(Requirement, one.requires or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": asked}):
                found = by if requirement.name == by.name else distribution(requirement.name)
                new = {(found.name, each) for each in ("", *requirement.extras)} - seen
                todo += [(found, each) for _, each in new]
                seen |= new
        if one is not by:
            yield one


class Installed:
    """A fresh environment with the wheel, and of its extras what is asked for, and no other package."""

    def __init__(self, wheel: Path, extra: str, folder: Path) -> None:
        self.folder, self.bin = folder, folder / "venv" / "bin"
        assert done([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], folder).returncode == 0
        pip("--python", self.bin / "python", "install", "--no-compile", "-c", LOCK, wheel, folder=folder)
        (self.site,) = (folder / "venv" / "lib").glob("python*/site-packages")
        self.add(extra)

    def add(self, extra: str) -> None:
        (mine,) = distributions(name="collective-communication", path=[str(self.site)])
        for each in needed(mine, extra):
            for file in each.files or ():
                inside = file if file.parts[0] == ".." else Path(file.parts[0])  # a package as a whole
                link = Path(os.path.normpath(self.site / inside))
                if not link.exists():
                    link.parent.mkdir(parents=True, exist_ok=True)
                    link.symlink_to(Path(os.path.normpath(each.locate_file(inside))))

    def collectives(self, line: str, code: int = 0) -> str:
        """What the command prints; with another exit code than 0, what it says on standard error."""
        ran = done([self.bin / "collectives", *line.split()], self.folder)
        assert ran.returncode == code, ran.stderr[-2000:]
        return ran.stderr if code else ran.stdout

    def rows(self, line: str) -> list[dict[str, object]]:
        return [json.loads(each) for each in self.collectives(f"{line} --json").splitlines()]

    def python(self, code: str) -> str:
        ran = done([self.bin / "python", "-c", code], self.folder)
        assert ran.returncode == 0, ran.stderr[-2000:]
        return ran.stdout.strip()


def test_numpy_alone(wheel: Path, tmp_path: Path) -> None:
    here = Installed(wheel, "", tmp_path)
    distributions = "from importlib import metadata; print(*sorted(d.name for d in metadata.distributions()))"
    assert here.python(distributions) == "collective-communication numpy"
    assert here.python("import collectives; print(collectives.__file__)").startswith(str(tmp_path))
    known = int(here.python("import collectives; print(len(collectives.ALGORITHMS))"))
    assert len(here.rows("list")) == known
    assert "counted" in here.collectives("verify all_reduce ring -p 5")
    assert "+0<4" in here.collectives("show all_reduce ring -p 5")
    assert here.python("from collectives.schemas import schema; print(schema('rows')['title'])") == "Rows"
    assert "not installed" in here.collectives("simulate all_reduce ring", code=2)
    asked = "synthesize all_gather --machine dgx1 --steps 2"
    install = "which is not installed: pip install 'collective-communication"
    assert f"synthesize needs yaml, {install}[synthesis]'" in here.collectives(asked, code=2)
    assert f"bench needs pydantic, {install}[run]'" in here.collectives("bench", code=2)
    assert here.collectives("--version").startswith("collective-communication ")
    assert "<algo" in here.collectives("export all_reduce ring -p 4 --to msccl")


LINKED = ("a100", "dgx1", "dgx2", "mi250", "ndv2")


def test_simulate(wheel: Path, tmp_path: Path) -> None:
    here = Installed(wheel, "simulate", tmp_path)
    read = "from collectives.machine import machine, presets; print(*(machine(each).name for each in presets()))"
    assert {*LINKED} < {*here.python(read).split()}
    # a machine whose links are known one by one has a fixed number of ranks: those of a node
    for on in (LINKED[0], "summit -p 24"):
        assert here.rows(f"simulate all_reduce tree --bytes 8 --machine {on}")[0]["machine"] == on.split()[0]
    assert len(here.rows("verify --all --max-ranks 2")) == len(here.rows("list"))
    assert here.rows("bound all_gather --machine dgx-h100")[0]["ranks"] == 8
    here.collectives("export all_reduce ring -p 4 --to goal --bytes 4K --output ring.goal")
    assert (tmp_path / "ring.goal").read_text().startswith("num_ranks 4")
    assert "allreduce,64,64" in here.collectives("export all_reduce --to nccl-tuner --nodes 2 --bytes 64")


def test_synthesis(wheel: Path, tmp_path: Path) -> None:
    here = Installed(wheel, "synthesis", tmp_path)
    assert [row["verdict"] for row in here.rows("synthesize all_gather --machine dgx1 --steps 2")] == ["satisfiable"]


def test_cluster(wheel: Path, tmp_path: Path) -> None:
    here = Installed(wheel, "cluster", tmp_path)
    reason = here.python("from collectives.emulator import allowed; print(allowed() or '')")
    if reason:
        pytest.skip(reason)
    assert sorted(here.collectives("cluster --hosts 2 -- hostname").split()) == ["host0", "host1"]


def test_run_experiments_course_and_backends(wheel: Path, tmp_path: Path) -> None:
    """Each adds to the one before, which it names: torch is installed once."""
    here = Installed(wheel, "run", tmp_path)
    bench = "bench --ranks 3 --bytes 64 --repetitions 2 --backend"
    assert [row["wrong"] for row in here.rows(f"{bench} p2p gloo")] == [0, 0]
    assert "network: {" in here.collectives("calibrate --repetitions 2")
    assert "mpi is absent" in here.collectives(f"{bench} mpi", code=1)
    assert here.rows("error all_reduce ring -p 4")[0]["ranks"] == 4

    here.add("experiments")
    here.collectives("show broadcast two_tree -p 5 --svg picture")
    assert len(list(tmp_path.glob("picture-*.svg"))) == 4
    here.python("from collectives.figures.player import write_scripts; write_scripts('player')")
    assert len(list((tmp_path / "player").glob("*.js"))) == 8
    shutil.copy(ROOT / "experiments" / "all-reduce-sweep.ipynb", tmp_path)
    shutil.copytree(ROOT / "experiments" / "presets", tmp_path / "presets")
    here.collectives("run all-reduce-sweep.ipynb -p ranks=2 -p sizes=[4,64] -p repetitions=3 --output small")
    assert (tmp_path / "results" / "small" / "all-reduce-sweep.parquet").exists()

    here.add("course")
    ring = ROOT / "assignments" / "ring"
    here.collectives(f"handout {ring} --output starter")
    assert "def " in (tmp_path / "starter" / "ring.py").read_text()
    shutil.copytree(ring / "reference", tmp_path / "mine")
    (graded,) = here.rows(f"grade {ring} mine --unsafe")
    assert graded["points"] == graded["of"] == 100

    here.add("backends")
    assert [row["backend"] for row in here.rows(f"{bench} mpi")] == ["mpi"]
