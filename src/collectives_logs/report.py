"""Findings as one page of HTML that needs nothing else: sentences, places, pictures."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from collectives.units import duration, format_bytes
from collectives_logs.finding import Finding

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from collectives.figures.style import Picture, Theme

STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --faint: #666; --line: #ddd; --ground: #fff; --act: #b3261e }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e6; --faint: #a0a0a0; --line: #3a3a3a; --ground: #121212; --act: #ff8a80 } }
body { max-width: 46rem; margin: 2rem auto; padding: 0 1rem; font: 1rem/1.5 system-ui, sans-serif;
  color: var(--ink); background: var(--ground) }
article { border-top: 1px solid var(--line); padding: .6rem 0 } p { margin: .3rem 0; overflow-wrap: anywhere }
b.act { color: var(--act) } .at { color: var(--faint); font-size: .85rem } img { max-width: 100%; height: auto }
"""


def page(findings: Iterable[tuple[str, Finding]]) -> str:
    """Return a page of HTML: a section for each kind of file.

    Findings from which something follows are marked.

    >>> "<h2>log</h2>" in page([("log", Finding("log", "9 lines, 1 of them NCCL's"))])
    True
    """
    sections = [
        f"<h2>{escape(name)}</h2>\n" + "\n".join(_article(found) for _, found in those)
        for name, those in groupby(findings, key=lambda each: each[0])
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>collectives read</title>\n'
        f'<meta name="viewport" content="width=device-width">\n<style>{STYLE}</style></head>\n'
        f"<body>\n<h1>What the files say</h1>\n{''.join(sections)}\n</body>\n</html>\n"
    )


def _article(found: Finding) -> str:
    mark = ' class="act"' if found.follows else ""
    lines = [f"<p><b{mark}>{escape(found.kind)}</b>: {_text(found.found)}</p>"]
    lines += [f"<p>So: {_text(found.follows)}.</p>"] if found.follows else []
    lines += [f"<p>Try: {_text(found.next)}.</p>"] if found.next else []
    lines += [f'<p class="at">{escape(", ".join(map(str, found.at)))}</p>'] if found.at else []
    drawn = found.draw() if found.draw else None
    return "\n".join(["<article>", *lines, *([_image(drawn)] if drawn else []), "</article>"])


def _text(sentence: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(sentence))


def _image(drawn: Picture) -> str:
    light, dark = (
        f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"
        for svg in (drawn.light, drawn.dark)
    )
    return (
        f'<picture><source media="(prefers-color-scheme: dark)" srcset="{dark}">'
        f'<img src="{light}" alt="{escape(drawn.alt)}"></picture>'
    )


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
