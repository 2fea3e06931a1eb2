"""A timeline: bars in lanes, one for each row of a table, from when something began to when it ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from collectives.figures.style import LIGHT, Picture, Theme
from collectives_book.figures import kit
from collectives_book.figures.kit import Axis, Rows


def lanes(
    rows: Rows,
    axis: Axis,
    about: str,
    colours: Mapping[str, str],
    *,
    facet: str,
    shaded: Mapping[str, tuple[float, float]] | None = None,
) -> Picture:
    """Return a timeline: in each lane a bar for each row, from its ``begin`` to its ``end``, coloured by its ``what``.

    ``lane`` names the lane of a row; rows of one lane are one below the other where their ``level``
    differs (0 to 1, with ``tall`` as a bar's height). ``text`` is written into the bar. Each value
    of ``facet`` has a panel, in which ``shaded`` marks a span of time. A colour "ink" or "faint" is
    the theme's.
    """
    panels = {str(name): part for name, part in rows.groupby(facet, sort=False)}
    last = [*colours][-1]

    def paint(figure: Figure, theme: Theme) -> None:
        of_theme = {what: getattr(theme, colour, colour) for what, colour in colours.items()}
        places = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
        for panel, (name, part) in zip(places, panels.items(), strict=True):
            _lanes(panel, part, of_theme, theme)
            panel.set_title(name, **kit.TITLE)
            if shaded and name in shaded:
                alpha = 0.15 if theme is LIGHT else 0.35
                panel.axvspan(*shaded[name], color=of_theme[last], alpha=alpha, lw=0)
            kit.scale(panel, "x", axis, [])
            panel.label_outer()
        handles = [Patch(fc=colour, ec="none", label=what) for what, colour in of_theme.items()]
        figure.legend(
            handles=handles,
            loc="outside lower left",
            ncols=kit.legend_columns(colours),
            fontsize=9,
        )

    height = 1.0
    for part in panels.values():
        height += 0.4 + 0.5 * part.lane.nunique()
    return kit.drawn(paint, about, height, panels)


def _lanes(panel: Axes, rows: Rows, colours: Mapping[str, str], theme: Theme) -> None:
    places = {lane: nth for nth, lane in enumerate(dict.fromkeys(rows.lane))}
    for row in rows.itertuples():
        tall = getattr(row, "tall", 0.84)
        at = places[row.lane] - 0.42 + getattr(row, "level", 0.0)
        colour = colours[row.what]
        look: dict[str, Any] = {
            "color": colour,
            "edgecolor": theme.ground,
            "lw": 0.6,
        }
        panel.barh(at, row.end - row.begin, tall, row.begin, align="edge", **look)
        text = getattr(row, "text", "")
        if text:
            middle = (row.begin + row.end) / 2
            look = {"ha": "center", "va": "center", "fontsize": 8}
            panel.text(middle, at + tall / 2, text, color=kit.readable_on(colour), **look)
    panel.set_yticks([*places.values()], [*places], fontsize=8.5)
    panel.invert_yaxis()
    panel.grid(visible=False, axis="y")
