"""Differences in the final loss as a figure: a dot and an interval for each way of summing and number of workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from collectives.algorithms import Mark
from collectives.figures.style import Picture, Theme, picture
from collectives_book.figures import kit
from collectives_book.figures.statements import listed
from collectives_book.rounded_training.comparison import Difference, changed, signed
from collectives_book.rounded_training.ways import Way, name

# Of the first number of workers, and of the second.
LOOKS = (Mark("#0072B2", "o"), Mark("#D55E00", "s"))
# How far the two dots of a way are from its middle.
ASIDE = 0.17


def changes(found: Sequence[Difference]) -> Picture:
    """Each way's difference in the final loss to the baseline, a panel for each model; bars that meet 0 are ties."""
    models = [*dict.fromkeys(one.model for one in found)]
    places = {way: -nth for nth, way in enumerate(dict.fromkeys(one.way for one in found))}

    def paint(figure: Figure, theme: Theme) -> None:
        panels = figure.subplots(1, len(models), sharey=True, squeeze=False)[0]
        for axes, model in zip(panels, models, strict=True):
            _panel(axes, theme, [one for one in found if one.model == model], places)
            kit.headline(axes, model)
        panels[0].set_yticks([*places.values()], [name(way) for way in places])
        panels[0].set_ylim(0.6 - len(places), 0.6)
        kit.message(figure, theme, message(found))

    return picture(paint, _alt(found), kit.WIDTH, 1.5 + 0.34 * len(places))


def _panel(axes: Axes, theme: Theme, found: Sequence[Difference], places: dict[Way, int]) -> None:
    axes.axvline(0, color=theme.ink, lw=0.9)
    for nth, workers in enumerate(dict.fromkeys(one.workers for one in found)):
        group = [one for one in found if one.workers == workers]
        heights = [places[one.way] + ASIDE * (1 - 2 * nth) for one in group]
        means, lows, highs = ([getattr(one, column) / one.of for one in group] for column in ("mean", "low", "high"))
        kit.measured_across(axes, LOOKS[nth], None, means, lows, highs, heights)
        _beside(axes, theme, f"{workers} workers", group, heights)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda share, _: signed(share)))
    axes.set_xlabel("change in final loss")


def _beside(axes: Axes, theme: Theme, label: str, group: Sequence[Difference], heights: Sequence[float]) -> None:
    """The name of the dots, beside the one that is farthest from 0, on its side towards 0."""
    far, height = max(zip(group, heights, strict=True), key=lambda pair: abs(pair[0].mean))
    end, shift, side = (far.low, (-5, 0), "right") if far.mean > 0 else (far.high, (5, 0), "left")
    look: dict[str, Any] = {"textcoords": "offset points", "ha": side, "va": "center", "color": theme.ink}
    axes.annotate(label, (end / far.of, height), shift, fontsize=9, **look)


def message(found: Sequence[Difference]) -> str:
    """What the figure says: the ways whose intervals all exclude 0, or that there are none."""
    if not any(one.is_seen for one in found):
        return f"No way of summing changes the final loss: all {len(found)} intervals contain 0"
    ways = changed(found)
    if not ways:
        return "No way of summing changes the final loss of every model"
    return f"The final loss changes for every model with {listed([name(way) for way in ways])}"


def _alt(found: Sequence[Difference]) -> str:
    parts = [
        f"{one.model}, {one.workers} workers, {name(one.way)}: {one.mean:+.4f} ({one.low:+.4f} to {one.high:+.4f})"
        for one in found
    ]
    return f"Change in the final loss to float32 sums, mean and 95% interval. {'; '.join(parts)}."
