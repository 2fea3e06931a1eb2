"""The committed table of other people's programs: where each file is, and what ``collectives verify`` says about it."""

import csv
import re
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from html import escape
from pathlib import Path
from typing import NamedTuple

import numpy as np

from collectives.formats.teccl_network import NETWORKS, UNIT, capacities
from collectives.topology.bound import bound
from collectives.topology.graph import NO_LINKS, Graph

VERDICTS = ("right", "wrong", "unreadable")
# The first digits of a commit and of a hash, which are enough on a screen.
SHORT = 7, 12


class JudgedFile(NamedTuple):
    """One file: its place, its hash, and the verdict. What `prove` reports of a right program is 0 for others.

    A schedule for a known network has that in the last columns but one; they are empty and 0 for a program.
    """

    repository: str  # owner/name at GitHub
    commit: str
    path: str
    sha256: str
    bytes: int
    collective: str  # empty, and 0 ranks, for a file that is unreadable
    ranks: int
    verdict: str
    why: str  # empty for a right program
    steps: int  # of a schedule: its flows
    slots: int
    dependencies: int
    needless: int
    network: str
    missing: str  # what the network has, and the schedule does not use or keep to
    bandwidth: int  # algorithm bandwidth in bytes per second, computed from the flows
    stated: int  # the same as the file says it
    seconds: float  # of processor time

    @property
    def link(self) -> str:
        """Where a browser shows the file."""
        return f"https://github.com/{self.repository}/blob/{self.commit}/{self.path}"


COLUMNS = JudgedFile._fields
NUMBERS = ("bytes", "ranks", "steps", "slots", "dependencies", "needless", "bandwidth", "stated")


def read(path: Path) -> list[JudgedFile]:
    """The rows of a table; ValueError for one that has other columns."""
    with path.open(encoding="utf8", newline="") as file:
        reader = csv.reader(file)
        if (head := tuple(next(reader, ()))) != COLUMNS:
            raise ValueError(f"columns of {path.name}: got {', '.join(head)}, expected {', '.join(COLUMNS)}")
        return [_row(dict(zip(COLUMNS, row, strict=True))) for row in reader]


def _row(texts: dict[str, str]) -> JudgedFile:
    numbers = {name: int(texts[name]) for name in NUMBERS}
    return JudgedFile(**{**texts, **numbers, "seconds": float(texts["seconds"])})  # type: ignore[arg-type]


def write(path: Path, rows: Iterable[JudgedFile]) -> None:
    """Write a table, in the order of repository, path and commit."""
    with path.open("w", encoding="utf8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([COLUMNS, *sorted(rows)])


def summary(rows: list[JudgedFile]) -> str:
    """How many files of which repository are right, wrong, unreadable, as a table in Markdown."""
    head = f"| repository | files | {' | '.join(VERDICTS)} | GPUs | largest file |\n|---|{'--:|' * 6}"
    names = list(dict.fromkeys(row.repository for row in rows))
    groups = [(f"`{name}`", [row for row in rows if row.repository == name]) for name in names]
    return "\n".join([head, *(_counted(name, group) for name, group in [*groups, ("all", rows)])])


def _counted(name: str, rows: list[JudgedFile]) -> str:
    verdicts, ranks = Counter(row.verdict for row in rows), sorted({row.ranks for row in rows if row.ranks})
    numbers = [len(rows), *(verdicts[verdict] for verdict in VERDICTS)]
    gpus = f"{ranks[0]}" if len(ranks) == 1 else f"{ranks[0]}–{ranks[-1]}"
    return (
        f"| {name} | {' | '.join(map(str, numbers))} | {gpus} | {max(row.bytes for row in rows) / 1e3:,.0f}\u00a0KB |"
    )


def schedules(rows: list[JudgedFile]) -> str:
    """The right schedules by network and collective, as a table in Markdown: the largest bandwidth, and its bound."""
    head = "| network | collective | files | complete | GB/s, computed | stated | bound | share |"
    groups: dict[tuple[str, str], list[JudgedFile]] = {}
    for row in rows:
        if row.network:
            groups.setdefault((row.network, row.collective), []).append(row)
    return "\n".join([head, f"|---|---|--:|--:|{'--:|' * 4}", *map(_schedules, groups.values())])


def _schedules(rows: list[JudgedFile]) -> str:
    right = [row for row in rows if row.verdict == "right"]
    complete, best = sum(not row.missing for row in right), max(rows, key=lambda row: row.bandwidth)
    least = bound_of(best)
    numbers = " | ".join(f"{each / 1e9:.1f}" for each in (best.bandwidth, best.stated, least))
    share = f"{best.bandwidth / least:.0%}"
    return f"| {best.network} | {best.collective} | {len(rows)} | {complete} | {numbers} | {share} |"


def bound_of(row: JudgedFile) -> float:
    """The algorithm bandwidth in bytes per second that no schedule exceeds for the GPUs that this one serves.

    A GPU that takes no part passes chunks on, as a switch does, and may copy them.
    """
    links, absent = capacities(row.network), re.match(r"GPU (\d+) of", row.missing)
    others = [*NETWORKS[row.network], *([int(absent[1])] if absent else [])]
    order = [*(node for node in range(len(links)) if node not in others), *others]
    of = Graph(row.network, len(links) - len(others), links[np.ix_(order, order)], Fraction(UNIT), NO_LINKS)
    return float(bound(row.collective, of).algbw)


def to_html(rows: list[JudgedFile]) -> str:
    """All rows as a table in HTML that scrolls in its box; what is not right comes first."""
    names = ("verdict", "repository", "commit", "path", "SHA-256", "bytes", "GPUs", "s")
    head = "".join(f"<th>{name}</th>" for name in names)
    body = "\n".join(map(_line, sorted(rows, key=lambda row: row.verdict == "right")))
    cells = "div.cell_output table.programs.dataframe tr > :is(td, th)"  # stronger than the theme's rule
    style = f"<style>{cells} {{text-align: left !important; white-space: nowrap}}</style>"
    # The theme's class shows by a shadow that there is more.
    box = (
        '<div class="pst-scrollable-table-container" style="max-height:26rem;overflow:auto" tabindex="0" role="region" '
        'aria-label="all files">'
    )
    # The theme gives the class "dataframe" the colours of the page, dark ones too.
    table = f'<table class="dataframe programs"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f"{style}{box}{table}</div>"


def _line(row: JudgedFile) -> str:
    commit, digits = SHORT
    cells = [
        row.verdict,
        escape(row.repository),
        f"<code>{row.commit[:commit]}</code>",
        escape(row.path),
        f'<code title="{row.sha256}">{row.sha256[:digits]}</code>',
        f"{row.bytes:,}",
        str(row.ranks or "–"),
        f"{row.seconds:.2f}",
    ]
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
