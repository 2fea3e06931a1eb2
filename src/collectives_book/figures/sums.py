"""Sums of floats as pictures: in which order a schedule adds, and how the error grows with the number of ranks."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from collectives.figures.style import Picture, Theme, mark, picture
from collectives.summation import Summation, Terms
from collectives_book.figures import by_hand as kit


def trees(sums: Mapping[str, Summation]) -> Picture:
    """The additions that lead to what rank 0 holds of the first chunk, a panel for each name; rank numbers below.

    A sum is drawn over the middle of its operands, as high as its depth.
    """

    def paint(figure: Figure, theme: Theme) -> None:
        panels = figure.subplots(1, len(sums), sharey=True, squeeze=False)[0]
        for axes, (name, found) in zip(panels, sums.items(), strict=True):
            _tree(axes, found, theme)
            depth = int(found.depth[0, 0])
            kit.headline(axes, f"{name.replace('_', ' ')}: depth {depth}")
        panels[0].set_ylabel("additions")

    alt = "; ".join(f"{name} {written(found.terms, int(found.held[0, 0]))}" for name, found in sums.items())
    return picture(paint, f"How the sum of the first chunk is taken: {alt}.", kit.WIDTH, 2.7)


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
    """The contributions below a term, from left to right.

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
    """A term as a sum with brackets.

    >>> terms = Terms(3)
    >>> written(terms, terms.add([terms.add([0, 1]), 2]))
    '(2 + (0 + 1))'
    """
    operands = terms.operands[number]
    return f"({' + '.join(written(terms, term) for term in operands)})" if operands else str(number)


def errors(ranks: Sequence[int], curves: Mapping[str, Sequence[float]]) -> Picture:
    """RMS errors, as shares of the RMS of the exact sums, against ranks; both axes are logarithmic."""
    last = {name: values[-1] for name, values in curves.items()}
    most, least = max(last, key=lambda name: last[name]), min(last, key=lambda name: last[name])
    said = f"On {ranks[-1]:,} ranks the error of {most} is {last[most] / last[least]:.0f} times that of {least}"

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        for name, values in curves.items():
            look = mark(name.split(",")[0].replace(" ", "_"))
            axes.plot(ranks, values, color=look.colour, marker=look.marker, ms=5, lw=1.6, label=name)
        kit.binary_axis(axes, ranks, "ranks", "{:,.0f}".format)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.1%}"))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_ylabel("relative RMS error")
        kit.message(figure, theme, said)
        kit.labels(figure)

    return kit.drawn(paint, "Relative RMS error of bf16 sums by ranks", 3.2)
