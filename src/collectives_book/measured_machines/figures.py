"""Measured times of large machines as figures: hollow markers for what others measured, lines for our simulation."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from collectives.figures.style import Picture, Theme, mark
from collectives.units import format_bytes
from collectives_book.figures import by_hand as kit
from collectives_book.figures import statements
from collectives_book.figures.statements import Rows

# Sizes of which one shows latency, one rate, and one both.
SHOWN = (256, 1 << 20, 64 << 20)
NAMES = {"ring": "ring", "tree": "two trees"}
LABEL = "measured (HLC-Lab/pico)"


def scaling(rows: Rows, shown: tuple[int, ...] = SHOWN) -> Picture:
    """Time against GPUs, a panel a size: ring and two trees, measured and simulated; rows are those of `compared`."""

    def paint(figure: Figure, theme: Theme) -> None:
        panels = figure.subplots(1, len(shown))
        for axes, nbytes in zip(panels, shown, strict=True):
            _panel(axes, rows[rows.bytes == nbytes], is_first=axes is panels[0], named=axes is panels[-1])
            kit.headline(axes, format_bytes(nbytes))
        hollow = kit.key(theme, LABEL, marker="o", mfc="none", ls="")
        dotted = kit.key(theme, "those that the fit used", marker=".", ms=4, ls="")
        kit.message(figure, theme, _lead(rows, shown))
        kit.labels(figure, more=[kit.key(theme, "simulated", lw=1.8), hollow, dotted])

    return kit.drawn(paint, "All-reduce on MareNostrum 5, simulated time by GPUs, beside measured points", 3.6)


def _panel(axes: Axes, rows: Rows, *, is_first: bool, named: bool) -> None:
    for algorithm, name in NAMES.items():
        group = rows[rows.algorithm == algorithm].sort_values("ranks")
        look = mark(group.simulated.iloc[0])
        axes.plot(group.ranks, group.us, color=look.colour, lw=1.8, label=name if named else None)
        kit.published(axes, look, group.ranks, group.median_us)
        fitted = group[~group.held_out]
        axes.plot(fitted.ranks, fitted.median_us, marker=".", ms=4, ls="", color=look.colour)
    kit.binary_axis(axes, sorted(rows.ranks.unique())[::2], "GPUs", "{:,.0f}".format)
    axes.set_xlim(rows.ranks.min() / 1.3, rows.ranks.max() * 1.3)
    kit.time_axis(axes, name="time" if is_first else "")


def _lead(rows: Rows, shown: tuple[int, ...]) -> str:
    """By how much which of the two is faster on the most GPUs, at the smallest and the largest size."""
    most = rows.ranks.max()
    parts = []
    for nbytes in (shown[0], shown[-1]):
        cell = rows[(rows.ranks == most) & (rows.bytes == nbytes)].sort_values("median_us")
        first, second = cell.itertuples()
        if statements.apart(first, second):
            times = f"{second.median_us / first.median_us:.2g} times as fast as {NAMES[second.algorithm]}"
            parts.append(f"{NAMES[first.algorithm]} {times} at {format_bytes(nbytes)}")
        else:
            parts.append(f"a tie at {format_bytes(nbytes)}")
    return f"On {most} GPUs, measured: {'; '.join(parts)}"
