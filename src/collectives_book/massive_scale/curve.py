"""The curve on the book's first page: 8 bytes on up to 24,576 GPUs, by a ring and by trees."""

from dataclasses import replace

from matplotlib.figure import Figure

from collectives.figures.style import Picture, Theme, mark, picture
from collectives.units import duration
from collectives_book.figures import kit
from collectives_book.figures.statements import Rows
from collectives_book.massive_scale import published

NAMES = {"ring": "ring", "hierarchical_tree": "two trees"}
HEIGHT = 2.3


def curve(rows: Rows) -> Picture:
    """Lines are simulated, hollow markers published; at the right end, how far the published ones are apart.

    ``rows`` are those of the experiment ``massive-scale`` on the machine ``summit``.
    """
    small = rows[(rows.part == "figures") & (rows.bytes == published.SMALL)]
    last = published.POINTS[-1]
    factor = f"{last.ring_seconds / last.tree_seconds:.0f} times\nas fast"

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        for algorithm, name in NAMES.items():
            group = small[small.algorithm == algorithm].sort_values("ranks")
            look, points = mark(algorithm if algorithm == "ring" else "two_tree"), published.latencies(algorithm)
            axes.plot(group.ranks, group.seconds, color=look.colour, lw=1.8)
            kit.published(axes, look, list(points), list(points.values()))
            at = (768, published.latencies(algorithm)[768])
            axes.annotate(name, at, (0, 9), textcoords="offset points", ha="right", weight="bold")
        kit.binary_axis(axes, [96, 384, 1536, 6144, last.ranks], "GPUs", "{:,.0f}".format)
        axes.tick_params(axis="x", labelrotation=0)
        kit.time_axis(axes, unit=1)
        ends = (last.ranks, last.tree_seconds * 1.25), (last.ranks, last.ring_seconds / 1.25)
        axes.annotate("", ends[0], ends[1], arrowprops={"arrowstyle": "<->", "color": theme.ink})
        middle = (last.ranks, (last.tree_seconds * last.ring_seconds) ** 0.5)
        axes.annotate(factor, middle, (-6, 0), textcoords="offset points", ha="right", va="center", weight="bold")

    told = "; ".join(
        f"{name} {duration(getattr(last, f'{published.SERIES[algorithm]}_seconds'))}"
        for algorithm, name in NAMES.items()
    )
    alt = f"All-reduce of 8 bytes, time against GPUs. Published on {last.ranks:,} GPUs: {told}."
    caption = "All-reduce of 8 bytes on Summit. Lines: simulated. Hollow markers: published."
    return replace(picture(paint, alt, kit.WIDTH, HEIGHT), caption=caption)
