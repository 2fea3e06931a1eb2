"""The figure of what a collective should reach: bus bandwidth by size, with measured rates as markers."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from collectives.core.bounds import busbw
from collectives.figures.style import Picture, Theme, mark, on_page, picture
from collectives.units import format_bytes

Row = dict[str, Any]


def rates(rows: Sequence[Row]) -> Picture:
    """Return the figure of rows of `collectives.expected.rows`: lines expected, filled markers measured.

    A bound is thin and dashed. Where a switch adds NCCL's line may be above it.
    """
    sizes = [row["bytes"] for row in rows]
    bounds = [busbw(row["collective"], row["ranks"], row["bytes"], row["bound"]) for row in rows]

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        axes.plot(sizes, bounds, color=theme.ink, linewidth=0.8, linestyle="--", label="bound")
        if rows[0]["nccl_busbw"]:
            nccl = [row["nccl_busbw"] for row in rows]
            colour = on_page(mark("two_tree").colour, theme)
            axes.plot(sizes, nccl, color=colour, label="NCCL's choice, its formula")
        fastest = [row["busbw"] for row in rows]
        colour = on_page(mark("ring").colour, theme)
        axes.plot(sizes, fastest, color=colour, label="fastest schedule, simulated")
        measured = [row for row in rows if "measured_busbw" in row]
        for is_short, marker, name in ((False, "o", "measured"), (True, "X", "falls short")):
            points = [row for row in measured if bool(row["checks"]) is is_short]
            if points:
                places = [row["bytes"] for row in points]
                heights = [row["measured_busbw"] for row in points]
                axes.plot(places, heights, marker, color=theme.ink, label=name)
        axes.set_xscale("log", base=2)
        shown = sizes[:: -(-len(sizes) // 6)]
        axes.set_xticks(shown, [format_bytes(size) for size in shown], fontsize=8.5)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:g}"))
        axes.set_ylabel("bus bandwidth (GB/s)", fontsize=9)
        figure.legend(loc="outside lower left", ncols=2, fontsize=9)

    return picture(paint, _described(rows), height=3.4)


def _described(rows: Sequence[Row]) -> str:
    first, last = rows[0], rows[-1]
    return (
        f"Bus bandwidth of {first['collective']} on {first['ranks']} ranks of {first['machine']}, "
        f"{format_bytes(first['bytes'])} to {format_bytes(last['bytes'])}. "
        f"The fastest schedule reaches {last['busbw']:.0f} GB/s at the last size."
    )
