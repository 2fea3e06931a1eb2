"""A map of who wins where: a coloured field for each x and y of a table, with the winner's name or its initials."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from textwrap import fill
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from collectives.figures.style import Picture, Theme, mark, on_page
from collectives_book.figures import kit
from collectives_book.figures.kit import Axis, Rows
from collectives_book.figures.seaborn_only import sns

# Colours of families of plans by levels, which are no names.
FAMILIES = {
    "whole_levels": "#009E73",
    "scattered_then_whole": "#E69F00",
    "scattered_levels": "#0072B2",
}

# A field is faint if its winner is ahead by less than this share, and keeps so much of its colour.
MARGIN, FAINT = 0.1, 0.3
# Names are written out where fields of so many columns, in all panels of a line, leave room for
# these letters; elsewhere stand initials.
ROOMY, LETTERS = 6, 12
# Inches from one line of fields to the next, with initials and with names.
LOW, HIGH = 0.2, 0.32


def fields(
    rows: Rows,
    x: str,
    y: str,
    winner: str,
    axes: tuple[Axis, Axis],
    about: str,
    *,
    facet: str,
    frame: float | None = None,
    columns: int = 1,
    ahead: str | None = None,
) -> Picture:
    """Return a map of who wins where: a coloured field for each ``x`` and ``y``, with the winner's name.

    Where fields are too narrow for names they have initials, which a legend explains. Each value of
    ``facet`` has a panel; an empty name is a field without a winner. The row of fields at ``frame``
    has a dotted frame. ``ahead`` is the column of how much longer the next takes, as a share of the
    winner's time: fields below `MARGIN` are faint.
    """
    if rows.empty:
        return kit.nothing()
    names = sorted({name for name in rows[winner] if name})
    panels, faint = {}, {}
    for name, part in rows.groupby(facet, sort=False):
        table = part.pivot(index=y, columns=x, values=winner)
        panels[str(name)] = table.sort_index(ascending=False)
        if ahead is not None:
            shares = part.pivot(index=y, columns=x, values=ahead).sort_index(ascending=False)
            faint[str(name)] = (shares < MARGIN).to_numpy()
    is_roomy = all(table.shape[1] * columns <= ROOMY for table in panels.values())
    written = _written_out if is_roomy else initials

    def paint(figure: Figure, theme: Theme) -> None:
        lines = -(-len(panels) // columns)
        places = figure.subplots(lines, columns, squeeze=False).flat
        for panel, (name, table) in zip(places, panels.items(), strict=False):
            _map(panel, table, names, written, theme)
            if name in faint:
                _fade(panel, faint[name], theme)
            _name_fields(panel, table, axes, columns)
            panel.set_title(name, **kit.TITLE)
            if frame is not None and frame in table.index:
                _frame(panel, list(table.index).index(frame), table.shape[1], theme)
        if not is_roomy:
            _legend(figure, names, theme)

    tall = [len(table) for table in panels.values()]
    line = HIGH if is_roomy else LOW
    # Panels stand one below the other, or all in one line.
    height = 0.9 + line * max(tall)
    if columns == 1:
        height = 0.9 * len(panels) + line * sum(tall)
    lines_of_legend = 0 if is_roomy else -(-len(names) // 3)
    shown = _most_wins(rows[rows[winner] != ""], facet, winner, panels)
    return kit.drawn(paint, about, height + 0.22 * lines_of_legend, shown)


def _map(
    panel: Axes,
    table: Rows,
    names: Sequence[str],
    written: Callable[[str], str],
    theme: Theme,
) -> None:
    """Colour the fields, and write the names or the initials into them."""
    colours = {name: colour_of(name, theme) for name in names}
    numbers = table.map(lambda name: names.index(name) if name else np.nan).astype(float)
    look: dict[str, Any] = {
        "cmap": mpl.colors.ListedColormap([*colours.values()]),
        "vmin": -0.5,
        "vmax": len(names) - 0.5,
        "cbar": False,
        "linewidths": 1,
        "linecolor": theme.ground,
        "annot": table.map(written),
        "annot_kws": {"fontsize": 7.5, "linespacing": 0.95},
    }
    sns.heatmap(numbers, ax=panel, fmt="", mask=numbers.isna(), **look)
    by_text = {written(name): colours[name] for name in reversed(names)}
    for text in panel.texts:  # seaborn chooses white or a dark grey; a dark page needs black
        colour = by_text[text.get_text()]
        text.set_color(kit.readable_on(mpl.colors.to_hex(colour)))


def _fade(panel: Axes, faint: Any, theme: Theme) -> None:
    """Cover the fields of small wins with the page's colour, and write their names in its ink."""
    for line, column in np.argwhere(faint).tolist():
        cover = Rectangle((column, line), 1, 1, fc=theme.ground, ec=theme.ground, alpha=1 - FAINT)
        panel.add_patch(cover)
    for text in panel.texts:
        column, line = (int(place) for place in text.get_position())
        if faint[line, column]:
            text.set_color(theme.ink)


def _name_fields(panel: Axes, table: Rows, axes: tuple[Axis, Axis], columns: int) -> None:
    turned = 40 if len(table.columns) * columns > 10 else 0
    across = [axes[0].form(value) for value in table.columns]
    down = [axes[1].form(value) for value in table.index]
    panel.set_xticklabels(across, rotation=turned, fontsize=8.5)
    panel.set_yticklabels(down, rotation=0, fontsize=8.5)
    panel.set_xlabel(axes[0].name)
    place = panel.get_subplotspec()
    panel.set_ylabel(axes[1].name if place and place.is_first_col() else "")
    panel.tick_params(length=0)


def _frame(panel: Axes, line: int, width: int, theme: Theme) -> None:
    """Draw a dotted frame around a row of fields."""
    look: dict[str, Any] = {
        "fill": False,
        "ec": theme.ink,
        "lw": 1.6,
        "ls": (0, (1, 1.5)),
    }
    panel.add_patch(Rectangle((0, line), width, 1, clip_on=False, **look))


def _legend(figure: Figure, names: Sequence[str], theme: Theme) -> None:
    handles = []
    for name in names:
        colour = colour_of(name, theme)
        handles.append(Patch(fc=colour, label=f"{initials(name)} {name.replace('_', ' ')}"))
    look: dict[str, Any] = {"ncols": 3, "fontsize": 8.5, "handlelength": 1.0}
    figure.legend(handles=handles, loc="outside lower center", **look)


def _most_wins(won: Rows, facet: str, winner: str, panels: dict[str, Rows]) -> Iterator[str]:
    """Yield, for each panel, who wins most fields, and how many."""
    counts = won.groupby(facet, sort=False)[winner].value_counts()
    for name, part in counts.groupby(level=0, sort=False):
        first = part.index[0][1]
        yield f"{name}: {first} in {part.iloc[0]} of {panels[str(name)].size}"


def colour_of(name: str, theme: Theme) -> str:
    """Return the colour of an algorithm or of a family of plans on a page of this theme.

    >>> from collectives.figures.style import LIGHT
    >>> colour_of("whole_levels", LIGHT), colour_of("ring", LIGHT)
    ('#009E73', '#0072B2')
    """
    return on_page(FAMILIES.get(name, mark(name).colour), theme)


def _written_out(algorithm: str) -> str:
    r"""Return a name in lines that fit into a field.

    >>> _written_out("scattered_then_whole"), _written_out("ring")
    ('scattered\nthen whole', 'ring')
    """
    return fill(algorithm.replace("_", " "), LETTERS)


def initials(algorithm: str) -> str:
    """Return the mark of an algorithm's fields.

    >>> initials("hierarchical_ring"), initials("ring"), initials("")
    ('HR', 'R', '')
    """
    return "".join(word[0].upper() for word in algorithm.split("_") if word)
