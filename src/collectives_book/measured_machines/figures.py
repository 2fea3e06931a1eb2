"""Measured times of large machines as a figure: hollow markers for what others measured, lines for our simulation."""

from collectives.figures.style import Picture
from collectives.units import format_bytes
from collectives_book.figures import kit
from collectives_book.figures.kit import Rows

# Sizes of which one shows latency, one rate, and one both.
SHOWN = (256, 1 << 20, 64 << 20)


def scaling(rows: Rows) -> Picture:
    """Return time against GPUs, a panel for each of `SHOWN`, of the rows of `compared`: measured and simulated."""
    lines = (
        rows[rows.bytes.isin(SHOWN)]
        .sort_values(["bytes", "ranks"])
        .assign(algorithm=lambda table: table.simulated)
    )
    return kit.curves(
        lines, "ranks", "us", "algorithm", (kit.RANKS._replace(name="GPUs"), kit.US),
        "All-reduce on MareNostrum 5, simulated time by GPUs, beside measured points",
        measured=False, published=lines.assign(us=lines.median_us), source="measured (HLC-Lab/pico)",
        facet="bytes", title=format_bytes, columns=3, height=3.2,
    )  # fmt: skip
