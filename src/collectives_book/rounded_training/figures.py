"""Differences in the final loss as a figure: a dot and an interval for each summation variant and number of workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from collectives.algorithms import Mark
from collectives.figures.style import Picture, Theme
from collectives_book.figures import by_hand as kit
from collectives_book.figures.statements import listed
from collectives_book.rounded_training.comparison import Difference, changed
from collectives_book.rounded_training.variants import Variant, name

# Of the first number of workers, and of the second.
LOOKS = (Mark("#0072B2", "o"), Mark("#D55E00", "s"))
# How far the two dots of a variant are from its middle.
ASIDE = 0.17


def changes(found: Sequence[Difference]) -> Picture:
    """Plot each variant's difference in the final loss from the baseline, with its interval; a panel for each model."""
    models = [*dict.fromkeys(one.model for one in found)]
    places = {variant: -nth for nth, variant in enumerate(dict.fromkeys(one.variant for one in found))}

    def paint(figure: Figure, theme: Theme) -> None:
        panels = figure.subplots(1, len(models), sharey=True, squeeze=False)[0]
        for axes, model in zip(panels, models, strict=True):
            _panel(axes, theme, [one for one in found if one.model == model], places, is_first=axes is panels[0])
            kit.headline(axes, model)
        panels[0].set_yticks([*places.values()], [name(variant).replace(" + ", "\n+ ") for variant in places])
        panels[0].set_ylim(0.6 - len(places), 0.6)
        kit.message(figure, theme, message(found))

    return kit.drawn(paint, "Change in the final loss from that with float32 sums", 1.5 + 0.34 * len(places))


def _panel(
    axes: Axes, theme: Theme, found: Sequence[Difference], places: dict[Variant, int], *, is_first: bool
) -> None:
    axes.axvline(0, color=theme.ink, lw=0.9)
    for nth, workers in enumerate(dict.fromkeys(one.workers for one in found)):
        group = [one for one in found if one.workers == workers]
        heights = [places[one.variant] + ASIDE * (1 - 2 * nth) for one in group]
        means, lows, highs = ([getattr(one, column) / one.of for one in group] for column in ("mean", "low", "high"))
        kit.measured_across(axes, LOOKS[nth], f"{workers} workers", means, lows, highs, heights)
        if is_first:
            _beside(axes, theme, f"{workers} workers", (highs[0], heights[0]))
    axes.xaxis.set_major_locator(MaxNLocator(3))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.3g}%".replace("-", "−")))
    axes.set_xlabel("change in final loss")


def _beside(axes: Axes, theme: Theme, label: str, at: tuple[float, float]) -> None:
    """The name of the dots, at the right end of the first one's interval."""
    look: dict[str, Any] = {"textcoords": "offset points", "va": "center", "color": theme.ink, "fontsize": 9}
    axes.annotate(label, at, (7, 0), **look)


def message(found: Sequence[Difference]) -> str:
    """The headline: which variants change the loss of which model, or that none does."""
    groups = changed(found)
    models = listed([*dict.fromkeys(group[0].model for group in groups)] or ["no model"])
    variants = listed([*dict.fromkeys(name(group[0].variant) for group in groups)] or ["the summation variant"])
    return f"The final loss of {'the ' if groups else ''}{models} changes with {variants}"
