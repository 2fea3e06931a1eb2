"""The figure kit: axes, series and legends of figures that show rows.

A measured value is a filled marker with its interval, a simulated one a line, a published one a hollow marker. A lower
bound is a line of thin dashes.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

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
    named = {
        name: handle for axes in figure.axes for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    handles = {**named, **{str(handle.get_label()): handle for handle in more}}
    title = confidence(rows)
    figure.legend(
        *(list(handles.values()), list(handles)),
        loc="outside upper left",
        ncols=2,
        fontsize=size,
        title=title,
        title_fontsize=9,
        alignment="left",
    )


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
