"""Rows of the experiment ``straggler`` as a figure, and as a table beside what slow links everywhere would cost.

Measured is a filled marker with its interval, simulated a line.
"""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from collectives.algorithms import COSTS
from collectives.figures.style import Picture, Theme, mark
from collectives.machine import Link
from collectives.units import format_bytes
from collectives_book.figures import by_hand as kit
from collectives_book.figures.statements import Rows


def by_factor(rows: Rows) -> Rows:
    """The points of the host that was slow by several factors."""
    first = rows.slow_host.iloc[0]
    return rows[rows.slow_host == first].sort_values("factor", kind="stable")


def by_position(rows: Rows) -> Rows:
    """The points of the factor by which several hosts were slow, one after the other."""
    factor = rows.factor[rows.slow_host != rows.slow_host.iloc[0]]
    return rows[rows.factor == factor.iloc[0]].sort_values("slow_host", kind="stable") if len(factor) else rows[:0]


def time(rows: Rows) -> Picture:
    """Time of one size: on the left against the factor, on the right against the position of the slow host."""
    parts = [("factor", by_factor(rows)), ("slow_host", by_position(rows))]

    def paint(figure: Figure, theme: Theme) -> None:
        panels = figure.subplots(1, 2, sharey=True)
        for axes, (x, part) in zip(panels, parts, strict=True):
            _draw(axes, x, part)
        kit.binary_axis(panels[0], sorted(parts[0][1].factor.unique()), "one link slower by", "{:g}×".format, 2)
        panels[1].set_xlabel("the slow host")
        panels[1].xaxis.set_major_locator(FixedLocator(sorted(parts[1][1].slow_host.unique())))
        kit.time_axis(panels[0])
        kit.message(figure, theme, _costliest(parts[0][1]))
        kit.labels(figure, rows, more=[kit.key(theme, "simulated")])

    return kit.drawn(paint, f"Measured all-reduce of {format_bytes(rows.bytes.iloc[0])} with one slower link", 3.8)


def _costliest(rows: Rows) -> str:
    """Say which algorithm has the lowest median on even links, and which with the slowest one."""
    ends = [rows[rows.factor == factor] for factor in (rows.factor.min(), rows.factor.max())]
    first, last = (end.algorithm[end.median_us.idxmin()] for end in ends)
    return f"Lowest median on even links: {first}; with one link {rows.factor.max()} times slower: {last}"


def _draw(axes: Axes, x: str, rows: Rows) -> None:
    for algorithm, series in rows.groupby("algorithm", sort=False):
        look = mark(str(algorithm))
        axes.plot(series[x], series.simulated_us, color=look.colour, lw=1.2)
        kit.medians(axes, look, str(algorithm), series, x, ls="")


def as_if_all_were_slow(rows: Rows, link: Link) -> Rows:
    """Measured times over the closed form of a cluster whose links are *all* as slow: a line each factor and size.

    The algorithms that have one closed form: 1 means that one slow link costs what slow links everywhere would.
    """
    rows = by_factor(rows).sort_values(["bytes", "factor"], kind="stable")
    known = rows[[("all_reduce", name) in COSTS for name in rows.algorithm]]
    ratios = [row.median_us * 1e-6 / _even(row, link) for row in known.itertuples()]
    names = [f"{format_bytes(row.bytes)}, {row.factor}×" for row in known.itertuples()]
    table = pd.DataFrame({"point": names, "algorithm": known.algorithm.to_list(), "ratio": ratios})
    wide = table.pivot(index="point", columns="algorithm", values="ratio").loc[list(dict.fromkeys(names))]
    return wide.round(2).rename_axis(index=None, columns=None)


def _even(row: Any, link: Link) -> float:
    return COSTS["all_reduce", row.algorithm](row.ranks).seconds(row.bytes, link.alpha, row.factor * link.beta)
