"""A decision tree as a drawing: questions one below the other, and the answer to each yes beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from collectives.figures.style import Picture, Theme
from collectives_book.figures import kit
from collectives_book.figures.nodes import box, line

# The middles of the questions and of the answers, their sizes, and the distance of two lines.
QUESTION, ANSWER = 1.9, 6.6
WIDE, WIDER, TALL = 3.5, 4.4, 0.95
DOWN = 1.45
COLOURS = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7")


class Decision(NamedTuple):
    """A question, and what to take if its answer is yes; the last one has no question."""

    question: str
    answer: str


def decisions(tree: Sequence[Decision], last: str, about: str) -> Picture:
    """Return the tree: each no leads to the next question, the last one to ``last``."""

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        axes.set_xlim(0, ANSWER + WIDER / 2 + 0.1)
        axes.set_ylim(-DOWN * len(tree) - TALL / 2 - 0.1, TALL / 2 + 0.1)
        axes.axis("off")
        for place, (decision, colour) in enumerate(zip(tree, COLOURS, strict=False)):
            _decision(axes, theme, decision, -DOWN * place, colour)
        low = -DOWN * len(tree)
        line(axes, theme.ink, (QUESTION, low), (ANSWER, low))
        line(axes, theme.ink, (QUESTION, low), (QUESTION, low + DOWN))
        box(axes, theme, (ANSWER, low), (WIDER, TALL), last, COLOURS[len(tree)])

    shown = [f"{decision.question} {decision.answer}" for decision in tree]
    return kit.drawn(paint, about, 0.62 * (len(tree) + 1) + 0.5, [*shown, last])


def _decision(axes: Axes, theme: Theme, decision: Decision, y: float, colour: str) -> None:
    """Draw a question, its answer to the right, and the way down to the next question."""
    line(axes, theme.ink, (QUESTION, y), (ANSWER, y))
    line(axes, theme.ink, (QUESTION, y), (QUESTION, y - DOWN))
    between = (QUESTION + WIDE / 2 + ANSWER - WIDER / 2) / 2
    axes.text(between, y + 0.12, "yes", ha="center", va="bottom", fontsize=8.5, color=theme.ink)
    axes.text(QUESTION + 0.1, y - DOWN / 2, "no", va="center", fontsize=8.5, color=theme.ink)
    box(axes, theme, (QUESTION, y), (WIDE, TALL), decision.question, theme.ground)
    box(axes, theme, (ANSWER, y), (WIDER, TALL), decision.answer, colour)
