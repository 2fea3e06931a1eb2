"""A drawing of the 2D ring: a row for each node, a column for each rail, and its three phases."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from collectives.figures.style import Picture, Theme
from collectives_book.figures import kit
from collectives_book.figures.nodes import GPUS, RAILS, Point, box

NODES = 3
# The size of a GPU's box; the bow of the arrow from the last one back to the first.
SIZE = (0.56, 0.5)
BOW = 0.22

ALT = (
    "A grid of three rows, the nodes, and four columns, the rails. In phase 1 a ring along each "
    "row reduce-scatters, so GPU i of each node holds part i of its node's sum. In phase 2 a ring "
    "along each column all-reduces: all columns work at once, each on its own part. In phase 3 a "
    "ring along each row all-gathers, so each GPU holds all parts"
)


class Phase(NamedTuple):
    """A phase's title, whether its rings go along rows, and what GPU i holds at its end."""

    title: str
    by_rows: bool
    holds: str


PHASES = (
    Phase("1. rows: reduce-scatter", True, "{}"),
    Phase("2. columns: all-reduce", False, "{}"),
    Phase("3. rows: all-gather", True, "all"),
)


def grid() -> Picture:
    """Return the three phases on three nodes of four GPUs, and the parts that each GPU then holds."""

    def paint(figure: Figure, theme: Theme) -> None:
        for axes, phase in zip(figure.subplots(1, len(PHASES)), PHASES, strict=True):
            axes.set_xlim(-0.45, GPUS - 0.2)
            axes.set_ylim(0.25 - NODES, 0.4)
            axes.axis("off")
            axes.set_title(phase.title, **kit.TITLE)
            _boxes(axes, theme, phase)
            _rings(axes, theme, phase)

    return kit.drawn(paint, ALT, 2.2)


def _boxes(axes: Axes, theme: Theme, phase: Phase) -> None:
    """Draw each GPU in its rail's colour, with the part that it holds; with all parts it has none."""
    for node in range(NODES):
        for gpu in range(GPUS):
            colour = theme.ground if phase.holds == "all" else RAILS[gpu]
            box(axes, theme, (gpu, -node), SIZE, phase.holds.format(gpu), colour)


def _rings(axes: Axes, theme: Theme, phase: Phase) -> None:
    """Draw the ring of each row, or of each column in its rail's colour."""
    width, height = SIZE
    if phase.by_rows:
        for node in range(NODES):
            row = [(float(gpu), -float(node)) for gpu in range(GPUS)]
            _ring(axes, theme.ink, row, (width / 2, 0.0), (0.0, -height / 2), -BOW)
    else:
        for gpu, colour in enumerate(RAILS):
            column = [(float(gpu), -float(node)) for node in range(NODES)]
            _ring(axes, colour, column, (0.0, -height / 2), (width / 2, 0.0), BOW)


def _ring(
    axes: Axes, colour: str, places: list[Point], ahead: Point, beside: Point, bow: float
) -> None:
    """Draw the messages from each place to the next, and beside them the one back to the first.

    ``ahead`` and ``beside`` lead from a box's middle to the edges at which these messages start.
    """
    back = (-ahead[0], -ahead[1])
    for here, there in pairwise(places):
        _arrow(axes, colour, _moved(here, ahead), _moved(there, back), 0.0)
    _arrow(axes, colour, _moved(places[-1], beside), _moved(places[0], beside), bow)


def _moved(place: Point, by: Point) -> Point:
    """Return a place moved by a distance."""
    return place[0] + by[0], place[1] + by[1]


def _arrow(axes: Axes, colour: str, start: Point, end: Point, bow: float) -> None:
    """Draw one message."""
    arrow = FancyArrowPatch(
        start,
        end,
        connectionstyle=f"arc3,rad={bow}",
        arrowstyle="-|>",
        mutation_scale=9,
        color=colour,
        lw=1.3,
        shrinkA=1,
        shrinkB=1,
    )
    axes.add_patch(arrow)
