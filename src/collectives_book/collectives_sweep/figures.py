"""Measured rows of several collectives: a small panel for each, a line in it for each back end."""

from matplotlib.figure import Figure

from collectives.figures.style import Picture, Theme
from collectives.units import format_bytes
from collectives_book.figures import by_hand as kit
from collectives_book.figures import measured, statements
from collectives_book.figures.measured import OURS, plain
from collectives_book.figures.statements import Rows


def time_against_size(rows: Rows) -> Picture:
    """Median time of each back end against the size of the buffer, all panels to one scale."""
    if rows.empty:
        return kit.nothing()
    names = list(dict.fromkeys(rows.collective))
    lines = -(-len(names) // 2)

    def paint(figure: Figure, theme: Theme) -> None:
        panels = list(figure.subplots(lines, 2, sharex=True, sharey=True, squeeze=False).flat)
        for axes in panels[len(names) :]:  # one is left over where the number is odd
            axes.remove()
        for axes, name in zip(panels, names, strict=False):
            for label, series in _series(rows[rows.collective == name]):
                backend, algorithm = series.backend.iloc[0], series.algorithm.iloc[0]
                look = measured.look(backend, "default" if backend in OURS else algorithm)
                kit.medians(axes, look, label, series, "bytes")
            kit.headline(axes, _title(rows[rows.collective == name]))
            kit.time_axis(axes, name="")
            kit.binary_axis(axes, sorted(rows.bytes.unique()), columns=2)
            axes.label_outer()
        kit.message(figure, theme, _winners(rows[rows.bytes == rows.bytes.max()]))
        figure.supylabel("time", fontsize=10)
        kit.labels(figure, rows, size=8.5)

    return kit.drawn(paint, f"Measured on {rows.ranks.iloc[0]} ranks, time by buffer size", 1.2 + 1.8 * lines)


def _title(rows: Rows) -> str:
    """The collective, and the back end that is the fastest with the largest buffer."""
    most = rows[rows.bytes == rows.bytes.max()]
    first, *tied = statements.leaders(most)
    return f"{plain(rows)}: {'a tie' if tied else _name(first.backend, first.algorithm)}"


def table(rows: Rows, nbytes: int) -> Rows:
    """Median times in microseconds at one size: a line per collective, a column per back end, or "none"."""
    of = rows[rows.bytes == nbytes] if len(rows) else rows
    named = of.assign(series=_names(of), collective=of.collective.str.replace("_", "-"))
    if of.empty:
        return named[[]]
    wide = named.pivot(index="collective", columns="series", values="median_us")
    written = wide.map("{:,.0f}".format).where(wide.notna(), "none")
    return written[list(dict.fromkeys(named.series))].loc[list(dict.fromkeys(named.collective))]


def _winners(rows: Rows) -> str:
    groups = [group for _, group in rows.groupby("collective", sort=False)]
    counts = statements.wins(groups, lambda row: _name(row.backend, row.algorithm))
    return f"At {format_bytes(rows.bytes.iloc[0])}, {counts} of {len(groups)} collectives"


def _series(rows: Rows) -> list[tuple[str, Rows]]:
    return [(name, group) for (name,), group in kit.series(rows.assign(series=_names(rows)), ("series",), "bytes")]


def _names(rows: Rows) -> list[str]:
    return [_name(backend, algorithm) for backend, algorithm in zip(rows.backend, rows.algorithm, strict=True)]


def _name(backend: str, algorithm: str) -> str:
    if backend in OURS:
        return f"ours{OURS[backend]}"
    return backend if algorithm == "default" else f"{backend} ({algorithm})"
