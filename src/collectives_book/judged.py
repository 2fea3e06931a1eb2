"""The committed table of other people's programs: where each file is, and what ``collectives verify`` says about it."""

import re
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from collectives.topology.bound import bound
from collectives.topology.graph import NO_LINKS, Graph
from collectives_book.teccl_networks import NETWORKS, UNIT, capacities

VERDICTS = ("right", "wrong", "unreadable")


class JudgedFile(NamedTuple):
    """One file: its place, its hash, and the verdict.

    What `prove` reports of a right program is 0 for others.

    A schedule for a known network has that in the last columns but one; they are empty and 0 for a
    program.
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
        """Return the address at which a browser shows the file."""
        return f"https://github.com/{self.repository}/blob/{self.commit}/{self.path}"


COLUMNS = JudgedFile._fields


def read(path: Path) -> list[JudgedFile]:
    """Return the rows of a table; ValueError for one that has other columns."""
    table = pd.read_csv(path, keep_default_na=False)
    head = tuple(table.columns)
    if head != COLUMNS:
        raise ValueError(
            f"columns of {path.name}: got {', '.join(head)}, expected {', '.join(COLUMNS)}"
        )
    return [JudgedFile(*row) for row in table.itertuples(index=False)]


def write(path: Path, rows: Iterable[JudgedFile]) -> None:
    """Write a table, in the order of repository, commit and path."""
    pd.DataFrame(sorted(rows), columns=list(COLUMNS)).to_csv(path, index=False, lineterminator="\n")


def bound_of(row: JudgedFile) -> float:
    """Return the algorithm bandwidth in bytes per second that no schedule exceeds for the GPUs that this one serves.

    A GPU that takes no part passes chunks on, as a switch does, and may copy them.
    """
    links = capacities(row.network)
    others = list(NETWORKS[row.network])
    absent = re.match(r"GPU (\d+) of", row.missing)
    if absent:
        others.append(int(absent[1]))
    gpus = [node for node in range(len(links)) if node not in others]
    order = gpus + others
    ordered = links[np.ix_(order, order)]
    graph = Graph(row.network, len(gpus), ordered, Fraction(UNIT), NO_LINKS)
    return float(bound(row.collective, graph).algbw)
