"""The order in which a schedule adds floats, as a picture of trees and as sums with brackets."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from collectives.core.summation import ReductionTree, Summation
from collectives.figures.style import Picture, Theme, mark
from collectives_book.figures import kit


def trees(sums: Mapping[str, Summation]) -> Picture:
    """Return the additions that lead to rank 0's first chunk, a panel for each name, with rank numbers below.

    A sum is drawn over the middle of its operands, as high as its depth.
    """

    def paint(figure: Figure, theme: Theme) -> None:
        panels = figure.subplots(1, len(sums), sharey=True, squeeze=False)[0]
        for axes, (name, found) in zip(panels, sums.items(), strict=True):
            _tree(axes, found, theme)
            axes.set_title(f"{name.replace('_', ' ')}: depth {found.depth[0, 0]}", **kit.TITLE)
        panels[0].set_ylabel("additions")

    shown = [f"{name} {written(found.tree, int(found.node[0, 0]))}" for name, found in sums.items()]
    return kit.drawn(paint, "The order in which ranks are added to the first chunk", 2.7, shown)


def _tree(axes: Axes, found: Summation, theme: Theme) -> None:
    tree = found.tree
    top = int(found.node[0, 0])
    order = leaves(tree, top)
    at = {rank: float(x) for x, rank in enumerate(order)}
    for number in tree.sums_below(top):
        operands = tree.operands[number]
        at[number] = sum(at[node] for node in operands) / len(operands)
        for node in operands:
            axes.plot(
                [at[node], at[number]],
                [tree.depths[node], tree.depths[number]],
                color=theme.ink,
                lw=1.2,
            )
    sizes = [(at[number], tree.depths[number]) for number in at]
    axes.plot(
        *zip(*sizes, strict=True),
        ls="",
        marker="o",
        ms=5,
        color=mark("ring").colour,
    )
    axes.set_xticks(range(len(order)), [str(rank) for rank in order])
    axes.set(xlabel="rank", ylim=(-0.4, None))
    axes.grid(visible=False, axis="x")


def leaves(tree: ReductionTree, number: int) -> list[int]:
    """Return the contributions below a node, from left to right.

    >>> tree = ReductionTree(3)
    >>> leaves(tree, tree.add([2, tree.add([0, 1])]))
    [2, 0, 1]
    """
    below: list[int] = []
    left = [number]
    while left:
        node = left.pop()
        operands = tree.operands[node]
        left.extend(reversed(operands))
        below += [] if operands else [node]
    return below


def written(tree: ReductionTree, number: int) -> str:
    """Return a node as a sum with brackets.

    >>> tree = ReductionTree(3)
    >>> written(tree, tree.add([tree.add([0, 1]), 2]))
    '(2 + (0 + 1))'
    """
    operands = tree.operands[number]
    return f"({' + '.join(written(tree, node) for node in operands)})" if operands else str(number)
