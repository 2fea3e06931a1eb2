"""Which algorithm to take, as pictures: the fastest one by ranks and bytes, and bus bandwidths to compare runs."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from collectives.figures.style import Picture, Theme, mark, picture
from collectives.units import format_bytes
from collectives_book.figures import kit

# Inches: a row of fields, what a panel needs besides, and what its fields have in width.
ROW, AROUND, ACROSS = 0.21, 0.68, 4.5
SIZE, LETTER = 8.5, 0.078  # points of a name in a field, and inches of one letter


class Fastest(NamedTuple):
    """One machine: for each size (from small to large) the name of the fastest algorithm on each number of ranks."""

    title: str
    ranks: Sequence[int]
    names: Mapping[int, Sequence[str]]


def fastest(panels: Sequence[Fastest], said: str, bucket: int) -> Picture:
    """A panel for each machine: a coloured field for each size and number of ranks, each area with its name in it.

    ``said`` is above the figure. The row of ``bucket`` bytes has a dotted frame. A name that does not fit into its area
    is left out: its colour has a name in another panel or area, or in the alternative text.
    """

    def paint(figure: Figure, theme: Theme) -> None:
        rows = figure.subplots(len(panels), 1, squeeze=False)
        for axes, panel in zip(rows[:, 0], panels, strict=True):
            _fields(axes, panel, theme)
            y = list(panel.names).index(bucket)
            look: dict[str, Any] = {"fill": False, "ec": theme.ink, "lw": 1.4, "ls": (0, (1, 1.5))}
            axes.add_patch(mpl.patches.Rectangle((-0.5, y - 0.5), len(panel.ranks), 1, **look))
        kit.message(figure, theme, said)

    height = sum(AROUND + ROW * len(panel.names) for panel in panels)
    return picture(paint, f"Simulated, the fastest all-reduce. {' '.join(map(_said, panels))}", kit.WIDTH, height + 0.4)


def _fields(axes: Axes, panel: Fastest, theme: Theme) -> None:
    for y, names in enumerate(panel.names.values()):
        for name in dict.fromkeys(names):
            look: dict[str, Any] = {"fc": mark(name).colour, "ec": theme.ground, "lw": 1}
            for length, x, _ in _runs(names, name, y):
                axes.add_patch(mpl.patches.Rectangle((x - 0.5, y - 0.5), length, 1, **look))
    for name in dict.fromkeys(name for names in panel.names.values() for name in names):
        _name(axes, name, panel)
    axes.set(xlim=(-0.5, len(panel.ranks) - 0.5), ylim=(-0.5, len(panel.names) - 0.5))
    axes.set_xticks(range(len(panel.ranks)), [f"{ranks:,}" for ranks in panel.ranks])
    axes.set_yticks(range(len(panel.names)), [format_bytes(nbytes) for nbytes in panel.names])
    axes.tick_params(length=0, labelsize=9)
    axes.grid(visible=False)
    axes.set_xlabel("ranks", labelpad=1)
    kit.headline(axes, panel.title)


def _name(axes: Axes, name: str, panel: Fastest) -> None:
    """The name in the longest row of its fields that has room, the middle one of several."""
    rows = [run for y, names in enumerate(panel.names.values()) for run in _runs(names, name, y)]
    most = max(length for length, _, _ in rows)
    _, x, y = [run for run in rows if run[0] == most][(sum(run[0] == most for run in rows) - 1) // 2]
    words = name.replace("_", " ")
    if len(words) * LETTER <= most * ACROSS / len(panel.ranks):
        colour = readable_on(mark(name).colour)
        axes.text(x + (most - 1) / 2, y, words, ha="center", va="center", fontsize=SIZE, color=colour)


def _runs(names: Sequence[str], wanted: str, y: int) -> list[tuple[int, int, int]]:
    """(length, first column, row) of each run of a name in a row."""
    runs = [[x for x, _ in group] for name, group in groupby(enumerate(names), lambda at: at[1]) if name == wanted]
    return [(len(run), run[0], y) for run in runs]


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


def _said(panel: Fastest) -> str:
    columns = {}
    for x, ranks in enumerate(panel.ranks):
        runs = groupby(panel.names, lambda nbytes, x=x: panel.names[nbytes][x])  # type: ignore[misc]
        columns[ranks] = ", ".join(f"{name} from {format_bytes(next(sizes))}" for name, sizes in runs)
    return f"{panel.title}: {'; '.join(f'on {ranks:,} ranks {said}' for ranks, said in columns.items())}."


def bus_bandwidth(sizes: Sequence[int], curves: Mapping[str, Sequence[float]], rate: float, said: str) -> Picture:
    """Simulated GB/s by size as lines, each with its name in the colour of its algorithm; dashes at the port's rate.

    The first word of a name is its algorithm; a second line of one algorithm is dashed. ``said`` is above.
    """

    def paint(figure: Figure, theme: Theme) -> None:
        axes, drawn = figure.subplots(), set[str]()
        for name, values in curves.items():
            algorithm = name.split(",")[0].replace(" ", "_")
            axes.plot(
                sizes, values, color=mark(algorithm).colour, lw=1.8, ls="--" if algorithm in drawn else "-", label=name
            )
            drawn.add(algorithm)
        kit.lower_bound(axes, theme, sizes, [rate] * len(sizes), "rate of a port")
        kit.binary_axis(axes, sizes)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.set_ylabel("busbw, GB/s")
        kit.message(figure, theme, said)
        kit.labels(figure, more=[kit.key(theme, "simulated, not measured", lw=1.8)])

    ends = [kit.from_to(name, sizes, list(values), _at, "{:.3g} GB/s".format) for name, values in curves.items()]
    return picture(
        paint, f"Simulated bus bandwidth by size: {'; '.join(ends)}. A port has {rate:g} GB/s.", kit.WIDTH, 3.6
    )


def _at(nbytes: float) -> str:
    return f"at {format_bytes(int(nbytes))}"
