"""The order in which a schedule adds floats, as a picture of trees and as sums with brackets."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from collectives.figures.style import Picture, Theme, mark
from collectives.summation import Summation, Terms
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

    shown = [f"{name} {written(found.terms, int(found.held[0, 0]))}" for name, found in sums.items()]
    return kit.drawn(paint, "The order in which ranks are added to the first chunk", 2.7, shown)


def _tree(axes: Axes, found: Summation, theme: Theme) -> None:
    terms, top = found.terms, int(found.held[0, 0])
    order = leaves(terms, top)
    at = {rank: float(x) for x, rank in enumerate(order)}
    for number in terms.sums_below(top):
        operands = terms.operands[number]
        at[number] = sum(at[term] for term in operands) / len(operands)
        for term in operands:
            axes.plot([at[term], at[number]], [terms.depths[term], terms.depths[number]], color=theme.ink, lw=1.2)
    sizes = [(at[number], terms.depths[number]) for number in at]
    axes.plot(*zip(*sizes, strict=True), ls="", marker="o", ms=5, color=mark("ring").colour)
    axes.set_xticks(range(len(order)), [str(rank) for rank in order])
    axes.set(xlabel="rank", ylim=(-0.4, None))
    axes.grid(visible=False, axis="x")


def leaves(terms: Terms, number: int) -> list[int]:
    """Return the contributions below a term, from left to right.

    >>> terms = Terms(3)
    >>> leaves(terms, terms.add([2, terms.add([0, 1])]))
    [2, 0, 1]
    """
    below: list[int] = []
    left = [number]
    while left:
        term = left.pop()
        operands = terms.operands[term]
        left.extend(reversed(operands))
        below += [] if operands else [term]
    return below


def written(terms: Terms, number: int) -> str:
    """Return a term as a sum with brackets.

    >>> terms = Terms(3)
    >>> written(terms, terms.add([terms.add([0, 1]), 2]))
    '(2 + (0 + 1))'
    """
    operands = terms.operands[number]
    return f"({' + '.join(written(terms, term) for term in operands)})" if operands else str(number)
