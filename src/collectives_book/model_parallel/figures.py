"""Figures of the rows of the experiment ``model-parallel``: bytes, times and timelines of divided models."""

from __future__ import annotations

from typing import Any

import pandas as pd

from collectives.algorithms import Mark
from collectives.figures.style import Picture
from collectives.statistics import median_interval
from collectives.units import format_bytes
from collectives_book.figures import kit, measured
from collectives_book.figures.charts import Curves
from collectives_book.figures.kit import Rows
from collectives_book.figures.lanes import lanes
from collectives_book.model_parallel import volume
from collectives_book.model_parallel.pictures import PASSES
from collectives_book.model_parallel.pipeline_schedules import (
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
# Above this number of micro-batches a pass is too narrow for its number.
NUMBERED = 8

BATCH = kit.Axis("batch", "{:,.0f}".format, 2)
SENT = kit.Axis("a rank sends in a step", format_bytes, 2)
INTERVAL = "low_us", "high_us"


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
