"""The figure of what a collective should reach: bus bandwidth by size, with measured rates as markers."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from collectives.core.bounds import busbw
from collectives.figures.style import Picture, Theme, mark, on_page, picture
from collectives.units import format_bytes

Row = dict[str, Any]

# So many sizes are written below the axis at most.
TICKS = 6


def rates(rows: Sequence[Row]) -> Picture:
    """Return the figure of rows of `collectives.expected.rows`: lines expected, filled markers measured.

    A bound is thin and dashed. Where a switch adds NCCL's line may be above it.
    """
    paint = partial(_paint, rows)
    return picture(paint, _described(rows), height=3.4)


def _paint(rows: Sequence[Row], figure: Figure, theme: Theme) -> None:
    axes = figure.subplots()
    _draw_expected(axes, theme, rows)
    measured = [row for row in rows if "measured_busbw" in row]
    reached = [row for row in measured if not row["checks"]]
    short = [row for row in measured if row["checks"]]
    _draw_measured(axes, theme, reached, "o", "measured")
    _draw_measured(axes, theme, short, "X", "falls short")
    _label_axes(axes, [row["bytes"] for row in rows])
    figure.legend(
        loc="outside lower left",
        ncols=2,
        fontsize=9,
    )


def _draw_expected(axes: Axes, theme: Theme, rows: Sequence[Row]) -> None:
    """Draw the lines of the bound, of NCCL's formula if it has one, and of the fastest schedule."""
    sizes = [row["bytes"] for row in rows]
    axes.plot(
        sizes,
        [_bound_busbw(row) for row in rows],
        color=theme.ink,
        linewidth=0.8,
        linestyle="--",
        label="bound",
    )
    if rows[0]["nccl_busbw"]:
        axes.plot(
            sizes,
            [row["nccl_busbw"] for row in rows],
            color=on_page(mark("two_tree").colour, theme),
            label="NCCL's choice, its formula",
        )
    axes.plot(
        sizes,
        [row["busbw"] for row in rows],
        color=on_page(mark("ring").colour, theme),
        label="fastest schedule, simulated",
    )


def _bound_busbw(row: Row) -> float:
    return busbw(
        row["collective"],
        row["ranks"],
        row["bytes"],
        row["bound"],
    )


def _draw_measured(
    axes: Axes,
    theme: Theme,
    rows: Sequence[Row],
    marker: str,
    label: str,
) -> None:
    if not rows:
        return
    axes.plot(
        [row["bytes"] for row in rows],
        [row["measured_busbw"] for row in rows],
        marker,
        color=theme.ink,
        label=label,
    )


def _label_axes(axes: Axes, sizes: Sequence[int]) -> None:
    every = -(-len(sizes) // TICKS)
    shown = sizes[::every]
    axes.set_xscale("log", base=2)
    axes.set_xticks(
        shown,
        [format_bytes(size) for size in shown],
        fontsize=8.5,
    )
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(_plain_number))
    axes.set_ylabel("bus bandwidth (GB/s)", fontsize=9)


def _plain_number(rate: float, _: int) -> str:
    return f"{rate:g}"


def _described(rows: Sequence[Row]) -> str:
    first = rows[0]
    last = rows[-1]
    return (
        f"Bus bandwidth of {first['collective']} on {first['ranks']} ranks of {first['machine']}, "
        f"{format_bytes(first['bytes'])} to {format_bytes(last['bytes'])}. "
        f"The fastest schedule reaches {last['busbw']:.0f} GB/s at the last size."
    )
