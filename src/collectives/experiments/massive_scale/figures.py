"""Simulated rows as figures: lines for what the model says, hollow markers for what was published.

Rows are a table as `scaling.row` makes them. Nothing here is measured by us.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import groupby

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, MultipleLocator, NullFormatter, NullLocator

from collectives.experiments.massive_scale import published
from collectives.figures.measured import WIDTH, Rows, nothing
from collectives.figures.style import DARK, Picture, Theme, mark, picture
from collectives.units import duration, format_bytes

Points = Callable[[str], Mapping[int, float]]


def latency(rows: Rows) -> Picture:
    """Time against the number of GPUs, both logarithmic; published points where the article has some."""

    def shape(axes: Axes) -> None:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: duration(seconds)))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_ylabel("time")

    points = published.latencies if _is_published(rows, published.SMALL) else _nothing
    return _against_ranks(rows, "seconds", duration, shape, points, "time")


def bandwidth(rows: Rows) -> Picture:
    """Bus bandwidth against the number of GPUs; published points where the article has some."""

    def shape(axes: Axes) -> None:
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_locator(MultipleLocator(5))
        axes.set_ylabel("bus bandwidth (GB/s)")

    points = published.bandwidths if _is_published(rows, published.LARGE) else _nothing
    return _against_ranks(rows, "busbw", "{:.1f} GB/s".format, shape, points, "bus bandwidth")


def _is_published(rows: Rows, nbytes: int) -> bool:
    return bool((rows.machine == "summit").all() and (rows.bytes == nbytes).all())


def _nothing(_: str) -> Mapping[int, float]:
    return {}


def _against_ranks(
    rows: Rows, column: str, form: Callable[[float], str], shape: Callable[[Axes], None], points: Points, what: str
) -> Picture:
    series = {name: group.sort_values("ranks") for name, group in rows.groupby("algorithm", sort=False)}

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        for algorithm, group in series.items():
            look, there = mark(algorithm), points(algorithm)
            colour = _visible(look.colour, theme)
            axes.plot(group.ranks, group[column], color=colour, lw=1.8, label=f"{algorithm} (simulated)")
            at, values = list(there), list(there.values())
            axes.plot(at, values, marker=look.marker, mfc="none", mec=colour, mew=1.5, ms=7, ls="", zorder=3)
        _ranks_axis(axes, sorted(rows.ranks.unique()))
        shape(axes)
        handles = axes.get_legend_handles_labels()[0]
        if any(points(algorithm) for algorithm in series):
            handles.append(Line2D([], [], marker="o", mfc="none", mec=theme.ink, ls="", label=published.LABEL))
        figure.legend(handles=handles, loc="outside upper left", ncols=2)

    return picture(paint, _alt(rows, series, column, form, points, what), WIDTH, 4.2)


def _visible(colour: str, theme: Theme) -> str:
    """On a dark ground the darkest colours are mixed with white."""
    lighter = 0.45 if theme is DARK and _luminance(colour) < 0.15 else 0.0
    red, green, blue = (part + lighter * (1 - part) for part in mpl.colors.to_rgb(colour))
    return mpl.colors.to_hex((red, green, blue))


def _ranks_axis(axes: Axes, counts: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(counts))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda ranks, _: f"{ranks:,.0f}"))
    axes.tick_params(axis="x", labelrotation=40)
    axes.set_xlabel("GPUs")


def _alt(
    rows: Rows, series: Mapping[str, Rows], column: str, form: Callable[[float], str], points: Points, what: str
) -> str:
    parts = []
    for algorithm, group in series.items():
        ends = [f"{form(group[column].iloc[i])} on {group.ranks.iloc[i]:,} GPUs" for i in (0, -1)]
        text = f"{algorithm} from {' to '.join(ends)}"
        if there := points(algorithm):
            text += ", published " + ", ".join(f"{form(value)} on {ranks:,}" for ranks, value in there.items())
        parts.append(text)
    size, machine = format_bytes(rows.bytes.iloc[0]), rows.machine.iloc[0]
    return f"Simulated all-reduce of {size} on {machine}, {what} against GPUs: {'; '.join(parts)}."


def regime_map(best: Rows) -> Picture:
    """Which algorithm is fastest, by number of GPUs and bytes: a coloured field each, marked with its initials.

    ``best`` has one row for each field, of one machine (`regimes.fastest`).
    """
    if best.empty:
        return nothing()
    grid = best.pivot(index="bytes", columns="ranks", values="algorithm")

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        for y, nbytes in enumerate(grid.index):
            for x, ranks in enumerate(grid.columns):
                _field(axes, x, y, grid.loc[nbytes, ranks], theme)
        axes.set(xlim=(-0.5, len(grid.columns) - 0.5), ylim=(-0.5, len(grid.index) - 0.5))
        axes.set_xticks(range(len(grid.columns)), [f"{ranks:,}" for ranks in grid.columns], rotation=40)
        axes.set_yticks(range(len(grid.index)), [format_bytes(nbytes) for nbytes in grid.index])
        axes.grid(visible=False)
        axes.set(xlabel=f"GPUs of {best.machine.iloc[0]}", ylabel="buffer")
        handles = [Patch(color=mark(name).colour, label=f"{initials(name)}  {name}") for name in _shown(best)]
        figure.legend(handles=handles, loc="outside upper left", ncols=2)

    return picture(paint, f"Simulated, {_regimes_alt(best, grid)}", WIDTH, 4.4)


def _field(axes: Axes, x: int, y: int, algorithm: str, theme: Theme) -> None:
    colour = mark(algorithm).colour
    axes.add_patch(mpl.patches.Rectangle((x - 0.5, y - 0.5), 1, 1, fc=colour, ec=theme.ground, lw=1))
    axes.text(x, y, initials(algorithm), ha="center", va="center", fontsize=8, color=_readable_on(colour))


def initials(algorithm: str) -> str:
    """What marks an algorithm's fields.

    >>> initials("hierarchical_ring"), initials("ring")
    ('HR', 'R')
    """
    return "".join(word[0].upper() for word in algorithm.split("_"))


def _readable_on(colour: str) -> str:
    """Black or white, whichever contrasts more."""
    return "black" if _luminance(colour) > 0.179 else "white"


def _luminance(colour: str) -> float:
    """WCAG's relative luminance, 0 to 1."""
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in mpl.colors.to_rgb(colour)
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _shown(best: Rows) -> list[str]:
    return sorted(best.algorithm.unique())


def _regimes_alt(best: Rows, grid: Rows) -> str:
    columns = [f"on {ranks:,} GPUs {_stretches(grid[ranks])}" for ranks in grid.columns]
    return f"the fastest all-reduce on {best.machine.iloc[0]} by number of GPUs and bytes: {'; '.join(columns)}."


def _stretches(column: Rows) -> str:
    """The winners from small to large buffers, each with the first size it wins."""
    runs = [(name, next(group)[0]) for name, group in groupby(column.items(), key=lambda item: item[1])]
    return ", ".join(f"{name} from {format_bytes(nbytes)}" for name, nbytes in runs)
