"""Draw the times that formulas predict, by size or by ranks."""

from collections.abc import Mapping, Sequence

import pandas as pd

from collectives.algorithms import NEUTRAL, Mark
from collectives.figures.style import MARKS, Picture, mark
from collectives_book.figures import kit
from collectives_book.figures.charts import Curves


def model_time(
    at: Sequence[float],
    curves: Mapping[str, Sequence[float]],
    bound: Sequence[float] | None = None,
    over: str = "buffer",
) -> Picture:
    """Return the picture of each algorithm's seconds ``at`` these bytes, or numbers of ranks (``over="ranks"``).

    Nothing goes below ``bound``, thin dashes. All axes are logarithmic.
    """
    columns = {"at": at, "bound": bound}
    tables = [
        pd.DataFrame(columns | {"seconds": seconds, "algorithm": name})
        for name, seconds in curves.items()
    ]
    across = kit.RANKS if over == "ranks" else kit.BYTES
    axes = across, kit.SECONDS._replace(name="time by the model")
    rows = pd.concat(tables, ignore_index=True)
    chart = Curves(rows, "at", "seconds", "algorithm", axes, _look).lines()
    if bound is not None:
        chart.bound("bound")
    return chart.picture(f"Time by {over}, by the model and not measured", height=3.6)


def _look(name: str) -> Mark:
    return mark(name) if name in MARKS else NEUTRAL


def written(nbytes: float) -> str:
    """Return bytes as GPU memory is sold: powers of 1000.

    >>> written(24e9), written(6.48e12)
    ('24 GB', '6.48 TB')
    """
    return f"{nbytes / 1e12:.3g} TB" if nbytes >= 1e12 else f"{nbytes / 1e9:.3g} GB"
