"""Rows in which two trees win, as a figure and a sentence: measured markers over simulated lines, on emulated hosts."""

from itertools import groupby
from typing import Any

from matplotlib.figure import Figure

from collectives.algorithms import build
from collectives.figures.style import Picture, Theme, picture
from collectives.launch import links
from collectives.machine import machine
from collectives.simulator.simulation import simulate
from collectives.units import duration, format_bytes
from collectives_book.figures import kit, statements
from collectives_book.figures.measured import look, plain
from collectives_book.figures.statements import Row, Rows


def simulated(rows: Rows) -> Rows:
    """The rows, with what the simulator says of their links as they were asked for: ``simulated_us``."""
    return rows.assign(simulated_us=[_simulated(row) for row in rows.itertuples()])


def _simulated(row: Any) -> float:
    schedule = build(row.collective, row.algorithm, row.ranks, segments=int(row.segments))
    on = machine(str(links(row.where, row.ranks)))
    return simulate(schedule, on, row.bytes, row.algorithm).seconds * 1e6


def time_against_size(rows: Rows) -> Picture:
    """Median times against the size of the buffer; ``rows`` as `simulated` has them."""

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        for (name,), of in kit.series(rows, ["algorithm"], "bytes"):
            seen = look("p2p", name)
            kit.measured(axes, seen, name, of.bytes, of.median_us, of.low_us, of.high_us, ls="")
            axes.plot(of.bytes, of.simulated_us, color=seen.colour, lw=1.2)
        kit.time_axis(axes, name="time in slow motion")
        kit.binary_axis(axes, sorted(rows.bytes.unique()))
        kit.message(figure, theme, f"{rows.ranks.iloc[0]} hosts: {headline(rows)}")
        kit.labels(figure, rows, more=[kit.key(theme, "simulated")])

    ends = [
        kit.from_to(name, [*of.bytes], [*of.median_us * 1e-6], lambda n: f"at {format_bytes(n)}", duration)
        for (name,), of in kit.series(rows, ["algorithm"], "bytes")
    ]
    head = f"Measured and simulated {plain(rows)} on {rows.ranks.iloc[0]} emulated hosts"
    return picture(paint, f"{head}, time against buffer size: {'; '.join(ends)}.", kit.WIDTH, 4.0)


def won(rows: Rows) -> list[tuple[int, Row, Row]]:
    """The sizes at which two trees are ahead of all others by their intervals, with their row and the next best one."""
    found = []
    for nbytes, group in rows.groupby("bytes"):
        first, *tied = statements.leaders(group)
        if not tied and first.algorithm == "two_tree":
            second = group[group.algorithm != "two_tree"].sort_values("median_us").iloc[0]
            found.append((int(nbytes), first, second))
    return found


def headline(rows: Rows) -> str:
    """Where two trees win, in a line."""
    return f"two trees win {_at(rows, {nbytes for nbytes, _, _ in won(rows)})}"


def _at(rows: Rows, sizes: set[int]) -> str:
    """These sizes, neighbours among those of the rows as from the least to the most."""
    if not sizes:
        return "nowhere"
    runs = [[*run] for wins, run in groupby(sorted(rows.bytes.unique()), key=sizes.__contains__) if wins]
    return f"at {statements.listed([statements.span(run, format_bytes) for run in runs])}"


def _by_simulator(rows: Rows) -> str:
    """Where two trees win by the simulator."""
    first = rows.loc[rows.groupby("bytes").simulated_us.idxmin()]
    return _at(rows, {int(nbytes) for nbytes in first.bytes[first.algorithm == "two_tree"]})


def outcome(rows: Rows) -> str:
    """A sentence: where two trees win, by how much, and against what."""
    found = won(rows)
    if not found:
        return f"On {rows.ranks.iloc[0]} hosts {headline(rows)}: the intervals overlap, or another is ahead."
    nbytes, first, second = max(found, key=lambda one: one[2].median_us / one[1].median_us)
    return (
        f"On {rows.ranks.iloc[0]} hosts {headline(rows)}. The lead is the largest at {format_bytes(nbytes)}: "
        f"{duration(first.median_us * 1e-6)} against {duration(second.median_us * 1e-6)} by the next best, "
        f"{second.algorithm}, which takes {statements.times_as_long(second, first, '{:.2f}'.format)}. "
        f"The simulator says {duration(first.simulated_us * 1e-6)} and {duration(second.simulated_us * 1e-6)}; "
        f"by its times two trees win {_by_simulator(rows)}."
    )
