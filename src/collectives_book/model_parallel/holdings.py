"""A picture of two ranks that train two layers: which part of samples and weights each holds, and what travels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from collectives.figures.style import Picture, Theme, picture
from collectives_book.figures import kit

# A part of a matrix: from and to which share of its rows, from and to which of its columns.
Part = tuple[float, float, float, float]
ALL, TOP, BOTTOM = (0.0, 1.0, 0.0, 1.0), (0.0, 0.5, 0.0, 1.0), (0.5, 1.0, 0.0, 1.0)
LEFT, RIGHT = (0.0, 1.0, 0.0, 0.5), (0.0, 1.0, 0.5, 1.0)

COLOURS = {"x": "#009E73", "W₁": "#0072B2", "W₂": "#D55E00"}
# Left edge, width and height of each matrix in the field of a rank, which is 1 wide and 1 high.
PLACES = {"x": (0.02, 0.16, 0.46), "W₁": (0.26, 0.40, 0.30), "W₂": (0.76, 0.20, 0.62)}

ALT = (
    "Three ways to divide two layers between two ranks. Data parallel: each has half of x, all of W₁ and W₂; gradients "
    "travel. Tensor parallel: each has all of x, half of W₁ by columns and half of W₂ by rows; sums travel. "
    "Pipeline: rank 0 has x and W₁, rank 1 has W₂; activations travel."
)


class Way(NamedTuple):
    """A way to divide: what each of two ranks holds, and what travels between them, in two lines."""

    name: str
    holds: tuple[Mapping[str, Part], Mapping[str, Part]]
    travels: str


WAYS = (
    Way(
        "data parallel",
        ({"x": TOP, "W₁": ALL, "W₂": ALL}, {"x": BOTTOM, "W₁": ALL, "W₂": ALL}),
        "gradients of\nall weights",
    ),
    Way(
        "tensor parallel",
        ({"x": ALL, "W₁": LEFT, "W₂": TOP}, {"x": ALL, "W₁": RIGHT, "W₂": BOTTOM}),
        "sums of activations\nand of their gradients",
    ),
    Way("pipeline", ({"x": ALL, "W₁": ALL}, {"W₂": ALL}), "activations forward,\ntheir gradients back"),
)


def holdings() -> Picture:
    """Two ranks, three ways to divide x·W₁·W₂ between them; what a rank does not hold is an empty outline."""

    def paint(figure: Figure, theme: Theme) -> None:
        for axes, way in zip(figure.subplots(len(WAYS), 1), WAYS, strict=True):
            axes.set_xlim(0, 2.9)
            axes.set_ylim(1, -0.12)
            axes.axis("off")
            axes.text(0, -0.06, way.name, fontweight="bold", va="center")
            for rank, held in enumerate(way.holds):
                _rank(axes, theme, rank, held)
            _arrow(axes, theme, way)

    return picture(paint, ALT, kit.WIDTH, 4.2)


def _rank(axes: Axes, theme: Theme, rank: int, held: Mapping[str, Part]) -> None:
    begin = 1.9 * rank
    axes.text(begin + 0.5, 0.97, f"rank {rank}", ha="center", va="center", fontsize=9)
    for name, (left, width, height) in PLACES.items():
        x, y = begin + left, 0.5 - height / 2
        if name in held:
            top, bottom, first, last = held[name]
            corner, size = (x + first * width, y + top * height), ((last - first) * width, (bottom - top) * height)
            axes.add_patch(Rectangle(corner, *size, color=COLOURS[name], lw=0))
        axes.add_patch(Rectangle((x, y), width, height, fill=False, ec=theme.ink, lw=0.8))
        axes.text(x + width / 2, y - 0.06, name, ha="center", va="center", fontsize=9)


def _arrow(axes: Axes, theme: Theme, way: Way) -> None:
    axes.add_patch(FancyArrowPatch((1.04, 0.56), (1.86, 0.56), arrowstyle="<->", mutation_scale=12, color=theme.ink))
    axes.text(1.45, 0.5, way.travels, ha="center", va="bottom", fontsize=9)
