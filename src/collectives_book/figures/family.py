"""Algorithms of one collective as points: messages of the busiest rank, and the buffers that it sends or receives."""

from collections.abc import Mapping
from math import log2

from matplotlib.figure import Figure

from collectives.figures.style import Picture, Theme, mark, picture
from collectives_book.figures import kit

Point = tuple[int, float]


def family(points: Mapping[str, Point], least: float) -> Picture:
    """Each algorithm at (messages, buffers), both axes logarithmic; dashes at ``least``, what ranks that add must send.

    Algorithms at one place share a label. Cost: a marker for each algorithm.
    """
    at: dict[tuple[int, float], list[str]] = {}
    for name, (messages, buffers) in points.items():
        at.setdefault((messages, round(buffers, 2)), []).append(name)

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        for number, ((messages, buffers), names) in enumerate(sorted(at.items())):
            for name in names:
                look = mark(name)
                axes.plot([messages], [buffers], ls="", marker=look.marker, color=look.colour, ms=8, mew=2)
            # Neighbours' labels in turn above and below.
            side = 8 if number % 2 == 0 else -8
            axes.annotate(
                "\n".join(names), (messages, buffers), (0, side), textcoords="offset points", ha="center",
                va="bottom" if side > 0 else "top", fontsize=8.5, color=theme.ink,
            )  # fmt: skip
        most = max(messages for messages, _ in at)
        kit.lower_bound(axes, theme, [1, 2 * most], [least, least], "least for ranks that add")
        ticks = [1 << power for power in range(int(log2(most)) + 2)]
        kit.binary_axis(axes, ticks, "messages that the busiest rank sends", "{:,.0f}".format)
        axes.set_yscale("log", base=2)
        axes.set_yticks([1, 2, 4, 8], ["n", "2 n", "4 n", "8 n"])
        axes.set(
            xlim=(0.8, 2.4 * most), ylim=(0.6, 2 * max(buffers for _, buffers in at)), ylabel="bytes through its port"
        )
        kit.labels(figure)

    told = "; ".join(f"{' and '.join(names)} {m:,} messages and {b:g} buffers" for (m, b), names in at.items())
    return picture(paint, f"Of the busiest rank: {told}. Ranks that add must send {least:.2f} buffers.", kit.WIDTH, 3.4)
