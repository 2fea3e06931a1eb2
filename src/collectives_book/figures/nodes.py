"""Drawings of nodes: GPUs, ports, switches and rails, and the way of one token through them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from collectives.figures.style import Picture, Theme
from collectives_book.figures import kit

# One for each rail.
RAILS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
GPUS = len(RAILS)
# Middles of two neighbours, and of the first GPU of each node.
GAP, FIRST = 1.0, (0.6, 5.2)

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


def rails() -> Picture:
    """Return two nodes of four GPUs, with the switch inside, a port for each GPU, leaf switches and the spine."""

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        axes.set(xlim=(-0.1, 9.0), ylim=(-0.1, 5.5))
        axes.axis("off")
        leaves = [2.15 + 1.35 * rail for rail in range(GPUS)]
        for node, first in enumerate(FIRST):
            _node(axes, theme, node, first)
            for rail, colour in enumerate(RAILS):
                port = (first + GAP * rail, 2.5)
                axes.plot((port[0], leaves[rail]), (port[1], 3.5), color=colour, lw=1.4)
                square = Rectangle((port[0] - 0.15, 2.25), 0.3, 0.28, color=colour, lw=0)
                axes.add_patch(square)
        for rail, leaf in enumerate(leaves):
            axes.plot((leaf, 4.17), (3.9, 4.7), color=theme.ink, lw=0.8)
            _box(axes, theme, (leaf, 3.7), (1.2, 0.4), f"rail {rail}", RAILS[rail])
        _box(axes, theme, (4.17, 4.9), (2.2, 0.45), "spine", theme.faint)
        for text, y in (("leaf\nswitches", 3.7), ("ports", 2.4)):
            axes.text(8.95, y, text, ha="right", va="center", fontsize=9, color=theme.ink)

    return kit.drawn(paint, RAILS_ALT, 3.8)


def _node(axes: Axes, theme: Theme, node: int, first: float) -> None:
    """Draw a node's outline, its GPUs and the switch between them."""
    width = GAP * (GPUS - 1)
    outline = Rectangle((first - 0.5, 0), width + 1, 2.25, fill=False, ec=theme.ink, lw=1)
    axes.add_patch(outline)
    for gpu in range(GPUS):
        x = first + GAP * gpu
        axes.plot((x, x), (0.9, 2.25), color=theme.ink, lw=0.8, zorder=0)
        _box(axes, theme, (x, 1.55), (0.8, 0.5), f"GPU {gpu}", theme.ground)
    middle = first + width / 2
    _box(axes, theme, (middle, 0.7), (width + 0.8, 0.4), "NVLink switch", theme.faint)
    axes.text(middle, 0.22, f"node {node}", ha="center", va="center", fontsize=9)


def _box(
    axes: Axes,
    theme: Theme,
    middle: tuple[float, float],
    size: tuple[float, float],
    text: str,
    colour: str,
) -> None:
    (x, y), (width, height) = middle, size
    corner = (x - width / 2, y - height / 2)
    shape = "round,pad=0,rounding_size=0.06"
    axes.add_patch(FancyBboxPatch(corner, width, height, shape, fc=colour, ec=theme.ink, lw=0.8))
    look: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8.5}
    axes.text(x, y, text, color=kit.readable_on(colour), **look)


def one_token() -> Picture:
    """Return the way of one token to three experts: a copy for each expert, and a copy for each node beside it."""
    panels = {
        "a copy for each expert": [((0, 1), (0, 3)), ((0, 1), (1, 2)), ((0, 1), (1, 3))],
        "a copy for each node": [
            ((0, 1), (0, 3)),
            ((0, 1), (1, 1)),
            ((1, 1), (1, 2)),
            ((1, 1), (1, 3)),
        ],
    }

    def paint(figure: Figure, theme: Theme) -> None:
        for axes, (name, copies) in zip(figure.subplots(1, 2), panels.items(), strict=True):
            axes.set(xlim=(-0.2, 4.6), ylim=(4.6, -0.4))
            axes.axis("off")
            axes.set_title(name, **kit.TITLE)
            _token(axes, theme, copies)

    return kit.drawn(paint, TOKEN_ALT, 3.0)


# The middle of the first GPU's row of each node.
ROWS = (0.9, 3.5)


def _token(
    axes: Axes, theme: Theme, copies: Sequence[tuple[tuple[int, int], tuple[int, int]]]
) -> None:
    """Draw two nodes, and each copy of the token as an arrow from (node, GPU) to (node, GPU)."""
    for node, y in enumerate(ROWS):
        axes.add_patch(Rectangle((-0.1, y - 0.8), 4.6, 1.5, fill=False, ec=theme.ink, lw=1))
        axes.text(0.0, y - 0.6, f"node {node}", va="center", fontsize=8.5)
        for gpu in range(GPUS):
            has_expert = (node, gpu) in ((0, 3), (1, 2), (1, 3))
            colour = RAILS[2] if has_expert else theme.ground
            colour = RAILS[0] if (node, gpu) == (0, 1) else colour
            _box(axes, theme, (0.55 + 1.15 * gpu, y), (0.85, 0.5), f"GPU {gpu}", colour)
    for start, end in copies:
        is_inside = start[0] == end[0]
        below = 0.25
        begin = (0.55 + 1.15 * start[1], ROWS[start[0]] + below)
        to = (0.55 + 1.15 * end[1], ROWS[end[0]] + (below if is_inside else -below))
        arrow = FancyArrowPatch(
            begin,
            to,
            connectionstyle="arc3,rad=0.35" if is_inside else "arc3,rad=0",
            arrowstyle="-|>",
            mutation_scale=11,
            color=theme.ink if is_inside else RAILS[1],
            lw=1.4,
        )
        axes.add_patch(arrow)
