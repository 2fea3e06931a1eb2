"""The measured rows beside the predicted ones: errors, winners, and which algorithm a label of NCCL really ran."""

from __future__ import annotations

from collections.abc import Callable
from math import isclose, isnan, log, nan
from typing import Any, NamedTuple

import pandas as pd

from collectives.core.bounds import busbw
from collectives.units import duration, format_bytes
from collectives_book import nccl_formulas as nccl
from collectives_book.figures import statements
from collectives_book.figures.statements import Rows
from collectives_book.measured_machines.predictions import PREDICTED
from collectives_book.measured_machines.public import public_rows
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
    predicted = pd.read_csv(TABLE / f"{machine}-predicted.csv")
    rows = predicted.merge(measured(machine), on=["machine", *NAMES])
    error = rows.us / rows.median_us - 1
    return rows.assign(error=error, held_out=rows.ranks.isin(PREDICTED[machine].held_out))


def ours(machine: str) -> Rows:
    """The measured all-reduces of a machine that are algorithms of this library, with our names of them."""
    rows = measured(machine)
    rows = rows[rows.collective == "all_reduce"]
    rows = rows[rows.library == LIBRARY[machine]]
    rows = rows[rows.algorithm.isin(OURS)]
    return rows.assign(algorithm=rows.algorithm.map(OURS))


def ring_table() -> Rows:
    """Return published all-reduces by NCCL's rings as text, by GPUs: a node of eight H200, and MareNostrum 5.

    Of MareNostrum 5 its largest buffer. ``busbw`` stands beside the rate of the links that a ring
    uses: NVLink in the node, and the four ports of a node of MareNostrum.
    """
    alone = public_rows()
    alone = alone[(alone.cluster == "H200 x1, NVLS off") & (alone.gpus_per_node == 8)]
    alone = alone.assign(ranks=8, on="one node of H200, NVLink", rate=450)
    many = ours("marenostrum5")
    many = many[(many.algorithm == "ring") & (many.bytes == many.bytes.max())]
    many = many[many.ranks.isin([64, 256])]
    many = many.assign(us=many.median_us, on="MareNostrum 5, four H100 a node", rate=100)
    lines: dict[int, dict[str, str]] = {}
    for row in [*alone.to_dict("records"), *many.to_dict("records")]:
        ranks, nbytes, seconds = row["ranks"], row["bytes"], row["us"] / 1e6
        reached = busbw("all_reduce", ranks, nbytes, seconds)
        lines[ranks] = {
            "on": row["on"],
            "buffer": format_bytes(nbytes),
            "time": duration(seconds),
            "busbw": f"{reached:.0f} of {row['rate']} GB/s",
        }
    return pd.DataFrame(lines).T.rename_axis("GPUs")


def winners(rows: Rows) -> Rows:
    """Return ``ranks``, ``bytes`` and ``algorithm`` of the lowest median in each cell.

    "" if others tie with it. ``ahead`` is how much longer the next takes, as a share of the
    winner's time, NaN where nothing else was measured.
    """
    fields = []
    for (ranks, nbytes), cell in rows.groupby(["ranks", "bytes"]):
        first, *tied = statements.leaders(cell)
        winner = "" if tied else first.algorithm
        slower = cell.median_us.drop(cell.median_us.idxmin())
        fields.append((ranks, nbytes, winner, slower.min() / cell.median_us.min() - 1))
    return pd.DataFrame(fields, columns=["ranks", "bytes", "algorithm", "ahead"])


def error_table(rows: Rows) -> Rows:
    """Return the errors of rows of `compared` as percent, by size, and by algorithm and ranks."""
    wide = rows.pivot(index="bytes", columns=["algorithm", "ranks"], values="error")
    wide = wide.sort_index(axis="columns").rename(index=format_bytes)
    wide = wide.rename(columns="{:,}".format, level="ranks")
    return wide.map(percent).rename_axis(index=None, columns=[None, None])


def percent(error: float, none: str = "") -> str:
    """Return an error as percent with its sign, ``none`` for NaN.

    >>> percent(0.254), percent(-0.31), percent(-0.001), percent(nan), percent(nan, "–")
    ('+25%', '−31%', '0%', '', '–')
    """
    if isnan(error):
        return none
    text = f"{error:+.0%}".replace("-", "−")
    return text[1:] if text[1:] == "0%" else text


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
        cells=len(rows),
        median_error=errors.median(),
        worst_error=errors.max(),
        decided=decided,
        right=decided - len(wrong),
        wrong=tuple(wrong),
    )


# NCCL takes a port's rate from a list, 24 GB/s for 200 Gbit/s and 48 GB/s for 400 Gbit/s. A node
# has four ports.
BUS = 4 * 24e9


def by_nccl(rows: Rows, chained: float = nccl.CHAINED) -> Rows:
    """Return MareNostrum 5's held-out rows with the times of NCCL's formula."""

    def us(row: Any) -> float:
        seconds, _ = nccl.best(row.algorithm, row.bytes, row.ranks, 4, BUS, chained)
        return seconds * 1e6

    return _says(rows, us)


def by_line(rows: Rows) -> Rows:
    """Return held-out rows with times on a line through the fit's two, in ranks for a ring, in their log for trees."""
    fit = rows[~rows.held_out].set_index(["algorithm", "bytes", "ranks"]).median_us.sort_index()

    def us(row: Any) -> float:
        (fewest, first), (most, last) = fit[row.algorithm, row.bytes].items()
        scale: Callable[[float], float] = log if row.algorithm == "tree" else float
        low = scale(fewest)
        here = scale(row.ranks)
        high = scale(most)
        return float(first + (last - first) * (here - low) / (high - low))

    return _says(rows, us)


def always(rows: Rows, algorithm: str) -> Rows:
    """Return the held-out rows of one that names the same winner in each cell, and no times."""
    return _says(rows, lambda row: float(row.algorithm != algorithm)).assign(error=nan)


def unchanged(name: str) -> Rows:
    """Return a machine's held-out rows with the times of the most ranks in its fit, of the nearest size there."""
    known = measured(name)
    known = known[known.ranks == max(PREDICTED[name].fitted)]
    known = known.set_index(["collective", "library", "algorithm", "bytes"])

    def us(row: Any) -> float:
        times = known.median_us[row.collective, row.library, row.algorithm]
        nearest = min(times.index, key=lambda nbytes: abs(log(nbytes / row.bytes)))
        return float(times[nearest])

    return _says(compared(name), us)


def _says(rows: Rows, us: Callable[[Any], float]) -> Rows:
    held_out = rows[rows.held_out]
    times = [us(row) for row in held_out.itertuples()]
    said = held_out.assign(us=times)
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
    ratios = wide.ring / wide.tree
    far = wide[ratios.map(lambda ratio: abs(log(ratio)) > 4 * near)]

    def side(cell: Any, label: str) -> str:
        for algorithm in ("ring", "tree"):
            if isclose(cell[label], cell[algorithm], rel_tol=near):
                return algorithm
        return "neither"

    labels = ["nvlstree", *IGNORED]
    columns = {label: far.apply(side, axis=1, label=label) for label in labels}
    return pd.DataFrame(columns)


def behaviour(found: Rows, label: str) -> Behaviour:
    """Count what `sides` found for a label."""
    own = found[label]
    others = found[[other for other in IGNORED if other != label]]
    most = others.mode(axis=1)[0] if label in IGNORED else "ring"
    is_expected = (own != "neither") & (own == most)
    trees = found.index[own == "tree"]
    switches = {}
    for ranks in found.index.get_level_values("ranks").unique():
        sizes = [nbytes for p, nbytes in trees if p == ranks]
        switches[ranks] = max(sizes, default=None)
    return Behaviour(
        label,
        ring=int((own == "ring").sum()),
        tree=int((own == "tree").sum()),
        neither=int((own == "neither").sum()),
        expected=int(is_expected.sum()),
        switches=switches,
    )


def label_table(found: Rows) -> Rows:
    """Return what `behaviour` counts for each label, and by ranks the largest size that goes with the tree."""
    lines = {}
    for label in ("nvlstree", *IGNORED):
        one = behaviour(found, label)
        line: dict[str, Any] = {
            "like ring": one.ring,
            "like tree": one.tree,
            "neither": one.neither,
        }
        for ranks, size in one.switches.items():
            line[f"tree, {ranks}"] = "never" if size is None else format_bytes(size)
        lines[label] = line
    return pd.DataFrame(lines).T


def by_default(rows: Rows) -> list[dict[str, Any]]:
    """Return the cells in which NCCL's own choice is slower than the better of ring and tree, the largest loss first.

    Its own choice is the fastest of the labels in `IGNORED`, five measurements of one thing, so
    that a disturbed one does not count. Only cells where its interval begins after that of the
    better one ends.
    """
    cells = []
    for (ranks, nbytes), cell in rows.groupby(["ranks", "bytes"]):
        own = _least(cell, IGNORED)
        best = _least(cell, ("ring", "tree"))
        if own.low_us <= best.high_us:
            continue
        cells.append(
            {
                "ranks": int(ranks),
                "bytes": int(nbytes),
                "better": best.algorithm,
                "loss": float(own.median_us / best.median_us - 1),
            }
        )
    return sorted(cells, key=lambda cell: -cell["loss"])


def _least(cell: Rows, labels: tuple[str, ...]) -> Any:
    rows = cell[cell.algorithm.isin(labels)]
    return rows.loc[rows.median_us.idxmin()]
