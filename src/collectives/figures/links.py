"""A machine's links as a picture, with the cut that sets a bound."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from collectives.figures.layout import Points, ring, star
from collectives.figures.style import Picture, Theme, mark, picture
from collectives.machine import Machine
from collectives.topology.bound import Bound
from collectives.topology.graph import Graph
from collectives.units import many

MOST_DRAWN = 64
INSIDE, OUTSIDE = mark("two_tree").colour, mark("ring").colour


# Inches.
WIDTH, HEIGHT = 5.6, 2.9


def cut(of: Machine, found: Bound) -> Picture:
    """A machine's ranks and switches, a line for each link between them, and in colour the links that cross the cut.

    They are drawn where the machine's file has places for them, or on a ring with switches in the middle. Without a cut
    (an all-reduce, an all-to-all) no link is in colour. Raises ValueError for more than 64 ranks and switches.
    """
    graph, side = found.graph, set(found.cut)
    if graph.vertices > MOST_DRAWN:
        raise ValueError(f"ranks and switches to draw: got {graph.vertices}, expected at most {MOST_DRAWN}")
    points = _places(of, graph)
    joined = np.maximum(graph.capacity, graph.capacity.T)

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        axes.set_axis_off()
        for a, b in np.argwhere(np.triu(joined)).tolist():
            _line(axes, points, a, b, int(joined[a, b]), bool(side) and (a in side) != (b in side), theme)
        for v, (x, y) in enumerate(points):
            colour = INSIDE if v in side else OUTSIDE
            size = 24 if len(points) <= 20 else 12
            axes.plot(x, -y, marker="o" if v < graph.p else "s", ms=size, color=colour, zorder=3)
            if len(points) <= 20:
                told: Any = {"ha": "center", "va": "center", "color": "white", "fontsize": 11, "fontweight": "bold"}
                axes.text(x, -y, str(v), zorder=4, **told)
        axes.margins(0.09)
        if side:
            rate = found.links * float(graph.unit) / 1e9
            said = f"{found.shards} shards cross the cut over links of {rate:g} GB/s in all"
            figure.suptitle(said, x=0.01, ha="left", fontsize=10.5, fontweight="bold", color=theme.ink)

    alt = f"{of.name}: {many(graph.p, 'rank')}, {many(graph.vertices - graph.p, 'switch')}, and their links."
    if side:
        alt += f" The cut separates {sorted(side)} from the others."
    return picture(paint, alt, WIDTH, HEIGHT)


def _places(of: Machine, graph: Graph) -> Points:
    if of.links is not None and len(of.links.places) == graph.vertices:
        return np.array(of.links.places)
    return star(graph.vertices, [*range(graph.p, graph.vertices)]) if graph.vertices > graph.p else ring(graph.p)


def _line(axes: Axes, points: Points, a: int, b: int, count: int, crosses: bool, theme: Theme) -> None:
    """Parallel links side by side, up to four; more than four as one wide line."""
    (ax, ay), (bx, by) = points[[a, b]]
    across = np.array([by - ay, ax - bx]) / np.hypot(bx - ax, by - ay)
    if count > 4:
        axes.plot([ax, bx], [-ay, -by], color=OUTSIDE if crosses else theme.faint, lw=3.0, zorder=2 if crosses else 1)
        return
    for i in range(count):
        shift = 0.02 * (i - (count - 1) / 2) * across
        ends = [ax + shift[0], bx + shift[0]], [-(ay + shift[1]), -(by + shift[1])]
        axes.plot(
            *ends, color=OUTSIDE if crosses else theme.ink, lw=2.2 if crosses else 1.2, zorder=2 if crosses else 1
        )
