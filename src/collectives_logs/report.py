"""Findings as one page of HTML that needs nothing else: sentences, places, pictures."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from string import Template
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from collectives.units import duration, format_bytes
from collectives_logs.finding import Finding

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from collectives.figures.style import Picture, Theme

# The page around the findings. `string.Template` fills it, because `read` needs numpy alone.
PAGE = Template((resources.files(__package__) / "report.html").read_text(encoding="utf8"))


def page(findings: Iterable[tuple[str, Finding]]) -> str:
    """Return a page of HTML: a section for each kind of file.

    Findings from which something follows are marked.

    >>> "<h2>log</h2>" in page([("log", Finding("log", "9 lines, 1 of them NCCL's"))])
    True
    """
    sections, before = [], ""
    for name, found in findings:
        if name != before:
            sections.append(f"<h2>{escape(name)}</h2>")
        before = name
        sections.append(_article(found))
    return PAGE.substitute(sections="\n".join(sections))


def _article(found: Finding) -> str:
    """Return a finding as HTML: its sentences, its places and its picture."""
    mark = ' class="act"' if found.follows else ""
    lines = ["<article>", f"<p><b{mark}>{escape(found.kind)}</b>: {_sentence(found.found)}</p>"]
    if found.follows:
        lines.append(f"<p>So: {_sentence(found.follows)}.</p>")
    if found.next:
        lines.append(f"<p>Try: {_sentence(found.next)}.</p>")
    if found.at:
        places = ", ".join(str(place) for place in found.at)
        lines.append(f'<p class="at">{escape(places)}</p>')
    picture = found.draw() if found.draw else None
    if picture:
        lines.append(_image(picture))
    lines.append("</article>")
    return "\n".join(lines)


def _sentence(text: str) -> str:
    """Return a sentence as HTML, with what stands between back quotes as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _image(picture: Picture) -> str:
    """Return a picture as HTML that holds it, light or dark as the reader's screen is."""
    return (
        "<picture>"
        f'<source media="(prefers-color-scheme: dark)" srcset="{_address(picture.dark)}">'
        f'<img src="{_address(picture.light)}" alt="{escape(picture.alt)}">'
        "</picture>"
    )


def _address(svg: bytes) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"


WIDTH, MAX_BARS = 5.6, 64


def times(names: Sequence[str], seconds: Sequence[float], marked: int, what: str) -> Picture | None:
    """Draw a bar for each rank, one of them marked; None if there are too many."""
    if len(names) > MAX_BARS:
        return None
    from collectives.figures.style import mark, picture

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        colours = [mark("ring" if i == marked else "two_tree").colour for i in range(len(names))]
        axes.barh(range(len(names)), seconds, color=colours)
        for i, value in enumerate(seconds):
            axes.annotate(
                duration(value),
                (value, i),
                (4, 0),
                textcoords="offset points",
                va="center",
                color=theme.ink,
            )
        axes.set_yticks(range(len(names)), names)
        axes.set_xticks([])
        axes.grid(visible=False)
        axes.set(xlabel=what, xlim=(0, 1.25 * max(seconds)))
        axes.invert_yaxis()
        axes.spines[["top", "right", "bottom"]].set_visible(False)

    values = ", ".join(
        f"{name} {duration(value)}" for name, value in zip(names, seconds, strict=True)
    )
    return picture(paint, f"{what}: {values}.", WIDTH, 0.7 + 0.28 * len(names))


def curve(
    nbytes: NDArray[np.float64], busbw: NDArray[np.float64], fitted: NDArray[np.float64]
) -> Picture:
    """Draw measured busbw (markers) and the fit (line) by size, in GB/s."""
    from collectives.figures.style import mark, picture

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        axes.plot(nbytes, fitted, color=theme.ink, lw=1.0)
        axes.plot(nbytes, busbw, "o", ms=4, color=mark("two_tree").colour)
        axes.set_xscale("log", base=2)
        ticks = nbytes[:: max(1, len(nbytes) // 6)]
        axes.set_xticks(ticks, [format_bytes(float(tick)) for tick in ticks])
        axes.minorticks_off()
        axes.set(ylabel="busbw, GB/s", ylim=(0, None))
        axes.spines[["top", "right"]].set_visible(False)

    best = int(np.argmax(busbw))
    alt = f"Busbw by size, at most {busbw[best]:.3g} GB/s at {format_bytes(float(nbytes[best]))}; the line is the fit."
    return picture(paint, alt, WIDTH, 2.6)
