"""Draw the site's logo, its icon and the card that a link is shown as: two-tree all-reduce, drawn from its schedule.

Usage: python .ci/artwork.py
"""

from pathlib import Path

from matplotlib.figure import Figure

from collectives.algorithms import ALGORITHMS
from collectives.figures.layout import layout, parents
from collectives.figures.style import DARK

STATIC = Path(__file__).resolve().parents[1] / "chapters" / "_static"
SCHEDULE = ALGORITHMS["all_reduce", "two_tree"](8)
# The two trees, and the ranks: to be seen on light and on dark ground, also at 16 pixels.
TREES, RANK = ("#0a7d91", "#e0652f"), "#7d8590"
TITLE = "From Broadcast to\nTwo-Tree All-Reduce"
SUBTITLE = "Collective communication for training on many GPUs:\nproved, played, simulated and measured"

Point = tuple[float, float]


def edges() -> list[tuple[Point, Point, str]]:
    """Every edge of the two trees, from rank to rank, with its tree's colour."""
    points, half = ranks(), SCHEDULE.k // 2
    return [
        (points[rank], points[parent], colour)
        for colour, first in zip(TREES, (0, half), strict=True)
        for rank, parent in enumerate(parents(SCHEDULE, first, first + half))
        if parent >= 0
    ]


def ranks() -> list[Point]:
    """Where the ranks are, in the unit square."""
    return [(x, y) for x, y in layout(SCHEDULE, "two_tree").points.tolist()]


def drawing() -> str:
    """The trees as SVG, 64 units wide."""
    lines = "".join(
        f'<path d="M{_at(a)} L{_at(b)}" stroke="{colour}" stroke-width="4" stroke-linecap="round"/>\n'
        for a, b, colour in edges()
    )
    dots = "".join(f'<circle cx="{6 + 52 * x:.1f}" cy="{6 + 52 * y:.1f}" r="5" fill="{RANK}"/>\n' for x, y in ranks())
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 64 64">\n{lines}{dots}</svg>\n'


def _at(point: Point) -> str:
    return " ".join(f"{6 + 52 * each:.1f}" for each in point)


def card() -> Figure:
    """1200 by 630 pixels: the trees and the title."""
    figure = Figure(figsize=(12, 6.3), facecolor=DARK.ground)
    trees = figure.add_axes((0.05, 0.14, 0.34, 0.72))
    for (x0, y0), (x1, y1), colour in edges():
        trees.plot([x0, x1], [-y0, -y1], color=colour, lw=6, solid_capstyle="round")
    trees.plot(*zip(*((x, -y) for x, y in ranks()), strict=True), "o", color=RANK, ms=22)
    trees.set_axis_off()
    figure.text(0.43, 0.62, TITLE, color=DARK.ink, size=38, weight="bold", va="center")
    figure.text(0.43, 0.36, SUBTITLE, color=DARK.ink, size=17, va="center")
    return figure


if __name__ == "__main__":
    (STATIC / "logo.svg").write_text(drawing(), encoding="utf8")
    card().savefig(STATIC / "card.png", dpi=100, metadata={"Software": None})
