"""The experiment ``scaling`` as figures, and where two trees win: measured markers over simulated lines.

Times are those of slow motion.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from collectives.algorithms import build
from collectives.figures.style import Picture, Theme
from collectives.launch import links
from collectives.machine import machine
from collectives.simulator.simulation import simulate
from collectives.units import format_bytes
from collectives_book.figures import by_hand as kit
from collectives_book.figures import statements
from collectives_book.figures.measured import OURS, asked, label, look, plain
from collectives_book.figures.statements import Row, Rows

# How many times slower than a real link the first network is: 5 us and 25 GB/s are emulated as 5 ms and 25 MB/s.
DILATION = 1000


def shown(rows: Rows) -> Rows:
    """What figures draw: the first network, our algorithms by name, "auto", and each library's own choice."""
    plain = rows[rows["where"] == rows["where"].iloc[0]]
    plain = plain[plain.backend.isin(OURS) | (plain.algorithm == "default")]
    return plain.assign(asked=asked(plain))


def ours(rows: Rows) -> Rows:
    """Of what is shown, our algorithms by name, and those that only "auto" was measured with."""
    own = rows[rows.backend.isin(OURS)]
    named, chosen = own[own.asked != "auto"], own[own.asked == "auto"]
    chosen = chosen[~chosen.algorithm.isin(named.algorithm)]
    return pd.concat([named, chosen.assign(asked=chosen.algorithm)])


def libraries(rows: Rows) -> Rows:
    """Of what is shown, the libraries, and "auto" beside them."""
    return rows[~rows.backend.isin(OURS) | (rows.asked == "auto")]


def time_against_hosts(rows: Rows, sizes: Sequence[int]) -> Picture:
    """Median times of our algorithms on the most hosts against the number of hosts, a panel for each of these sizes."""
    rows = ours(shown(rows))
    rows = rows[rows.asked.isin(_most(rows).asked)]

    def paint(figure: Figure, theme: Theme) -> None:
        panels = figure.subplots(len(sizes), 1, sharex=True, squeeze=False)[:, 0]
        for axes, nbytes in zip(panels, sizes, strict=True):
            of_size = rows[rows.bytes == nbytes]
            _times(axes, theme, of_size, "ranks")
            kit.time_axis(axes, name="")
            said, _ = statements.takeover(_in_front(of_size, "ranks"), "{} hosts".format)
            kit.headline(axes, f"{format_bytes(nbytes)}: {said}")
            kit.binary_axis(axes, sorted(rows.ranks.unique()), "", "{:.0f}".format)
        panels[-1].set_xlabel("hosts")
        _finish(figure, theme, rows, "time in slow motion")

    return kit.drawn(paint, "Time by hosts, measured and simulated", 1.2 + 2.0 * len(sizes))


def time_against_size(rows: Rows) -> Picture:
    """Median times on the most hosts against the size of the buffer: our algorithms, and below them the libraries."""
    rows = _most(shown(rows))
    parts = [part for part in (ours(rows), libraries(rows)) if len(part)]

    def paint(figure: Figure, theme: Theme) -> None:
        panels = figure.subplots(len(parts), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        for axes, part in zip(panels, parts, strict=True):
            _times(axes, theme, part, "bytes")
            kit.time_axis(axes, name="")
            kit.headline(axes, _headline(part))
            kit.binary_axis(axes, sorted(rows.bytes.unique()), "")
        panels[-1].set_xlabel("buffer")
        _finish(figure, theme, rows, f"time in slow motion (on the real link: {DILATION:,} times shorter)")

    return kit.drawn(paint, f"All-reduce on {rows.ranks.max()} emulated hosts, time by size", 1.1 + 2.5 * len(parts))


def _headline(rows: Rows) -> str:
    return statements.takeover(_in_front(rows, "bytes"), format_bytes)[0]


def bandwidth_against_size(rows: Rows) -> Picture:
    """Bus bandwidth of our algorithms on the most hosts against the size of the buffer, beside the link's rate."""
    rows = ours(_most(shown(rows)))

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        for key, series in _series(rows, "bytes"):
            scale = series.busbw * 1e3 * series.median_us  # this over a time is a rate in MB/s
            times = series.median_us, series.high_us, series.low_us, series.simulated_us
            _draw(axes, key, series.bytes, *(scale / us for us in times))
        axes.set_ylim(bottom=0)
        kit.binary_axis(axes, sorted(rows.bytes.unique()))
        axes.set_ylabel("bus bandwidth in slow motion (MB/s)")
        kit.message(figure, theme, _highest(rows))
        kit.labels(figure, rows, more=[kit.key(theme, "simulated")])

    return kit.drawn(paint, f"All-reduce on {rows.ranks.max()} emulated hosts, bus bandwidth in MB/s by size", 4.2)


def _highest(rows: Rows) -> str:
    """The highest bus bandwidth, with all that tie with it at that size."""
    size = rows.bytes[rows.busbw.idxmax()]
    ahead = statements.leaders(rows[rows.bytes == size])
    rates = statements.span([row.busbw * 1e3 for row in ahead], "{:.1f}".format)
    return f"Highest: {rates} MB/s with {format_bytes(size)}, by {statements.listed([row.algorithm for row in ahead])}"


def _finish(figure: Figure, theme: Theme, rows: Rows, name: str) -> None:
    figure.supylabel(name, fontsize=10)
    dashes = kit.key(theme, "lower bound", lw=0.9, ls=(0, (5, 3)))
    kit.labels(figure, rows, more=[kit.key(theme, "simulated"), dashes])


def _in_front(rows: Rows, along: str) -> list[tuple[float, list[str]]]:
    return statements.in_front(rows, along, lambda row: _name(row.backend, row.asked))


def _times(axes: Axes, theme: Theme, rows: Rows, along: str) -> None:
    """Every series of rows against a column, above the bound."""
    for key, series in _series(rows, along):
        _draw(axes, key, series[along], series.median_us, series.low_us, series.high_us, series.simulated_us)
    bound = rows.groupby(along).bound_us.first()
    kit.lower_bound(axes, theme, bound.index, bound, "")


def _draw(axes: Axes, key: tuple[str, str], x: Rows, y: Rows, low: Rows, high: Rows, simulated: Rows) -> None:
    """Measured markers with their intervals, and the simulated line of ours; libraries have none."""
    seen = look(*key)
    known = simulated.notna().all()
    joined = {"ls": ""} if known else {"ls": ":", "lw": 0.8}
    kit.measured(axes, seen, _name(*key), x, y, low, high, ms=5, **joined)
    if known:
        axes.plot(x, simulated, color=seen.colour, lw=1.2)


def _name(backend: str, asked: str) -> str:
    """Short: a library is shown by its own choice alone (`shown`)."""
    return label(backend, asked) if backend in OURS else backend


def _most(rows: Rows) -> Rows:
    return rows[rows.ranks == rows.ranks.max()]


def _series(rows: Rows, along: str) -> list[tuple[tuple[str, str], Rows]]:
    return kit.series(rows, ("backend", "asked"), along)


def with_simulated(rows: Rows) -> Rows:
    """The rows, with what the simulator says of their links as they were asked for: ``simulated_us``."""
    return rows.assign(simulated_us=[_simulated_us(row) for row in rows.itertuples()])


def _simulated_us(row: Any) -> float:
    schedule = build(row.collective, row.algorithm, row.ranks, segments=int(row.segments))
    on = machine(str(links(row.where, row.ranks)))
    return simulate(schedule, on, row.bytes, row.algorithm).seconds * 1e6


def two_trees_against_size(rows: Rows) -> Picture:
    """Median times against the size of the buffer; ``rows`` as `with_simulated` has them."""

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        for (name,), of in kit.series(rows, ["algorithm"], "bytes"):
            seen = look("p2p", name)
            kit.medians(axes, seen, name, of, "bytes", ls="")
            axes.plot(of.bytes, of.simulated_us, color=seen.colour, lw=1.2)
        kit.time_axis(axes, name="time in slow motion")
        kit.binary_axis(axes, sorted(rows.bytes.unique()))
        kit.message(figure, theme, f"{rows.ranks.iloc[0]} hosts: {two_trees_headline(rows)}")
        kit.labels(figure, rows, more=[kit.key(theme, "simulated")])

    return kit.drawn(paint, f"{plain(rows)} on {rows.ranks.iloc[0]} emulated hosts, time by size", 3.1)


def two_trees_won(rows: Rows) -> list[tuple[int, Row, Row]]:
    """The sizes at which two trees are ahead of all others by their intervals, with their row and the next best one."""
    found = []
    for nbytes, group in rows.groupby("bytes"):
        first, *tied = statements.leaders(group)
        if not tied and first.algorithm == "two_tree":
            second = group[group.algorithm != "two_tree"].sort_values("median_us").iloc[0]
            found.append((int(nbytes), first, second))
    return found


def two_trees_headline(rows: Rows) -> str:
    """Where two trees win, in a line."""
    return f"two trees win {_sizes(rows, {nbytes for nbytes, _, _ in two_trees_won(rows)})}"


def _sizes(rows: Rows, sizes: set[int]) -> str:
    """These sizes, neighbours among those of the rows as from the least to the most."""
    if not sizes:
        return "nowhere"
    runs = [[*run] for wins, run in groupby(sorted(rows.bytes.unique()), key=sizes.__contains__) if wins]
    return f"at {statements.listed([statements.span(run, format_bytes) for run in runs])}"
