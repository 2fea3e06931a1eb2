"""The figure kit: axes, series, names and messages of figures that show rows.

A measured value is a filled marker with its interval, a simulated one a line, a published one a hollow marker. A lower
bound is a line of thin dashes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from textwrap import fill
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator, ScalarFormatter
from scipy.optimize import isotonic_regression

from collectives.algorithms import Mark
from collectives.figures.style import Picture, Theme, picture
from collectives.units import duration, format_bytes
from collectives_book.figures.statements import Rows, intervals

# Inches. Text in a figure of this width can still be read on a phone.
WIDTH = 5.6

# Where the range of a logarithmic time axis is below a factor, its ticks in a decade.
SUBS = {100: (1.0, 2.0, 5.0), 10000: (1.0, 3.0)}

# More series than these cannot be told apart: all others are grey.
MOST_SERIES = 5
GREY = Mark("#888888", ".")

# Letters in a line of a name at the end of a series, and in a line above the figure.
LABEL_LETTERS, LINE = 19, 64

# Points that a letter of a tick label takes, and that an x axis of a figure's whole width has.
LETTER, AXIS = 7.3, 0.62 * 72 * WIDTH

# Words of an alternative text: a screen reader cannot skip a part of it.
WORDS = 60


def nothing() -> Picture:
    """The figure of no rows: all sizes failed, or none was asked for."""
    return picture(lambda *_: None, "There are no rows to draw.", WIDTH, 0.2)


def drawn(paint: Callable[[Figure, Theme], None], about: str, height: float = 4.0) -> Picture:
    """Paint a figure of the usual width, with `described` as its alternative text."""
    painted: list[Figure] = []

    def keep(figure: Figure, theme: Theme) -> None:
        paint(figure, theme)
        painted.append(figure)

    return replace(picture(keep, "", WIDTH, height), alt=described(about, painted[0]))


def described(about: str, figure: Figure) -> str:
    """Return ``about``, the figure's message and the values that it shows, as a text of at most `WORDS` words.

    >>> figure = Figure()
    >>> figure.subplots().plot([2, 4, 8], [0.5, 3, 1.5], label="ring")  # doctest: +ELLIPSIS
    [<matplotlib.lines.Line2D object at ...>]
    >>> described("Time against ranks", figure)
    'Time against ranks. ring from 0.5 at 2 to 1.5 at 8.'
    """
    said = ". ".join(" ".join(each.split()) for each in (about, figure.get_suptitle()) if each)
    shown = [" ".join(each.split()) for axes in figure.axes for each in _shown(axes)]
    fit = sum(len(" ".join([said, *shown[: nth + 1]]).split()) <= WORDS - 2 for nth in range(len(shown)))
    parts = [*shown[:fit], *([f"{len(shown) - fit} more"] if fit < len(shown) else [])]
    return ". ".join([said, *(["; ".join(parts)] if parts else [])]) + "."


def _shown(axes: Axes) -> Iterator[str]:
    """The points that are beside names, or the ends of each named line; of a panel with neither, the title."""
    title = axes.get_title("left")
    everything: dict[str, Any] = {str(each.get_label()): each for each in axes.containers} | _labelled(axes)
    lines = {name: each if isinstance(each, Line2D) else each[0] for name, each in everything.items()}
    found = [_points(axes, name, line) for name, line in lines.items() if isinstance(line, Line2D)]
    shown = [each for each in found if each]
    yield from [f"{title}, {shown[0]}", *shown[1:]] if title and shown else shown or filter(None, [title])


def _points(axes: Axes, name: str, line: Line2D) -> str:
    x, y = (np.asarray(values, dtype=float).tolist() for values in line.get_data())
    if isinstance(axes.yaxis.get_major_locator(), FixedLocator) and axes.get_yscale() == "linear":
        ticks, named = axes.get_yticks(), axes.yaxis.get_major_formatter()
        beside = [named(min(ticks, key=lambda tick: abs(tick - at))) for at in y]
        points = [f"{each} {_written(axes.xaxis, value, None)}" for each, value in zip(beside, x, strict=True)]
        return ": ".join([*([] if name.startswith("_") else [name]), ", ".join(points)])
    if name.startswith("_") or not x:
        return ""
    ends = [
        f"{_written(axes.yaxis, y[i], axes.fmt_ydata)} at {_written(axes.xaxis, x[i], axes.fmt_xdata)}" for i in (0, -1)
    ]
    return f"{name} {'from ' if len(x) > 1 else ''}{' to '.join(dict.fromkeys(ends))}"


def _written(axis: Axis, value: float, form: Callable[[float], str] | None) -> str:
    """A value as the ticks of its axis are written; ``form`` is that of an axis whose ticks are not all named."""
    ticks = axis.get_major_formatter()
    return (
        form(value) if form else f"{float(f'{value:.3g}'):,g}" if isinstance(ticks, ScalarFormatter) else ticks(value)
    )


def binary_axis(
    axes: Axes,
    at: Iterable[float],
    name: str = "buffer",
    form: Callable[[float], str] = format_bytes,
    columns: int = 1,
) -> None:
    """A logarithmic x axis in powers of two: a tick at each of these values, with its name where there is room.

    ``columns`` is how many panels are side by side.
    """
    ticks = sorted(at)
    named = dict(zip(ticks, roomy(ticks, [form(value) for value in ticks], AXIS / columns), strict=True))
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: named.get(value, "")))
    axes.fmt_xdata = form
    axes.set_xlabel(name)


def roomy(ticks: Sequence[float], names: Sequence[str], points: float) -> list[str]:
    """The names that fit on a logarithmic axis of this length, the first and the last first; "" for all others.

    >>> roomy([4, 1 << 20, 4 << 20, 8 << 20], ["4 B", "1 MiB", "4 MiB", "8 MiB"], 260)
    ['4 B', '1 MiB', '', '8 MiB']
    """
    places = np.log2(ticks)
    places = (places - places[0]) / max(float(np.ptp(places)), 1e-9) * points
    kept: list[int] = []
    for i in dict.fromkeys([0, len(ticks) - 1, *range(len(ticks))]):
        if all(abs(places[i] - places[j]) > LETTER * (len(names[i]) + len(names[j])) / 2 for j in kept):
            kept.append(i)
    return [name if i in kept else "" for i, name in enumerate(names)]


def time_axis(axes: Axes, unit: float = 1e-6, name: str = "time") -> None:
    """A logarithmic y axis of times, for what is already drawn; ``unit`` is a value of 1 in seconds."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    subs = next((subs for most, subs in SUBS.items() if high < most * low), (1.0,))
    axes.yaxis.set_major_locator(LogLocator(subs=subs))
    time_labels(axes, unit)
    axes.set_ylabel(name)


def time_labels(axes: Any, unit: float = 1e-6) -> None:
    """Times at the ticks of a y axis, as `duration` writes them."""
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: duration(value * unit)))
    axes.yaxis.set_minor_formatter(NullFormatter())


def measured(axes: Axes, look: Mark, name: str | None, x: Any, y: Any, low: Any, high: Any, **line: Any) -> None:
    """Filled markers with their intervals; ``line`` is how they are joined. Without a name it is not labelled.

    Rounded, the end of an interval may be on the wrong side of its median: then it has no length.
    """
    bars = [(y - low).clip(lower=0), (high - y).clip(lower=0)]
    joined: dict[str, Any] = {"ls": "-", "lw": 1.2} | line
    axes.errorbar(x, y, yerr=bars, color=look.colour, marker=look.marker, label=name, capsize=2, **joined)


def medians(axes: Axes, look: Mark, name: str | None, rows: Rows, along: str, **line: Any) -> None:
    """The median times of rows against a column, with their intervals, as `measured` draws them."""
    measured(axes, look, name, rows[along], rows.median_us, rows.low_us, rows.high_us, **line)


def measured_across(axes: Axes, look: Mark, name: str | None, x: Any, low: Any, high: Any, y: Any) -> None:
    """Like `measured` along the x axis, and not joined: for rows that are names."""
    bars = [np.clip(np.subtract(x, low), 0, None), np.clip(np.subtract(high, x), 0, None)]
    axes.errorbar(x, y, xerr=bars, color=look.colour, marker=look.marker, ls="", label=name, capsize=2)


def published(axes: Axes, look: Mark, x: Sequence[float], y: Sequence[float]) -> None:
    """Hollow markers, for values that others have published."""
    axes.plot(x, y, marker=look.marker, mfc="none", mec=look.colour, mew=1.5, ms=7, ls="", zorder=3)


def lower_bound(axes: Axes, theme: Theme, x: Any, y: Any, name: str = "lower bound", dash: int = 5) -> None:
    """Thin dashes, for a bound."""
    axes.plot(x, y, color=theme.ink, lw=0.9, ls=(0, (dash, 3)), label=name)


def headline(axes: Axes, said: str) -> None:
    """What one panel says, above it."""
    axes.set_title(said, loc="left", fontsize=9.5, fontweight="bold")


def message(figure: Figure, theme: Theme, said: str, at: float | None = None) -> None:
    """What the figure says, above it; ``at`` is where along x it begins to hold, marked by a dotted line."""
    if said:
        figure.suptitle(fill(said, LINE), x=0.01, ha="left", fontsize=10.5, fontweight="bold", color=theme.ink)
    if at is None:
        return
    for axes in figure.axes:
        axes.axvline(at, color=theme.ink, lw=0.8, ls=(0, (1, 2)), zorder=0.5)


def notes(figure: Figure, rows: Rows = (), more: Iterable[Artist] = (), size: float = 9, columns: int = 3) -> None:
    """Below the figure: what kinds of marks are, and how sure the intervals of the rows are."""
    handles, title = list(more), confidence(rows)
    if handles or title:
        names = [str(handle.get_label()) for handle in handles]
        look: dict[str, Any] = {"fontsize": size, "title": title, "title_fontsize": size, "alignment": "left"}
        figure.legend(handles, names, loc="outside lower left", ncols=columns, **look)


def labels(figure: Figure, rows: Rows = (), more: Iterable[Artist] = (), size: float = 9.5) -> None:
    """The name of every series at the right of each panel, in its colour; below the figure ``more``, as in `notes`.

    A name is level with the end of its line. Names are pushed apart where ends are close; then a thin line leads from
    the end to its name; a line that ends earlier has a dotted one. Call it last: it lays the figure out first.
    """
    notes(figure, rows, more)
    figure.draw_without_rendering()
    for axes in figure.axes:
        _label(axes, size)


def _label(axes: Axes, size: float) -> None:
    ends = {_broken(name): _end(handle) for name, handle in _labelled(axes).items()}
    width, height = (length * 72 / axes.figure.dpi for length in (axes.bbox.width, axes.bbox.height))
    at = [axes.transAxes.inverted().transform(axes.transData.transform((x, y))) for x, y, _ in ends.values()]
    heights = [1.2 * size * (1 + name.count("\n")) / height for name in ends]
    levels = below(1, apart([float(y) for _, y in at], heights), heights)
    for (name, (x, y, colour)), level, (right, wanted) in zip(ends.items(), levels, at, strict=True):
        is_beside = right > 0.9 and abs(level - wanted) * height < size
        line = {"arrowstyle": "-", "color": colour, "lw": 0.5, "shrinkA": 0, "shrinkB": 3}
        line["ls"] = "-" if right > 0.9 else (0, (1, 4))  # across the panel it must not pass for data
        arrow = None if is_beside else line | {"relpos": (0, 0.5)}  # from the left of its name: it crosses no other
        look: dict[str, Any] = {"color": _legible(colour), "fontsize": size, "va": "center", "linespacing": 1.0}
        look |= {"textcoords": "axes fraction", "annotation_clip": False, "arrowprops": arrow, "ha": "left"}
        axes.annotate(name, (x, y), (1 + 10 / width, level), **look)


def _labelled(axes: Axes) -> dict[str, Artist]:
    return {name: handle for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)}


def _broken(name: str) -> str:
    r"""A name on lines of few letters.

    >>> _broken("gloo (its own choice)"), _broken("two_tree")
    ('gloo\n(its own choice)', 'two_tree')
    """
    return "\n".join(fill(part, LABEL_LETTERS) for part in name.replace(" (", "\n(").split("\n"))


def _end(handle: Any) -> tuple[float, float, Any]:
    """The last point of a line, also of one with intervals, and its colour."""
    line = handle if isinstance(handle, Line2D) else handle[0]
    x, y = np.asarray(line.get_xdata(), dtype=float), np.asarray(line.get_ydata(), dtype=float)
    return float(x[x.argmax()]), float(y[x.argmax()]), line.get_color()


def _legible(colour: Any) -> tuple[float, ...]:
    """A line's colour as letters need it: nearer to the colour of text."""
    both = np.array([mpl.colors.to_rgb(colour), mpl.colors.to_rgb(mpl.rcParams["text.color"])])
    own = 0.65 if both[1].mean() < 0.5 else 0.45  # dark colours on a dark page need more of the text's
    return tuple((both[0] * own + both[1] * (1 - own)).tolist())


def apart(at: Sequence[float], heights: Sequence[float]) -> list[float]:
    """Where to put the middles of labels of these heights, near where they want to be, so that none overlap.

    The least moves in the sense of squares.

    >>> apart([0, 100, 101], [10, 10, 10])
    [0.0, 95.5, 105.5]
    """
    if not at:
        return []
    order = np.argsort(at, kind="stable")
    tall = np.asarray(heights, dtype=float)[order]
    stacked = np.cumsum(tall) - (tall + tall[0]) / 2  # the middles, if all were stacked on the lowest
    placed = np.empty(len(order))
    placed[order] = isotonic_regression(np.asarray(at, dtype=float)[order] - stacked).x + stacked
    return [float(each) for each in placed]


def below(top: float, at: Sequence[float], heights: Sequence[float]) -> list[float]:
    """Middles of labels moved down as far as needed for none to end above ``top``.

    >>> below(100, [50.0, 97.0, 90.0], [10, 10, 4])
    [50.0, 95.0, 88.0]
    """
    placed = dict.fromkeys(range(len(at)), 0.0)
    for i in sorted(placed, key=lambda i: -at[i]):
        placed[i] = min(at[i], top - heights[i] / 2)
        top = placed[i] - heights[i] / 2
    return list(placed.values())


def confidence(rows: Rows) -> str | None:
    """What the bars of these rows are worth; None for rows without samples, or with one each.

    >>> import pandas as pd
    >>> confidence(pd.DataFrame({"samples": [[1.0] * 21, [2.0] * 21]}))
    'bars: 97.33% intervals of the median'
    """
    counts = [len(samples) for samples in getattr(rows, "samples", ()) if len(samples)]
    return f"bars: {intervals(counts)} of the median" if counts and min(counts) > 1 else None


def key(of: Theme | str, label: str, **look: Any) -> Line2D:
    """What a kind of mark is, for the notes below a figure: in the theme's ink, or in a colour."""
    colour = of if isinstance(of, str) else of.ink
    shape: dict[str, Any] = {"color": colour, "lw": 1.2, "label": label} | look
    return Line2D([], [], **shape)


def series(rows: Rows, by: Sequence[str], along: str) -> list[tuple[Any, Rows]]:
    """The rows of each series, in the order of their first rows, sorted along the x axis."""
    return [(name, group.sort_values(along, kind="stable")) for name, group in rows.groupby(list(by), sort=False)]


def readable_on(colour: str) -> str:
    """Black or white, the one that contrasts more.

    >>> readable_on("#0072B2"), readable_on("#E69F00")
    ('white', 'black')
    """
    return "black" if luminance(colour) > 0.179 else "white"


def luminance(colour: str) -> float:
    """WCAG's relative luminance, 0 to 1."""
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in mpl.colors.to_rgb(colour)
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
