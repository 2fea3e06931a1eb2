"""Drawings of nodes: GPUs, ports, switches and rails, and the way of one token through them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from collectives.figures.style import Picture, Theme
from collectives_book.figures import kit

# One for each rail.
RAILS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
GPUS = len(RAILS)
# The distance of two neighbours, and the middle of each node's first GPU.
GAP = 1.0
FIRST = (0.6, 5.2)
# The distance of two leaf switches, and the middle of the first.
LEAF_GAP = 1.35
FIRST_LEAF = 2.15
SPINE = 4.17
ROUNDED = "round,pad=0,rounding_size=0.06"

RAILS_ALT = (
    "Two nodes of four GPUs. Inside a node a switch joins all GPUs. Each GPU has a port of its "
    "own. The ports in the same place of all nodes meet at one leaf switch, their rail; the "
    "four leaf switches meet at the spine"
)
TOKEN_ALT = (
    "A token on GPU 1 of node 0 goes to experts on GPU 3 of its node and on GPUs 2 and 3 of "
    "node 1. With a copy for each expert two copies cross the network. With a copy for each "
    "node one copy goes to GPU 1 of node 1, which passes it on inside the node"
)


Point = tuple[float, float]


def rails() -> Picture:
    """Return two nodes of four GPUs, with the switch inside, a port for each GPU, leaf switches and the spine."""

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        axes.set_xlim(-0.1, 9.0)
        axes.set_ylim(-0.1, 5.5)
        axes.axis("off")
        for node, first in enumerate(FIRST):
            _node(axes, theme, node, first)
        for rail, colour in enumerate(RAILS):
            _rail(axes, theme, rail, colour)
        _box(axes, theme, (SPINE, 4.9), (2.2, 0.45), "spine", theme.faint)
        _note(axes, theme, 3.7, "leaf\nswitches")
        _note(axes, theme, 2.4, "ports")

    return kit.drawn(paint, RAILS_ALT, 3.8)


def _rail(axes: Axes, theme: Theme, rail: int, colour: str) -> None:
    """Draw a leaf switch, the ports that it joins, and its link to the spine."""
    leaf = FIRST_LEAF + LEAF_GAP * rail
    for first in FIRST:
        port = first + GAP * rail
        _line(axes, colour, (port, 2.5), (leaf, 3.5), 1.4)
        kit.fill(axes, colour, (port - 0.15, 2.25), 0.3, 0.28)
    _line(axes, theme.ink, (leaf, 3.9), (SPINE, 4.7))
    _box(axes, theme, (leaf, 3.7), (1.2, 0.4), f"rail {rail}", colour)


def _node(axes: Axes, theme: Theme, node: int, first: float) -> None:
    """Draw a node's outline, its GPUs and the switch between them."""
    width = GAP * (GPUS - 1)
    middle = first + width / 2
    kit.outline(axes, theme, (first - 0.5, 0), width + 1, 2.25)
    for gpu in range(GPUS):
        x = first + GAP * gpu
        _line(axes, theme.ink, (x, 0.9), (x, 2.25))
        _box(axes, theme, (x, 1.55), (0.8, 0.5), f"GPU {gpu}", theme.ground)
    _box(
        axes,
        theme,
        (middle, 0.7),
        (width + 0.8, 0.4),
        "NVLink switch",
        theme.faint,
    )
    axes.text(
        middle,
        0.22,
        f"node {node}",
        ha="center",
        va="center",
        fontsize=9,
    )


def _line(axes: Axes, colour: str, start: Point, end: Point, width: float = 0.8) -> None:
    """Draw a line below the boxes."""
    x, y = zip(start, end, strict=True)
    axes.plot(x, y, color=colour, lw=width, zorder=0)


def _note(axes: Axes, theme: Theme, y: float, text: str) -> None:
    """Write what a row of boxes is beside it."""
    axes.text(
        8.95,
        y,
        text,
        ha="right",
        va="center",
        fontsize=9,
        color=theme.ink,
    )


def _box(axes: Axes, theme: Theme, middle: Point, size: Point, text: str, colour: str) -> None:
    x, y = middle
    width, height = size
    box = FancyBboxPatch(
        (x - width / 2, y - height / 2),
        width,
        height,
        ROUNDED,
        fc=colour,
        ec=theme.ink,
        lw=0.8,
    )
    axes.add_patch(box)
    axes.text(
        x,
        y,
        text,
        color=kit.readable_on(colour),
        ha="center",
        va="center",
        fontsize=8.5,
    )


class Spot(NamedTuple):
    """A GPU, by its node and its number there."""

    node: int
    gpu: int


class Copy(NamedTuple):
    """A copy of a token, from one GPU to another."""

    source: Spot
    target: Spot


SENDER = Spot(0, 1)
EXPERTS = (Spot(0, 3), Spot(1, 2), Spot(1, 3))
ON_RAIL = Spot(1, 1)
COPIES: Mapping[str, Sequence[Copy]] = {
    "a copy for each expert": [Copy(SENDER, expert) for expert in EXPERTS],
    "a copy for each node": [
        Copy(SENDER, Spot(0, 3)),
        Copy(SENDER, ON_RAIL),
        Copy(ON_RAIL, Spot(1, 2)),
        Copy(ON_RAIL, Spot(1, 3)),
    ],
}
# The middles of each node's row of GPUs, and the distance from there to a box's edge.
ROWS = (0.9, 3.5)
EDGE = 0.25


def one_token() -> Picture:
    """Return the way of one token to three experts: a copy for each expert, and a copy for each node beside it."""

    def paint(figure: Figure, theme: Theme) -> None:
        panels = figure.subplots(1, len(COPIES))
        for axes, (name, copies) in zip(panels, COPIES.items(), strict=True):
            axes.set_xlim(-0.2, 4.6)
            axes.set_ylim(4.6, -0.4)
            axes.axis("off")
            axes.set_title(name, **kit.TITLE)
            for node in range(len(ROWS)):
                _row(axes, theme, node)
            for copy in copies:
                _arrow(axes, theme, copy)

    return kit.drawn(paint, TOKEN_ALT, 3.0)


def _row(axes: Axes, theme: Theme, node: int) -> None:
    """Draw a node as one row of GPUs, the sender and the experts in colour."""
    y = ROWS[node]
    kit.outline(axes, theme, (-0.1, y - 0.8), 4.6, 1.5)
    axes.text(0.0, y - 0.6, f"node {node}", va="center", fontsize=8.5)
    for gpu in range(GPUS):
        spot = Spot(node, gpu)
        colour = theme.ground
        if spot == SENDER:
            colour = RAILS[0]
        elif spot in EXPERTS:
            colour = RAILS[2]
        _box(axes, theme, (_x(spot), y), (0.85, 0.5), f"GPU {gpu}", colour)


def _arrow(axes: Axes, theme: Theme, copy: Copy) -> None:
    """Draw a copy's way: a bow below the boxes inside a node, a straight line between nodes."""
    source, target = copy
    bottom = ROWS[source.node] + EDGE
    if source.node == target.node:
        end, bow, colour = ROWS[target.node] + EDGE, 0.35, theme.ink
    else:
        end, bow, colour = ROWS[target.node] - EDGE, 0.0, RAILS[1]
    arrow = FancyArrowPatch(
        (_x(source), bottom),
        (_x(target), end),
        connectionstyle=f"arc3,rad={bow}",
        arrowstyle="-|>",
        mutation_scale=11,
        color=colour,
        lw=1.4,
    )
    axes.add_patch(arrow)


def _x(spot: Spot) -> float:
    """Return the middle of a GPU's box in its node's row."""
    return 0.55 + 1.15 * spot.gpu
