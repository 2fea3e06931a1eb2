"""Simulated rows as figures: lines for the model, hollow markers for published values.

Nothing here is measured by us.

Rows are a table as `collectives.simulator.scaling.row` makes them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from collectives.algorithms import Mark
from collectives.figures.style import Picture, Theme, mark
from collectives.units import format_bytes
from collectives_book.figures import kit
from collectives_book.figures.charts import Curves
from collectives_book.figures.fields import fields
from collectives_book.figures.kit import Rows
from collectives_book.massive_scale import published

GPUS = kit.RANKS._replace(name="GPUs")
BUSBW = kit.Axis("bus bandwidth (GB/s)", "{:,.3g}".format)


def latency(rows: Rows) -> Picture:
    """Return time against the number of GPUs, with published points where the article has some."""
    return _against_gpus(rows, "seconds", kit.SECONDS, published.SMALL, published.latencies)


def bandwidth(rows: Rows) -> Picture:
    """Return bus bandwidth against the number of GPUs, with published points where the article has some."""
    return _against_gpus(rows, "busbw", BUSBW, published.LARGE, published.bandwidths)


def _against_gpus(
    rows: Rows,
    column: str,
    axis: kit.Axis,
    nbytes: int,
    points: Callable[[str], Mapping[int, float]],
) -> Picture:
    size = rows.bytes.iloc[0]
    machine = rows.machine.iloc[0]
    seen = _published(rows.algorithm.unique(), points, column)
    about = f"Simulated all-reduce of {format_bytes(size)} on {machine}, {axis.name} by GPUs"
    chart = Curves(rows, "ranks", column, "algorithm", (GPUS, axis)).lines()
    if (machine, size) == ("summit", nbytes) and len(seen):
        chart.published(seen, published.LABEL)
        about += ", beside published points"
    return chart.picture(about)


def _published(
    names: Iterable[str], points: Callable[[str], Mapping[int, float]], column: str
) -> Rows:
    """Return the published points of these algorithms as a table."""
    seen = []
    for name in names:
        for gpus, value in points(name).items():
            seen.append({"algorithm": name, "ranks": gpus, column: value})
    return pd.DataFrame(seen, columns=["algorithm", "ranks", column])


def regime_map(best: Rows) -> Picture:
    """Return the map of the fastest algorithms: ``best`` has one row for each field, a panel for each machine."""
    about = "The fastest all-reduce by simulation, a field for each number of GPUs and bytes"
    return fields(
        best,
        "ranks",
        "bytes",
        "algorithm",
        (GPUS, kit.BYTES),
        about,
        facet="machine",
        columns=min(2, best.machine.nunique()),
    )


def curve(rows: Rows) -> Picture:
    """Return the book's first figure: 8 bytes on up to 24,576 GPUs, by a ring and by two trees.

    At the right end stands how far the published points are apart. ``rows`` are those of the
    experiment ``massive-scale`` on the machine ``summit``.
    """
    named = {"ring": "ring", "hierarchical_tree": "two trees"}
    rows = rows[
        (rows.part == "figures") & (rows.bytes == published.SMALL) & rows.algorithm.isin(named)
    ]
    last = published.POINTS[-1]
    factor = f"{last.ring_seconds / last.tree_seconds:.0f} times\nas fast"
    seen = _published(named, published.latencies, "seconds")
    rows, seen = (table.assign(algorithm=table.algorithm.map(named)) for table in (rows, seen))

    def annotate(panels: Sequence[Axes], theme: Theme) -> None:
        ends = (
            (last.ranks, last.tree_seconds * 1.25),
            (last.ranks, last.ring_seconds / 1.25),
        )
        panels[0].annotate(
            "",
            ends[0],
            ends[1],
            arrowprops={"arrowstyle": "<->", "color": theme.ink},
        )
        middle = (last.ranks, (last.tree_seconds * last.ring_seconds) ** 0.5)
        look: dict[str, Any] = {
            "textcoords": "offset points",
            "ha": "right",
            "va": "center",
            "weight": "bold",
        }
        panels[0].annotate(factor, middle, (-6, 0), **look)

    chart = Curves(rows, "ranks", "seconds", "algorithm", (GPUS, kit.SECONDS), _look)
    about = "All-reduce of 8 bytes on Summit, simulated time by GPUs, beside published points"
    return chart.lines().published(seen, "published").picture(about, height=2.9, then=annotate)


def _look(name: str) -> Mark:
    return mark(name if name == "ring" else "two_tree")
