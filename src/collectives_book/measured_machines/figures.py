"""Measured times of large machines as a figure: hollow markers for what others measured, lines for our simulation."""

from collectives.figures.style import Picture
from collectives.units import format_bytes
from collectives_book.figures import kit
from collectives_book.figures.charts import Curves, Panels
from collectives_book.figures.kit import Rows

# Sizes of which one shows latency, one rate, and one both.
SHOWN = (256, 1 << 20, 64 << 20)


def scaling(rows: Rows) -> Picture:
    """Return time against GPUs, a panel for each of `SHOWN`, of the rows of `compared`: measured and simulated."""
    shown = rows[rows.bytes.isin(SHOWN)].sort_values(["bytes", "ranks"])
    shown = shown.assign(algorithm=shown.simulated)
    axes = kit.RANKS._replace(name="GPUs"), kit.US
    panels = Panels("bytes", format_bytes, columns=3)
    chart = Curves(shown, "ranks", "us", "algorithm", axes, panels=panels).lines()
    chart.published(shown.assign(us=shown.median_us), "measured (HLC-Lab/pico)")
    about = "All-reduce on MareNostrum 5, simulated time by GPUs, beside measured points"
    return chart.picture(about, height=3.2)
