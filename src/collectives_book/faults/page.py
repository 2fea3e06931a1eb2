"""What the chapter shows of the planted faults: the command's answer to each, who waits in one of them, the counts."""

import csv
import os
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from collectives.cli.read import line, row
from collectives.figures.style import Picture, Theme, mark, picture
from collectives.logs.flight.dump import Dump
from collectives.logs.flight.dump import read as dump_of
from collectives.logs.read import read
from collectives_book.faults.cases import STEP
from collectives_book.figures import kit

FOLDER = Path(__file__).parents[3] / "experiments/results/reference/slow-motion/faults"
LATE = [*STEP].index("late")
# What the table calls each fault.
TITLES = {
    "healthy": "none",
    "killed": "a rank is killed",
    "stopped": "a rank is stopped",
    "late": "a rank is late in every step",
    "link": "a link is slow",
    "order": "two collectives in the wrong order",
    "sizes": "another size",
    "algorithm": "another algorithm",
    "groups": "groups in another order",
    "version": "another version",
    "buffer": "both send first",
}


@contextmanager
def dumps(number: int) -> Iterator[list[Path]]:
    """The dumps of a case as files, one for each rank that left one."""
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(FOLDER / f"case-{number}.zip") as archive:
            archive.extractall(folder)
        yield sorted(Path(folder).rglob("*.json"))


def answer(number: int) -> str:
    """What `collectives read case-N/*.json` prints."""
    with dumps(number) as paths:
        said = [line(row(source, found)) for source, found in read(paths)]
        return "\n".join(said).replace(f"{paths[0].parents[1]}{os.sep}", "")


def waits() -> Picture:
    """The median time in an all-reduce on each rank of the case in which one is late."""
    with dumps(LATE) as paths:
        ranks = [dump_of(path) for path in paths]
    medians = [_median(dump) for dump in ranks]
    late = int(np.argmin(medians))

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        colours = [mark("ring" if rank == late else "two_tree").colour for rank in range(len(medians))]
        axes.barh(range(len(medians)), medians, color=colours)
        for rank, value in enumerate(medians):
            axes.annotate(f"{value:.1f} ms", (value, rank), (4, 0), textcoords="offset points", va="center")
        axes.set_yticks(range(len(medians)), [f"rank {rank}" for rank in range(len(medians))])
        axes.set(xlabel="median time in an all-reduce, ms", xlim=(0, 1.25 * max(medians)))
        axes.invert_yaxis()
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        axes.tick_params(colors=theme.ink)

    told = ", ".join(f"rank {rank} {value:.1f} ms" for rank, value in enumerate(medians))
    return picture(paint, f"The median time of an all-reduce on each rank: {told}.", kit.WIDTH, 1.9)


def _median(dump: Dump) -> float:
    return float(np.median([entry.lasted for entry in dump.entries if entry.operation == "all_reduce"])) / 1e6


def counts() -> str:
    """How often the culprit was named, as a table in Markdown."""
    with (FOLDER / "faults.csv").open(encoding="utf8", newline="") as file:
        rows = [*csv.DictReader(file)]
    lines = ["| fault | runs | culprit named first | as |", "|---|--:|--:|---|"]
    for fault, title in TITLES.items():
        mine = [each for each in rows if each["fault"] == fault]
        right = sum(each["named"] == "True" for each in mine)
        kinds = ", ".join(dict.fromkeys(each["kind"] for each in mine if each["kind"])) or "no finding"
        lines.append(f"| {title} | {len(mine)} | {right} | {kinds} |")
    return "\n".join(lines)
