"""Rows of the experiment ``straggler`` as a figure and as sentences whose numbers come from the rows.

Measured is a filled marker with its interval, simulated a line.
"""

from collections.abc import Collection, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from collectives.algorithms import COSTS
from collectives.figures.style import Picture, Theme, mark
from collectives.machine import Link
from collectives.units import format_bytes
from collectives_book.figures import kit, statements
from collectives_book.figures.statements import Rows

MATTERS = 1.05  # times as long: less is not worth a word


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


def slowdown(rows: Rows) -> str:
    """A sentence: by how much each algorithm became slower from the smallest factor to the largest."""
    rows = by_factor(rows)
    parts = [
        f"{name} {group.median_us.iloc[-1] / group.median_us.iloc[0]:.1f} times as long"
        for name, group in rows.groupby("algorithm", sort=False)
    ]
    return (
        f"With host {rows.slow_host.iloc[0]}'s link {rows.factor.max()} times slower, an all-reduce of "
        f"{format_bytes(rows.bytes.iloc[0])} took: {', '.join(parts)} as on even links."
    )


def worst_place(rows: Rows) -> str:
    """Sentences: for which algorithms it matters which host is slow; empty without several positions.

    Few samples are no proof: their medians are compared, and the sentence says so.
    """
    rows = by_position(rows)
    unproved = any(statements.few(row) for row in rows.itertuples())
    matters, others = list[str](), list[str]()
    for name, group in rows.groupby("algorithm", sort=False):
        if len(group) > 1:
            least, *_, most = group.sort_values("median_us", kind="stable").itertuples()
            times = most.median_us / least.median_us
            if times >= MATTERS and (unproved or statements.apart(least, most)):
                matters.append(f"{name} ({times:.1f} times as long at host {most.slow_host} as at {least.slow_host})")
            else:
                others.append(str(name))
    said = []
    if matters:
        place = f"he place of a link {rows.factor.iloc[0]} times slower matters for {statements.listed(matters)}."
        by = f"By the medians of fewer than {statements.FEWEST} samples, t" if unproved else "T"
        said.append(by + place)
    if others:
        end = f"the place changes the {'median' if unproved else 'time'} by less than {MATTERS - 1:.0%}"
        end += "" if unproved else ", or the intervals overlap"
        said.append(f"For {statements.listed(others)} {end}.")
    return " ".join(said)


def slow_leaf(rows: Rows, leaves: Collection[int]) -> str:
    """A sentence about one algorithm and size: a slow leaf against even links, and against slow interior ranks.

    ``leaves`` are the ranks without children; rank 0, the root, is left out.
    """
    even, places = next(by_factor(rows[rows.factor == 1]).itertuples()), list(by_position(rows).itertuples())
    at_leaf = [row for row in places if row.slow_host in leaves]
    interior = [row for row in places if row.slow_host not in {0, *leaves}]
    return (
        f"Measured on {even.ranks} hosts with {format_bytes(even.bytes)}, the sum takes "
        f"{statements.us(even.median_us)} with even links. With a link {places[0].factor} times slower at a leaf it "
        f"takes {_took_by(at_leaf)}{_longer(at_leaf, even)}. At an interior rank it takes {_took_by(interior)}"
        f"{_longer(interior, even)}."
    )


def _longer(rows: Sequence[Any], even: Any) -> str:
    if any(statements.few(row) for row in (even, *rows)):
        times = statements.span((row.median_us / even.median_us for row in rows), "{:.1f}".format)
        return f", {times} times as long by the medians"
    longer = sum(statements.apart(even, row) and row.median_us > even.median_us for row in rows)
    if longer == len(rows):
        times = statements.span((row.median_us / even.median_us for row in rows), "{:.1f}".format)
        return f", {times} times as long"
    return f", longer at {longer} of {len(rows)}" if longer else ", and the intervals overlap"


def _took_by(rows: Sequence[Any]) -> str:
    return statements.span((row.median_us for row in rows), statements.us)


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


def cost_of_one(rows: Rows, link: Link) -> str:
    """A clause: what one slow link costs, in times of what slow links everywhere would, for each algorithm."""
    slow = as_if_all_were_slow(rows[rows.factor > 1], link)
    each = [f"{name} {statements.span(slow[name].dropna(), '{:.2f}'.format)}" for name in slow]
    return f"{statements.span(slow.stack(), '{:.2f}'.format)} ({', '.join(each)})"


def _even(row: Any, link: Link) -> float:
    return COSTS["all_reduce", row.algorithm](row.ranks).seconds(row.bytes, link.alpha, row.factor * link.beta)
