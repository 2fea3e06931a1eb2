"""Published all-reduces beside what the simulator, NCCL's formula and a line through two rows predict.

``python -m collectives_book.measured_machines.clusters`` prints the table of predictions again.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pandas as pd

from collectives.bench.fitting import Measured, predicted
from collectives.machine import Machine, machine
from collectives_book import nccl_formulas
from collectives_book.figures.statements import Rows
from collectives_book.measured_machines.presets import RECIPES
from collectives_book.measured_machines.public import FOUR_PORTS, public_rows
from collectives_book.measured_machines.samples import TABLE


def on_cluster(row: Any) -> tuple[Machine, Measured]:
    """Return the preset of a published row with what its cluster has otherwise, and the row as a fit takes it."""
    of = machine(row.machine)
    if row.differs == FOUR_PORTS:
        of = of.model_copy(update={"ports_per_node": 4})
    seconds = row.us / 1e6
    return of, Measured(row.nodes, row.gpus_per_node, row.bytes, seconds, row.algorithm)


def predict(rows: Rows) -> Rows:
    """Return the rows with the microseconds that the simulator, NCCL's formula and a line through two rows predict.

    ``us_line`` is NaN for the two rows that the line goes through, and for clusters of fewer rows.
    Cost: a minute of processor time for a hundred rows.
    """
    predictions = [predicted(*on_cluster(row)) for row in rows.itertuples()]
    by_formula = [_formula(*on_cluster(row)) for row in rows.itertuples()]
    lines = pd.concat([_line(cluster) for _, cluster in rows.groupby("cluster")])
    return rows.assign(
        simulated=[round(seconds * 1e6, 2) for seconds, _ in predictions],
        by=[name for _, name in predictions],
        formula=[round(seconds * 1e6, 2) for seconds in by_formula],
        line=lines.reindex(rows.index).round(2),
    )


def _line(cluster: Rows) -> Any:
    """Return the times on the line through the smallest and the largest buffer."""
    if cluster.bytes.nunique() < 3:
        return pd.Series(np.nan, cluster.index)
    first, last = cluster.loc[cluster.bytes.idxmin()], cluster.loc[cluster.bytes.idxmax()]
    slope = (last.us - first.us) / (last.bytes - first.bytes)
    times = first.us + slope * (cluster.bytes - first.bytes)
    return times.where(~cluster.bytes.isin([first.bytes, last.bytes]))


def _formula(on: Machine, row: Measured) -> float:
    """Return the least seconds by NCCL's formula, for rings, trees and switches, at the rates of the preset's sheet.

    Two nodes exchange halves of the buffer by trees, so that these send half of what a ring sends.
    """
    sheet, g, nodes = RECIPES[on.name].sheet, row.ranks_per_node, row.nodes
    ports = max(1, on.ports * g // on.ranks_per_node)
    between = np.inf if nodes == 1 else ports * sheet.network
    rates = {"ring": min(sheet.inside, between)}
    if nodes > 1 and row.algorithm != "ring":
        rates["tree"] = min(sheet.inside, between * (2 if nodes == 2 else 1))
    times = [
        nccl_formulas.best(algorithm, row.bytes, row.ranks, g, rate, chained=1)[0]
        for algorithm, rate in rates.items()
    ]
    if sheet.switch and g > 1 and row.algorithm != "ring":
        levels = (nodes - 1).bit_length()
        inside = sheet.switch * sheet.inside * g / (g + 1)
        rate = min(inside, between / (1 if nodes == 2 else 2))
        times.append((25 + 2 * 20.9 * levels) / 1e6 + row.bytes / rate)
    return min(times)


# The classes of sizes that errors are given for, by their largest size.
CLASSES = (
    ("below 64 KiB", (1 << 16) - 1),
    ("64 KiB to 8 MiB", (1 << 24) - 1),
    ("from 16 MiB on", 1 << 62),
)


def size_class(nbytes: int) -> str:
    """Return the class of a size.

    >>> [size_class(nbytes) for nbytes in (8, 1 << 16, 1 << 24)]
    ['below 64 KiB', '64 KiB to 8 MiB', 'from 16 MiB on']
    """
    return next(name for name, largest in CLASSES if nbytes <= largest)


def median_errors(rows: Rows) -> Rows:
    """Return the median error without its sign, by class of size, of each prediction, and the rows it has."""
    errors = {name: (rows[name] / rows.us - 1).abs() for name in ("simulated", "formula", "line")}
    by_class = pd.DataFrame(errors).groupby(rows.bytes.map(size_class))
    found = by_class.median().assign(rows=by_class.size())
    return found.reindex([name for name, _ in CLASSES]).dropna(how="all")


def by_cluster(rows: Rows) -> Rows:
    """Return each cluster's use, GPUs, and the median error of the simulated times, with its sign, by class of size."""
    error = rows.simulated / rows.us - 1
    wide = error.groupby([rows.cluster, rows.bytes.map(size_class)]).median().unstack()
    facts = rows.groupby("cluster").agg(
        machine=("machine", "first"),
        nodes=("nodes", "max"),
        gpus=("gpus_per_node", "max"),
        use=("use", "first"),
    )
    gpus = facts.nodes.astype(str) + " x " + facts.gpus.astype(str)
    classes = [name for name, _ in CLASSES]
    return facts.assign(GPUs=gpus)[["machine", "GPUs", "use"]].join(wide[classes])


def compared() -> Rows:
    """Return the committed predictions of all published rows.

    ``blind`` are the microseconds by the first fit, which was committed before its held-out rows
    were looked at, NaN for presets that it did not have.
    """
    path = TABLE / "public-nccl-tests-predicted.csv"
    return pd.read_csv(path, keep_default_na=False, na_values={"line": "", "blind": ""})


if __name__ == "__main__":
    made = predict(public_rows()).drop(columns="source").assign(blind=compared().blind)
    made.to_csv(sys.stdout, index=False, lineterminator="\n")
