"""One look for every figure: colours, markers, two themes, and pictures that carry their own description."""

import base64
import io
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from collectives.algorithms import ALGORITHMS, NEUTRAL, Mark
from collectives.renamed import current_name

Colour = tuple[float, float, float]

# Inches. Letters of a drawing this wide can still be read where a phone shrinks it.
WIDTH = 5.4


@dataclass(frozen=True)
class Theme:
    """The colours of a light or a dark page: text and lines, faint lines, and the background."""

    name: str
    ink: str
    faint: str
    ground: str


LIGHT = Theme("light", ink="#1f2328", faint="#d0d7de", ground="#ffffff")
DARK = Theme("dark", ink="#e6edf3", faint="#48515c", ground="#14181e")


# Colours of algorithms that a dark page swallows, or that come too close to one of these, and what
# they are there: the same hue, brighter.
BRIGHTER = {
    b"#332288": b"#8f7fe8",
    b"#882255": b"#c2476f",
    b"#117733": b"#5fb04a",
    b"#9467bd": b"#c4a3e6",
}

# A name has one mark in all collectives; back ends have theirs in their own files.
MARKS = {name: algorithm.mark for (_, name), algorithm in reversed(ALGORITHMS.items())}


def on_page(colour: str, theme: Theme) -> str:
    """Return the colour of an area on a page of this theme.

    Those of lines and markers change by themselves.

    >>> on_page("#9467BD", DARK), on_page("#9467BD", LIGHT)
    ('#c4a3e6', '#9467BD')
    """
    return (
        BRIGHTER.get(colour.lower().encode(), colour.encode()).decode() if theme is DARK else colour
    )


def mark(algorithm: str) -> Mark:
    """Return the colour and marker of an algorithm, grey for an unknown one."""
    return MARKS.get(current_name(algorithm), NEUTRAL)


def hues(k: int) -> list[Colour]:
    """Return one hue for each of k chunks, equally bright: red, green and blue from 0 to 1."""
    from seaborn import husl_palette  # a second of imports, which other figures do not need

    return list(husl_palette(k))


def colours(k: int) -> list[str]:
    """Return the same hues as a page writes them, #rrggbb.

    >>> colours(2)
    ['#f77189', '#36ada4']
    """
    return [to_hex(hue) for hue in hues(k)]


@dataclass(frozen=True)
class Picture:
    """A figure as SVG (bytes), for light and for dark pages, with an alternative text, and a caption or none."""

    light: bytes = field(repr=False)
    dark: bytes = field(repr=False)
    alt: str
    caption: str = ""

    def _repr_html_(self) -> str:
        # Elsewhere than on the site, whose style sheet shows either, the light one is seen alone.
        images = "".join(
            f'<img class="only-{name}" alt="{escape(self.alt)}"{style} src="data:image/svg+xml;base64,'
            f'{base64.b64encode(svg).decode()}">'
            for name, svg, style in (
                ("light", self.light, ""),
                ("dark", self.dark, ' style="display: none"'),
            )
        )
        text = with_whole_options(escape(self.caption))
        caption = f"<figcaption>{text}</figcaption>" if text else ""
        # in a box of their own: the theme hides a caption beside an image of the other theme
        return f'<figure class="drawn"><div>{images}</div>{caption}</figure>'

    def save(self, stem: str | Path) -> None:
        """Write ``stem-light.svg`` and ``stem-dark.svg``."""
        Path(f"{stem}-light.svg").write_bytes(self.light)
        Path(f"{stem}-dark.svg").write_bytes(self.dark)


def with_whole_options(text: str) -> str:
    """Return HTML whose options of commands, such as ``--preset``, no page breaks at the end of a line."""
    return re.sub(r"(?<= )--[\w-]+", r'<span class="command-word">\g<0></span>', text)


def picture(
    paint: Callable[[Figure, Theme], None], alt: str, width: float = 7.2, height: float = 4.0
) -> Picture:
    """Paint a figure once for each theme, ``width`` x ``height`` inches.

    The same input gives the same bytes.
    """
    return Picture(_svg(paint, LIGHT, width, height), _svg(paint, DARK, width, height), alt)


def _svg(
    paint: Callable[[Figure, Theme], None], theme: Theme, width: float, height: float
) -> bytes:
    with mpl.rc_context(_settings(theme)):
        figure = Figure(figsize=(width, height), layout="constrained")
        paint(figure, theme)
        out = io.BytesIO()
        figure.savefig(
            out, format="svg", transparent=True, metadata={"Date": None, "Creator": None}
        )
    return _bright(out.getvalue()) if theme is DARK else out.getvalue()


def _bright(svg: bytes) -> bytes:
    """Brighten lines and markers.

    An area keeps its colour, because the letters in it are chosen for that.
    """
    for dark, bright in BRIGHTER.items():
        svg = svg.replace(
            b"fill: %b; stroke: %b" % (dark, dark), b"fill: %b; stroke: %b" % (bright, bright)
        )
        svg = svg.replace(b"stroke: %b" % dark, b"stroke: %b" % bright)
    return svg


def _settings(theme: Theme) -> Any:
    lines = (
        "axes.edgecolor",
        "axes.labelcolor",
        "text.color",
        "xtick.color",
        "ytick.color",
        "legend.labelcolor",
    )
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
