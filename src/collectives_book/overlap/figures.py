"""Rows of ``overlap`` and of ``weak-scaling`` as figures and as a table of torch's own counters."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from collectives.algorithms import BLUE, NEUTRAL, VERMILION
from collectives.figures.style import Picture, mark
from collectives.simulator.overlap import BACKWARD, FORWARD, REDUCE, Activity
from collectives.units import format_bytes
from collectives_book.figures import kit, statements
from collectives_book.figures.charts import Curves
from collectives_book.figures.lanes import lanes
from collectives_book.figures.statements import Row, Rows
from collectives_book.overlap import published

BAR = 0.42  # of a rank's lane: computing above, communication below
MOST_RANKS = 4  # of a timeline: bars of more are too thin for a screen on a wall
MOST_NAMED = 4  # buckets whose bars have room for a name

# Of weak scaling.
RATES = ["per_second", "low_per_second", "high_per_second", "predicted_per_second"]
BAIDU = "published by Baidu"
LOOKS = {
    "without overlap": BLUE,
    "with overlap": VERMILION,
    BAIDU: NEUTRAL._replace(marker="o"),
}


def spans(row: Row) -> list[Activity]:
    """Return what happened in the last step of a row."""
    return [Activity(**each) for each in row.spans]


def extremes(rows: Rows) -> tuple[Row, Row]:
    """Return, of the first algorithm, the row with the fewest buckets, and that which exposes least."""
    ordered = rows[rows.algorithm == rows.algorithm.iloc[0]].sort_values("buckets", kind="stable")
    first, *others = ordered.itertuples()
    return first, min(others or [first], key=lambda row: row.median_us)


def timeline(row: Row, other: Row) -> Picture:
    """Return one step of each of two rows, the first ranks one below the other."""
    titles = [f"{buckets(each)}: {statements.us(each.median_us)} exposed" for each in (row, other)]
    bars = []
    for title, shown in zip(titles, (row, other), strict=True):
        for span in spans(shown):
            if span.rank < MOST_RANKS:
                is_named = span.what == REDUCE and shown.buckets <= MOST_NAMED
                place = {
                    "panel": title,
                    "lane": f"rank {span.rank}",
                    "level": BAR if span.what == REDUCE else 0.0,
                    "text": f"bucket {span.nth}" if is_named else "",
                }
                bars.append(span._asdict() | place)
    return lanes(
        pd.DataFrame(bars).assign(tall=BAR),
        kit.SECONDS._replace(name="time since the step began", base=0),
        f"One training step on {row.ranks} ranks by {row.algorithm}: passes and all-reduces",
        {FORWARD: "faint", BACKWARD: "ink", REDUCE: mark(row.algorithm).colour},
        facet="panel",
        shaded=dict(zip(titles, (ends(row), ends(other)), strict=True)),
    )


def ends(row: Row) -> tuple[float, float]:
    """Return when the last rank had computed and when the last all-reduce was done, in seconds of the step."""
    computed = max(span.end for span in spans(row) if span.what == BACKWARD)
    return computed, max(computed, *(span.end for span in spans(row) if span.what == REDUCE))


def buckets(row: Row) -> str:
    """Return the number of buckets and their size, as a sentence has them."""
    size = format_bytes(row.bytes // row.buckets)
    return f"one bucket of {size}" if row.buckets == 1 else f"{row.buckets} buckets of {size}"


def exposed(rows: Rows) -> Picture:
    """Return the exposed time of a step against the size of a bucket, measured and predicted."""
    table = rows.assign(
        bucket=rows.bytes // rows.buckets,
        series=rows.algorithm.where(rows.algorithm != "default", rows.backend),
        predicted_us=rows.predicted_us.astype(float),
    )
    bucket = kit.BYTES._replace(name="bytes of a bucket")
    time = kit.US._replace(name="exposed time of a step", base=0)
    chart = Curves(table, "bucket", "median_us", "series", (bucket, time))
    chart.simulated("predicted_us", "predicted").points(("low_us", "high_us"))
    return chart.picture(
        f"Exposed time of a step on {rows.ranks.iloc[0]} ranks by the bytes of a bucket"
    )


def counters(rows: Rows) -> Rows:
    """Return a line for each row: exposed time as steps show it, as torch counts it, and the difference."""
    table = rows[["algorithm", "buckets"]].copy()
    table["no-op hook"] = rows.median_us.map(statements.us)
    table["torch's counters"] = rows.counted_median_us.map(statements.us)
    table["predicted"] = [
        statements.us(each) if pd.notna(each) else "–" for each in rows.predicted_us.astype(float)
    ]
    table["counters less hook"] = (rows.counted_median_us / rows.median_us - 1).map(
        statements.signed
    )
    return table


def series(rows: Rows) -> Rows:
    """Return the rows without overlap, which is one bucket, and those of the most buckets, named in ``series``."""
    names = {
        rows.buckets.max(): "with overlap",
        rows.buckets.min(): "without overlap",
    }
    named = rows.assign(
        series=rows.buckets.map(names),
        predicted_per_second=rows.predicted_per_second.astype(float),
    )
    return named.dropna(subset="series").sort_values(["buckets", "ranks"], kind="stable")


def speed(rows: Rows) -> Picture:
    """Return samples per second by workers: measured, predicted, published, and with linear scaling."""
    linear = rows.assign(alone=rows.ranks * alone(rows))
    about = "Samples per second by workers, beside points that Baidu published"
    return _by_workers(linear, published.SAMPLES, "samples per second", about, bound="alone")


def efficiency(rows: Rows) -> Picture:
    """Return samples per second and worker, as a share of what one worker alone has, by workers."""
    shares = rows.assign(**rows[RATES].astype(float).div(rows.ranks * alone(rows), axis=0))
    points = {p: share_published(p) for p in published.SAMPLES}
    about = "Efficiency by workers, beside points that Baidu published"
    return _by_workers(shares, points, "efficiency", about, form="{:.0%}")


def _by_workers(
    rows: Rows,
    points: Mapping[int, float],
    name: str,
    about: str,
    form: str = "{:,.0f}",
    bound: str | None = None,
) -> Picture:
    rate, low, high, predicted = RATES
    known = {p: value for p, value in points.items() if p <= rows.ranks.max()}
    seen = pd.DataFrame({"ranks": [*known], rate: [*known.values()], "series": BAIDU})
    axes = kit.RANKS._replace(name="workers", base=0), kit.Axis(name, form.format)
    chart = Curves(series(rows), "ranks", rate, "series", axes, LOOKS.__getitem__)
    chart.simulated(predicted, "predicted").points((low, high)).published(seen, BAIDU)
    if bound:
        chart.bound(bound, "linear scaling")
    return chart.picture(about)


def alone(rows: Rows) -> float:
    """Return the samples per second of one worker; where none was measured, of the fewest, each."""
    first = rows.sort_values(["ranks", "buckets"], kind="stable").iloc[0]
    return float(first.per_second / first.ranks)


def share_published(p: int) -> float:
    """Return the efficiency that Baidu's numbers have.

    >>> round(share_published(40), 2)
    0.5
    """
    return published.SAMPLES[p] / p / published.SAMPLES[1]
