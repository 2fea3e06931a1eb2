"""Measured times of large machines as a figure: hollow markers for what others measured, lines for our simulation."""

import pandas as pd

from collectives.algorithms import BLUE, GREEN, VERMILION
from collectives.figures.style import Picture
from collectives.units import format_bytes
from collectives_book.figures import kit
from collectives_book.figures.charts import Curves, Panels
from collectives_book.figures.kit import Rows
from collectives_book.measured_machines.comparison import by_line, by_nccl, percent

# Sizes of which one shows latency, one rate, and one both.
SHOWN = (256, 1 << 20, 64 << 20)

LOOKS = {"simulator": BLUE, "straight line": VERMILION, "NCCL's formula": GREEN}


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


def errors(rows: Rows) -> Picture:
    """Return errors by measured time in the held-out cells of `compared`: the simulator and two simpler predictions."""
    predictions = {
        "simulator": rows[rows.held_out],
        "straight line": by_line(rows),
        "NCCL's formula": by_nccl(rows),
    }
    named = [said.assign(by=name) for name, said in predictions.items()]
    shown = pd.concat(named, ignore_index=True)
    axes = kit.US._replace(name="measured time"), kit.Axis("error", percent)
    chart = Curves(shown, "median_us", "error", "by", axes, LOOKS.__getitem__)
    about = "All-reduce on MareNostrum 5, the error of three predictions by measured time"
    return chart.points(joined=False).picture(about, height=3.2)
