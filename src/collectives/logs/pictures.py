"""Pictures of findings: a time on each rank, and busbw by size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from collectives.figures.style import Picture, Theme, mark, picture
from collectives.units import duration, format_bytes

WIDTH, MOST_BARS = 5.6, 64


def times(names: Sequence[str], seconds: Sequence[float], marked: int, what: str) -> Picture | None:
    """A bar for each rank, one of them marked; None if there are too many."""
    if len(names) > MOST_BARS:
        return None

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        colours = [mark("ring" if i == marked else "two_tree").colour for i in range(len(names))]
        axes.barh(range(len(names)), seconds, color=colours)
        for i, value in enumerate(seconds):
            axes.annotate(duration(value), (value, i), (4, 0), textcoords="offset points", va="center", color=theme.ink)
        axes.set_yticks(range(len(names)), names)
        axes.set_xticks([])
        axes.grid(visible=False)
        axes.set(xlabel=what, xlim=(0, 1.25 * max(seconds)))
        axes.invert_yaxis()
        axes.spines[["top", "right", "bottom"]].set_visible(False)

    told = ", ".join(f"{name} {duration(value)}" for name, value in zip(names, seconds, strict=True))
    return picture(paint, f"{what}: {told}.", WIDTH, 0.7 + 0.28 * len(names))


def curve(nbytes: NDArray[np.float64], busbw: NDArray[np.float64], fitted: NDArray[np.float64]) -> Picture:
    """Measured busbw (markers) and the fit (line) by size, in GB/s."""

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
