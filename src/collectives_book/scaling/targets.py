"""What the experiment ``scaling`` was to show, held against its rows: ratios of medians, one line for each size."""

import pandas as pd

from collectives_book.figures import measured
from collectives_book.figures.measured import OURS
from collectives_book.figures.statements import Rows, verdict
from collectives_book.scaling.figures import most

# Goals that were set before: of each ratio of `compared` its least or its most value, from a size on.
GOALS: dict[str, tuple[str, bool, dict[int, float]]] = {
    "gloo, Horovod": (
        "gloo and Horovod over auto: at least",
        True,
        {4: 8.0, 1 << 20: 3.5, 4 << 20: 2.0, 16 << 20: 1.0},
    ),
    "Open MPI": ("Open MPI over auto: at least", True, {4: 1.0}),
    "its best": ("Open MPI's best over auto: at least", True, {4: 1 / 1.1}),
    "model": ("our best over its simulated time: at most", False, {4: 1.5, 4 << 20: 1.2}),
    "4× slower": ("the same on links four times slower: at most", False, {4: 1.2}),
}


def goal(goals: dict[int, float], nbytes: int) -> float:
    """Return what holds for a size.

    >>> [goal(GOALS["gloo, Horovod"][2], nbytes) for nbytes in (64 << 10, 1 << 20, 16 << 20)]
    [8.0, 3.5, 1.0]
    """
    return goals[max(size for size in goals if size <= nbytes)]


def compared(rows: Rows) -> Rows:
    """Return ratios of times on the most hosts, ``low``, ``ratio`` and ``high``: a line for each ``what`` and size.

    "gloo, Horovod": the better of the two over auto. "Open MPI", "its best": its own choice, and its quickest
    algorithm, over auto. "NCCL": its quickest algorithm over auto. "model": our quickest algorithm over its simulated
    time; "4× slower" the same in deeper slow motion. What was not measured has no line.
    """
    where, own = rows["where"].iloc[0], most(rows[rows.backend.isin(OURS)])
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
    quickest = [part.loc[part.groupby("bytes").median_us.idxmin()].assign(what=what) for what, part in parts.items()]
    return pd.concat(quickest).reset_index(drop=True)


def ratios(rows: Rows) -> Rows:
    """Return for each size what auto chose, its time in ms, the ratios of `compared`, and its time over the bound."""
    auto = most(rows[(rows["where"] == rows["where"].iloc[0]) & rows.auto]).set_index("bytes").sort_index()
    found = compared(rows).pivot(index="bytes", columns="what", values="ratio").reindex(columns=[*GOALS, "NCCL"])
    own = {"auto": auto.algorithm, "ms": auto.median_us / 1e3, **found}
    return pd.DataFrame(own | {"bound": auto.median_us / auto.bound_us}).dropna(axis="columns", how="all")


def verdicts(rows: Rows) -> Rows:
    """Return each goal of each size, what came out, and the ``verdict``: "undecided" where intervals allow either."""
    found = compared(rows).query("what in @GOALS").sort_values("bytes", kind="stable")
    lines = []
    for line in found.itertuples():
        said, at_least, goals = GOALS[line.what]
        limit = goal(goals, line.bytes)
        named = {"bytes": line.bytes, "goal": f"{said} {limit:.3g}", "came_out": line.ratio}
        decided = verdict(line.low, line.high, limit, at_least=at_least)
        lines.append(named | {"low": line.low, "high": line.high, "verdict": decided})
    return pd.DataFrame(lines)


def deviations(rows: Rows, least: int = 8) -> Rows:
    """Return our rows on ``least`` hosts or more, with ``off``: measured over simulated, less one."""
    ours = rows[rows.backend.isin(OURS) & (rows.ranks >= least)]
    return ours.assign(off=ours.median_us / ours.simulated_us - 1)
