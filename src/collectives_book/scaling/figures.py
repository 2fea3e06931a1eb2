"""The experiment ``scaling`` as figures, and where two trees win: measured markers over simulated lines.

Times are those of slow motion.
"""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from collectives.algorithms import build
from collectives.bench import OURS
from collectives.figures.style import Picture
from collectives.launch import links
from collectives.machine import machine
from collectives.simulator.simulation import simulate
from collectives.units import format_bytes
from collectives_book.figures import measured, statements
from collectives_book.figures.charts import Panels
from collectives_book.figures.statements import Row, Rows


def ours(rows: Rows) -> Rows:
    """Return the first network's rows of our algorithms by name, and of those that only "auto" was measured with."""
    own = rows[(rows["where"] == rows["where"].iloc[0]) & rows.backend.isin(OURS)]
    named = own[~own.auto]
    return pd.concat(
        [
            named,
            own[own.auto & ~own.algorithm.isin(named.algorithm)].assign(auto=False),
        ]
    )


def libraries(rows: Rows) -> Rows:
    """Return the rows of each library's own choice on the first network, and of "auto" beside them."""
    plain = rows[rows["where"] == rows["where"].iloc[0]]
    return plain[plain.auto | (plain.algorithm == "default")]


def most(rows: Rows) -> Rows:
    """Return the rows on the most hosts."""
    return rows[rows.ranks == rows.ranks.max()]


def time_against_hosts(rows: Rows, sizes: Sequence[int]) -> Picture:
    """Return the figure of our algorithms' median times by the number of hosts, a panel for each of these sizes."""
    rows = ours(rows)
    rows = rows[rows.bytes.isin(sizes) & rows.algorithm.isin(most(rows).algorithm)]
    panels = Panels("bytes", format_bytes)
    return measured.times(rows, "ranks", panels, height=1.4 + 1.9 * len(sizes))


def time_against_size(rows: Rows) -> Picture:
    """Return the figure of median times on the most hosts by size: our algorithms, and below them the libraries."""
    parts = {
        "our algorithms": ours(rows),
        "auto and the libraries": libraries(rows),
    }
    table = pd.concat([most(part).assign(panel=name) for name, part in parts.items()])
    height = 2.0 + 2.0 * table.panel.nunique()
    return measured.times(table, panels=Panels("panel"), height=height)


def bandwidth_against_size(rows: Rows) -> Picture:
    """Return the figure of our algorithms' bus bandwidths on the most hosts by size."""
    return measured.bandwidths(most(ours(rows)), "MB/s")


def with_simulated(rows: Rows) -> Rows:
    """Return the rows with what the simulator says of their links as they were asked for: ``simulated_us``."""
    return rows.assign(simulated_us=[_simulated_us(row) for row in rows.itertuples()])


def _simulated_us(row: Any) -> float:
    schedule = build(row.collective, row.algorithm, row.ranks, segments=int(row.segments))
    on = machine(str(links(row.where, row.ranks)))
    return simulate(schedule, on, row.bytes, row.algorithm).seconds * 1e6


def two_trees_against_size(rows: Rows) -> Picture:
    """Return the figure of median times by the size of the buffer.

    ``rows`` as `with_simulated` has them.
    """
    return measured.times(rows)


def two_trees_won(rows: Rows) -> list[tuple[int, Row, Row]]:
    """Return the sizes at which two trees lead by their intervals, with their row and the next best one."""
    found = []
    for nbytes, group in rows.groupby("bytes"):
        first, *tied = statements.leaders(group)
        if not tied and first.algorithm == "two_tree":
            second = group[group.algorithm != "two_tree"].sort_values("median_us").iloc[0]
            found.append((int(nbytes), first, second))
    return found
