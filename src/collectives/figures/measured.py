"""Measured rows as figures: filled markers with their intervals, and sentences whose numbers come from the rows.

What a formula says is drawn as a line without markers (`model_time`), so that nobody takes it for a measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from collectives.figures import statements
from collectives.figures.style import MARKS, Picture, Theme, mark, picture
from collectives.units import duration, format_bytes

# A pandas.DataFrame of measured rows; the type cannot say what its columns hold.
Rows = Any

# Our own back ends, and what they add to an algorithm's name.
OURS = {"p2p": "", "p2p_nccl": " over NCCL", "in_process": " in one process"}

# Inches. Letters of a figure this wide can still be read where a telephone shrinks it.
WIDTH = 5.6


def label(backend: str, algorithm: str) -> str:
    """How a series is called: our algorithms by name, a library by its own.

    >>> label("p2p", "two_tree"), label("gloo", "default"), label("mpi", "ring")
    ('two_tree', 'gloo (its own choice)', 'mpi (ring)')
    """
    if backend in OURS:
        return f"{algorithm}{OURS[backend]}"
    return f"{backend} (its own choice)" if algorithm == "default" else f"{backend} ({algorithm})"


def time_against_size(rows: Rows) -> Picture:
    """Median time of each series against the size of the buffer, both logarithmic."""
    if rows.empty:
        return nothing()

    def paint(figure: Figure, _: Theme) -> None:
        axes = figure.subplots()
        for algorithm, series in _series(rows):
            draw_series(axes, algorithm, series, series.median_us, series.low_us, series.high_us)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda us, _: f"{us:,.0f}"))
        _finish(axes, rows, "time (µs)")

    return picture(paint, _alt(rows, "time in microseconds", "median_us", "{:,.0f} µs"), WIDTH)


def bandwidth_against_size(rows: Rows) -> Picture:
    """Bus bandwidth of each series against the size of the buffer."""
    if rows.empty:
        return nothing()

    def paint(figure: Figure, _: Theme) -> None:
        axes = figure.subplots()
        for algorithm, series in _series(rows):
            scale = series.busbw * series.median_us
            draw_series(axes, algorithm, series, series.busbw, scale / series.high_us, scale / series.low_us)
        axes.set_ylim(bottom=0)
        _finish(axes, rows, "bus bandwidth (GB/s)")

    return picture(paint, _alt(rows, "bus bandwidth in GB/s", "busbw", "{:.2f} GB/s"), WIDTH)


def nothing() -> Picture:
    """The figure of no rows: all sizes failed, or none was asked for."""
    return picture(lambda *_: None, "There are no rows to draw.", WIDTH, 0.2)


def quickest(rows: Rows) -> str:
    """A sentence for the smallest and one for the largest size: which series is fastest there, or which ones tie.

    Empty without rows.
    """
    if rows.empty:
        return ""
    return " ".join(
        _fastest(rows[rows.bytes == nbytes]) for nbytes in dict.fromkeys([rows.bytes.min(), rows.bytes.max()])
    )


def _fastest(rows: Rows) -> str:
    named = rows.assign(series=_names(rows))
    who = statements.fastest(named, lambda row: str(row.series), "{:,.0f} µs".format)
    return f"At {format_bytes(rows.bytes.iloc[0])}, {who}."


def highest(rows: Rows, form: Callable[[float], str]) -> str:
    """The highest bus bandwidth, whose it is, and who cannot be told from it at that size; ``form`` writes GB/s."""
    rows = rows[rows.bytes == rows.bytes[rows.busbw.idxmax()]]
    first, *others = (str(row.series) for row in statements.leaders(rows.assign(series=_names(rows))))
    tied = f"; {statements.listed(others)} cannot be told from it" if others else ""
    return f"{form(rows.busbw.max())}, by {first} with {format_bytes(rows.bytes.iloc[0])}{tied}"


def table(rows: Rows) -> Rows:
    """Median times in microseconds: a line per size, a column per series."""
    named = rows.assign(series=_names(rows))
    if rows.empty:
        return named[[]]
    wide = named.pivot(index="bytes", columns="series", values="median_us").round(0).astype(int)
    wide.index = pd.Index([format_bytes(nbytes) for nbytes in wide.index], name="size")
    wide.columns.name = "median µs"
    return wide[list(dict.fromkeys(named.series))]


# Where ranks were, as a sentence goes on; whatever starts them on a cluster, these are its own words.
WHERE = {
    "loopback": "processes on one machine, joined over loopback",
    "horovodrun": "started by horovodrun",
    "mpirun": "started by mpirun",
    "torchrun": "started by torchrun",
    "slurm": "started by srun on the nodes of a Slurm job",
    "cluster": "emulated hosts on one machine, joined by slow links",
}


def machine(record: dict[str, Any]) -> str:
    """One sentence about where the rows come from, out of their record."""
    settings, first = record["settings"][0], record["environment"][0]
    ranks = ", ".join(str(ranks) for ranks in dict.fromkeys(each["ranks"] for each in record["settings"]))
    confidence = statements.intervals(each["repetitions"] for each in record["settings"])
    return (
        f"Measured on {ranks} ranks ({WHERE[settings['where'].partition(':')[0]]}; {first['processor']}, "
        f"{first['usable_cores']} cores, {first['memory_gib']:g} GiB, {first['system']}), with torch {first['torch']}, "
        f"{settings['dtype']}: medians of {settings['repetitions']} calls after {settings['warmups']} warm-ups, "
        f"{_interleaved(record['environment'])}, each sample the slowest rank's time, with {confidence}."
    )


def _interleaved(ranks: list[dict[str, Any]]) -> str:
    """Which series were measured in turn: those of one launch."""
    launches = dict.fromkeys((rank.get("where", ""), ", ".join(rank.get("backends", []))) for rank in ranks)
    if len(launches) == 1:
        return "all series interleaved"
    each = "; ".join(f"{backends} by {where}" for where, backends in launches)
    return f"series of one launch interleaved, but not the launches ({each})"


def outcome(rows: Rows) -> str:
    """Sentences about what came out: how many elements were wrong, and which sizes failed, each with its reason."""
    failed = rows[rows.error.notna()].drop_duplicates("bytes")
    reasons = [f"{format_bytes(row.bytes)} failed ({row.error.splitlines()[0]})." for row in failed.itertuples()]
    wrong = int(rows.wrong.sum()) if "wrong" in rows else 0
    return " ".join([f"Wrong elements: {wrong}.", *reasons])


def model_time(
    at: Sequence[float],
    curves: Mapping[str, Sequence[float]],
    bounds: Mapping[str, Sequence[float]] | None = None,
    over: str = "buffer",
) -> Picture:
    """What a model says: seconds of each algorithm ``at`` these sizes in bytes, or numbers of ranks (``over="ranks"``).

    Lines for ``curves``, thin dashes for ``bounds`` that nothing goes below; both axes logarithmic.
    """

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        for algorithm, seconds in curves.items():
            colour = mark(algorithm).colour if algorithm in MARKS else theme.ink
            axes.plot(at, seconds, color=colour, lw=1.8, label=f"{algorithm} (model)")
        for number, (name, seconds) in enumerate((bounds or {}).items()):
            axes.plot(at, seconds, color=theme.ink, lw=0.9, ls=(0, (5 - 3 * number, 3)), label=name)
        size_axis(axes, at[:: 1 + len(at) // 10])
        if over == "ranks":
            axes.xaxis.set_major_formatter(FuncFormatter(lambda ranks, _: f"{ranks:,.0f}"))
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: duration(seconds)))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set(xlabel=over, ylabel="time")
        figure.legend(loc="outside upper left", ncols=2)

    write = format_bytes if over != "ranks" else "{:,.0f} ranks".format
    ends = [
        f"{name} from {duration(seconds[0])} at {write(at[0])} to {duration(seconds[-1])} at {write(at[-1])}"
        for name, seconds in {**curves, **(bounds or {})}.items()
    ]
    return picture(paint, f"Model, not measured, time against {over}: {'; '.join(ends)}.", WIDTH, 3.6)


def _asked(rows: Rows) -> list[str]:
    """Each row's algorithm as it was asked for: "auto" is a series of its own, whatever it chose."""
    chosen = rows.auto if "auto" in rows else [False] * len(rows)
    return ["auto" if auto else name for name, auto in zip(rows.algorithm, chosen, strict=True)]


def _names(rows: Rows) -> list[str]:
    return [label(*pair) for pair in zip(rows.backend, _asked(rows), strict=True)]


def _series(rows: Rows) -> list[tuple[str, Rows]]:
    groups = rows.assign(asked=_asked(rows)).groupby(["backend", "asked"], sort=False)
    return [(algorithm, group.sort_values("bytes")) for (_, algorithm), group in groups]


def plain(rows: Rows) -> str:
    """The name of the rows' collective, as people write it."""
    return str(rows.collective.iloc[0]).replace("_", "-")


def draw_series(axes: Axes, algorithm: str, series: Rows, y: Any, low: Any, high: Any, name: str | None = None) -> None:
    """Our algorithms look alike everywhere; a library that chose for itself has a look of its own."""
    backend = series.backend.iloc[0]
    colour, marker = mark(backend if algorithm in ("default", "auto") else algorithm)
    name = name or label(backend, algorithm)
    bars = [
        (y - low).clip(lower=0),
        (high - y).clip(lower=0),
    ]  # rounded, a bound may be on the wrong side of its median
    axes.errorbar(series.bytes, y, yerr=bars, color=colour, marker=marker, label=name, capsize=2, lw=1.2)


def _finish(axes: Axes, rows: Rows, what: str) -> None:
    sizes = sorted(rows.bytes.unique())
    size_axis(axes, sizes)
    axes.set_xlabel("buffer")
    axes.set_ylabel(what)
    axes.figure.legend(loc="outside upper left", ncols=2)


def size_axis(axes: Axes, sizes: Sequence[float]) -> None:
    """Bytes along the axis, in powers of two, with a mark at each of these sizes."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(sizes))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda nbytes, _: format_bytes(nbytes)))
    axes.tick_params(axis="x", labelrotation=40)


def _alt(rows: Rows, what: str, column: str, form: str) -> str:
    parts = []
    for algorithm, series in _series(rows):
        ends = [f"{form.format(series[column].iloc[i])} at {format_bytes(series.bytes.iloc[i])}" for i in (0, -1)]
        parts.append(f"{label(series.backend.iloc[0], algorithm)} from {' to '.join(ends)}")
    return f"Measured {plain(rows)} on {rows.ranks.iloc[0]} ranks, {what} against buffer size: {'; '.join(parts)}."
