"""The experiment ``scaling`` as figures and tables: measured markers over simulated lines, and what was hoped for.

Times are those of slow motion; a second axis says what they are on the real link.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from collectives.figures.measured import OURS, WIDTH, label, size_axis
from collectives.figures.style import Picture, Theme, mark, picture
from collectives.units import duration, format_bytes

# A pandas.DataFrame of measured rows; the type cannot say what its columns hold.
Rows = Any

# How many times slower than a real link the first network is: 5 us and 25 GB/s are played as 5 ms and 25 MB/s.
DILATION = 1000


def shown(rows: Rows) -> Rows:
    """What figures draw: the first network, our algorithms by name, and each library's own choice."""
    plain = rows[rows["where"] == rows["where"].iloc[0]]
    return plain[~plain.auto & (plain.backend.isin(OURS) | (plain.algorithm == "default"))]


def time_against_hosts(rows: Rows, sizes: Sequence[int]) -> Picture:
    """Median times against the number of hosts, a panel for each of these sizes."""
    rows = shown(rows)

    def paint(figure: Figure, theme: Theme) -> None:
        panels = figure.subplots(len(sizes), 1, sharex=True, squeeze=False)[:, 0]
        for axes, nbytes in zip(panels, sizes, strict=True):
            for algorithm, series in _series(rows[rows.bytes == nbytes], "ranks"):
                _draw(axes, algorithm, series, "ranks", "median_us", series.low_us, series.high_us)
            bound = rows[rows.bytes == nbytes].groupby("ranks").bound_us.first()
            axes.plot(bound.index, bound, color=theme.ink, lw=0.9, ls=(0, (5, 3)), label="lower bound")
            axes.set_ylabel(format_bytes(nbytes))
            _hosts_axis(axes, sorted(rows.ranks.unique()))
            _time_axis(axes)
        panels[-1].set_xlabel("hosts")
        figure.supylabel("time in slow motion", fontsize=10)
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper left", ncols=2, fontsize=9)

    parts = [f"{format_bytes(n)}: {_ends(rows[rows.bytes == n], 'ranks', '{} hosts'.format)}" for n in sizes]
    return picture(
        paint, f"Time against hosts, measured and simulated. {'. '.join(parts)}.", WIDTH, 1.6 + 2.0 * len(sizes)
    )


def time_against_size(rows: Rows) -> Picture:
    """Median times on the most hosts against the size of the buffer; the right axis is the real link's."""
    rows = _most(shown(rows))

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        for algorithm, series in _series(rows, "bytes"):
            _draw(axes, algorithm, series, "bytes", "median_us", series.low_us, series.high_us)
        bound = rows.groupby("bytes").bound_us.first()
        axes.plot(bound.index, bound, color=theme.ink, lw=0.9, ls=(0, (5, 3)), label="lower bound")
        _time_axis(axes)
        size_axis(axes, sorted(rows.bytes.unique()))
        axes.set(xlabel="buffer", ylabel="time in slow motion")
        real = axes.secondary_yaxis("right", functions=_scaled(1 / DILATION))
        real.set_ylabel("on the real link")
        _durations(real)
        figure.legend(loc="outside upper left", ncols=2, fontsize=9)

    return picture(paint, f"{_head(rows, 'time')}: {_ends(rows, 'bytes', format_bytes)}.", WIDTH, 4.6)


def bandwidth_against_size(rows: Rows) -> Picture:
    """Bus bandwidth on the most hosts against the size of the buffer; the right axis is the real link's."""
    rows = _most(shown(rows))

    def paint(figure: Figure, _: Theme) -> None:
        axes = figure.subplots()
        for algorithm, series in _series(rows, "bytes"):
            bytes_us = series.busbw * 1e3 * series.median_us  # whatever the time, this over it is MB/s
            rates = series.assign(measured=bytes_us / series.median_us, simulated_us=bytes_us / series.simulated_us)
            _draw(axes, algorithm, rates, "bytes", "measured", bytes_us / series.high_us, bytes_us / series.low_us)
        axes.set_ylim(bottom=0)
        size_axis(axes, sorted(rows.bytes.unique()))
        axes.set(xlabel="buffer", ylabel="bus bandwidth in slow motion (MB/s)")
        real = axes.secondary_yaxis("right", functions=_scaled(DILATION / 1e3))
        real.set_ylabel("on the real link (GB/s)")
        figure.legend(loc="outside upper left", ncols=2, fontsize=9)

    parts = [f"{label(*key)} up to {each.busbw.max() * 1e3:.1f} MB/s" for key, each in _groups(rows)]
    return picture(paint, f"{_head(rows, 'bus bandwidth')}: {'; '.join(parts)}.", WIDTH, 4.6)


def _scaled(factor: float) -> Any:
    """The two functions that a second axis is made of."""
    return lambda values: np.asarray(values) * factor, lambda values: np.asarray(values) / factor


def _draw(axes: Axes, algorithm: str, series: Rows, x: str, y: str, low: Any, high: Any) -> None:
    """Measured markers with their intervals, and the simulated line of ours; libraries have none."""
    look = mark(algorithm if series.backend.iloc[0] in OURS else series.backend.iloc[0])
    at, values = series[x], series[y]
    axes.errorbar(
        *(at, values, [(values - low).clip(lower=0), (high - values).clip(lower=0)]),
        color=look.colour,
        marker=look.marker,
        ms=5,
        ls="",
        capsize=2,
        lw=1.0,
        label=label(series.backend.iloc[0], algorithm),
    )
    if series.simulated_us.notna().all():
        axes.plot(at, series.simulated_us, color=look.colour, lw=1.2)
    else:
        axes.plot(at, values, color=look.colour, lw=0.8, ls=":")


def _hosts_axis(axes: Axes, counts: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(counts))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda hosts, _: f"{hosts:,.0f}"))


def _time_axis(axes: Axes) -> None:
    axes.set_yscale("log")
    _durations(axes)


def _durations(axes: Any) -> None:
    axes.yaxis.set_major_formatter(FuncFormatter(lambda us, _: duration(us * 1e-6)))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _most(rows: Rows) -> Rows:
    return rows[rows.ranks == rows.ranks.max()]


def _groups(rows: Rows) -> list[tuple[Any, Rows]]:
    return list(rows.groupby(["backend", "algorithm"], sort=False))


def _series(rows: Rows, along: str) -> list[tuple[str, Rows]]:
    return [(algorithm, group.sort_values(along)) for (_, algorithm), group in _groups(rows)]


def _head(rows: Rows, what: str) -> str:
    return f"Measured and simulated all-reduce on {rows.ranks.max()} emulated hosts, {what} against buffer size"


def _ends(rows: Rows, along: str, form: Any) -> str:
    parts = []
    for (backend, algorithm), group in _groups(rows):
        ends = [f"{duration(us * 1e-6)} at {form(at)}" for at, us in _first_and_last(group, along)]
        parts.append(f"{label(backend, algorithm)} from {' to '.join(ends)}")
    return "; ".join(parts)


def _first_and_last(group: Rows, along: str) -> list[tuple[int, float]]:
    ordered = group.sort_values(along)
    return [(int(ordered[along].iloc[i]), float(ordered.median_us.iloc[i])) for i in (0, -1)]
