"""The picture of a machine's links, and of the cut through them that bounds a collective."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from collectives.figures.layout import Points, ring, star
from collectives.figures.style import Picture, Theme, mark, picture
from collectives.units import many

if TYPE_CHECKING:
    from collectives.machine import Machine
    from collectives.topology.bound import Bound
    from collectives.topology.graph import Graph

MAX_DRAWN = 64  # ranks and switches of a machine
TREE, RING = mark("two_tree").colour, mark("ring").colour


def cut(of: Machine, found: Bound) -> Picture:
    """Draw a machine's ranks, switches and links, and in colour the links that cross the cut.

    They are drawn where the machine's file has places for them, or on a ring with switches in the
    middle. Without a cut (an all-reduce, an all-to-all) no link is in colour. Raises ValueError for
    more than 64 ranks and switches.
    """
    graph, side = found.graph, set(found.cut)
    if graph.vertices > MAX_DRAWN:
        raise ValueError(
            f"ranks and switches to draw: got {graph.vertices}, expected at most {MAX_DRAWN}"
        )
    points = _places(of, graph)
    joined = np.maximum(graph.capacity, graph.capacity.T)

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        axes.set_axis_off()
        # Each pair of joined vertices once.
        for a, b in np.argwhere(np.triu(joined)).tolist():
            crosses = (a in side) != (b in side)
            _link(axes, points, a, b, int(joined[a, b]), crosses, theme)
        has_room_for_numbers = len(points) <= 20
        # Points count y downwards, axes upwards.
        for vertex, (x, y) in enumerate(points):
            axes.plot(
                x,
                -y,
                marker="o" if vertex < graph.p else "s",  # ranks are round, switches square
                ms=24 if has_room_for_numbers else 12,
                color=TREE if vertex in side else RING,
                zorder=3,
            )
            if has_room_for_numbers:
                axes.text(
                    x,
                    -y,
                    str(vertex),
                    ha="center",
                    va="center",
                    color="white",
                    fontsize=11,
                    fontweight="bold",
                    zorder=4,
                )
        axes.margins(0.09)
        if side:
            rate = found.links * float(graph.unit) / 1e9
            message = f"{found.shards} parts cross the cut over links of {rate:g} GB/s in all"
            figure.suptitle(
                message, x=0.01, ha="left", fontsize=10.5, fontweight="bold", color=theme.ink
            )

    alt = f"{of.name}: {many(graph.p, 'rank')}, {many(graph.vertices - graph.p, 'switch')}, and their links."
    if side:
        alt += f" The cut separates {sorted(side)} from the others."
    return picture(paint, alt, width=5.6, height=2.9)


def _places(of: Machine, graph: Graph) -> Points:
    if of.links is not None and len(of.links.places) == graph.vertices:
        return np.array(of.links.places)
    return (
        star(graph.vertices, [*range(graph.p, graph.vertices)])
        if graph.vertices > graph.p
        else ring(graph.p)
    )


def _link(
    axes: Axes, points: Points, a: int, b: int, count: int, crosses: bool, theme: Theme
) -> None:
    """Draw parallel links side by side, up to four, and more than four as one wide line."""
    (ax, ay), (bx, by) = points[[a, b]]
    across = np.array([by - ay, ax - bx]) / np.hypot(bx - ax, by - ay)
    if count > 4:
        axes.plot(
            [ax, bx],
            [-ay, -by],
            color=RING if crosses else theme.faint,
            lw=3.0,
            zorder=2 if crosses else 1,
        )
        return
    for i in range(count):
        shift = 0.02 * (i - (count - 1) / 2) * across
        ends = [ax + shift[0], bx + shift[0]], [-(ay + shift[1]), -(by + shift[1])]
        axes.plot(
            *ends,
            color=RING if crosses else theme.ink,
            lw=2.2 if crosses else 1.2,
            zorder=2 if crosses else 1,
        )
