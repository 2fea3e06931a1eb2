"""Draw the site's logo, its icon and the card that a link is shown as: two-tree all-reduce, drawn from its schedule.

Usage: python .ci/artwork.py
"""

from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from collectives.algorithms import ALGORITHMS
from collectives.figures.layout import layout, parents
from collectives.figures.style import DARK

STATIC = Path(__file__).resolve().parents[1] / "chapters" / "_static"
SCHEDULE = ALGORITHMS["all_reduce", "two_tree"](8)
# The two trees, and the ranks: to be seen on light and on dark ground, also at 16 pixels.
TREES, RANK = ("#0a7d91", "#e0652f"), "#7d8590"
TITLE = "From Broadcast to\nTwo-Tree All-Reduce"
SUBTITLE = (
    "Collective communication for training on many GPUs:\nproved, played, simulated and measured"
)


def draw(axes: Axes, width: float, size: float) -> None:
    """Draw the edges of the two trees, each in its colour, and the ranks, in points wide and across."""
    points, half = layout(SCHEDULE, "two_tree").points, SCHEDULE.k // 2
    for colour, first in zip(TREES, (0, half), strict=True):
        for rank, parent in enumerate(parents(SCHEDULE, first, first + half)):
            if parent >= 0:
                axes.plot(*points[[rank, parent]].T, color=colour, lw=width, solid_capstyle="round")
    axes.plot(*points.T, "o", color=RANK, ms=size)
    axes.invert_yaxis()
    axes.set_axis_off()


def logo() -> Figure:
    """Return the trees alone, 64 points wide, 6 of them for the margin."""
    figure = Figure(figsize=(64 / 72, 64 / 72))
    axes = figure.add_axes((0, 0, 1, 1))
    draw(axes, width=4, size=9)
    axes.set(xlim=(-6 / 52, 58 / 52), ylim=(58 / 52, -6 / 52))
    return figure


def card() -> Figure:
    """Return the trees and the title, 1200 by 630 pixels."""
    figure = Figure(figsize=(12, 6.3), facecolor=DARK.ground)
    draw(figure.add_axes((0.05, 0.14, 0.34, 0.72)), width=6, size=22)
    figure.text(0.43, 0.62, TITLE, color=DARK.ink, size=38, weight="bold", va="center")
    figure.text(0.43, 0.36, SUBTITLE, color=DARK.ink, size=17, va="center")
    return figure


if __name__ == "__main__":
    with mpl.rc_context({"svg.hashsalt": "logo"}):
        logo().savefig(
            STATIC / "logo.svg", transparent=True, metadata={"Date": None, "Creator": None}
        )
    card().savefig(STATIC / "card.png", dpi=100, metadata={"Software": None})
