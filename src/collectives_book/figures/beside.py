"""Libraries beside auto, as a table and a sentence: the time of each library's own choice over that of auto."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from collectives.units import format_bytes
from collectives_book.figures.measured import OURS
from collectives_book.figures.statements import Rows, ratio

NAMES = {"gloo": "gloo", "mpi": "Open MPI", "horovod": "Horovod"}


def libraries(rows: Rows) -> Rows:
    """For each number of ranks, size and library: its time over auto's, ``low`` and ``high`` as intervals allow.

    ``chosen`` is what auto took. Of a library only its own choice counts; sizes that failed are left out.
    """
    found = []
    for (ranks, nbytes), group in rows[rows.error.isna()].groupby(["ranks", "bytes"]):
        (auto,) = group[group.backend.isin(OURS) & group.auto].itertuples()
        for library in group[~group.backend.isin(OURS) & (group.algorithm == "default")].itertuples():
            low, middle, high = ratio(library, auto)
            point = {"ranks": ranks, "bytes": nbytes, "library": NAMES[library.backend], "chosen": auto.algorithm}
            found.append(point | {"low": low, "ratio": middle, "high": high})
    return pd.DataFrame(found)


def quickest(beside: Rows) -> Rows:
    """Of `libraries` the quickest one at each point."""
    return beside.loc[beside.groupby(["ranks", "bytes"]).ratio.idxmin()]


def table(beside: Mapping[str, Rows]) -> Rows:
    """The ratios of several `libraries` by their name, number of ranks and library; a column for each size."""
    rows = pd.concat([each.assign(over=name, ranks=each.ranks.map("{} ranks".format)) for name, each in beside.items()])
    wide = rows.pivot_table(index=["over", "ranks", "library"], columns="bytes", values="ratio", sort=False)
    return wide.map("{:.2f}".format).rename(columns=format_bytes).rename_axis(index=[None] * 3, columns=None)


def outcome(beside: Rows, library: str) -> str:
    """A sentence: at how many points auto was faster or slower than the library by its interval; the mean ratio."""
    faster, slower, points = sum(beside.low > 1), sum(beside.high < 1), len(beside)
    mean = np.exp(np.log(beside.ratio).mean())
    return (
        f"`auto` was faster than {library} at {faster} of {points} points, slower at {slower}, and the intervals "
        f"overlap at {points - faster - slower}; the geometric mean of the ratios is {mean:.2f}."
    )
