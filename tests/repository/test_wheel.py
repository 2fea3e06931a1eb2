"""The wheel in a fresh environment, outside any checkout: with numpy alone, then with each extra alone.

pip installs the wheel with numpy; what an extra needs is linked from the environment of the tests,
which has the lock's versions. tests/repository/test_packaging.py has pip resolve them.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from collectives.emulator import allowed
from places import ROOT

pytestmark = [pytest.mark.extended, pytest.mark.timeout(1800)]
ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if name not in {"PYTHONPATH", "COLLECTIVES_TASKS"}
}
RING = ROOT / "assignments" / "ring"
BENCH = "bench all_reduce -p 3 --bytes 64 --repetitions 2 --backend"
RUN = "run all-reduce-sweep.ipynb -p ranks=2 -p sizes=[4,64] -p repetitions=3 --output small"
# Of each extra the commands that need it, and what they print.
COMMANDS = {
    "simulate": {
        # Its links are known one by one.
        "simulate all_reduce tree --bytes 8 --machine a100": "tree",
        "simulate all_reduce tree --bytes 8 --machine summit -p 24": "tree",
        "verify --all --max-ranks 2": "two_tree",
        "bound all_gather --machine dgx-h100": "dgx-h100",
        "export all_reduce ring -p 4 --to goal --bytes 4K": "num_ranks 4",
        "export all_reduce --to nccl-tuner --nodes 2 --bytes 64": "allreduce,64,64",
    },
    "synthesis": {"synthesize all_gather --machine dgx1 --steps 2": "step | rank 0"},
    "cluster": {"cluster --hosts 2 -- hostname": "host1"},
    "run": {
        f"{BENCH} p2p gloo": "gloo",
        "calibrate --repetitions 2": "network: {",
        "error all_reduce ring --codec mxint8": "-",
    },
    "pages": {"show broadcast two_tree -p 5 --svg picture": ""},
    "experiments": {RUN: ""},
    "course": {
        f"handout {RING} --output starter": "",
        f"grade {RING} {RING}/reference --unsafe": "100 / 100",
    },
    "backends": {f"{BENCH} mpi": "mpi"},
}


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

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin = folder, folder / "venv" / "bin"
        self.run(sys.executable, "-m", "venv", "--without-pip", folder / "venv")
        pip = (sys.executable, "-m", "pip", "--no-input")
        self.run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT)
        versions = re.findall(
            r"^\w.*==[^\\\n]+",
            (ROOT / "requirements.lock").read_text(encoding="utf8"),
            re.MULTILINE,
        )
        (folder / "versions.txt").write_text("\n".join(versions))  # the wheel itself has no hash
        constraint = ("--no-compile", "-c", folder / "versions.txt")
        self.run(
            *pip, "--python", self.bin / "python", "install", *constraint, *folder.glob("*.whl")
        )
        (self.site,) = (folder / "venv" / "lib").glob("python*/site-packages")
        shutil.copy(ROOT / "experiments" / "all-reduce-sweep.ipynb", folder)
        shutil.copytree(ROOT / "experiments" / "presets", folder / "presets")
        self.links: list[Path] = []

    def only(self, extra: str) -> None:
        """Link what an extra needs, and nothing of the one before."""
        while self.links:
            self.links.pop().unlink()
        (mine,) = distributions(name="collective-communication", path=[str(self.site)])
        for each in needed(mine, extra):
            for file in each.files or ():
                # A package as a whole.
                inside = file if file.parts[0] == ".." else Path(file.parts[0])
                link = Path(os.path.normpath(self.site / inside))
                if not link.exists():
                    link.parent.mkdir(parents=True, exist_ok=True)
                    link.symlink_to(Path(os.path.normpath(each.locate_file(inside))))
                    self.links.append(link)

    def run(self, *command: str | Path, code: int = 0) -> str:
        """What the command prints.

        With another exit code than 0, what it says on standard error.
        """
        done = subprocess.run(
            command, cwd=self.folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == code, done.stderr[-2000:]
        return done.stderr if code else done.stdout

    def collectives(self, line: str, code: int = 0) -> str:
        return self.run(self.bin / "collectives", *line.split(), code=code)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("installed"))


def test_numpy_alone(here: Installed) -> None:
    here.only("")
    found = here.run(
        here.bin / "python",
        "-c",
        "from importlib import metadata; import collectives\n"
        "print(*sorted(each.name for each in metadata.distributions()), collectives.__file__)\n"
        "from collectives.schemas import schema; print(schema('rows')['title'])",
    )
    assert found.startswith(f"collective-communication numpy {here.folder}")
    assert found.endswith("Rows\n")
    assert "two_tree" in here.collectives("list")
    assert "counted" in here.collectives("verify all_reduce ring -p 5")
    assert "two_tree" in here.collectives("error all_reduce -p 5")
    assert "+0<4" in here.collectives("show all_reduce ring -p 5")
    assert "<algo" in here.collectives("export all_reduce ring -p 4 --to msccl")
    (here.folder / "job.log").write_text("n1:7:7 [0] NCCL INFO comm 0x1 rank 0 nranks 2\n")
    assert "1 of them NCCL's" in here.collectives("read job.log --html page.html")
    assert here.collectives("--version").startswith("collective-communication ")
    assert "not installed" in here.collectives("simulate all_reduce ring", code=2)
    install = "which is not installed: pip install 'collective-communication"
    asked = "synthesize all_gather --machine dgx1 --steps 2"
    assert f"synthesize needs yaml, {install}[synthesis]'" in here.collectives(asked, code=2)
    assert f"bench needs psutil, {install}[run]'" in here.collectives("bench", code=2)


@pytest.mark.parametrize("extra", COMMANDS)
def test_an_extra_is_all_that_its_commands_need(here: Installed, extra: str) -> None:
    if extra == "cluster" and (reason := allowed()):
        pytest.skip(f"no emulated hosts: {reason}")
    here.only(extra)
    for command, printed in COMMANDS[extra].items():
        assert printed in here.collectives(command), command
