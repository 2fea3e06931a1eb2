"""The figure of runs beside the first: ratios of times with their intervals, by the size of the buffer."""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullLocator

from collectives.algorithms import Mark
from collectives.figures.style import Picture, Theme, on_page, picture
from collectives.units import format_bytes

Row = dict[str, Any]

NO_DIFFERENCE = ("no difference", "too few samples")
COLUMNS = 2


def ratios(
    rows: Sequence[Row],
    panel: Callable[[Row], str],
    series: Callable[[Row], str],
    look: Callable[[Row], Mark],
) -> Picture:
    """Return the figure of rows of `collectives.bench.compare.compare`.

    ``panel`` and ``series`` name those of a row, and ``look`` gives its colour and marker.

    A marker is hollow where there is no difference. Points that one run has are not drawn. Raises
    ValueError if no point is in both runs.
    """
    drawn = [row for row in rows if row["ratio"] is not None]
    if not drawn:
        raise ValueError("points to draw: got none that both runs have, expected one or more")
    panels = [(title, [*part]) for title, part in groupby(sorted(drawn, key=panel), panel)]
    looks = {series(row): look(row) for row in drawn}
    columns = min(COLUMNS, len(panels))
    height = -(-len(panels) // columns)

    def paint(figure: Figure, theme: Theme) -> None:
        places = list(figure.subplots(height, columns, squeeze=False, sharey=True).flat)
        for axes, (title, part) in zip(places, panels, strict=False):
            axes.set_title(title, fontsize=9, loc="left")
            _scale(axes, part, theme)
            for nth, name in enumerate(looks):
                rows_of_series = [row for row in part if series(row) == name]
                _draw(axes, rows_of_series, looks[name], nth - len(looks) / 2, theme)
        for axes in places[len(panels) :]:
            axes.remove()
        _legend(figure, looks, theme)

    told = "; ".join(f"{title.replace(chr(10), ', ')}: {_said(part)}" for title, part in panels)
    return picture(
        paint, f"Ratio of times by the size of the buffer. {told}.", height=1.2 + 2.4 * height
    )


def _said(part: Sequence[Row]) -> str:
    least, most = min(row["ratio"] for row in part), max(row["ratio"] for row in part)
    return f"{least:.2f} to {most:.2f} times the first run's"


def _scale(axes: Axes, part: Sequence[Row], theme: Theme) -> None:
    """Scale both axes by powers of 2, and name at most five sizes."""
    axes.axhline(1, color=theme.ink, linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    sizes = sorted({max(row["bytes"], 1) for row in part})
    shown = sizes[:: -(-len(sizes) // 5)]
    axes.set_xticks(shown, [format_bytes(size) for size in shown], fontsize=8.5)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda ratio, _: f"{ratio:g}"))
    axes.set_ylabel("time over first run's", fontsize=9)


def _draw(axes: Axes, rows: Sequence[Row], look: Mark, turn: float, theme: Theme) -> None:
    """Draw the points of a series, a little beside those of other series."""
    colour = on_page(look.colour, theme)
    for row in rows:
        size = max(row["bytes"], 1) * 2 ** (turn / 4)
        below = row["ratio"] - row["low"]
        above = row["high"] - row["ratio"]
        axes.errorbar(
            [size],
            [row["ratio"]],
            yerr=[[below], [above]],
            color=colour,
            marker=look.marker,
            markerfacecolor=theme.ground if row["result"] in NO_DIFFERENCE else colour,
        )


def _legend(figure: Figure, looks: dict[str, Mark], theme: Theme) -> None:
    handles = [
        Line2D(
            [],
            [],
            label=name,
            color=on_page(look.colour, theme),
            marker=look.marker,
            linestyle="none",
        )
        for name, look in looks.items()
    ]
    hollow: dict[str, Any] = {
        "marker": "o",
        "fillstyle": "none",
        "linestyle": "none",
        "color": theme.ink,
    }
    handles.append(Line2D([], [], label="hollow: no difference", **hollow))
    figure.legend(handles=handles, loc="outside lower left", ncols=3, fontsize=9)
