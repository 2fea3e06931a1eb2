"""What schedules for the links of a DGX-1 reach of the bound, measured and simulated."""

from collections.abc import Callable, Mapping

from matplotlib.figure import Figure

from collectives.algorithms import GREEN, Mark
from collectives.figures.style import Picture, Theme, mark
from collectives_book.figures import by_hand as kit
from collectives_book.figures.statements import Rows

# The look of the schedules that are compared.
LOOKS: dict[str, tuple[str, Mark]] = {
    "packed_trees@dgx1": ("packed trees", mark("two_tree")),
    "six_rings": ("six rings", GREEN),
    "one_ring": ("one ring", mark("ring")),
}


def look(algorithm: str) -> tuple[str, Mark]:
    """The name and mark of one of them."""
    return LOOKS[algorithm.rpartition(":")[2]]


def reached(rows: Rows, simulated: Callable[[str, int], float], bounds: Mapping[int, float]) -> Picture:
    """Bandwidth by size: measured markers, simulated lines, and the bound as dashes. Times of both are in seconds."""
    sizes = sorted(bounds)

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        for algorithm, part in rows.groupby("algorithm", sort=False):
            name, style = look(str(algorithm))
            rate = [size / simulated(str(algorithm), size) / 1e6 for size in sizes]
            axes.plot(sizes, rate, color=style.colour, lw=1.2)
            low, high = (part.bytes / part[end] for end in ("high_us", "low_us"))
            kit.measured(axes, style, name, part.bytes, part.bytes / part.median_us, low, high, ls="")
            axes.annotate(name, (sizes[-1], rate[-1]), (6, -3), textcoords="offset points", color=style.colour)
        kit.lower_bound(axes, theme, sizes, [size / bounds[size] / 1e6 for size in sizes])
        axes.annotate("bound", (sizes[0], sizes[0] / bounds[sizes[0]] / 1e6), (0, -12), textcoords="offset points")
        kit.binary_axis(axes, sizes)
        axes.set(ylabel="algorithm bandwidth, MB/s", ylim=(0, None), xlim=(None, 3.4 * sizes[-1]))

    return kit.drawn(paint, "Bandwidth in MB/s by buffer size, measured", 3.0)
