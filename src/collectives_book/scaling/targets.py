"""What the experiment ``scaling`` was to show, held against its rows: ratios of medians, one line for each size."""

from collections.abc import Iterator
from math import isfinite, nan
from typing import Any, NamedTuple

import pandas as pd

from collectives_book.figures.measured import OURS
from collectives_book.figures.statements import Rows, ratio, verdict

# How many times as fast as the better of gloo and Horovod "auto" was to be, from this size on.
FASTER = {4: 8.0, 1 << 20: 3.5, 4 << 20: 2.0, 16 << 20: 1.0}
# How many times the simulated time the best algorithm may take, from this size on; and in deeper slow motion.
NEAR = {4: 1.5, 4 << 20: 1.2}
NEAR_SLOWER = 1.2
NEAR_BEST_OF_MPI = 1.1


def goal(goals: dict[int, float], nbytes: int) -> float:
    """What holds for a size.

    >>> [goal(FASTER, nbytes) for nbytes in (64 << 10, 1 << 20, 16 << 20)]
    [8.0, 3.5, 1.0]
    """
    return goals[max(size for size in goals if size <= nbytes)]


class ComparedRows(NamedTuple):
    """The rows of one size on the most hosts that are held against each other; None where there is no such row.

    ``library`` is the better of gloo and Horovod, ``mpi`` Open MPI's own choice, ``best_of_mpi`` its quickest
    algorithm, ``ours`` our quickest algorithm, and ``slower`` that in deeper slow motion.
    """

    auto: Any
    library: Any
    mpi: Any
    best_of_mpi: Any
    ours: Any
    slower: Any


def compared(rows: Rows) -> list[ComparedRows]:
    """For each size, from the smallest to the largest."""
    most = rows[rows.ranks == rows.ranks.max()]
    first, *deeper = most["where"].unique()
    plain, slower = most[most["where"] == first], most[most["where"].isin(deeper)]
    return [_compared(plain[plain.bytes == n], slower[slower.bytes == n]) for n in sorted(plain.bytes.unique())]


def _compared(rows: Rows, slower: Rows) -> ComparedRows:
    ours, mpi = rows[rows.backend.isin(OURS)], rows[rows.backend == "mpi"]
    return ComparedRows(
        auto=_quickest(ours[ours.auto]),
        library=_quickest(rows[rows.backend.isin(["gloo", "horovod"])]),
        mpi=_quickest(mpi[mpi.algorithm == "default"]),
        best_of_mpi=_quickest(mpi),
        ours=_quickest(ours),
        slower=_quickest(slower[slower.backend.isin(OURS)]),
    )


def _quickest(rows: Rows) -> Any:
    return min(rows.itertuples(), key=lambda row: row.median_us, default=None)


def ratios(rows: Rows) -> Rows:
    """On the most hosts, for each size: what auto chose, its time in ms, and ratios of times.

    ``libraries``: the better of gloo and Horovod over auto. ``mpi``, ``best_of_mpi``: Open MPI's own choice, and its
    quickest algorithm, over auto. ``law``: our quickest algorithm over its simulated time; ``law_slower`` the same in
    deeper slow motion. ``bound``: auto over the lower bound. NaN where there are no such rows.
    """
    return pd.DataFrame([_ratios(each) for each in compared(rows)])


def _ratios(rows: ComparedRows) -> dict[str, Any]:
    return {
        "bytes": int(rows.auto.bytes),
        "chosen": rows.auto.algorithm,
        "ms": rows.auto.median_us / 1e3,
        "libraries": _over(rows.library, rows.auto)[1],
        "mpi": _over(rows.mpi, rows.auto)[1],
        "best_of_mpi": _over(rows.best_of_mpi, rows.auto)[1],
        "law": _over_law(rows.ours)[1],
        "law_slower": _over_law(rows.slower)[1],
        "bound": rows.auto.median_us / rows.auto.bound_us,
    }


def _over(one: Any, other: Any) -> tuple[float, float, float]:
    """Least, median and most of a ratio of times, as far as intervals allow; NaN where a row is missing."""
    return (nan, nan, nan) if one is None or other is None else ratio(one, other)


def _over_law(row: Any) -> tuple[float, float, float]:
    if row is None:
        return nan, nan, nan
    return row.low_us / row.simulated_us, row.median_us / row.simulated_us, row.high_us / row.simulated_us


def verdicts(rows: Rows) -> Rows:
    """Each goal of each size: what came out, ``low`` to ``high`` as far as intervals allow, and the ``verdict``.

    "undecided" where the goal is between ``low`` and ``high``. Goals without rows are left out.
    """
    lines = [line for each in compared(rows) for line in _verdicts(each)]
    return pd.DataFrame([line for line in lines if isfinite(line["came_out"])])


def _verdicts(rows: ComparedRows) -> Iterator[dict[str, Any]]:
    nbytes = int(rows.auto.bytes)
    faster, near = goal(FASTER, nbytes), goal(NEAR, nbytes)
    longer = f"{faster:g} times as long" if faster > 1 else "never quicker"
    goals = (
        (f"gloo and Horovod: {longer}", _over(rows.library, rows.auto), faster, True),
        ("Open MPI: never quicker", _over(rows.mpi, rows.auto), 1.0, True),
        (f"Open MPI's best: within {NEAR_BEST_OF_MPI}", _over(rows.auto, rows.best_of_mpi), NEAR_BEST_OF_MPI, False),
        (f"simulated time: within {near:g}", _over_law(rows.ours), near, False),
        (f"simulated time, four times slower: within {NEAR_SLOWER:g}", _over_law(rows.slower), NEAR_SLOWER, False),
    )
    for what, (low, came_out, high), limit, at_least in goals:
        said = verdict(low, high, limit, at_least=at_least)
        yield {"bytes": nbytes, "goal": what, "low": low, "came_out": came_out, "high": high, "verdict": said}


def deviations(rows: Rows, least: int = 8) -> Rows:
    """Our rows on ``least`` hosts or more, with ``off``: measured over simulated, less one."""
    ours = rows[rows.backend.isin(OURS) & (rows.ranks >= least)]
    return ours.assign(off=ours.median_us / ours.simulated_us - 1)
