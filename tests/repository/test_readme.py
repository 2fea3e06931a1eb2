"""README's commands can be typed, its numbers are those of the rows.

In Your Program's program runs.
"""

import re
import shlex
import sys
from pathlib import Path

import pytest

from collectives.bench.results import read
from collectives.cli import parser, verbs
from collectives_book.rivals import table
from command import finished
from places import ROOT

README = (ROOT / "README.md").read_text(encoding="utf8")
IN_YOUR_PROGRAM = (ROOT / "chapters" / "in-your-program.md").read_text(encoding="utf8")


@pytest.mark.integration
def test_the_program_for_torchrun(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(# average\.py\n.*?)```", IN_YOUR_PROGRAM, flags=re.DOTALL)
    (tmp_path / "average.py").write_text(program)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "3",
        "average.py",
    ]
    done = finished(command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "3 ranks, average 1.0\n"


def test_its_commands_and_files_are_there() -> None:
    commands = re.findall(r"^    (collectives [^#\n]*)", README, flags=re.MULTILINE)
    assert len(commands) >= 10
    for command in commands:
        parser(verbs()).parse_args(shlex.split(command)[1:])
    targets = re.findall(
        r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf8"), flags=re.MULTILINE
    )
    assert set(re.findall(r"^    make (\S+)", README, flags=re.MULTILINE)) <= set(targets)
    named = [
        *re.findall(r"^\| `([a-z_]+/(?:[a-z_]+/)?)` \|", README, flags=re.MULTILINE),
        *re.findall(r"\]\(([\w./-]+\.\w+)\)", README),
    ]
    assert [each for each in named if not (ROOT / each).exists()] == []


def test_the_place_on_one_machine_is_that_of_the_rows() -> None:
    cells = table(read(ROOT / "experiments/results/reference/one-machine/rivals")[0])
    is_large = cells["size"].isin(["1 MiB", "16 MiB"])
    large = cells[is_large]
    first, large_first = sum(cells.place == 1), sum(large.place == 1)
    places = f"in {first} of {len(cells)} cells"
    places_of_large = f"in {large_first} of {len(large)} from 1 MiB on"
    most = 1 / cells.ratio.min()
    text = " ".join(README.split())
    assert f"{places}, and {places_of_large}" in text
    assert f"up to {most:.1f} times as fast" in text


def test_the_ratios_are_those_of_the_rows() -> None:
    """The better of gloo and Horovod, Open MPI's own choice, and its best algorithm, each over `auto`."""
    rows, _ = read(ROOT / "experiments/results/reference/slow-motion/scaling")
    rows = rows[(rows.ranks == 32) & (rows["where"] == rows["where"].iloc[0]) & rows.error.isna()]
    for nbytes, size in {4: "4 B", 4 << 20: "4 MiB", 16 << 20: "16 MiB"}.items():
        here = rows[rows.bytes == nbytes]
        libraries, mpi = here[here.backend.isin(["gloo", "horovod"])], here[here.backend == "mpi"]
        times = (
            libraries.median_us.min(),
            mpi[mpi.algorithm == "default"].median_us.item(),
            mpi.median_us.min(),
        )
        auto = here[here.auto].median_us.item()
        ratios = [time / auto for time in times]
        shown = [f"{ratio:.1f}" if ratio >= 10 else f"{ratio:.2f}" for ratio in ratios]
        assert f"| {size} | {' | '.join(shown)} |" in README
