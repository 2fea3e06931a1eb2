"""The figure kit: axes, series and legends of figures that show rows.

A measured value is a filled marker with its interval, a simulated one a line, a published one a hollow marker. A lower
bound is a line of thin dashes.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from collectives.algorithms import Mark
from collectives.figures.statements import Rows, intervals
from collectives.figures.style import Picture, Theme, picture
from collectives.units import duration, format_bytes

# Inches. Text in a figure of this width can still be read on a phone.
WIDTH = 5.6

# Where the range of a logarithmic time axis is below this factor, it has ticks at 1, 2 and 5.
FEW_DECADES = 1000

# Names at the ends of lines: how many, and how long a line of them may be, before a legend serves better.
MOST_LABELS, LABEL_LETTERS = 6, 18

# Tick labels of more letters are slanted, so that neighbours do not overlap.
LETTERS = 4


def nothing() -> Picture:
    """The figure of no rows: all sizes failed, or none was asked for."""
    return picture(lambda *_: None, "There are no rows to draw.", WIDTH, 0.2)


def binary_axis(
    axes: Axes, at: Iterable[float], name: str = "buffer", form: Callable[[float], str] = format_bytes
) -> None:
    """A logarithmic x axis in powers of two, with a tick at each of these values."""
    ticks = list(at)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: form(value)))
    if max(len(form(value)) for value in ticks) > LETTERS:
        axes.tick_params(axis="x", labelrotation=40)
    axes.set_xlabel(name)


def time_axis(axes: Axes, unit: float = 1e-6, name: str = "time") -> None:
    """A logarithmic y axis of times, for what is already drawn; ``unit`` is a value of 1 in seconds."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < FEW_DECADES * low else (1.0,)))
    time_labels(axes, unit)
    axes.set_ylabel(name)


def time_labels(axes: Any, unit: float = 1e-6) -> None:
    """Times at the ticks of a y axis, as `duration` writes them."""
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: duration(value * unit)))
    axes.yaxis.set_minor_formatter(NullFormatter())


def measured(axes: Axes, look: Mark, name: str, x: Any, y: Any, low: Any, high: Any, **line: Any) -> None:
    """Filled markers with their intervals; ``line`` is how they are joined.

    Rounded, the end of an interval may be on the wrong side of its median: then it has no length.
    """
    bars = [(y - low).clip(lower=0), (high - y).clip(lower=0)]
    joined: dict[str, Any] = {"ls": "-", "lw": 1.2} | line
    axes.errorbar(x, y, yerr=bars, color=look.colour, marker=look.marker, label=name, capsize=2, **joined)


def published(axes: Axes, look: Mark, x: Sequence[float], y: Sequence[float]) -> None:
    """Hollow markers, for values that others have published."""
    axes.plot(x, y, marker=look.marker, mfc="none", mec=look.colour, mew=1.5, ms=7, ls="", zorder=3)


def lower_bound(axes: Axes, theme: Theme, x: Any, y: Any, name: str = "lower bound", dash: int = 5) -> None:
    """Thin dashes, for a bound."""
    axes.plot(x, y, color=theme.ink, lw=0.9, ls=(0, (dash, 3)), label=name)


def legend(figure: Figure, rows: Rows = (), more: Iterable[Artist] = (), size: float = 10) -> None:
    """Above the figure: every labelled series once, then ``more``; and how sure the intervals of the rows are."""
    named = {name: handle for axes in figure.axes for name, handle in _labelled(axes).items()}
    _explain(figure, {**named, **{str(handle.get_label()): handle for handle in more}}, rows, size)


def _labelled(axes: Axes) -> dict[str, Artist]:
    return {name: handle for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)}


def _explain(figure: Figure, handles: dict[str, Artist], rows: Rows, size: float) -> None:
    title = confidence(rows)
    if handles or title:
        figure.legend(
            *(list(handles.values()), list(handles)),
            loc="outside upper left",
            ncols=2,
            fontsize=size,
            title=title,
            title_fontsize=9,
            alignment="left",
        )


def labels(figure: Figure, rows: Rows = (), more: Iterable[Artist] = (), size: float = 10) -> None:
    """The name of every series at the right end of its line in the last panel, in its colour; ``more`` as in `legend`.

    Names are pushed apart where ends are close. A `legend` instead, if the names do not fit: more than `MOST_LABELS`
    series, longer lines than `LABEL_LETTERS`, or something drawn to the right of a series' end. Call it last: it lays
    the figure out to know where ends are.
    """
    axes = figure.axes[-1]
    ends = {name.replace(" (", "\n("): _end(handle) for name, handle in _labelled(axes).items()}
    letters = max((len(line) for name in ends for line in name.split("\n")), default=0)
    is_at_the_edge = {x for x, _, _ in ends.values()} == {axes.dataLim.x1}
    if len(ends) > MOST_LABELS or letters > LABEL_LETTERS or not is_at_the_edge:
        legend(figure, rows, more, size)
        return
    _explain(figure, {str(handle.get_label()): handle for handle in more}, rows, size)
    figure.draw_without_rendering()
    points = 72 / figure.dpi
    at = [float(axes.transData.transform((x, y))[1]) * points for x, y, _ in ends.values()]
    heights = [1.2 * size * (1 + name.count("\n")) for name in ends]
    for (name, (x, y, colour)), here, there in zip(ends.items(), at, apart(at, heights), strict=True):
        look: dict[str, Any] = {"color": _legible(colour), "fontsize": size, "va": "center", "linespacing": 1.0}
        axes.annotate(name, (x, y), (8, there - here), textcoords="offset points", annotation_clip=False, **look)


def _end(handle: Any) -> tuple[float, float, Any]:
    """The last point of a line, also of one with intervals, and its colour."""
    line = handle if isinstance(handle, Line2D) else handle[0]
    x, y = np.asarray(line.get_xdata(), dtype=float), np.asarray(line.get_ydata(), dtype=float)
    return float(x[x.argmax()]), float(y[x.argmax()]), line.get_color()


def _legible(colour: Any) -> tuple[float, ...]:
    """A line's colour as letters need it: nearer to the colour of text."""
    both = np.array([mpl.colors.to_rgb(colour), mpl.colors.to_rgb(mpl.rcParams["text.color"])])
    return tuple((both[0] * 0.65 + both[1] * 0.35).tolist())


def apart(at: Sequence[float], heights: Sequence[float]) -> list[float]:
    """Where to put the middles of labels of these heights, near where they want to be, so that none overlap.

    The least moves in the sense of squares: an isotonic regression, by its min-max formula. Cost: cubic.

    >>> apart([0, 100, 101], [10, 10, 10])
    [0.0, 95.5, 105.5]
    """
    order = np.argsort(at, kind="stable")
    tall = np.asarray(heights, dtype=float)[order]
    stacked = np.cumsum(tall) - (tall + tall[:1]) / 2  # the middles, if all were stacked on the lowest
    wanted, n = np.asarray(at, dtype=float)[order] - stacked, len(order)
    means = [[min(wanted[i : k + 1].mean() for k in range(j, n)) for i in range(j + 1)] for j in range(n)]
    placed = np.empty(n)
    placed[order] = [max(each) for each in means] + stacked
    return [float(each) for each in placed]


def confidence(rows: Rows) -> str | None:
    """What the bars of these rows are worth; None for rows without samples, or with one each.

    >>> import pandas as pd
    >>> confidence(pd.DataFrame({"samples": [[1.0] * 21, [2.0] * 21]}))
    'bars: 97.33 % intervals of the median'
    """
    counts = [len(samples) for samples in getattr(rows, "samples", ()) if len(samples)]
    return f"bars: {intervals(counts)} of the median" if counts and min(counts) > 1 else None


def key(theme: Theme, label: str, **look: Any) -> Line2D:
    """An entry of a legend for a kind of mark, whatever its colour."""
    shape: dict[str, Any] = {"color": theme.ink, "lw": 1.2, "label": label} | look
    return Line2D([], [], **shape)


def series(rows: Rows, by: Sequence[str], along: str) -> list[tuple[Any, Rows]]:
    """The rows of each series, in the order of their first rows, sorted along the x axis."""
    return [(name, group.sort_values(along, kind="stable")) for name, group in rows.groupby(list(by), sort=False)]


def from_to(name: str, at: Sequence[Any], values: Sequence[Any], where: Any, form: Callable[[Any], str]) -> str:
    """The ends of a series, for an alternative text; ``where`` writes a place, ``form`` a value.

    >>> from_to("ring", [2, 8], [0.1, 0.4], "on {} ranks".format, duration)
    'ring from 100 ms on 2 ranks to 400 ms on 8 ranks'
    """
    first, last = (f"{form(values[i])} {where(at[i])}" for i in (0, -1))
    return f"{name} from {first} to {last}"
