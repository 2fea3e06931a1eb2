"""What the experiment ``scaling`` was to show, held against its rows: ratios of medians, one line for each size."""

from __future__ import annotations

from typing import Any

import pandas as pd

from collectives.plot import OURS

# A pandas.DataFrame of measured rows; the type cannot say what its columns hold.
Rows = Any

# How many times as fast as the better of gloo and Horovod "auto" was to be, from this size on.
FASTER = {4: 8.0, 1 << 20: 3.5, 4 << 20: 2.0, 16 << 20: 1.0}
# How many times the law's time the best algorithm was to take at most, from this size on; and in deeper slow motion.
NEAR = {4: 1.5, 4 << 20: 1.2}
NEAR_SLOWER = 1.2
NEAR_BEST_OF_MPI = 1.1


def goal(goals: dict[int, float], nbytes: int) -> float:
    """What holds for a size.

    >>> [goal(FASTER, nbytes) for nbytes in (64 << 10, 1 << 20, 16 << 20)]
    [8.0, 3.5, 1.0]
    """
    return goals[max(size for size in goals if size <= nbytes)]


def ratios(rows: Rows) -> Rows:
    """On the most hosts, for each size: what auto chose, its time in ms, and ratios of times.

    ``libraries``: the better of gloo and Horovod over auto. ``mpi``, ``best_of_mpi``: Open MPI's own choice, and its
    quickest algorithm, over auto. ``law``: our quickest algorithm over its simulated time; ``law_slower`` the same in
    deeper slow motion. ``bound``: auto over the lower bound. NaN where there are no such rows.
    """
    most = rows[rows.ranks == rows.ranks.max()]
    first, *deeper = most["where"].unique()
    plain, slower = most[most["where"] == first], most[most["where"].isin(deeper)]
    return pd.DataFrame(
        [_ratios(plain[plain.bytes == n], slower[slower.bytes == n]) for n in sorted(plain.bytes.unique())]
    )


def _ratios(rows: Rows, slower: Rows) -> dict[str, Any]:
    auto = rows[rows.backend.isin(OURS) & rows.auto].iloc[0]
    mpi = rows[rows.backend == "mpi"]
    return {
        "bytes": int(auto.bytes),
        "chosen": auto.algorithm,
        "ms": auto.median_us / 1e3,
        "libraries": rows[rows.backend.isin(["gloo", "horovod"])].median_us.min() / auto.median_us,
        "mpi": mpi[mpi.algorithm == "default"].median_us.min() / auto.median_us,
        "best_of_mpi": mpi.median_us.min() / auto.median_us,
        "law": _over_law(rows),
        "law_slower": _over_law(slower),
        "bound": auto.median_us / auto.bound_us,
    }


def _over_law(rows: Rows) -> float:
    ours = rows[rows.backend.isin(OURS)]
    if ours.empty:
        return float("nan")
    best = ours.loc[ours.median_us.idxmin()]
    return float(best.median_us / best.simulated_us)


def deviations(rows: Rows, least: int = 8) -> Rows:
    """Our rows on so many hosts or more, not auto's, with ``off``: measured over simulated, less one."""
    ours = rows[rows.backend.isin(OURS) & ~rows.auto & (rows.ranks >= least)]
    return ours.assign(off=ours.median_us / ours.simulated_us - 1)
