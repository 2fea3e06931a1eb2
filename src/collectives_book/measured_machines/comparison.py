"""The measured rows beside the predicted ones: errors, winners, and which algorithm a label of NCCL really ran."""

from __future__ import annotations

from collections.abc import Callable
from math import isclose, log, nan
from typing import Any, NamedTuple

import pandas as pd

from collectives_book import nccl_formulas as nccl
from collectives_book.figures import statements
from collectives_book.figures.statements import Rows
from collectives_book.measured_machines.predictions import PREDICTED
from collectives_book.measured_machines.samples import TABLE

# What names a cell, apart from its machine.
NAMES = ["collective", "library", "algorithm", "ranks", "bytes"]
# All-reduces of this library by what the tool calls them, and whose they are on each machine.
OURS = {
    "ring": "ring",
    "tree": "hierarchical_tree",
    "recursive_doubling": "recursive_doubling",
    "rabenseifner": "halving_doubling",
}
LIBRARY = {"marenostrum5": "nccl", "leonardo": "ompi", "lumi": "over"}


def measured(machine: str) -> Rows:
    """The measured rows of a machine, as `samples.Cell` has them."""
    rows = pd.read_csv(TABLE / "samples.csv")
    return rows[rows.machine == machine].reset_index(drop=True)


def compared(machine: str) -> Rows:
    """Measured rows that are predicted, with ``us`` predicted, ``error`` (a share of the measured) and ``held_out``."""
    rows = pd.read_csv(TABLE / f"{machine}-predicted.csv").merge(
        measured(machine), on=["machine", *NAMES]
    )
    return rows.assign(
        error=rows.us / rows.median_us - 1, held_out=rows.ranks.isin(PREDICTED[machine].held_out)
    )


def ours(machine: str) -> Rows:
    """The measured all-reduces of a machine that are algorithms of this library, with our names of them."""
    rows = measured(machine)
    known = (
        (rows.collective == "all_reduce")
        & (rows.library == LIBRARY[machine])
        & rows.algorithm.isin(OURS)
    )
    return rows[known].assign(algorithm=rows.algorithm.map(OURS))


def winners(rows: Rows) -> Rows:
    """Return ``ranks``, ``bytes`` and ``algorithm`` of the lowest median in each cell.

    "" if others tie with it.
    """
    leading = {at: statements.leaders(cell) for at, cell in rows.groupby(["ranks", "bytes"])}
    fields = [(*at, found[0].algorithm if len(found) == 1 else "") for at, found in leading.items()]
    return pd.DataFrame(fields, columns=["ranks", "bytes", "algorithm"])


class Score(NamedTuple):
    """The quality of predictions: cells, errors without their sign, and winners where measured intervals are apart."""

    cells: int
    median_error: float
    worst_error: float
    decided: int
    right: int
    wrong: tuple[tuple[int, int], ...]  # ranks and bytes of every wrong winner


def score(rows: Rows) -> Score:
    """Judge rows of `compared`: the errors, and of each decided cell whether the fastest is the one predicted.

    A cell is a collective on a number of ranks with a size; it is decided where the fastest row's
    interval ends before every other's begins.
    """
    decided, wrong = 0, []
    for (_, ranks, nbytes), cell in rows.groupby(["collective", "ranks", "bytes"]):
        first, *others = cell.sort_values("median_us").itertuples()
        if not others or first.high_us >= min(other.low_us for other in others):
            continue
        decided += 1
        if cell.us.idxmin() != first.Index:
            wrong.append((int(ranks), int(nbytes)))
    errors = rows.error.abs()
    return Score(
        len(rows), errors.median(), errors.max(), decided, decided - len(wrong), tuple(wrong)
    )


# NCCL takes a port's rate from a list, 24 GB/s for 200 Gbit/s and 48 GB/s for 400 Gbit/s. A node
# has four ports.
BUS = 4 * 24e9


def by_nccl(rows: Rows, chained: float = nccl.CHAINED) -> Rows:
    """Return MareNostrum 5's held-out rows with the times of NCCL's formula."""
    return _says(
        rows, lambda row: nccl.best(row.algorithm, row.bytes, row.ranks, 4, BUS, chained)[0] * 1e6
    )


def by_line(rows: Rows) -> Rows:
    """Return held-out rows with times on a line through the fit's two, in ranks for a ring, in their log for trees."""
    fit = rows[~rows.held_out].set_index(["algorithm", "bytes", "ranks"]).median_us.sort_index()

    def us(row: Any) -> float:
        (low, first), (high, last) = fit[row.algorithm, row.bytes].items()
        at: Callable[[float], float] = log if row.algorithm == "tree" else float
        return float(first + (last - first) * (at(row.ranks) - at(low)) / (at(high) - at(low)))

    return _says(rows, us)


def always(rows: Rows, algorithm: str) -> Rows:
    """Return the held-out rows of one that names the same winner in each cell, and no times."""
    return _says(rows, lambda row: float(row.algorithm != algorithm)).assign(error=nan)


def unchanged(name: str) -> Rows:
    """Return a machine's held-out rows with the times of the most ranks in its fit, of the nearest size there."""
    known = measured(name)
    known = known[known.ranks == max(PREDICTED[name].fitted)].set_index(
        ["collective", "library", "algorithm", "bytes"]
    )

    def us(row: Any) -> float:
        times = known.median_us[row.collective, row.library, row.algorithm]
        return float(times[min(times.index, key=lambda nbytes: abs(log(nbytes / row.bytes)))])

    return _says(compared(name), us)


def _says(rows: Rows, us: Callable[[Any], float]) -> Rows:
    said = rows[rows.held_out].assign(us=[us(row) for row in rows[rows.held_out].itertuples()])
    return said.assign(error=said.us / said.median_us - 1)


class Behaviour(NamedTuple):
    """The algorithm of two that a label's times are near, counted in cells where the two are far apart."""

    label: str
    ring: int
    tree: int
    neither: int
    # Near the one that is expected: the ring for nvlstree, what most other labels are near for
    # IGNORED.
    expected: int
    # By ranks: the largest size near the tree, None if there is none.
    switches: dict[int, int | None]


NEAR = 0.03  # of the label's time from an algorithm's
# The labels that NCCL cannot take in these runs and answers with its own choice of ring or tree.
IGNORED = ("pat", "nvls", "collnet", "collnetchain", "collnetdirect")


def sides(rows: Rows, near: float = NEAR) -> Rows:
    """For each label "ring", "tree" or "neither", by ranks and bytes: the one whose median is so near to its own.

    Near is within a share ``near``. Only cells where ring and tree differ by more than four times
    ``near``.
    """
    wide = rows.pivot(index=["ranks", "bytes"], columns="algorithm", values="median_us")
    far = wide[(wide.ring / wide.tree).map(lambda ratio: abs(log(ratio)) > 4 * near)]

    def side(cell: Any, label: str) -> str:
        return next(
            (one for one in ("ring", "tree") if isclose(cell[label], cell[one], rel_tol=near)),
            "neither",
        )

    return pd.DataFrame(
        {label: far.apply(side, axis=1, label=label) for label in ("nvlstree", *IGNORED)}
    )


def behaviour(found: Rows, label: str) -> Behaviour:
    """Count what `sides` found for a label."""
    others = found[[each for each in IGNORED if each != label]]
    most = others.mode(axis=1)[0] if label in IGNORED else "ring"
    expected = int(((found[label] != "neither") & (found[label] == most)).sum())
    ring, tree, neither = (
        int((found[label] == side).sum()) for side in ("ring", "tree", "neither")
    )
    trees = found.index[found[label] == "tree"]
    switches = {
        ranks: max((n for p, n in trees if p == ranks), default=None)
        for ranks in found.index.get_level_values("ranks").unique()
    }
    return Behaviour(label, ring, tree, neither, expected, switches)


def by_default(rows: Rows) -> list[dict[str, Any]]:
    """Return the cells in which NCCL's own choice is slower than the better of ring and tree, the largest loss first.

    Its own choice is the fastest of the labels in `IGNORED`, five measurements of one thing, so
    that a disturbed one does not count. Only cells where its interval begins after that of the
    better one ends.
    """
    found = []
    for (ranks, nbytes), cell in rows.groupby(["ranks", "bytes"]):
        own, best = (_least(cell, labels) for labels in (IGNORED, ("ring", "tree")))
        if own.low_us > best.high_us:
            loss = float(own.median_us / best.median_us - 1)
            found.append(
                {"ranks": int(ranks), "bytes": int(nbytes), "better": best.algorithm, "loss": loss}
            )
    return sorted(found, key=lambda cell: -cell["loss"])


def _least(cell: Rows, labels: tuple[str, ...]) -> Any:
    rows = cell[cell.algorithm.isin(labels)]
    return rows.loc[rows.median_us.idxmin()]
