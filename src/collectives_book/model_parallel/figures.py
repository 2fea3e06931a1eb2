"""Figures of divided models: a picture of who holds what, and the rows of the experiment ``model-parallel``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from collectives.algorithms import Mark
from collectives.figures.style import Picture, Theme
from collectives.statistics import median_interval
from collectives.units import format_bytes
from collectives_book.figures import kit, measured
from collectives_book.figures.charts import Curves
from collectives_book.figures.kit import Rows
from collectives_book.figures.lanes import lanes
from collectives_book.model_parallel import volume
from collectives_book.model_parallel.pipeline import (
    BACKWARD,
    FORWARD,
    SCHEDULES,
    timetable,
)

LOOKS = {
    "data": Mark("#0072B2", "o"),
    "tensor": Mark("#D55E00", "s"),
    "gpipe": Mark("#0072B2", "o"),
    "1f1b": Mark("#D55E00", "s"),
}
# A forward pass is pale and a backward pass full, on either ground.
PASSES = {FORWARD: "#56B4E9", BACKWARD: "#0072B2"}
# Above this number of micro-batches a pass is too narrow for its number.
NUMBERED = 8

BATCH = kit.Axis("batch", "{:,.0f}".format, 2)
SENT = kit.Axis("a rank sends in a step", format_bytes, 2)
INTERVAL = "low_us", "high_us"

# A part of a matrix: from and to which share of its rows, from and to which of its columns.
Part = tuple[float, float, float, float]
ALL, TOP, BOTTOM = (0.0, 1.0, 0.0, 1.0), (0.0, 0.5, 0.0, 1.0), (0.5, 1.0, 0.0, 1.0)
LEFT, RIGHT = (0.0, 1.0, 0.0, 0.5), (0.0, 1.0, 0.5, 1.0)

COLOURS = {"x": "#009E73", "W₁": "#0072B2", "W₂": "#D55E00"}
# Left edge, width and height of each matrix in the field of a rank, which is 1 wide and 1 high.
PLACES = {
    "x": (0.02, 0.16, 0.46),
    "W₁": (0.26, 0.40, 0.30),
    "W₂": (0.76, 0.20, 0.62),
}

ALT = (
    "Three ways to divide two layers between two ranks. Data parallel: each has half of x, all of W₁ and W₂; gradients "
    "travel. Tensor parallel: each has all of x, half of W₁ by columns and half of W₂ by rows; sums travel. "
    "Pipeline: rank 0 has x and W₁, rank 1 has W₂; activations travel"
)

# What each of two ranks holds, and what travels between them.
WAYS: Mapping[str, tuple[Mapping[str, Part], Mapping[str, Part], str]] = {
    "data parallel": (
        {"x": TOP, "W₁": ALL, "W₂": ALL},
        {"x": BOTTOM, "W₁": ALL, "W₂": ALL},
        "gradients of\nall weights",
    ),
    "tensor parallel": (
        {"x": ALL, "W₁": LEFT, "W₂": TOP},
        {"x": ALL, "W₁": RIGHT, "W₂": BOTTOM},
        "sums of activations\nand of their gradients",
    ),
    "pipeline": (
        {"x": ALL, "W₁": ALL},
        {"W₂": ALL},
        "activations forward,\ntheir gradients back",
    ),
}


def holdings() -> Picture:
    """Return two ranks and three ways to divide x·W₁·W₂ between them.

    A rank holds what is filled.
    """

    def paint(figure: Figure, theme: Theme) -> None:
        for axes, (way, (*holds, travels)) in zip(
            figure.subplots(len(WAYS), 1), WAYS.items(), strict=True
        ):
            axes.set(xlim=(0, 2.9), ylim=(1, -0.12))
            axes.axis("off")
            axes.text(0, -0.06, way, fontweight="bold", va="center")
            for rank, held in enumerate(holds):
                _rank(axes, theme, rank, held)
            arrow = FancyArrowPatch(
                (1.04, 0.56),
                (1.86, 0.56),
                arrowstyle="<->",
                mutation_scale=12,
                color=theme.ink,
            )
            axes.add_patch(arrow)
            axes.text(1.45, 0.5, travels, ha="center", va="bottom", fontsize=9)

    return kit.drawn(paint, ALT, 4.2)


def _rank(axes: Axes, theme: Theme, rank: int, held: Mapping[str, Part]) -> None:
    begin = 1.9 * rank
    axes.text(begin + 0.5, 0.97, f"rank {rank}", ha="center", va="center", fontsize=9)
    for name, (left, width, height) in PLACES.items():
        x = begin + left
        y = 0.5 - height / 2
        if name in held:
            top, bottom, first, last = held[name]
            corner = (x + first * width, y + top * height)
            size = ((last - first) * width, (bottom - top) * height)
            axes.add_patch(Rectangle(corner, *size, color=COLOURS[name], lw=0))
        axes.add_patch(Rectangle((x, y), width, height, fill=False, ec=theme.ink, lw=0.8))
        axes.text(x + width / 2, y - 0.06, name, ha="center", va="center", fontsize=9)


def steps(rows: Rows, width: int) -> Rows:
    """Return the steps of one width by the first algorithm, with the interval of the time in all-reduces."""
    table = measured.part(rows, "step")
    table = table[
        (table.width == width) & (table.algorithm == table.algorithm.iloc[0])
    ].reset_index(drop=True)
    return _with_medians(table, table.communicating_us).assign(
        samples=table.communicating_us,
        closed_form=[closed_form(row) for row in table.itertuples()],
    )


def _with_medians(table: Rows, samples: Rows) -> Rows:
    found = [median_interval([float(each) for each in one]) for one in samples]
    low, middle, high = zip(*found, strict=True)
    return table.assign(low_us=low, median_us=middle, high_us=high)


def closed_form(row: Any) -> float:
    """Return the bytes that a rank sends in the step of a row."""
    if row.way == "data":
        return volume.data_parallel(row.ranks, row.width, row.blocks)
    return volume.tensor_parallel(row.ranks, row.width, row.batch, row.blocks)


def sent(rows: Rows) -> Picture:
    """Return the bytes that a rank sends in a step of one width (`steps`): counted, and by the closed form."""
    about = f"Bytes that each of {rows.ranks.iloc[0]} ranks sends in a step, by batch"
    looks = LOOKS.__getitem__
    if "sent" in rows:
        chart = Curves(rows, "batch", "sent", "way", (BATCH, SENT), looks)
        chart.simulated("closed_form", "closed form").points()
    else:
        chart = Curves(rows, "batch", "closed_form", "way", (BATCH, SENT), looks).lines()
    return chart.picture(about, height=3.2)


def communicating(rows: Rows) -> Picture:
    """Return the time that a rank spends in the all-reduces of a step of one width (`steps`)."""
    about = (
        f"Time that each of {rows.ranks.iloc[0]} ranks spends in all-reduces in a step, by batch"
    )
    axes = BATCH, kit.US._replace(name="time in all-reduces")
    chart = Curves(rows, "batch", "median_us", "way", axes, LOOKS.__getitem__)
    return chart.points(INTERVAL).picture(about, height=3.2)


def timeline(rows: Rows, micro_batches: int) -> Picture:
    """Return every pass of every stage with ``micro_batches`` micro-batches, measured.

    A panel for each schedule.
    """
    passes = measured.part(rows, "action")
    passes = passes[passes.micro_batches == micro_batches].sort_values(["stage", "start_us"])
    idle = idle_shares(rows).set_index(["schedule", "micro_batches"]).median_us
    spans = pd.DataFrame(
        {
            "panel": [
                f"{name}: stages idle {idle[name, micro_batches]:.0%} of the step"
                for name in passes.schedule
            ],
            "lane": passes.stage.map("stage {:.0f}".format),
            "begin": passes.start_us,
            "end": passes.end_us,
            "what": passes.action,
            "text": passes.micro_batch.astype(str) if micro_batches <= NUMBERED else "",
        }
    )
    axis = kit.US._replace(base=0)
    about = f"When each stage computes which of {micro_batches} micro-batches, measured"
    return lanes(spans, axis, about, PASSES, facet="panel")


def idle_shares(rows: Rows) -> Rows:
    """Return a row for each pipeline, whose ``median_us`` and interval are the share of a step that a stage idles."""
    table = measured.part(rows, "pipeline")
    return _with_medians(table, table.bubble).assign(samples=table.bubble)


def idle(rows: Rows, message: float | None = None) -> Picture:
    """Return the share of a step in which stages idle, against the number of micro-batches, beside the formula.

    With the seconds of a message, a line for each schedule shows what its timetable says with such
    messages.
    """
    table = idle_shares(rows)
    if message is not None:
        table = table.assign(timetable=[with_messages(row, message) for row in table.itertuples()])
    axes = (
        kit.Axis("micro-batches", "{:.0f}".format, 2),
        kit.SHARE._replace(name="a stage idles"),
    )
    looks = LOOKS.__getitem__
    chart = Curves(table, "micro_batches", "median_us", "schedule", axes, looks)
    if message is not None:
        chart.simulated("timetable", "timetable, with messages")
    about = f"Share of a step in which {table.stages.iloc[0]} stages idle, by micro-batches"
    return chart.points(INTERVAL).bound("formula").picture(about, height=3.2)


def with_messages(row: Any, message: float) -> float:
    """Return the idle share by the timetable of a pipeline's row, if every message takes ``message`` seconds.

    Passes take what the stages waited for; with real computing, what the measured step has room
    for.
    """
    stages = int(row.stages)
    count = int(row.micro_batches)
    forward = float(row.waiting_us or row.median_us * (1 - row.formula) / 3) * 1e-6 / count
    orders = [SCHEDULES[row.schedule](stage, stages, count) for stage in range(stages)]
    table = timetable(orders, {FORWARD: forward, BACKWARD: 2 * forward}, message)
    return 1 - 3 * forward * count / max(spans[-1].end for spans in table)
