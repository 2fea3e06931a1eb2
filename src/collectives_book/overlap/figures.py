"""Rows of the experiment ``overlap`` as figures and as a table of torch's own counters.

Measured is a filled marker with its interval, the model's prediction a line.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from collectives.figures.style import LIGHT, Picture, Theme, mark
from collectives.simulator.overlap import BACKWARD, FORWARD, REDUCE, Activity
from collectives.units import duration, format_bytes
from collectives_book.figures import by_hand as kit
from collectives_book.figures import statements
from collectives_book.figures.statements import Row, Rows

BAR = 0.42  # of a rank's place: a lane of computing above, one of communication below
MOST_RANKS = 8  # of a timeline: bars of more could not be told apart


def spans(row: Row) -> list[Activity]:
    """What happened in the last step of a row."""
    return [Activity(**each) for each in row.spans]


def extremes(rows: Rows) -> tuple[Row, Row]:
    """Of the first algorithm: the row with the fewest buckets, and that which exposes least."""
    ordered = rows[rows.algorithm == rows.algorithm.iloc[0]].sort_values("buckets", kind="stable")
    first, *others = ordered.itertuples()
    return first, min(others or [first], key=lambda row: row.median_us)


def timeline(row: Row, other: Row) -> Picture:
    """One step of each of two rows, the first ranks one below the other: computing above, communication below."""

    def paint(figure: Figure, theme: Theme) -> None:
        panels = figure.subplots(2, 1, sharex=True)
        for axes, each in zip(panels, (row, other), strict=True):
            _lanes(axes, theme, each)
        panels[1].xaxis.set_major_formatter(lambda value, _: duration(value))
        panels[1].set_xlabel("time since the step began")
        looks = [(FORWARD, theme.faint), (BACKWARD, theme.ink), (REDUCE, mark(row.algorithm).colour)]
        exposed_by = [f"{statements.us(each.median_us)} with {_bucket_count(each)}" for each in (row, other)]
        kit.message(figure, theme, f"Exposed: {', '.join(exposed_by)}")
        kit.notes(figure, more=[kit.key(theme, name, color=colour, lw=6) for name, colour in looks])

    return kit.drawn(paint, f"One training step on {row.ranks} ranks by {row.algorithm}: passes and all-reduces", 4.6)


def _lanes(axes: Axes, theme: Theme, row: Row) -> None:
    looks = {FORWARD: (theme.faint, 0.0), BACKWARD: (theme.ink, 0.0), REDUCE: (mark(row.algorithm).colour, BAR)}
    shown = [span for span in spans(row) if span.rank < MOST_RANKS]
    for span in shown:
        colour, below = looks[span.what]
        lasts = span.end - span.begin
        axes.barh(span.rank + below, lasts, BAR, span.begin, color=colour, edgecolor=theme.ground, lw=0.6, align="edge")
    computed, ended = ends(row)
    axes.axvspan(computed, ended, color=mark(row.algorithm).colour, alpha=0.15 if theme is LIGHT else 0.35, lw=0)
    axes.set_title(f"{buckets(row)}: {statements.us(row.median_us)} exposed", fontsize=10, loc="left")
    axes.set_yticks([rank + BAR for rank in sorted({span.rank for span in shown})])
    axes.set_yticklabels([f"rank {rank}" for rank in sorted({span.rank for span in shown})], fontsize=8)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")


def ends(row: Row) -> tuple[float, float]:
    """When the last rank had computed and when the last all-reduce was done, in seconds of the step."""
    computed = max(span.end for span in spans(row) if span.what == BACKWARD)
    return computed, max(computed, *(span.end for span in spans(row) if span.what == REDUCE))


def buckets(row: Row) -> str:
    """How many buckets of which size."""
    size = format_bytes(row.bytes // row.buckets)
    return f"one bucket of {size}" if row.buckets == 1 else f"{row.buckets} buckets of {size}"


def _bucket_count(row: Row) -> str:
    return "one bucket" if row.buckets == 1 else f"{row.buckets} buckets"


def exposed(rows: Rows) -> Picture:
    """Exposed time of communication against the size of a bucket: measured, and predicted where there is a line."""
    rows = rows.assign(bucket=rows.bytes // rows.buckets)

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        for name, series in kit.series(rows, ["algorithm"], "bucket"):
            look = mark(_name(series))
            axes.plot(series.bucket, series.predicted_us.astype(float), color=look.colour, lw=1.2)
            kit.medians(axes, look, name[0], series, "bucket", ls="")
        kit.binary_axis(axes, sorted(rows.bucket.unique()), "bytes of a bucket")
        axes.set_ylim(bottom=min(0.0, float(rows.low_us.min())))
        kit.time_labels(axes)
        axes.set_ylabel("exposed time of a step")
        more = [] if rows.predicted_us.isna().all() else [kit.key(theme, "predicted")]
        kit.message(figure, theme, _least_exposed(rows))
        kit.labels(figure, rows, more)

    return kit.drawn(paint, f"Exposed time of a step on {rows.ranks.iloc[0]} ranks by the bytes of a bucket", 3.8)


def _least_exposed(rows: Rows) -> str:
    """Which algorithm exposes least; of a single one, how many buckets do."""
    if rows.algorithm.nunique() == 1:
        best = extremes(rows)[1]
        return f"{best.algorithm} exposes least with {_bucket_count(best)}"
    ahead = statements.in_front(rows, "bucket", lambda row: str(row.algorithm))
    return statements.takeover(ahead, format_bytes, "the least exposed")[0]


def _name(rows: Rows) -> str:
    """What a series is coloured by: its algorithm, or the library that chose one."""
    return str(rows.algorithm.iloc[0] if rows.algorithm.iloc[0] != "default" else rows.backend.iloc[0])


def counters(rows: Rows) -> Rows:
    """A line for each row: exposed time as steps show it, as torch counts it, and the difference."""
    table = rows[["algorithm", "buckets"]].copy()
    table["no-op hook"] = rows.median_us.map(statements.us)
    table["torch's counters"] = rows.counted_median_us.map(statements.us)
    table["predicted"] = [statements.us(each) if pd.notna(each) else "–" for each in rows.predicted_us.astype(float)]
    table["counters less hook"] = [statements.signed(each) for each in differences(rows)]
    return table


def differences(rows: Rows) -> list[float]:
    """By how much torch's counters differ from what the no-op hook shows, relative to that."""
    return [row.counted_median_us / row.median_us - 1 for row in rows.itertuples()]
