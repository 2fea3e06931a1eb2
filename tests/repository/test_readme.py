"""README is short, and its numbers are those of the rows; In Your Program's program runs (README's is a doctest)."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from collectives.autotune import choose
from collectives_book.scaling import experiment, targets
from places import ROOT

README = (ROOT / "README.md").read_text(encoding="utf8")
IN_YOUR_PROGRAM = (ROOT / "chapters" / "in-your-program.md").read_text(encoding="utf8")


@pytest.mark.integration
def test_the_program_for_torchrun(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(# average\.py\n.*?)```", IN_YOUR_PROGRAM, flags=re.DOTALL)
    (tmp_path / "average.py").write_text(program)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3", "average.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "3 ranks, average 1.0\n"


def test_the_ratios_are_those_of_the_rows() -> None:
    """The better of gloo and Horovod, Open MPI's own choice, and its best algorithm, each over `auto`."""
    prose = " ".join(README.split()).partition("these multiples of the time of `auto`")[2]
    parts = re.findall(r"with (\d+ \w+) ([^;]*)", prose.partition("([rows and missed goals]")[0])
    said = {size: re.findall(r"\d+\.\d+", text) for size, text in parts}
    stem = ROOT / "experiments/results/reference/slow-motion/scaling"
    rows, _ = experiment.results(stem)
    table = targets.ratios(rows).set_index("bytes")[["libraries", "mpi", "best_of_mpi"]]
    assert said == {
        size: [f"{times:.{1 if times >= 10 else 2}f}" for times in table.loc[nbytes]]
        for size, nbytes in {"4 bytes": 4, "4 MiB": 4 << 20, "16 MiB": 16 << 20}.items()
    }
    assert ("so that one is faster than `auto`" in prose) == (table.best_of_mpi[4] < 1)
    (on,) = (each for name, each in experiment.calibrated(stem).items() if name == rows["where"].iloc[0])
    then, now = targets.ratios(rows).chosen[0], choose("all_reduce", 32, 4, on=on).algorithm
    told = f"measured by {then.replace('_', ' ')}; today `auto` takes `{now}` there"
    assert (told in " ".join(README.split())) == (then != now)


def test_the_folders_it_names_exist() -> None:
    _, _, section = README.partition("\n## Where things are\n")
    folders = re.findall(r"^\| `([a-z/]+)` \|", section, flags=re.MULTILINE)
    assert folders
    assert [each for each in folders if not (ROOT / each).is_dir()] == []


def test_it_takes_two_minutes() -> None:
    assert len(README.splitlines()) <= 150
    linked = [each for each in re.findall(r"\]\(([\w./-]+\.\w+)\)", README) if not (ROOT / each).is_file()]
    assert linked == []
