"""A machine's links as a picture, with the cut that sets a bound; and what schedules for them reach, measured."""

from collections.abc import Callable, Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from collectives.algorithms import GREEN, Mark
from collectives.figures.layout import Points
from collectives.figures.style import Picture, Theme, mark, picture
from collectives.machine import Machine
from collectives.topology.bound import Bound
from collectives_book.figures import kit
from collectives_book.figures.statements import Rows

INSIDE, OUTSIDE = mark("two_tree").colour, mark("ring").colour


def cut(of: Machine, found: Bound) -> Picture:
    """The links of one node, where its file has places, one line each; those across the cut in colour.

    Raises ValueError for a machine without places.
    """
    if of.links is None or not of.links.places:
        raise ValueError(f"places of {of.name}: got none, expected one for each rank in its file")
    points, capacity, side = np.array(of.links.places), found.graph.capacity, set(found.cut)

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        axes.set_axis_off()
        for a, b in np.argwhere(np.triu(np.maximum(capacity, capacity.T))).tolist():
            _line(axes, points, a, b, int(max(capacity[a, b], capacity[b, a])), (a in side) != (b in side), theme)
        for v, (x, y) in enumerate(points):
            colour = INSIDE if v in side else OUTSIDE
            axes.plot(x, -y, marker="o" if v < found.graph.p else "s", ms=24, color=colour, zorder=3)
            axes.text(x, -y, str(v), ha="center", va="center", color="white", fontsize=11, fontweight="bold", zorder=4)
        axes.margins(0.09)
        rate = found.links * float(found.graph.unit) / 1e9
        kit.message(
            figure, theme, f"{found.shards} shards cross the cut over {found.links} links, {rate:g} GB/s in all"
        )

    alt = (
        f"The {len(points)} GPUs of {of.name} and their links. The cut separates {sorted(side)} from the others; "
        f"{found.links} links cross it outwards."
    )
    return picture(paint, alt, kit.WIDTH, 2.9)


def _line(axes: Axes, points: Points, a: int, b: int, count: int, crosses: bool, theme: Theme) -> None:
    """As many lines side by side as there are links."""
    (ax, ay), (bx, by) = points[[a, b]]
    across = np.array([by - ay, ax - bx]) / np.hypot(bx - ax, by - ay)
    for i in range(count):
        shift = 0.02 * (i - (count - 1) / 2) * across
        ends = [ax + shift[0], bx + shift[0]], [-(ay + shift[1]), -(by + shift[1])]
        axes.plot(
            *ends, color=OUTSIDE if crosses else theme.ink, lw=2.2 if crosses else 1.2, zorder=2 if crosses else 1
        )


# The look of the schedules that are compared.
LOOKS: dict[str, tuple[str, Mark]] = {
    "packed_trees@dgx1": ("packed trees", mark("two_tree")),
    "six_rings": ("six rings", GREEN),
    "one_ring": ("one ring", mark("ring")),
}


def look(algorithm: str) -> tuple[str, Mark]:
    """The name and mark of one of them."""
    return LOOKS[algorithm.rpartition(":")[2]]


def reached(rows: Rows, simulated: Callable[[str, int], float], bounds: Mapping[int, float]) -> Picture:
    """Bandwidth by size: measured markers, simulated lines, and the bound as dashes. Times of both are in seconds."""
    sizes = sorted(bounds)

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        for algorithm, part in rows.groupby("algorithm", sort=False):
            name, style = look(str(algorithm))
            rate = [size / simulated(str(algorithm), size) / 1e6 for size in sizes]
            axes.plot(sizes, rate, color=style.colour, lw=1.2)
            low, high = (part.bytes / part[end] for end in ("high_us", "low_us"))
            kit.measured(axes, style, None, part.bytes, part.bytes / part.median_us, low, high, ls="")
            axes.annotate(name, (sizes[-1], rate[-1]), (6, -3), textcoords="offset points", color=style.colour)
        kit.lower_bound(axes, theme, sizes, [size / bounds[size] / 1e6 for size in sizes])
        axes.annotate("bound", (sizes[0], sizes[0] / bounds[sizes[0]] / 1e6), (0, -12), textcoords="offset points")
        kit.binary_axis(axes, sizes)
        axes.set(ylabel="algorithm bandwidth, MB/s", ylim=(0, None), xlim=(None, 3.4 * sizes[-1]))

    best = rows[rows.bytes == sizes[-1]].sort_values("median_us")
    said = ", ".join(f"{look(row.algorithm)[0]} {row.bytes / row.median_us:.1f} MB/s" for row in best.itertuples())
    return picture(paint, f"Bandwidth by buffer size; at the largest: {said}.", kit.WIDTH, 3.0)
