"""Pictures of the trees that two-tree algorithms use: one above the other, and side by side with a library's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from collectives.algorithms.binary_tree import (
    NO_PARENT,
    binary_tree,
    depths,
    edge_colours,
    exchanges,
    second_tree,
)
from collectives.algorithms.library_trees import interior_in_both
from collectives.core.schedule import Ints
from collectives.figures.style import WIDTH, Picture, Theme, mark, picture

# Of the first tree, and of the second.
TREE, RING = TREES = mark("two_tree").colour, mark("ring").colour
NAMES = "first", "second"
# How an edge of each colour is drawn: of two colours, and of three.
TWO_LOOKS: Sequence[Mapping[str, Any]] = [{"ls": "solid"}, {"ls": (0, (2, 1.5))}]
THREE_LOOKS: Sequence[Mapping[str, Any]] = [
    {"color": colour, "lw": 2.5} for colour in ("#009E73", "#CC79A7", "#E69F00")
]


def two_trees(p: int) -> Picture:
    """Draw both trees of the two-tree all-reduce side by side.

    Solid and dashed edges work in alternate steps.
    """
    parents = np.stack([binary_tree(p), second_tree(p)])
    colours = edge_colours(parents)
    first, second = (np.unique(parent[parent != NO_PARENT]) for parent in parents)

    def paint(figure: Figure, theme: Theme) -> None:
        panels = figure.subplots(1, 2)
        for axes, parent, colour, name in zip(panels, parents, colours, NAMES, strict=True):
            axes.set_title(f"{name} tree, {name} half", fontsize=12, color=theme.ink)
            _tree(axes, parent, colour, set(first.tolist()), theme, TWO_LOOKS)

    both = np.intersect1d(first, second)
    shared = f"rank {', '.join(map(str, both))} is" if both.size else "no rank is"
    alt = (
        f"Two binary trees on {p} ranks. Interior in the first: ranks {_listed(first)}; in the second: ranks "
        f"{_listed(second)}; {shared} interior in both. Each edge works in even or in odd steps only."
    )
    return picture(paint, alt, WIDTH, height=0.8 + 0.5 * (1 + (p - 1).bit_length()))


def _listed(ranks: Ints) -> str:
    return ", ".join(map(str, ranks.tolist()))


def three_colours(p: int) -> Picture:
    """Draw the tree of the overlapped tree's all-reduce: its edges have three colours, which work in turn."""
    parent = binary_tree(p)
    up, _, period = exchanges(parent)
    interior = set(parent[parent != NO_PARENT].tolist())

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        _tree(axes, parent, up % period, interior, theme, THREE_LOOKS)
        for colour, look in enumerate(THREE_LOOKS):
            steps = f"steps {colour}, {colour + period}, {colour + 2 * period}, …"
            axes.plot([], [], label=steps, **look)
        axes.legend(loc="upper right", fontsize=11)

    alt = (
        f"A binary tree on {p} ranks whose edges have three colours, so that no rank has two edges of one colour. Each "
        "colour works in every third step, in both directions."
    )
    return picture(paint, alt, WIDTH, height=0.8 + 0.5 * (1 + (p - 1).bit_length()))


def _tree(
    axes: Axes,
    parent: Ints,
    colour: Ints,
    inside_first: set[int],
    theme: Theme,
    looks: Sequence[Mapping[str, Any]],
) -> None:
    """Draw ranks left to right by number, top to bottom by their distance from the root."""
    depth = depths(parent)
    for rank, up in enumerate(parent.tolist()):
        if up != NO_PARENT:
            look: dict[str, Any] = {"color": theme.ink, "lw": 1.2, "zorder": 1}
            look |= looks[colour[rank]]
            axes.plot([rank, up], [depth[rank], depth[up]], **look)
        fill = TREE if rank in inside_first else RING
        axes.scatter([rank], [depth[rank]], s=300, color=fill, zorder=2)
        axes.text(
            rank,
            depth[rank],
            str(rank),
            ha="center",
            va="center",
            color="white",
            fontsize=12.5,
            zorder=3,
        )
    axes.set(xlim=(-0.7, len(parent) - 0.3), ylim=(depth.max() + 0.45, -0.45))
    axes.set_axis_off()


def side_by_side(parents: Ints, title: str) -> Picture:
    """Draw two trees. A rank that is interior in both is filled, and the others are rings."""
    both = interior_in_both(parents).tolist()
    levels = [int(depths(parent).max()) for parent in parents]

    def paint(figure: Figure, theme: Theme) -> None:
        for axes, parent, name in zip(figure.subplots(1, 2), parents, NAMES, strict=True):
            axes.set_title(f"{title}, {name} tree", fontsize=10, color=theme.ink)
            _labelled_tree(axes, parent, set(both), theme)

    shared = (
        f"Interior in both: {', '.join(map(str, both))}."
        if both
        else "No rank is interior in both."
    )
    alt = f"{title}: two trees on {parents.shape[1]} ranks, {levels[0]} and {levels[1]} levels below the root. {shared}"
    return picture(paint, alt, WIDTH, height=0.9 + 0.55 * (1 + max(levels)))


def _labelled_tree(axes: Axes, parent: Ints, both: set[int], theme: Theme) -> None:
    """Draw each rank above its subtree, level by level."""
    depth, x = depths(parent), x_positions(parent)
    for rank, up in enumerate(parent.tolist()):
        if up != NO_PARENT:
            axes.plot([x[rank], x[up]], [depth[rank], depth[up]], color=theme.ink, lw=1.2, zorder=1)
        fill = TREE if rank in both else theme.ground
        axes.scatter(
            [x[rank]],
            [depth[rank]],
            s=300,
            color=fill,
            edgecolors=theme.ink,
            linewidths=1.0,
            zorder=2,
        )
        ink = "white" if rank in both else theme.ink
        axes.text(
            x[rank],
            depth[rank],
            str(rank),
            ha="center",
            va="center",
            color=ink,
            fontsize=12.5,
            zorder=3,
        )
    axes.set(xlim=(min(x) - 0.6, max(x) + 0.6), ylim=(depth.max() + 0.45, -0.45))
    axes.set_axis_off()


def x_positions(parent: Ints) -> list[float]:
    """Return each rank's x: leaves are in a row, and all others above the middle of their children.

    >>> x_positions(np.array([-1, 0, 0, 1, 1]))
    [1.25, 0.5, 2.0, 0.0, 1.0]
    """
    positions = [0.0] * len(parent)
    leaves = 0

    def place(rank: int) -> float:
        nonlocal leaves
        below = [place(child) for child in np.flatnonzero(parent == rank).tolist()]
        if below:
            positions[rank] = (below[0] + below[-1]) / 2
        else:
            positions[rank] = float(leaves)
            leaves += 1
        return positions[rank]

    place(int(np.flatnonzero(parent == NO_PARENT)[0]))
    return positions
