"""Measured rows of one collective as figures and as a table."""

from collections.abc import Callable

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from collectives.algorithms import Mark
from collectives.figures.style import Picture, Theme
from collectives.units import format_bytes
from collectives_book.figures import by_hand as kit
from collectives_book.figures import measured, statements
from collectives_book.figures.statements import Rows


def time_against_size(rows: Rows) -> Picture:
    """Median time of each series against the size of the buffer, both logarithmic."""
    if rows.empty:
        return kit.nothing()

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        for look, name, series in _drawn(rows):
            kit.medians(axes, look, name, series, "bytes")
        kit.time_axis(axes)
        kit.message(figure, theme, *statements.takeover(_in_front(rows), format_bytes))
        _finish(figure, axes, rows)

    return kit.drawn(paint, f"Measured {measured.plain(rows)} on {rows.ranks.iloc[0]} ranks, time by buffer size")


def bandwidth_against_size(rows: Rows) -> Picture:
    """Bus bandwidth of each series against the size of the buffer."""
    if rows.empty:
        return kit.nothing()

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        for look, name, series in _drawn(rows):
            scale = series.busbw * series.median_us
            rates = series.bytes, series.busbw, scale / series.high_us, scale / series.low_us
            kit.measured(axes, look, name, *rates)
        kit.message(figure, theme, f"The highest is {highest(rows, '{:.2f} GB/s'.format)}")
        axes.set_ylim(bottom=0)
        axes.set_ylabel("bus bandwidth (GB/s)")
        _finish(figure, axes, rows)

    return kit.drawn(paint, f"Measured {measured.plain(rows)} on {rows.ranks.iloc[0]} ranks, GB/s by buffer size")


def _series(rows: Rows) -> list[tuple[tuple[str, str], Rows]]:
    return kit.series(rows.assign(asked=measured.asked(rows)), ("backend", "asked"), "bytes")


def _drawn(rows: Rows) -> list[tuple[Mark, str | None, Rows]]:
    """Look, name and rows of each series; of more than a figure can show, some are grey and have no name."""
    shown, drawn = _prominent(rows), []
    for of, series in _series(rows):
        is_shown = (name := measured.label(*of)) in shown
        drawn.append((measured.look(*of) if is_shown else kit.GREY, name if is_shown else None, series))
    return drawn


def _prominent(rows: Rows) -> list[str]:
    return measured.prominent(_named(rows), [measured.label(*of) for of, _ in _series(rows)])


def _in_front(rows: Rows) -> list[tuple[float, list[str]]]:
    return statements.in_front(_named(rows), "bytes", lambda row: str(row.series))


def _finish(figure: Figure, axes: Axes, rows: Rows) -> None:
    kit.binary_axis(axes, sorted(rows.bytes.unique()))
    names = [measured.label(*of) for of, _ in _series(rows)]
    grey = [name for name in names if name not in _prominent(rows)]
    kit.labels(figure, rows, [kit.key(kit.GREY.colour, statements.listed(grey))] if grey else [])


def _named(rows: Rows) -> Rows:
    return rows.assign(series=measured.names(rows))


def highest(rows: Rows, form: Callable[[float], str]) -> str:
    """The highest bus bandwidth, its series, and the series that tie with it at that size; ``form`` writes GB/s."""
    rows = rows[rows.bytes == rows.bytes[rows.busbw.idxmax()]]
    first, *others = (str(row.series) for row in statements.leaders(_named(rows)))
    tied = f"; {statements.listed(others)} cannot be told from it" if others else ""
    return f"{form(rows.busbw.max())}, by {first} with {format_bytes(rows.bytes.iloc[0])}{tied}"


def table(rows: Rows) -> Rows:
    """Median times in microseconds: a line per size, a column per series."""
    named = _named(rows)
    if rows.empty:
        return named[[]]
    wide = named.pivot(index="bytes", columns="series", values="median_us").map("{:,.0f}".format)
    wide.index = pd.Index([format_bytes(nbytes) for nbytes in wide.index], name="size")
    wide.columns.name = "median µs"
    return wide[list(dict.fromkeys(named.series))]
