"""The figure kit on seaborn: curves, dots, fields and lanes of a table's rows, in one look, with alternative texts.

A measured value is a filled marker with its interval, a simulated one a line, a published one a
hollow marker. A lower bound is a line of thin dashes. What to see in a figure is a sentence of the
page that shows it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    NullLocator,
)

from collectives.algorithms import Mark
from collectives.figures.style import LIGHT, Picture, Theme, mark, on_page, picture
from collectives.units import duration, format_bytes
from collectives_book.figures.statements import Rows as Rows
from collectives_book.figures.statements import intervals, us


@contextmanager
def _without(*names: str) -> Iterator[None]:
    """Let imports of these modules fail for a while, unless they are there already."""
    absent = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]  # importing None fails
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]


# Seaborn does without scipy's statistics and clusters, which no figure here needs: a second of
# every page.
with _without("scipy.stats", "scipy.cluster"):
    import seaborn as sns
    import seaborn.objects as so

# Inches. Text in a figure of this width can still be read on a phone.
WIDTH = 5.6

# Where the range of a logarithmic axis in base 10 is below a factor, its ticks in a decade.
SUBS = {100: (1.0, 2.0, 5.0), 10000: (1.0, 3.0)}

# Points that a letter of a tick label takes, and that an x axis of a figure's whole width has.
LETTER, LENGTH = 7.3, 0.62 * 72 * WIDTH

# Words of an alternative text: a screen reader cannot skip a part of it.
WORDS = 60

DASHES = (5.0, 3.0)
TITLE: dict[str, Any] = {"loc": "left", "fontsize": 9.5, "fontweight": "bold"}
UNTITLED: dict[str, Any] = {"title": lambda _: ""}  # seaborn's own title of a panel


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
    parts = [" ".join(each.split()) for each in shown]
    fit = sum(
        len(" ".join([about, *parts[: nth + 1]]).split()) <= WORDS - 2 for nth in range(len(parts))
    )
    left = [f"{len(parts) - fit} more"] if fit < len(parts) else []
    return ". ".join([about, *(["; ".join([*parts[:fit], *left])] if parts else [])]) + "."


def curves(
    rows: Rows,
    x: str,
    y: str,
    by: str,
    axes: tuple[Axis, Axis],
    about: str,
    *,
    interval: tuple[str, str] | None = None,
    simulated: str | None = None,
    predicted: str = "simulated",
    bound: str | None = None,
    bounded: str = "lower bound",
    published: Rows | None = None,
    source: str = "published",
    measured: bool = True,
    joined: bool = True,
    looks: Callable[[str], Mark] = mark,
    facet: str | None = None,
    title: Callable[[Any], str] = str,
    columns: int = 1,
    group: str | None = None,
    is_x_shared: bool = True,
    height: float = 3.8,
    then: Callable[[Sequence[Axes], Theme], None] | None = None,
) -> Picture:
    """Return the curves of a table: column ``y`` against ``x``, a series for each value of ``by``.

    With ``measured`` (the default) ``y`` has filled markers, ``joined`` or not, with ``interval``
    (two columns) as bars; else it is a line. Beside it may stand ``simulated``, a column drawn as a
    line, which the legend calls ``predicted`` (markers without one are dotted); ``bound``, a column
    drawn as dashes, one line for all series, which the legend calls ``bounded``; and ``published``,
    a table of the same columns drawn as hollow markers, which the legend calls ``source``.

    ``looks`` gives the colour and marker of a series, of which each value of ``group`` has a line.
    Each value of ``facet`` has a panel, ``columns`` side by side, headed by ``title``. ``then`` may
    add to the panels of a theme.
    """
    if rows.empty:
        return nothing()
    points = rows[:0] if published is None else published.astype({by: str})
    rows = rows.astype({by: str})
    series = {name: looks(name) for name in dict.fromkeys([*rows[by], *points[by]])}
    panels = [*dict.fromkeys(rows[facet])] if facet else [""]
    known = rows[simulated].notna() if simulated else rows[y].isna()
    kinds: dict[str, dict[str, Any]] = {predicted: {"ls": "-"}} if known.any() else {}
    kinds |= {source: {"ls": "", "marker": "o", "mfc": "none"}} if len(points) else {}
    kinds |= {bounded: {"ls": (0, DASHES), "lw": 0.9}} if bound else {}

    def paint(figure: Figure, theme: Theme) -> None:
        plot = so.Plot(rows, x=x, y=y, color=by, marker=by, group=group)
        if facet:
            plot = plot.facet(col=facet, order=panels, wrap=columns).label(**UNTITLED)
            plot = plot.share(x=is_x_shared, y=columns > 1)
        if known.any():
            plot = plot.add(
                so.Line(linewidth=1.2),
                data=rows[known],
                y=simulated or y,
                marker=None,
                legend=False,
            )
        plot = (
            _points(plot, rows[~known & joined], y, simulated is not None, interval)
            if measured
            else _only_lines(plot, 1.0 if group else 1.8)
        )
        _plot(_with_others(plot, points, bound, theme), figure, theme, series)
        for panel, value in zip(figure.axes, panels, strict=True):
            panel.set_title(title(value) if facet else "", **TITLE)
            _scale(panel, "x", axes[0], [*rows[x]], columns)
            _scale(panel, "y", axes[1], [])
        legend(
            figure,
            theme,
            series,
            kinds,
            rows if interval else (),
            **_key(measured, simulated is not None or not joined),
        )
        if then:
            then(figure.axes, theme)

    return drawn(paint, about, height, _ends(rows, x, y, by, axes, facet, title))


def _points(
    plot: so.Plot, joined: Rows, y: str, dotted: bool, interval: tuple[str, str] | None
) -> so.Plot:
    """Add markers, their intervals, and a line through those that no simulated line passes."""
    line = so.Line(linewidth=1.2, linestyle=":" if dotted else "-", pointsize=0)
    plot = plot.add(line, data=joined, y=y, marker=None, legend=False) if len(joined) else plot
    plot = plot.add(so.Dot(pointsize=6), legend=False)
    if interval is None:
        return plot
    return plot.add(
        so.Range(linewidth=1.2), ymin=interval[0], ymax=interval[1], marker=None, legend=False
    )


def _with_others(plot: so.Plot, points: Rows, bound: str | None, theme: Theme) -> so.Plot:
    """Add hollow markers for published points, and dashes for a bound."""
    if len(points):
        plot = plot.add(so.Dot(pointsize=7, fill=False, stroke=1.5), data=points, legend=False)
    if bound is None:
        return plot
    dashed: Any = {"color": theme.ink, "linewidth": 0.9, "linestyle": DASHES}
    return plot.add(so.Line(**dashed), y=bound, color=None, marker=None, legend=False)


def _only_lines(plot: so.Plot, width: float) -> so.Plot:
    return plot.add(so.Line(linewidth=width), marker=None, legend=False)


def _key(measured: bool, simulated: bool) -> dict[str, Any]:
    """Return the line and marker by which the legend shows a series."""
    return {"ls": "" if simulated else "-"} if measured else {"ls": "-", "marker": None}


def dots(
    rows: Rows,
    x: str,
    y: str,
    axis: Axis,
    about: str,
    *,
    by: str | None = None,
    interval: tuple[str, str] | None = None,
    predicted: str | None = None,
    looks: Callable[[str], Mark] = mark,
    facet: str | None = None,
    is_x_shared: bool = True,
    height: float | None = None,
    then: Callable[[Sequence[Axes], Theme], None] | None = None,
) -> Picture:
    """Return the values of a table as dots: column ``x`` in a line of the figure for each name in the column ``y``.

    ``by`` gives the dots of a line their look, ``interval`` (two columns) is drawn as bars,
    ``predicted`` (a column) as a short stroke. Each value of ``facet`` has a panel, side by side.
    """
    if rows.empty:
        return nothing()
    by = by or y
    names = [str(name) for name in dict.fromkeys(rows[by])]
    lines = [*dict.fromkeys(rows[y])]
    panels = [*dict.fromkeys(rows[facet])] if facet else [""]
    several = by != y and rows.groupby([y, *([facet] if facet else [])]).size().max() > 1

    def paint(figure: Figure, theme: Theme) -> None:
        beside = [so.Dodge(by=["color"], gap=0.2)] if several else []
        plot = so.Plot(rows.astype({by: str}), x=x, y=y, color=by, marker=by)
        plot = (
            plot.facet(col=facet, order=panels).share(x=is_x_shared).label(**UNTITLED)
            if facet
            else plot
        )
        plot = plot.add(so.Dot(pointsize=6), *beside, orient="y", legend=False)
        if interval:
            bars = so.Range(linewidth=1.2)
            plot = plot.add(
                bars,
                *beside,
                xmin=interval[0],
                xmax=interval[1],
                orient="y",
                marker=None,
                legend=False,
            )
        if predicted:
            stroke = so.Dot(marker="|", color=theme.ink, pointsize=14, stroke=1.4)
            plot = plot.add(stroke, *beside, x=predicted, orient="y", legend=False, marker=None)
        _plot(plot, figure, theme, {name: looks(name) for name in names}, y=so.Nominal(order=lines))
        for panel, value in zip(figure.axes, panels, strict=True):
            panel.set_title(value, **TITLE)
            _scale(panel, "x", axis, [])
            panel.set_ylabel("")
            panel.grid(visible=False, axis="y")
        kinds = {"predicted": {"ls": "", "marker": "|", "ms": 9}} if predicted else {}
        series = {name: looks(name) for name in names} if by != y else {}
        legend(figure, theme, series, kinds, rows if interval else (), ls="")
        if then:
            then(figure.axes, theme)

    told = [*([facet] if facet else []), y, *([by] if by != y else [])]
    names_of = rows[told].astype(str).agg(", ".join, axis="columns")
    shown = [f"{name} {axis.form(value)}" for name, value in zip(names_of, rows[x], strict=True)]
    return drawn(
        paint,
        about,
        height or 1.2 + (0.2 + 0.2 * (len(names) if several else 1)) * len(lines),
        shown,
    )


def fields(
    rows: Rows,
    x: str,
    y: str,
    winner: str,
    axes: tuple[Axis, Axis],
    about: str,
    *,
    facet: str,
    frame: float | None = None,
    columns: int = 1,
) -> Picture:
    """Return a map of who wins where: a coloured field for each ``x`` and ``y``, marked with the winner's initials.

    Each value of ``facet`` has a panel; an empty name is a field without a winner. The row of
    fields at ``frame`` has a dotted frame.
    """
    if rows.empty:
        return nothing()
    names = [*dict.fromkeys(sorted(name for name in rows[winner] if name))]
    panels = {
        str(name): part.pivot(index=y, columns=x, values=winner).sort_index(ascending=False)
        for name, part in rows.groupby(facet, sort=False)
    }
    tall = (
        sum(len(table) for table in panels.values())
        if columns == 1
        else max(map(len, panels.values()))
    )

    def paint(figure: Figure, theme: Theme) -> None:
        found = figure.subplots(-(-len(panels) // columns), columns, squeeze=False).flat
        for panel, (name, table) in zip(found, panels.items(), strict=False):
            _map(panel, table, names, axes, theme, columns)
            panel.set_title(name, **TITLE)
            panel.set_ylabel(axes[1].name if panel.get_subplotspec().is_first_col() else "")
            if frame is not None and frame in table.index:
                at = (0, list(table.index).index(frame))
                box: dict[str, Any] = {
                    "fill": False,
                    "ec": theme.ink,
                    "lw": 1.6,
                    "ls": (0, (1, 1.5)),
                    "clip_on": False,
                }
                panel.add_patch(mpl.patches.Rectangle(at, table.shape[1], 1, **box))
        handles = [
            Patch(
                fc=on_page(mark(name).colour, theme),
                label=f"{initials(name)} {name.replace('_', ' ')}",
            )
            for name in names
        ]
        figure.legend(
            handles=handles, loc="outside lower center", ncols=3, fontsize=8.5, handlelength=1.0
        )

    rows_of_panels = 1 if columns > 1 else len(panels)
    height = 0.9 * rows_of_panels + 0.2 * tall + 0.22 * -(-len(names) // 3)
    counts = (
        rows[rows[winner] != ""]
        .groupby(facet, sort=False)[winner]
        .value_counts()
        .groupby(level=0, sort=False)
    )
    shown = [
        f"{name}: {part.index[0][1]} in {part.iloc[0]} of {panels[str(name)].size}"
        for name, part in counts
    ]
    return drawn(paint, about, height, shown)


def _map(
    panel: Axes,
    table: Rows,
    names: Sequence[str],
    axes: tuple[Axis, Axis],
    theme: Theme,
    columns: int,
) -> None:
    colours = {name: on_page(mark(name).colour, theme) for name in names}
    numbers = table.map(lambda name: names.index(name) if name else np.nan).astype(float)
    look: dict[str, Any] = {
        "cmap": mpl.colors.ListedColormap([*colours.values()]),
        "vmin": -0.5,
        "cbar": False,
    }
    look |= {
        "vmax": len(names) - 0.5,
        "linewidths": 1,
        "linecolor": theme.ground,
        "annot": table.map(initials),
    }
    sns.heatmap(numbers, ax=panel, fmt="", annot_kws={"fontsize": 7.5}, mask=numbers.isna(), **look)
    for text in panel.texts:  # seaborn chooses white or a dark grey; a dark page needs black
        text.set_color(readable_on(mpl.colors.to_hex(colours[_spelt(text.get_text(), names)])))
    turned = 40 if len(table.columns) * columns > 10 else 0
    panel.set_xticklabels(
        [axes[0].form(value) for value in table.columns], rotation=turned, fontsize=8.5
    )
    panel.set_yticklabels([axes[1].form(value) for value in table.index], rotation=0, fontsize=8.5)
    panel.set(xlabel=axes[0].name)
    panel.tick_params(length=0)


def _spelt(short: str, names: Sequence[str]) -> str:
    return next(name for name in names if initials(name) == short)


def initials(algorithm: str) -> str:
    """Return the mark of an algorithm's fields.

    >>> initials("hierarchical_ring"), initials("ring"), initials("")
    ('HR', 'R', '')
    """
    return "".join(word[0].upper() for word in algorithm.split("_") if word)


def lanes(
    rows: Rows,
    axis: Axis,
    about: str,
    colours: Mapping[str, str],
    *,
    facet: str,
    shaded: Mapping[str, tuple[float, float]] | None = None,
) -> Picture:
    """Return a timeline: in each lane a bar for each row, from its ``begin`` to its ``end``, coloured by its ``what``.

    ``lane`` names the lane of a row; rows of one lane are one below the other where their ``level``
    differs (0 to 1, with ``tall`` as a bar's height). ``text`` is written into the bar. Each value
    of ``facet`` has a panel, in which ``shaded`` marks a span of time. A colour "ink" or "faint" is
    the theme's.
    """
    panels = {str(name): part for name, part in rows.groupby(facet, sort=False)}

    def paint(figure: Figure, theme: Theme) -> None:
        of = {what: getattr(theme, colour, colour) for what, colour in colours.items()}
        found = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
        for panel, (name, part) in zip(found, panels.items(), strict=True):
            _lanes(panel, part, of, theme)
            panel.set_title(name, **TITLE)
            if shaded and name in shaded:
                panel.axvspan(
                    *shaded[name],
                    color=of[[*colours][-1]],
                    alpha=0.15 if theme is LIGHT else 0.35,
                    lw=0,
                )
            _scale(panel, "x", axis, [])
            panel.label_outer()
        handles = [Patch(fc=of[what], ec="none", label=what) for what in colours]
        figure.legend(handles=handles, loc="outside lower left", ncols=len(colours), fontsize=9)

    height = 1.0 + sum(0.4 + 0.5 * part.lane.nunique() for part in panels.values())
    return drawn(paint, about, height, panels)


def _lanes(panel: Axes, rows: Rows, colours: Mapping[str, str], theme: Theme) -> None:
    places = {lane: nth for nth, lane in enumerate(dict.fromkeys(rows.lane))}
    for row in rows.itertuples():
        tall, level = getattr(row, "tall", 0.84), getattr(row, "level", 0.0)
        at, colour = places[row.lane] - 0.42 + level, colours[row.what]
        look: dict[str, Any] = {
            "align": "edge",
            "color": colour,
            "edgecolor": theme.ground,
            "lw": 0.6,
        }
        panel.barh(at, row.end - row.begin, tall, row.begin, **look)
        if text := getattr(row, "text", ""):
            middle = (row.begin + row.end) / 2
            panel.text(
                middle,
                at + tall / 2,
                text,
                ha="center",
                va="center",
                fontsize=8,
                color=readable_on(colour),
            )
    panel.set_yticks([*places.values()], [*places], fontsize=8.5)
    panel.invert_yaxis()
    panel.grid(visible=False, axis="y")


def legend(
    figure: Figure,
    theme: Theme,
    series: Mapping[str, Mark],
    kinds: Mapping[str, Mapping[str, Any]],
    rows: Rows = (),
    **line: Any,
) -> None:
    """Add the legend below a figure: each series, the other kinds of marks, and how sure the rows' intervals are."""
    shapes: dict[str, dict[str, Any]] = {
        name: {"color": on_page(look.colour, theme), "marker": look.marker, "lw": 1.4, **line}
        for name, look in series.items()
    }
    shapes |= {name: {"color": theme.ink, "lw": 1.2, **look} for name, look in kinds.items()}
    handles = [Line2D([], [], label=name, **shape) for name, shape in shapes.items()]
    title = confidence(rows)
    if handles or title:
        longest = max((len(str(handle.get_label())) for handle in handles), default=1)
        columns = max(1, min(4, 60 // (longest + 6)))
        look: dict[str, Any] = {
            "fontsize": 9,
            "title": title,
            "title_fontsize": 9,
            "alignment": "left",
        }
        figure.legend(handles=handles, loc="outside lower left", ncols=columns, **look)


def _plot(
    plot: so.Plot, figure: Figure, theme: Theme, looks: Mapping[str, Mark], **scales: Any
) -> None:
    scales |= {
        "color": {name: on_page(look.colour, theme) for name, look in looks.items()},
        "marker": {name: look.marker for name, look in looks.items()},
    }
    plot.scale(**scales).theme(dict(mpl.rcParams.items())).on(figure).plot()


def _scale(panel: Axes, which: str, axis: Axis, values: Sequence[float], columns: int = 1) -> None:
    """Scale and name an axis of a panel: base 2 has a tick at each of these values, with its name where it fits.

    A linear axis of whole numbers has ticks at whole numbers only.
    """
    of = panel.xaxis if which == "x" else panel.yaxis
    if of.get_label_text() or which == "x":
        of.set_label_text(axis.name)
    if not axis.base and values and all(float(value).is_integer() for value in values):
        of.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))
    if axis.base:
        getattr(panel, f"set_{which}scale")("log", base=axis.base)
        of.set_minor_locator(NullLocator())
    elif (which == "y" and panel.get_ylim()[0] >= 0) or (
        which == "x" and not values and panel.get_xlim()[0] >= 0
    ):
        getattr(panel, f"set_{which}lim")(0, None)
    if axis.base == 2 and values:
        ticks = sorted({float(value) for value in values})
        named = dict(
            zip(
                ticks,
                roomy(ticks, [axis.form(tick) for tick in ticks], LENGTH / columns),
                strict=True,
            )
        )
        few = ticks if len(ticks) <= 10 else [tick for tick in ticks if named[tick]]
        of.set_major_locator(FixedLocator(few))
        of.set_major_formatter(FuncFormatter(lambda value, _: named.get(value, "")))
        return
    if axis.base == 10:
        low, high = panel.get_ylim() if which == "y" else panel.get_xlim()
        room = 1 if which == "y" else 30  # names of ticks stand side by side on an x axis
        subs = next((subs for most, subs in SUBS.items() if high * room < most * low), (1.0,))
        of.set_major_locator(LogLocator(subs=subs))
    of.set_major_formatter(FuncFormatter(lambda value, _: axis.form(value)))
    of.set_minor_formatter(NullFormatter())


def roomy(ticks: Sequence[float], names: Sequence[str], points: float) -> list[str]:
    """Return the names that fit on a logarithmic axis of this length, the first and the last first.

    "" for all others.

    >>> roomy([4, 1 << 20, 4 << 20, 8 << 20], ["4 B", "1 MiB", "4 MiB", "8 MiB"], 260)
    ['4 B', '1 MiB', '', '8 MiB']
    """
    places = np.log2(ticks)
    places = (places - places[0]) / max(float(np.ptp(places)), 1e-9) * points
    kept: list[int] = []
    for i in dict.fromkeys([0, len(ticks) - 1, *range(len(ticks))]):
        if all(
            abs(places[i] - places[j]) > LETTER * (len(names[i]) + len(names[j])) / 2 for j in kept
        ):
            kept.append(i)
    return [name if i in kept else "" for i, name in enumerate(names)]


def _ends(
    rows: Rows,
    x: str,
    y: str,
    by: str,
    axes: tuple[Axis, Axis],
    facet: str | None,
    title: Callable[[Any], str],
) -> Iterable[str]:
    """The first and the last point of each series, in each panel."""
    for panel, part in rows.groupby(facet, sort=False) if facet else [("", rows)]:
        for name, group in part.groupby(by, sort=False):
            ordered = group.sort_values(x, kind="stable")
            points = [
                f"{axes[1].form(row[y])} at {axes[0].form(row[x])}"
                for _, row in ordered.iloc[[0, -1]].iterrows()
            ]
            head = f"{title(panel)}: " if facet else ""
            yield f"{head}{name} {'from ' if len(group) > 1 else ''}{' to '.join(dict.fromkeys(points))}"


def confidence(rows: Rows) -> str | None:
    """Return what the bars of these rows are worth.

    None for rows without samples, or with one each.

    >>> import pandas as pd
    >>> confidence(pd.DataFrame({"samples": [[1.0] * 21, [2.0] * 21]}))
    'bars: 97.33% intervals of the median'
    """
    counts = [len(samples) for samples in getattr(rows, "samples", ()) if len(samples)]
    return f"bars: {intervals(counts)} of the median" if counts and min(counts) > 1 else None


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
