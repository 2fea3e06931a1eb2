"""Compare the rows of the experiment ``scaling``: ratios of medians, one line for each size."""

import pandas as pd

from collectives.bench import OURS
from collectives_book.figures import measured
from collectives_book.figures.statements import Rows
from collectives_book.scaling.figures import most

# What `compared` compares, in the order of the table.
COMPARED = "gloo, Horovod", "Open MPI", "its best", "model", "4× slower", "NCCL"


def compared(rows: Rows) -> Rows:
    """Return ratios of times on the most hosts, ``low``, ``ratio`` and ``high``: a line for each ``what`` and size.

    "gloo, Horovod": the better of the two over auto. "Open MPI", "its best": its own choice, and
    its quickest algorithm, over auto. "NCCL": its quickest algorithm over auto. "model": our
    quickest algorithm over its simulated time; "4× slower" the same in deeper slow motion. What was
    not measured has no line.
    """
    where = rows["where"].iloc[0]
    own = most(rows[rows.backend.isin(OURS)])
    beside = measured.over_auto(most(rows[rows["where"] == where]), named=True)
    over = {column: own[f"{column}_us"] / own.simulated_us for column in ("low", "median", "high")}
    own = own.assign(low=over["low"], ratio=over["median"], high=over["high"])
    parts = {
        "gloo, Horovod": beside[beside.backend.isin(("gloo", "horovod"))],
        "Open MPI": beside[(beside.backend == "mpi") & (beside.algorithm == "default")],
        "its best": beside[beside.backend == "mpi"],
        "NCCL": beside[beside.backend == "nccl"],
        "model": own[own["where"] == where],
        "4× slower": own[own["where"] != where],
    }
    quickest = [
        part.loc[part.groupby("bytes").median_us.idxmin()].assign(what=what)
        for what, part in parts.items()
    ]
    return pd.concat(quickest).reset_index(drop=True)


def ratios(rows: Rows) -> Rows:
    """Return for each size what auto chose, its time in ms, the ratios of `compared`, and its time over the bound."""
    auto = (
        most(rows[(rows["where"] == rows["where"].iloc[0]) & rows.auto])
        .set_index("bytes")
        .sort_index()
    )
    found = (
        compared(rows)
        .pivot(index="bytes", columns="what", values="ratio")
        .reindex(columns=[*COMPARED])
    )
    own = {"auto": auto.algorithm, "ms": auto.median_us / 1e3, **found}
    return pd.DataFrame(own | {"bound": auto.median_us / auto.bound_us}).dropna(
        axis="columns", how="all"
    )


def deviations(rows: Rows, least: int = 8) -> Rows:
    """Return our rows on ``least`` hosts or more, with ``off``: measured over simulated, less one."""
    ours = rows[rows.backend.isin(OURS) & (rows.ranks >= least)]
    return ours.assign(off=ours.median_us / ours.simulated_us - 1)
