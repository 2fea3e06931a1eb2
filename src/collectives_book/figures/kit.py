"""The figure kit: axes, legends and alternative texts that all figures of the book share.

`charts` has curves and dots, `fields` a map of who wins where, `lanes` a timeline. What to see in a
figure is a sentence of the page that shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    NullLocator,
)

from collectives.algorithms import Mark
from collectives.figures.style import Picture, Theme, on_page, picture
from collectives.units import duration, format_bytes
from collectives_book.figures.statements import Rows as Rows
from collectives_book.figures.statements import intervals, us

# Inches. Text in a figure of this width can still be read on a phone.
WIDTH = 5.6

# Where the range of a logarithmic axis in base 10 is below a factor, its ticks in a decade.
SUBS = {100: (1.0, 2.0, 5.0), 10000: (1.0, 3.0)}

# Points that a letter of a tick label takes, and that an x axis of a figure's whole width has.
LETTER = 7.3
LENGTH = 0.62 * 72 * WIDTH

# Words of an alternative text: a screen reader cannot skip a part of it.
WORDS = 60

TITLE: dict[str, Any] = {"loc": "left", "fontsize": 9.5, "fontweight": "bold"}


class Axis(NamedTuple):
    """The name of an axis, how its values are written, and the base of its logarithm.

    0 is a linear axis.
    """

    name: str
    form: Callable[[float], str] = "{:,.4g}".format
    base: int = 0


BYTES = Axis("buffer", format_bytes, 2)
RANKS = Axis("ranks", "{:,.0f}".format, 2)
US = Axis("time", us, 10)
SECONDS = Axis("time", duration, 10)
SHARE = Axis("share", "{:.0%}".format)


def nothing() -> Picture:
    """Return the figure of no rows: all sizes failed, or none was asked for."""
    return picture(lambda *_: None, "There are no rows to draw.", WIDTH, 0.2)


def drawn(
    paint: Callable[[Figure, Theme], None],
    about: str,
    height: float = 4.0,
    shown: Iterable[str] = (),
) -> Picture:
    """Paint a figure of the usual width, with `described` as its alternative text."""
    return picture(paint, described(about, shown), WIDTH, height)


def described(about: str, shown: Iterable[str] = ()) -> str:
    """Return what a figure is about and the values that it shows, as a text of at most `WORDS` words.

    >>> described("Time against ranks", ["ring from 0.5 at 2 to 1.5 at 8"])
    'Time against ranks. ring from 0.5 at 2 to 1.5 at 8.'
    """
    parts = [" ".join(text.split()) for text in shown]
    words = len(about.split())
    fit = 0
    for part in parts:
        words += len(part.split())
        if words > WORDS - 2:  # two words say how many more there are
            break
        fit += 1
    if not parts:
        return f"{about}."
    if fit < len(parts):
        parts = [*parts[:fit], f"{len(parts) - fit} more"]
    return f"{about}. {'; '.join(parts)}."


def legend(
    figure: Figure,
    theme: Theme,
    series: Mapping[str, Mark],
    kinds: Mapping[str, Mapping[str, Any]],
    rows: Rows = (),
    **line: Any,
) -> None:
    """Add the legend below a figure: each series, the other kinds of marks, and how sure the rows' intervals are."""
    shapes: dict[str, dict[str, Any]] = {}
    for name, look in series.items():
        colour = on_page(look.colour, theme)
        shapes[name] = {"color": colour, "marker": look.marker, "lw": 1.4, **line}
    for name, shape in kinds.items():
        shapes[name] = {"color": theme.ink, "lw": 1.2, **shape}
    title = confidence(rows)
    if not shapes and not title:
        return
    handles = [Line2D([], [], label=name, **shape) for name, shape in shapes.items()]
    text: dict[str, Any] = {"fontsize": 9, "title_fontsize": 9, "alignment": "left"}
    figure.legend(
        handles=handles,
        loc="outside lower left",
        ncols=legend_columns(shapes),
        title=title,
        **text,
    )


def legend_columns(names: Iterable[str]) -> int:
    """Return how many columns of a legend fit into a figure's width.

    >>> legend_columns(["ring", "tree"]), legend_columns(["a name of some twenty"])
    (4, 2)
    """
    longest = max((len(name) for name in names), default=1)
    return max(1, min(4, 60 // (longest + 6)))


def scale(panel: Axes, which: str, axis: Axis, values: Sequence[float], columns: int = 1) -> None:
    """Scale and name an axis of a panel, "x" or "y": base 2 has a tick at each of these values, named where it fits.

    A linear axis of whole numbers has ticks at whole numbers only. ``columns`` panels stand side by
    side.
    """
    line = panel.xaxis if which == "x" else panel.yaxis
    if line.get_label_text() or which == "x":
        line.set_label_text(axis.name)
    if axis.base:
        getattr(panel, f"set_{which}scale")("log", base=axis.base)
        line.set_minor_locator(NullLocator())
    else:
        _scale_linear(panel, which, line, values)
    if axis.base == 2 and values:
        _tick_at(line, axis, values, LENGTH / columns)
        return
    if axis.base == 10:
        line.set_major_locator(LogLocator(subs=_subs(panel, which)))
    line.set_major_formatter(FuncFormatter(lambda value, _: axis.form(value)))
    line.set_minor_formatter(NullFormatter())


def _scale_linear(panel: Axes, which: str, line: Any, values: Sequence[float]) -> None:
    if values and all(float(value).is_integer() for value in values):
        line.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))
    low, _ = panel.get_xlim() if which == "x" else panel.get_ylim()
    # Values of an x axis, as numbers of ranks, need no zero.
    if low >= 0 and (which == "y" or not values):
        getattr(panel, f"set_{which}lim")(0, None)


def _tick_at(line: Any, axis: Axis, values: Sequence[float], points: float) -> None:
    """Set a tick at each value, or only at those with a name where they are many."""
    ticks = sorted({float(value) for value in values})
    names = roomy(ticks, [axis.form(tick) for tick in ticks], points)
    named = dict(zip(ticks, names, strict=True))
    shown = ticks if len(ticks) <= 10 else [tick for tick in ticks if named[tick]]
    line.set_major_locator(FixedLocator(shown))
    line.set_major_formatter(FuncFormatter(lambda value, _: named.get(value, "")))


def _subs(panel: Axes, which: str) -> tuple[float, ...]:
    """Return the ticks in a decade: more where the axis has few decades."""
    low, high = panel.get_ylim() if which == "y" else panel.get_xlim()
    room = 1 if which == "y" else 30  # names of ticks stand side by side on an x axis
    for most, subs in SUBS.items():
        if high * room < most * low:
            return subs
    return (1.0,)


def roomy(ticks: Sequence[float], names: Sequence[str], points: float) -> list[str]:
    """Return the names that fit on a logarithmic axis of this length, the first and the last first.

    "" for all others.

    >>> roomy([4, 1 << 20, 4 << 20, 8 << 20], ["4 B", "1 MiB", "4 MiB", "8 MiB"], 260)
    ['4 B', '1 MiB', '', '8 MiB']
    """
    places = np.log2(ticks)
    places = (places - places[0]) / max(float(np.ptp(places)), 1e-9) * points
    order = dict.fromkeys([0, len(ticks) - 1, *range(len(ticks))])
    kept: list[int] = []
    for i in order:
        half = LETTER / 2 * len(names[i])
        if all(abs(places[i] - places[j]) > half + LETTER / 2 * len(names[j]) for j in kept):
            kept.append(i)
    return [name if i in kept else "" for i, name in enumerate(names)]


def confidence(rows: Rows) -> str | None:
    """Return what the bars of these rows are worth.

    None for rows without samples, or with one each.

    >>> import pandas as pd
    >>> confidence(pd.DataFrame({"samples": [[1.0] * 21, [2.0] * 21]}))
    'bars: 97.33% confidence intervals of the median'
    """
    counts = [len(samples) for samples in getattr(rows, "samples", ()) if len(samples)]
    return f"bars: {intervals(counts)} of the median" if counts and min(counts) > 1 else None


def outline(
    axes: Axes, theme: Theme, corner: tuple[float, float], width: float, height: float
) -> None:
    """Draw the edges of a rectangle."""
    edges = Rectangle(corner, width, height, fill=False, ec=theme.ink, lw=0.8)
    axes.add_patch(edges)


def fill(axes: Axes, colour: str, corner: tuple[float, float], width: float, height: float) -> None:
    """Draw a rectangle without edges."""
    axes.add_patch(Rectangle(corner, width, height, color=colour, lw=0))


def readable_on(colour: str) -> str:
    """Return black or white, the one that contrasts more.

    >>> readable_on("#0072B2"), readable_on("#E69F00")
    ('white', 'black')
    """
    return "black" if luminance(colour) > 0.179 else "white"


def luminance(colour: str) -> float:
    """Return WCAG's relative luminance of a colour, 0 to 1."""
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in mpl.colors.to_rgb(colour)
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
