"""Any two trees on the same ranks, side by side, with the ranks that are interior in both."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from collectives.algorithms.binary_tree import NO_PARENT, depths
from collectives.algorithms.library_trees import interior_in_both
from collectives.figures.schedules import WIDTH
from collectives.figures.style import Picture, Theme, mark, picture
from collectives.schedule import Ints


def side_by_side(parents: Ints, title: str) -> Picture:
    """Both trees; a rank that is interior in both is filled, the others are rings."""
    both = interior_in_both(parents).tolist()
    levels = [int(depths(parent).max()) for parent in parents]

    def paint(figure: Figure, theme: Theme) -> None:
        for axes, parent, name in zip(figure.subplots(1, 2), parents, ("first", "second"), strict=True):
            axes.set_title(f"{title}, {name} tree", fontsize=10, color=theme.ink)
            _tree(axes, parent, set(both), theme)

    said = f"Interior in both: {', '.join(map(str, both))}." if both else "No rank is interior in both."
    alt = f"{title}: two trees on {parents.shape[1]} ranks, {levels[0]} and {levels[1]} levels below the root. {said}"
    return picture(paint, alt, WIDTH, height=0.9 + 0.55 * (1 + max(levels)))


def _tree(axes: Axes, parent: Ints, both: set[int], theme: Theme) -> None:
    """A rank is above its subtree, level by level."""
    depth, x = depths(parent), x_positions(parent)
    for rank, up in enumerate(parent.tolist()):
        if up != NO_PARENT:
            axes.plot([x[rank], x[up]], [depth[rank], depth[up]], color=theme.ink, lw=1.2, zorder=1)
        fill = mark("two_tree").colour if rank in both else theme.ground
        axes.scatter([x[rank]], [depth[rank]], s=300, color=fill, edgecolors=theme.ink, linewidths=1.0, zorder=2)
        ink = "white" if rank in both else theme.ink
        axes.text(x[rank], depth[rank], str(rank), ha="center", va="center", color=ink, fontsize=12.5, zorder=3)
    axes.set(xlim=(min(x) - 0.6, max(x) + 0.6), ylim=(depth.max() + 0.45, -0.45))
    axes.set_axis_off()


def x_positions(parent: Ints) -> list[float]:
    """Where each rank is from left to right: leaves in a row, all others above the middle of their children.

    >>> x_positions(np.array([-1, 0, 0, 1, 1]))
    [1.25, 0.5, 2.0, 0.0, 1.0]
    """
    found, free = [0.0] * len(parent), iter(range(len(parent)))

    def place(rank: int) -> float:
        below = [place(child) for child in np.flatnonzero(parent == rank).tolist()]
        found[rank] = (below[0] + below[-1]) / 2 if below else float(next(free))
        return found[rank]

    place(int(np.flatnonzero(parent == NO_PARENT)[0]))
    return found
