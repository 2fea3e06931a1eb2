"""Drawings of nodes: GPUs, ports, switches and rails, and the way of one token through them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Patch

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
    "node one copy goes to GPU 1 of node 1, which passes it on inside the node. Results come "
    "back the same way: GPU 1 of node 1 adds those of its node, and one sum crosses"
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
        box(axes, theme, (SPINE, 4.9), (2.2, 0.45), "spine", theme.faint)
        _note(axes, theme, 3.7, "leaf\nswitches")
        _note(axes, theme, 2.4, "ports")

    return kit.drawn(paint, RAILS_ALT, 3.8)


def _rail(axes: Axes, theme: Theme, rail: int, colour: str) -> None:
    """Draw a leaf switch, the ports that it joins, and its link to the spine."""
    leaf = FIRST_LEAF + LEAF_GAP * rail
    for first in FIRST:
        port = first + GAP * rail
        line(axes, colour, (port, 2.5), (leaf, 3.5), 1.4)
        kit.fill(axes, colour, (port - 0.15, 2.25), 0.3, 0.28)
    line(axes, theme.ink, (leaf, 3.9), (SPINE, 4.7))
    box(axes, theme, (leaf, 3.7), (1.2, 0.4), f"rail {rail}", colour)


def _node(axes: Axes, theme: Theme, node: int, first: float) -> None:
    """Draw a node's outline, its GPUs and the switch between them."""
    width = GAP * (GPUS - 1)
    middle = first + width / 2
    kit.outline(axes, theme, (first - 0.5, 0), width + 1, 2.25)
    for gpu in range(GPUS):
        x = first + GAP * gpu
        line(axes, theme.ink, (x, 0.9), (x, 2.25))
        box(axes, theme, (x, 1.55), (0.8, 0.5), f"GPU {gpu}", theme.ground)
    box(
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


def line(axes: Axes, colour: str, start: Point, end: Point, width: float = 0.8) -> None:
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


def box(axes: Axes, theme: Theme, middle: Point, size: Point, text: str, colour: str) -> None:
    """Draw a box with rounded corners and a text in its middle."""
    x, y = middle
    width, height = size
    frame = FancyBboxPatch(
        (x - width / 2, y - height / 2),
        width,
        height,
        ROUNDED,
        fc=colour,
        ec=theme.ink,
        lw=0.8,
    )
    axes.add_patch(frame)
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
    "dispatch, a copy for each expert": [Copy(SENDER, expert) for expert in EXPERTS],
    "dispatch, a copy for each node": [
        Copy(SENDER, Spot(0, 3)),
        Copy(SENDER, ON_RAIL),
        Copy(ON_RAIL, Spot(1, 2)),
        Copy(ON_RAIL, Spot(1, 3)),
    ],
    "combine: GPU 1 of node 1 adds what its node sends": [
        Copy(Spot(1, 2), ON_RAIL),
        Copy(Spot(1, 3), ON_RAIL),
        Copy(ON_RAIL, SENDER),
        Copy(Spot(0, 3), SENDER),
    ],
}
# Half the height of a GPU's box; the distance of the first GPUs of both nodes.
EDGE, NEXT_NODE = 0.25, 4.7
MEANING = {
    "has the token": RAILS[0],
    "have its experts": RAILS[2],
    "over the network": RAILS[1],
}


def one_token() -> Picture:
    """Return the way of one token to three experts by two kinds of dispatch, and the way of their results back."""

    def paint(figure: Figure, theme: Theme) -> None:
        panels = figure.subplots(len(COPIES), 1)
        for axes, (name, copies) in zip(panels, COPIES.items(), strict=True):
            axes.set_xlim(-0.65, NEXT_NODE + GPUS - 0.35)
            axes.set_ylim(-1.0, 1.25)
            axes.axis("off")
            axes.set_title(name, **kit.TITLE)
            for node in range(2):
                _row(axes, theme, node)
            for copy in copies:
                _arrow(axes, theme, copy)
        handles = [Patch(color=colour, label=text) for text, colour in MEANING.items()]
        figure.legend(handles=handles, loc="outside lower left", ncols=len(MEANING), fontsize=9)

    return kit.drawn(paint, TOKEN_ALT, 4.6)


def _row(axes: Axes, theme: Theme, node: int) -> None:
    """Draw a node as one row of GPUs, the sender and the experts in colour."""
    left = _x(Spot(node, 0)) - 0.6
    kit.outline(axes, theme, (left, -0.95), GPUS + 0.2, 1.35)
    axes.text(left + 0.1, -0.75, f"node {node}", va="center", fontsize=8.5)
    for gpu in range(GPUS):
        spot = Spot(node, gpu)
        colour = theme.ground
        if spot == SENDER:
            colour = RAILS[0]
        elif spot in EXPERTS:
            colour = RAILS[2]
        box(axes, theme, (_x(spot), 0.0), (0.86, 2 * EDGE), f"GPU {gpu}", colour)


def _arrow(axes: Axes, theme: Theme, copy: Copy) -> None:
    """Draw a copy's way: a bow below the boxes inside a node, above them between the nodes."""
    begin, end = _x(copy.source), _x(copy.target)
    is_inside = copy.source.node == copy.target.node
    bow = 0.3 if is_inside else -0.2
    if begin > end:
        bow = -bow
    y = -EDGE if is_inside else EDGE
    arrow = FancyArrowPatch(
        (begin, y),
        (end, y),
        connectionstyle=f"arc3,rad={bow}",
        arrowstyle="-|>",
        mutation_scale=11,
        color=theme.ink if is_inside else RAILS[1],
        lw=1.4,
    )
    axes.add_patch(arrow)


def _x(spot: Spot) -> float:
    """Return the middle of a GPU's box."""
    return spot.gpu + NEXT_NODE * spot.node
