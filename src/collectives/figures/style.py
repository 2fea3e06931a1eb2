"""One look for every figure: colours, markers, two themes, and pictures that carry their own description."""

import base64
import io
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import matplotlib as mpl
import seaborn as sns
from matplotlib.figure import Figure

from collectives.algorithms import ALGORITHMS, NEUTRAL, Mark

Colour = tuple[float, float, float]


@dataclass(frozen=True)
class Theme:
    """The colours of a light or a dark page: text and lines, faint lines, and the background."""

    name: str
    ink: str
    faint: str
    ground: str


LIGHT = Theme("light", ink="#1f2328", faint="#d0d7de", ground="#ffffff")
DARK = Theme("dark", ink="#e6edf3", faint="#48515c", ground="#14181e")


# Of each algorithm, and of back ends, for rows whose algorithm a library chose.
MARKS = {name: each.mark for (_, name), each in reversed(ALGORITHMS.items())} | {
    "p2p": Mark("#0072B2", "o"),
    "p2p_nccl": Mark("#56B4E9", "X"),
    "gloo": Mark("#8c8c8c", "P"),
    "nccl": Mark("#009E73", "D"),
    "horovod": Mark("#999933", "<"),
    "mpi": Mark("#CC79A7", "v"),
}


def mark(algorithm: str) -> Mark:
    """The colour and marker of an algorithm or library; grey for an unknown one."""
    return MARKS.get(algorithm, NEUTRAL)


def hues(k: int) -> list[Colour]:
    """One hue for each of k chunks, equally bright: red, green and blue from 0 to 1."""
    return [(r, g, b) for r, g, b in sns.color_palette("husl", k)]


def colours(k: int) -> list[str]:
    """The same hues as a page writes them, #rrggbb.

    >>> colours(2)
    ['#f77189', '#36ada4']
    """
    return list(sns.color_palette("husl", k).as_hex())


@dataclass(frozen=True)
class Picture:
    """A figure as SVG (bytes), for light and for dark pages, with an alternative text, and a caption or none."""

    light: bytes
    dark: bytes
    alt: str
    caption: str = ""

    def _repr_html_(self) -> str:
        images = "".join(
            f'<img class="only-{name}" alt="{escape(self.alt)}" src="data:image/svg+xml;base64,'
            f'{base64.b64encode(svg).decode()}">'
            for name, svg in (("light", self.light), ("dark", self.dark))
        )
        caption = f"<figcaption>{escape(self.caption)}</figcaption>" if self.caption else ""
        # in a box of their own: the theme hides a caption beside an image of the other theme
        return f'<figure class="drawn"><div>{images}</div>{caption}</figure>'

    def save(self, stem: str | Path) -> None:
        """Write ``stem-light.svg`` and ``stem-dark.svg``."""
        Path(f"{stem}-light.svg").write_bytes(self.light)
        Path(f"{stem}-dark.svg").write_bytes(self.dark)


def picture(paint: Callable[[Figure, Theme], None], alt: str, width: float = 7.2, height: float = 4.0) -> Picture:
    """Paint a figure twice, once for each theme; ``width`` and ``height`` in inches. Same input, same bytes."""
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
