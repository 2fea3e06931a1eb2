"""The experiment ``scaling`` as figures: measured markers over simulated lines.

Times are those of slow motion; a second axis has the times on the real link.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from collectives.figures import kit
from collectives.figures.measured import OURS, label
from collectives.figures.statements import Rows
from collectives.figures.style import Picture, Theme, mark, picture
from collectives.units import duration, format_bytes

# How many times slower than a real link the first network is: 5 us and 25 GB/s are emulated as 5 ms and 25 MB/s.
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
            of_size = rows[rows.bytes == nbytes]
            for key, series in _series(of_size, "ranks"):
                _draw(axes, key, series.ranks, series.median_us, series.low_us, series.high_us, series.simulated_us)
            _bound(axes, theme, of_size, "ranks")
            kit.time_axis(axes, name=format_bytes(nbytes))
            kit.binary_axis(axes, sorted(rows.ranks.unique()), "", "{:.0f}".format)
        panels[-1].set_xlabel("hosts")
        figure.supylabel("time in slow motion", fontsize=10)
        kit.legend(figure, rows, size=9)

    parts = [f"{format_bytes(n)}: {_ends(rows[rows.bytes == n], 'ranks', '{} hosts'.format)}" for n in sizes]
    return picture(
        paint, f"Time against hosts, measured and simulated. {'. '.join(parts)}.", kit.WIDTH, 1.6 + 2.0 * len(sizes)
    )


def time_against_size(rows: Rows) -> Picture:
    """Median times on the most hosts against the size of the buffer; the right axis is the real link's."""
    rows = _most(shown(rows))

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        for key, series in _series(rows, "bytes"):
            _draw(axes, key, series.bytes, series.median_us, series.low_us, series.high_us, series.simulated_us)
        _bound(axes, theme, rows, "bytes")
        kit.time_axis(axes, name="time in slow motion")
        kit.binary_axis(axes, sorted(rows.bytes.unique()))
        real = axes.secondary_yaxis("right", functions=_scaled(1 / DILATION))
        real.set_ylabel("on the real link")
        kit.time_labels(real)
        kit.legend(figure, rows, size=9)

    return picture(paint, f"{_head(rows, 'time')}: {_ends(rows, 'bytes', format_bytes)}.", kit.WIDTH, 4.6)


def bandwidth_against_size(rows: Rows) -> Picture:
    """Bus bandwidth on the most hosts against the size of the buffer; the right axis is the real link's."""
    rows = _most(shown(rows))

    def paint(figure: Figure, _: Theme) -> None:
        axes = figure.subplots()
        for key, series in _series(rows, "bytes"):
            scale = series.busbw * 1e3 * series.median_us  # this over a time is a rate in MB/s
            times = series.median_us, series.high_us, series.low_us, series.simulated_us
            _draw(axes, key, series.bytes, *(scale / us for us in times))
        axes.set_ylim(bottom=0)
        kit.binary_axis(axes, sorted(rows.bytes.unique()))
        axes.set_ylabel("bus bandwidth in slow motion (MB/s)")
        real = axes.secondary_yaxis("right", functions=_scaled(DILATION / 1e3))
        real.set_ylabel("on the real link (GB/s)")
        kit.legend(figure, rows, size=9)

    parts = [f"{label(*key)} up to {each.busbw.max() * 1e3:.1f} MB/s" for key, each in _series(rows, "bytes")]
    return picture(paint, f"{_head(rows, 'bus bandwidth')}: {'; '.join(parts)}.", kit.WIDTH, 4.6)


def _scaled(factor: float) -> Any:
    """The two functions that a second axis is made of."""
    return lambda values: np.asarray(values) * factor, lambda values: np.asarray(values) / factor


def _draw(axes: Axes, key: tuple[str, str], x: Rows, y: Rows, low: Rows, high: Rows, simulated: Rows) -> None:
    """Measured markers with their intervals, and the simulated line of ours; libraries have none."""
    backend, algorithm = key
    look = mark(algorithm if backend in OURS else backend)
    kit.measured(axes, look, label(backend, algorithm), x, y, low, high, ls="", lw=1.0, ms=5)
    if simulated.notna().all():
        axes.plot(x, simulated, color=look.colour, lw=1.2)
    else:
        axes.plot(x, y, color=look.colour, lw=0.8, ls=":")


def _bound(axes: Axes, theme: Theme, rows: Rows, along: str) -> None:
    bound = rows.groupby(along).bound_us.first()
    kit.lower_bound(axes, theme, bound.index, bound)


def _most(rows: Rows) -> Rows:
    return rows[rows.ranks == rows.ranks.max()]


def _series(rows: Rows, along: str) -> list[tuple[tuple[str, str], Rows]]:
    return kit.series(rows, ("backend", "algorithm"), along)


def _head(rows: Rows, what: str) -> str:
    return f"Measured and simulated all-reduce on {rows.ranks.max()} emulated hosts, {what} against buffer size"


def _ends(rows: Rows, along: str, form: Callable[[int], str]) -> str:
    parts = [
        kit.from_to(label(*key), [*of[along]], [*of.median_us * 1e-6], lambda at: f"at {form(at)}", duration)
        for key, of in _series(rows, along)
    ]
    return "; ".join(parts)
