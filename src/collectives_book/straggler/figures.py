"""Rows of the experiment ``straggler`` as figures, and as a table beside what slow links everywhere would cost."""

from __future__ import annotations

from typing import Any

from collectives.algorithms import COSTS
from collectives.figures.style import Picture
from collectives.machine import Link
from collectives.units import format_bytes
from collectives_book.figures import kit
from collectives_book.figures.charts import Curves, Dots
from collectives_book.figures.statements import Rows


def by_factor(rows: Rows) -> Rows:
    """Return the points of the host that was slow by several factors."""
    return rows[rows.slow_host == rows.slow_host.iloc[0]].sort_values("factor", kind="stable")


def by_position(rows: Rows) -> Rows:
    """Return the points of the factor by which several hosts were slow, one after the other."""
    factor = rows.factor[rows.slow_host != rows.slow_host.iloc[0]]
    return (
        rows[rows.factor == factor.iloc[0]].sort_values("slow_host", kind="stable")
        if len(factor)
        else rows[:0]
    )


def against_factor(rows: Rows) -> Picture:
    """Return the time of one size against the factor by which one host's link is slower."""
    return _time(
        by_factor(rows),
        "factor",
        (
            kit.Axis(
                "one link slower by",
                "{:g}×".format,
                2,
            ),
            kit.US,
        ),
    )


def against_position(rows: Rows) -> Picture:
    """Return the time of one size on a line for each host whose link was slower."""
    rows = by_position(rows)
    if rows.empty:
        return kit.nothing()
    named = rows.assign(host=rows.slow_host.map("slow: host {:g}".format))
    chart = Dots(
        named,
        "median_us",
        "host",
        kit.US._replace(base=0),
        "algorithm",
    )
    chart.points(("low_us", "high_us")).predicted("simulated_us")
    return chart.picture(_about(rows))


def _time(rows: Rows, x: str, axes: tuple[kit.Axis, kit.Axis]) -> Picture:
    if rows.empty:
        return kit.nothing()
    chart = Curves(
        rows,
        x,
        "median_us",
        "algorithm",
        axes,
    )
    return chart.simulated("simulated_us").points(("low_us", "high_us")).picture(_about(rows))


def _about(rows: Rows) -> str:
    sizes = " and ".join(map(format_bytes, rows.bytes.unique()))
    return f"Measured all-reduce of {sizes} with one slower link"


def as_if_all_were_slow(rows: Rows, link: Link) -> Rows:
    """Return measured times over the closed form of a cluster whose links are *all* as slow.

    A line for each size and factor, a column for each algorithm that has one closed form: 1 means
    that one slow link costs what slow links everywhere would.
    """
    rows = by_factor(rows).sort_values(["bytes", "factor"], kind="stable")
    known = rows[[("all_reduce", name) in COSTS for name in rows.algorithm]]
    points = [f"{format_bytes(row.bytes)}, {row.factor}×" for row in known.itertuples()]
    ratios = [row.median_us * 1e-6 / _even(row, link) for row in known.itertuples()]
    table = known.assign(point=points, ratio=ratios).pivot(
        index="point", columns="algorithm", values="ratio"
    )
    return table.loc[[*dict.fromkeys(points)]].round(2).rename_axis(index=None, columns=None)


def _even(row: Any, link: Link) -> float:
    return COSTS["all_reduce", row.algorithm](row.ranks).seconds(
        row.bytes, link.alpha, row.factor * link.beta
    )
