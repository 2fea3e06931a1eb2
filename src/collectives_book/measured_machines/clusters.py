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
from collectives_book.measured_machines.comparison import percent
from collectives_book.measured_machines.presets import RECIPES, Sheet
from collectives_book.measured_machines.public import FOUR_PORTS, public_rows
from collectives_book.measured_machines.samples import TABLE

# A prediction and the column that has its times in microseconds.
PREDICTIONS = {
    "simulated": "simulated",
    "NCCL's formula": "formula",
    "line": "line",
}
NONE = "–"


def on_cluster(row: Any) -> tuple[Machine, Measured]:
    """Return the preset of a published row with what its cluster has otherwise, and the row as a fit takes it."""
    preset = machine(row.machine)
    if row.differs == FOUR_PORTS:
        preset = preset.model_copy(update={"ports_per_node": 4})
    measured = Measured(
        row.nodes,
        row.gpus_per_node,
        row.bytes,
        row.us / 1e6,
        row.algorithm,
    )
    return preset, measured


def predict(rows: Rows) -> Rows:
    """Return the rows with the microseconds that the simulator, NCCL's formula and a line through two rows predict.

    ``line`` is NaN for the two rows that the line goes through, and for clusters of fewer rows.
    Cost: a minute of processor time for a hundred rows.
    """
    simulated = []
    algorithms = []
    formula = []
    for row in rows.itertuples():
        preset, measured = on_cluster(row)
        seconds, algorithm = predicted(preset, measured)
        simulated.append(_us(seconds))
        algorithms.append(algorithm)
        formula.append(_us(_formula(preset, measured)))
    lines = [_line(cluster) for _, cluster in rows.groupby("cluster")]
    return rows.assign(
        simulated=simulated,
        by=algorithms,
        formula=formula,
        line=pd.concat(lines).reindex(rows.index).round(2),
    )


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 2)


def _line(cluster: Rows) -> Any:
    """Return the times on the line through the smallest and the largest buffer."""
    if cluster.bytes.nunique() < 3:
        return pd.Series(np.nan, cluster.index)
    first = cluster.loc[cluster.bytes.idxmin()]
    last = cluster.loc[cluster.bytes.idxmax()]
    slope = (last.us - first.us) / (last.bytes - first.bytes)
    times = first.us + slope * (cluster.bytes - first.bytes)
    is_on_line = cluster.bytes.isin([first.bytes, last.bytes])
    return times.where(~is_on_line)


def _formula(on: Machine, row: Measured) -> float:
    """Return the least seconds by NCCL's formula, for rings, trees and switches, at the rates of the preset's sheet.

    Two nodes exchange halves of the buffer by trees, so that these send half of what a ring sends.
    """
    sheet = RECIPES[on.name].sheet
    between = _rate_between(on, row, sheet)
    is_free = row.algorithm != "ring"
    rates = {"ring": min(sheet.inside, between)}
    if is_free and row.nodes > 1:
        exchanged = 2 if row.nodes == 2 else 1
        rates["tree"] = min(sheet.inside, between * exchanged)
    times = []
    for algorithm, rate in rates.items():
        seconds, _ = nccl_formulas.best(
            algorithm,
            row.bytes,
            row.ranks,
            row.ranks_per_node,
            rate,
            chained=1,
        )
        times.append(seconds)
    if is_free and sheet.switch and row.ranks_per_node > 1:
        times.append(_formula_of_switches(row, sheet, between))
    return min(times)


def _rate_between(on: Machine, row: Measured, sheet: Sheet) -> float:
    """Return the bytes a second of all network ports that the ranks of a node use, without a limit on one node."""
    if row.nodes == 1:
        return float(np.inf)
    ports = on.ports * row.ranks_per_node // on.ranks_per_node
    return max(1, ports) * sheet.network


def _formula_of_switches(row: Measured, sheet: Sheet, between: float) -> float:
    """Return the seconds by switches that add: 25 us, and 20.9 us for each level of nodes up and down."""
    levels = (row.nodes - 1).bit_length()
    latency = (25 + 2 * 20.9 * levels) / 1e6
    g = row.ranks_per_node
    inside = (sheet.switch or 0.0) * sheet.inside * g / (g + 1)
    passes = 1 if row.nodes == 2 else 2
    rate = min(inside, between / passes)
    return latency + row.bytes / rate


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
    errors = {name: (rows[name] / rows.us - 1).abs() for name in PREDICTIONS.values()}
    classes = rows.bytes.map(size_class)
    by_class = pd.DataFrame(errors).groupby(classes)
    found = by_class.median().assign(rows=by_class.size())
    in_order = [name for name, _ in CLASSES]
    return found.reindex(in_order).dropna(how="all")


def by_cluster(rows: Rows) -> Rows:
    """Return each cluster's use, GPUs, and its errors by class of size: of all predictions in one text.

    An error is the median one with its sign, in percent.
    """
    classes = rows.bytes.map(size_class)
    medians = []
    for column in PREDICTIONS.values():
        errors = (rows[column] / rows.us - 1).groupby([rows.cluster, classes]).median()
        medians.append(errors.map(lambda error: percent(error, NONE)))
    texts = pd.concat(medians, axis="columns").agg(" / ".join, axis="columns")
    in_order = [name for name, _ in CLASSES]
    wide = texts.unstack().reindex(columns=in_order).fillna("")
    facts = rows.groupby("cluster").agg(
        nodes=("nodes", "max"),
        gpus=("gpus_per_node", "max"),
        use=("use", "first"),
    )
    gpus = facts.nodes.astype(str) + " x " + facts.gpus.astype(str)
    return facts.assign(GPUs=gpus)[["GPUs", "use"]].join(wide)


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
