"""Rows of the experiment ``model-parallel`` as figures: what was sent, how long it took, how long stages idled.

Measured and counted is a filled marker, computed a line.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator, PercentFormatter

from collectives.algorithms import Mark
from collectives.bench.statistics import median_interval
from collectives.figures.style import LIGHT, Picture, Theme
from collectives.units import format_bytes, many
from collectives_book.figures import by_hand as kit
from collectives_book.figures import measured, statements
from collectives_book.figures.statements import Rows
from collectives_book.model_parallel import volume
from collectives_book.model_parallel.pipeline import BACKWARD, FORWARD, SCHEDULES, timetable

LOOKS = {
    "data": Mark("#0072B2", "o"),
    "tensor": Mark("#D55E00", "s"),
    "gpipe": Mark("#0072B2", "o"),
    "1f1b": Mark("#D55E00", "s"),
}
# A forward pass is pale and a backward pass full, on either ground.
PALE, FULL = "#56B4E9", "#0072B2"
# Above this number of micro-batches a pass is too narrow for its number.
NUMBERED = 8


def steps(rows: Rows, width: int) -> Rows:
    """The steps of one width by the first algorithm, with the time in all-reduces as their median and interval."""
    table = measured.part(rows, "step")
    table = table[(table.width == width) & (table.algorithm == table.algorithm.iloc[0])].reset_index(drop=True)
    times = pd.DataFrame([_median(each) for each in table.communicating_us], columns=["low_us", "median_us", "high_us"])
    return table.assign(
        low_us=times.low_us, median_us=times.median_us, high_us=times.high_us, samples=table.communicating_us
    )


def _median(samples: Any) -> tuple[float, float, float]:
    return median_interval([float(each) for each in samples])


def closed_form(row: Any) -> float:
    """Bytes that a rank sends in the step of a row."""
    if row.way == "data":
        return volume.data_parallel(row.ranks, row.width, row.blocks)
    return volume.tensor_parallel(row.ranks, row.width, row.batch, row.blocks)


def sent(rows: Rows) -> Picture:
    """Of one width (`steps`): bytes that a rank sends on the left, time in all-reduces on the right."""

    def paint(figure: Figure, theme: Theme) -> None:
        left, right = figure.subplots(1, 2)
        for way, series in kit.series(rows, ["way"], "batch"):
            name, look = str(way[0]), LOOKS[str(way[0])]
            left.plot(series.batch, [closed_form(row) for row in series.itertuples()], color=look.colour, lw=1.2)
            if "sent" in rows:
                left.plot(series.batch, series.sent, ls="", color=look.colour, marker=look.marker)
            kit.medians(right, look, f"{name} parallel", series, "batch")
        for axes in (left, right):
            kit.binary_axis(axes, sorted(rows.batch.unique()), "batch", "{:,.0f}".format, columns=3)
        _bytes_axis(left)
        kit.time_axis(right, name="time in all-reduces")
        _annotate(left, theme, int(rows.width.iloc[0]))
        kit.message(figure, theme, _sends_less(rows))
        kit.labels(figure, rows, more=[kit.key(theme, "closed form")])

    about = f"Bytes that each of {rows.ranks.iloc[0]} ranks sends in a step, and its time in all-reduces, by batch"
    return kit.drawn(paint, about, 3.2)


def _sends_less(rows: Rows) -> str:
    """Above which batch data parallelism sends less."""
    at = volume.crossing(int(rows.width.iloc[0]))
    return f"Data parallel sends less above a batch of {at:,.0f}"


def _bytes_axis(axes: Axes) -> None:
    low, high = axes.get_ylim()
    axes.set_yscale("log", base=2)
    ticks = [float(1 << i) for i in range(10, 40, 2) if low / 2 <= 1 << i <= 2 * high]
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_bytes(value)))
    axes.set_ylabel("a rank sends in a step")


def _annotate(axes: Axes, theme: Theme, width: int) -> None:
    at = volume.crossing(width)
    axes.axvline(at, color=theme.ink, lw=0.8, ls=(0, (1, 2)))
    axes.annotate(
        f"batch {at:,.0f}",
        (at, 1.01),
        xycoords=("data", "axes fraction"),
        ha="center",
        va="bottom",
        fontsize=9,
    )


def timeline(rows: Rows, micro_batches: int) -> Picture:
    """Every pass of every stage with ``micro_batches`` micro-batches, measured; a panel for each schedule."""
    passes = measured.part(rows, "action")
    passes = passes[passes.micro_batches == micro_batches]
    pipelines = measured.part(rows, "pipeline")
    pipelines = pipelines[pipelines.micro_batches == micro_batches]
    idle = {str(row.schedule): _median(row.bubble)[1] for row in pipelines.itertuples()}
    groups = [(str(name), group) for (name,), group in kit.series(passes, ["schedule"], "start_us")]

    def paint(figure: Figure, theme: Theme) -> None:
        panels = figure.subplots(len(groups), 1, sharex=True, squeeze=False)[:, 0]
        for axes, (name, group) in zip(panels, groups, strict=True):
            _lanes(axes, theme, group, numbered=micro_batches <= NUMBERED)
            axes.set_title(f"{name}: stages idle {idle[name]:.0%} of the step", loc="left", fontsize=10)
        panels[-1].set_xlabel("time")
        panels[-1].xaxis.set_major_locator(MaxNLocator(5))
        panels[-1].xaxis.set_major_formatter(FuncFormatter(lambda value, _: statements.us(value) if value else "0"))
        kinds = (FORWARD, PALE), (BACKWARD, FULL)
        kit.notes(figure, more=[kit.key(theme, kind, color=colour, lw=7) for kind, colour in kinds])

    height = 0.8 + len(groups) * (0.5 + 0.24 * passes.stage.nunique())
    return kit.drawn(paint, f"When each stage computes which of {micro_batches} micro-batches, measured", height)


def _lanes(axes: Axes, theme: Theme, passes: Rows, numbered: bool) -> None:
    """A lane for each stage, and on it a bar for each pass, with the number of its micro-batch."""
    for each in passes.itertuples():
        colour, ink = (PALE, LIGHT.ink) if each.action == FORWARD else (FULL, LIGHT.ground)
        width, middle = each.end_us - each.start_us, (each.start_us + each.end_us) / 2
        axes.barh(each.stage, width, left=each.start_us, height=0.8, color=colour, ec=theme.ground, lw=0.8)
        if numbered:
            axes.text(middle, each.stage, f"{each.micro_batch}", ha="center", va="center", fontsize=8, color=ink)
    axes.yaxis.set_major_locator(FixedLocator(sorted(passes.stage.unique())))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"stage {value:.0f}"))
    axes.invert_yaxis()
    axes.grid(visible=False)


def idle(rows: Rows, message: float | None = None) -> Picture:
    """The share of a step in which stages idle, against the number of micro-batches, beside the formula.

    With the seconds of a message, a line for each schedule shows what its timetable says with such messages.
    """
    table = measured.part(rows, "pipeline")

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        for (name,), series in kit.series(table, ["schedule"], "micro_batches"):
            look, x = LOOKS[str(name)], series.micro_batches.reset_index(drop=True)
            shares = pd.DataFrame([_median(each) for each in series.bubble], columns=["low", "middle", "high"])
            kit.measured(axes, look, str(name), x, shares.middle, shares.low, shares.high, ls="")
            if message is not None:
                expected = [with_messages(row, message) for row in series.itertuples()]
                axes.plot(x, expected, color=look.colour, lw=1.2)
        first = table.sort_values("micro_batches").drop_duplicates("micro_batches")
        kit.lower_bound(axes, theme, first.micro_batches, first.formula, "(s − 1)/(m + s − 1)")
        kit.binary_axis(axes, [*first.micro_batches], "micro-batches", "{:.0f}".format)
        axes.set_ylim(0, 1)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_ylabel("a stage idles")
        kit.message(figure, theme, _fills(table))
        kit.labels(figure, table, more=[kit.key(theme, "timetable, with messages")] if message is not None else [])

    return kit.drawn(paint, f"Share of a step in which {table.stages.iloc[0]} stages idle, by micro-batches", 3.0)


def with_messages(row: Any, message: float) -> float:
    """The idle share by the timetable of a pipeline's row, if every message takes ``message`` seconds.

    Passes take what the stages waited for; with real computing, what the measured step has room for.
    """
    stages, count = int(row.stages), int(row.micro_batches)
    forward = float(row.waiting_us or row.median_us * (1 - row.formula) / 3) * 1e-6 / count
    orders = [SCHEDULES[row.schedule](stage, stages, count) for stage in range(stages)]
    table = timetable(orders, {FORWARD: forward, BACKWARD: 2 * forward}, message)
    return 1 - 3 * forward * count / max(spans[-1].end for spans in table)


def _fills(table: Rows) -> str:
    """What more micro-batches do to the idle share, over all schedules."""
    few, most = table.micro_batches.min(), table.micro_batches.max()
    first, last = (
        statements.span((_median(each)[1] for each in table.bubble[table.micro_batches == m]), "{:.0%}".format)
        for m in (few, most)
    )
    return f"Stages idle {first} of a step with {many(few, 'micro-batch')}, {last} with {most}"
