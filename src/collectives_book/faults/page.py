"""What the chapter shows of the planted faults: the command's answer to each, who waits in one of them, the counts."""

import csv
import os
from pathlib import Path
from textwrap import fill

from collectives.cli.read import line, row
from collectives.figures.style import Picture
from collectives.logs.read import read
from collectives_book.faults.cases import STEP

FOLDER = Path(__file__).parents[3] / "experiments/results/reference/slow-motion/faults"
WIDTH = 84  # letters of a line on the page
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


def dumps(number: int) -> list[Path]:
    """Return the archive of a case, with a dump for each rank that left one."""
    return [FOLDER / f"case-{number}.zip"]


def answer(number: int) -> str:
    """Return what `collectives read case-N.zip` prints, in lines that fit a page."""
    said = "\n".join(line(row(source, found)) for source, found in read(dumps(number)))
    lines = said.replace(f"{FOLDER}{os.sep}", "").splitlines()
    begins = [" " * (len(each) - len(each.lstrip())) for each in lines]
    return "\n".join(
        fill(each.strip(), WIDTH, initial_indent=begin, subsequent_indent=f"{begin}    ")
        for each, begin in zip(lines, begins, strict=True)
    )


def waits() -> Picture:
    """The median time in an all-reduce on each rank, in the case of a late one."""
    drawn = next(found.draw() for _, found in read(dumps(LATE)) if found.kind == "straggler" and found.draw)
    if drawn is None:
        raise ValueError(f"case {LATE}: got no picture of a straggler, expected one")
    return drawn


def rows() -> list[dict[str, str]]:
    """The recorded runs."""
    with (FOLDER / "faults.csv").open(encoding="utf8", newline="") as file:
        return [*csv.DictReader(file)]


def counts() -> str:
    """How often the culprit was named, as a table in Markdown."""
    recorded = rows()
    lines = ["| fault | runs | right | the answer |", "|---|--:|--:|---|"]
    for fault, title in TITLES.items():
        mine = [each for each in recorded if each["fault"] == fault]
        right = sum(each["named"] == "True" for each in mine)
        kinds = ", ".join(dict.fromkeys(each["kind"] for each in mine if each["kind"])) or "no finding"
        lines.append(f"| {title} | {len(mine)} | {right} | {kinds} |")
    return "\n".join(lines)
