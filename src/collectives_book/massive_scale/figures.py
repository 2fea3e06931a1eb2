"""Simulated rows as figures: lines for the model, hollow markers for published values. Nothing here is measured by us.

Rows are a table as `collectives.simulator.scaling.row` makes them.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MultipleLocator

from collectives.figures.style import Picture, Theme, mark, on_page
from collectives.units import format_bytes
from collectives_book.figures import by_hand as kit
from collectives_book.figures import statements
from collectives_book.figures.statements import Rows
from collectives_book.massive_scale import published
from collectives_book.measured_machines import comparison

Points = Callable[[str], Mapping[int, float]]

# What the first page's figure shows, and what it calls them.
FIRST_PAGE = {"ring": "ring", "hierarchical_tree": "two trees"}


def latency(rows: Rows) -> Picture:
    """Time against the number of GPUs, both logarithmic; published points where the article has some."""
    points = published.latencies if _is_published(rows, published.SMALL) else _nothing
    return _against_ranks(rows, "seconds", lambda axes: kit.time_axis(axes, unit=1), points, "time")


def bandwidth(rows: Rows) -> Picture:
    """Bus bandwidth against the number of GPUs; published points where the article has some."""

    def shape(axes: Axes) -> None:
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_locator(MultipleLocator(5))
        axes.set_ylabel("bus bandwidth (GB/s)")

    points = published.bandwidths if _is_published(rows, published.LARGE) else _nothing
    return _against_ranks(rows, "busbw", shape, points, "bus bandwidth in GB/s")


def _is_published(rows: Rows, nbytes: int) -> bool:
    return bool((rows.machine == "summit").all() and (rows.bytes == nbytes).all())


def _nothing(_: str) -> Mapping[int, float]:
    return {}


def _against_ranks(rows: Rows, column: str, shape: Callable[[Axes], None], points: Points, what: str) -> Picture:
    series = [(str(name), group) for (name,), group in kit.series(rows, ("algorithm",), "ranks")]

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        for algorithm, group in series:
            look, there = mark(algorithm), points(algorithm)
            axes.plot(group.ranks, group[column], color=look.colour, lw=1.8, label=algorithm)
            kit.published(axes, look, list(there), list(there.values()))
        kit.binary_axis(axes, sorted(rows.ranks.unique()), "GPUs", "{:,.0f}".format)
        shape(axes)
        hollow = kit.key(theme, published.LABEL, marker="o", mfc="none", ls="")
        shown = [hollow] if any(points(algorithm) for algorithm, _ in series) else []
        kit.message(figure, theme, *_lead(rows))
        kit.labels(figure, more=[kit.key(theme, "simulated", lw=1.8), *shown])

    beside = ", beside published points" if any(points(algorithm) for algorithm, _ in series) else ""
    size, machine = format_bytes(rows.bytes.iloc[0]), rows.machine.iloc[0]
    return kit.drawn(paint, f"Simulated all-reduce of {size} on {machine}, {what} by GPUs{beside}", 3.6)


def _lead(rows: Rows) -> tuple[str, float | None]:
    """How many times as fast tree is as ring on the most ranks for small buffers; else who leads, and from where on.

    For small buffers only ring and tree have measured start-ups. Equal times tie.
    """
    last = rows[rows.ranks == rows.ranks.max()].set_index("algorithm").seconds
    if _is_published(rows, published.SMALL) and {*FIRST_PAGE} <= {*last.index}:
        times = last.ring / last.hierarchical_tree
        return f"{rows.ranks.max():,} GPUs: hierarchical_tree is {times:.0f} times as fast as ring", None
    ahead = [
        (ranks, list(group.algorithm[group.seconds <= group.seconds.min() * (1 + 1e-9)]))
        for ranks, group in rows.groupby("ranks")
    ]
    return statements.takeover(ahead, "{:,} GPUs".format)


def regime_map(best: Rows) -> Picture:
    """Which algorithm is fastest, by number of GPUs and bytes: a coloured field each, marked with its initials.

    ``best`` has one row for each field (`regimes.fastest`); each of its machines gets a panel.
    """
    if best.empty:
        return kit.nothing()
    of = {str(name): group for name, group in best.groupby("machine", sort=False)}
    grids = {name: group.pivot(index="bytes", columns="ranks", values="algorithm") for name, group in of.items()}

    def paint(figure: Figure, theme: Theme) -> None:
        panels = figure.subplots(1, len(grids), sharey=True, squeeze=False)[0]
        for axes, (name, grid) in zip(panels, grids.items(), strict=True):
            _map(axes, name, grid, theme)
            axes.set_title(_most_fields(of[name]), loc="left", fontsize=10, fontweight="bold")
        panels[0].set_ylabel("buffer")
        shown = sorted(best.algorithm.unique())
        handles = [
            Patch(fc=on_page(mark(name).colour, theme), ec="none", label=f"{initials(name)}  {name}") for name in shown
        ]
        kit.notes(figure, more=handles, columns=2)

    return kit.drawn(paint, "The fastest all-reduce by simulation, a field for each number of GPUs and bytes")


def _map(axes: Axes, name: str, grid: Rows, theme: Theme) -> None:
    for y, nbytes in enumerate(grid.index):
        for x, ranks in enumerate(grid.columns):
            _field(axes, x, y, grid.loc[nbytes, ranks], theme)
    axes.set(xlim=(-0.5, len(grid.columns) - 0.5), ylim=(-0.5, len(grid.index) - 0.5), xlabel=f"GPUs of {name}")
    axes.set_xticks(range(len(grid.columns)), [f"{ranks:,}" for ranks in grid.columns], rotation=40)
    axes.set_yticks(range(len(grid.index)), [format_bytes(nbytes) for nbytes in grid.index])
    axes.grid(visible=False)


def _most_fields(best: Rows) -> str:
    """Which algorithm is the fastest most often."""
    counts = best.algorithm.value_counts()
    first = statements.listed(sorted(counts.index[counts == counts.max()]))
    return f"{best.machine.iloc[0]}: {first}\nis fastest in {counts.max()} of {len(best)} fields"


def _field(axes: Axes, x: int, y: int, algorithm: str, theme: Theme) -> None:
    colour = on_page(mark(algorithm).colour, theme)
    axes.add_patch(mpl.patches.Rectangle((x - 0.5, y - 0.5), 1, 1, fc=colour, ec=theme.ground, lw=1))
    axes.text(x, y, initials(algorithm), ha="center", va="center", fontsize=8, color=kit.readable_on(colour))


def initials(algorithm: str) -> str:
    """What marks an algorithm's fields.

    >>> initials("hierarchical_ring"), initials("ring")
    ('HR', 'R')
    """
    return "".join(word[0].upper() for word in algorithm.split("_"))


def curve(rows: Rows) -> Picture:
    """The book's first page: 8 bytes on up to 24,576 GPUs, by a ring and by trees.

    Lines are simulated, hollow markers published; at the right end, how far the published ones are apart. The caption
    adds the same comparison as others measured it on MareNostrum 5.

    ``rows`` are those of the experiment ``massive-scale`` on the machine ``summit``.
    """
    small = rows[(rows.part == "figures") & (rows.bytes == published.SMALL)]
    last = published.POINTS[-1]
    factor = f"{last.ring_seconds / last.tree_seconds:.0f} times\nas fast"

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        for algorithm, name in FIRST_PAGE.items():
            group = small[small.algorithm == algorithm].sort_values("ranks")
            look, points = mark(algorithm if algorithm == "ring" else "two_tree"), published.latencies(algorithm)
            axes.plot(group.ranks, group.seconds, color=look.colour, lw=1.8, label=name)
            kit.published(axes, look, list(points), list(points.values()))
            at = (768, published.latencies(algorithm)[768])
            axes.annotate(name, at, (0, 9), textcoords="offset points", ha="right", weight="bold")
        kit.binary_axis(axes, [96, 384, 1536, 6144, last.ranks], "GPUs", "{:,.0f}".format)
        axes.tick_params(axis="x", labelrotation=0)
        kit.time_axis(axes, unit=1)
        ends = (last.ranks, last.tree_seconds * 1.25), (last.ranks, last.ring_seconds / 1.25)
        axes.annotate("", ends[0], ends[1], arrowprops={"arrowstyle": "<->", "color": theme.ink})
        middle = (last.ranks, (last.tree_seconds * last.ring_seconds) ** 0.5)
        axes.annotate(factor, middle, (-6, 0), textcoords="offset points", ha="right", va="center", weight="bold")

    caption = f"All-reduce of 8 bytes on Summit. Lines: simulated. Hollow markers: published. {comparison.headline()}"
    return replace(kit.drawn(paint, "All-reduce of 8 bytes, simulated time by GPUs", 2.3), caption=caption)
