"""One look for every figure: colours, markers, two themes, and pictures that carry their own description."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure

from collectives.hues import hues as hues  # the chunks' colours are part of the look

Colour = tuple[float, float, float]


@dataclass(frozen=True)
class Theme:
    """What differs between a page on white and one on black: text and lines, faint lines, and the ground."""

    name: str
    ink: str
    faint: str
    ground: str


LIGHT = Theme("light", ink="#1f2328", faint="#d0d7de", ground="#ffffff")
DARK = Theme("dark", ink="#e6edf3", faint="#48515c", ground="#14181e")


class Mark(NamedTuple):
    """An algorithm's colour and marker, the same in every figure."""

    colour: str
    marker: str


# Okabe and Ito's colours, which colour-blind readers can tell apart; ring and two-tree differ most.
MARKS = {
    "ring": Mark("#0072B2", "o"),
    "two_tree": Mark("#D55E00", "s"),
    "tree": Mark("#E69F00", "^"),
    "recursive_doubling": Mark("#009E73", "D"),
    "root": Mark("#CC79A7", "v"),
    "exchange": Mark("#56B4E9", "X"),
    "default": Mark("#8c8c8c", "P"),
}


def mark(algorithm: str) -> Mark:
    """The look of an algorithm; grey for one that no figure has shown yet."""
    return MARKS.get(algorithm, Mark("#8c8c8c", "*"))


@dataclass(frozen=True)
class Picture:
    """A figure as SVG, for light and for dark pages, with a text that says what it shows."""

    light: bytes
    dark: bytes
    alt: str

    def _repr_html_(self) -> str:
        images = "".join(
            f'<img class="only-{name}" alt="{escape(self.alt)}" src="data:image/svg+xml;base64,'
            f'{base64.b64encode(svg).decode()}">'
            for name, svg in (("light", self.light), ("dark", self.dark))
        )
        return f'<figure class="drawn">{images}</figure>'

    def save(self, stem: str | Path) -> None:
        """Write ``stem-light.svg`` and ``stem-dark.svg``."""
        Path(f"{stem}-light.svg").write_bytes(self.light)
        Path(f"{stem}-dark.svg").write_bytes(self.dark)


def picture(paint: Callable[[Figure, Theme], None], alt: str, width: float = 7.2, height: float = 4.0) -> Picture:
    """Paint a figure twice, once for each theme. The same input gives the same bytes."""
    return Picture(_svg(paint, LIGHT, width, height), _svg(paint, DARK, width, height), alt)


def _svg(paint: Callable[[Figure, Theme], None], theme: Theme, width: float, height: float) -> bytes:
    with mpl.rc_context(_settings(theme)):
        figure = Figure(figsize=(width, height), layout="constrained")
        paint(figure, theme)
        out = io.BytesIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return out.getvalue()


def _settings(theme: Theme) -> Any:
    lines = ("axes.edgecolor", "axes.labelcolor", "text.color", "xtick.color", "ytick.color", "legend.labelcolor")
    return dict.fromkeys(lines, theme.ink) | {
        "svg.hashsalt": "collectives",
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": theme.faint,
        "grid.linewidth": 0.6,
        "legend.frameon": False,
        "lines.markersize": 6,
    }
