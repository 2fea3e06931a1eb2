"""Rows of the experiment ``data-parallel`` as figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from collectives.algorithms import BLUE, NEUTRAL, VERMILION, Mark
from collectives.figures.style import Picture, Theme
from collectives_book.figures import kit, measured
from collectives_book.figures.charts import Curves, Dots
from collectives_book.figures.statements import Rows

ALONE = "one process"
RULES = {"same": "the same rate", "linear": "a rate that grows with the batch"}
STEPS = kit.Axis("step"), kit.Axis("loss of the batch")


def one_process(rows: Rows) -> Any:
    """Return the row of the training in one process."""
    return next(measured.part(rows, "training")[lambda found: found.backend == ALONE].itertuples())


def replicated(rows: Rows) -> Rows:
    """Return the rows of the same training on several replicas."""
    found = measured.part(rows, "training")
    return found[found.backend != ALONE]


def name_of(row: Any) -> str:
    """Return the name of a row's series; with a back end that fuses tensors it says whether it did."""
    if row.backend == ALONE:
        return ALONE
    name = measured.label(row.backend, row.algorithm)
    fusion = getattr(row, "fusion", None)
    if pd.isna(fusion):
        return name
    return f"{name}, tensor fusion" if fusion else f"{name}, no fusion"


def differences(rows: Rows) -> dict[str, float]:
    """Return, of each series, the largest relative difference of a loss from that of one process."""
    alone = np.array(one_process(rows).losses)
    off = {
        name_of(row): np.abs(np.array(row.losses) - alone) / alone
        for row in replicated(rows).itertuples()
    }
    return {name: float(each.max()) for name, each in off.items()}


def pair(rows: Rows) -> tuple[Any, Any]:
    """Return the row of the training that was killed, and that of the same training without."""
    row = next(measured.part(rows, "resumed").itertuples())
    series = replicated(rows)
    return row, next(
        series[(series.backend == row.backend) & (series.algorithm == row.algorithm)].itertuples()
    )


def changed(rows: Rows) -> int:
    """Return the number of losses of the resumed training that differ from the undisturbed one, to the bit."""
    row, whole = pair(rows)
    return int(np.sum(np.array(row.losses) != np.array(whole.losses)))


def losses(rows: Rows) -> Picture:
    """Return the loss of every step: one process as dashes, on them in turn markers of each back end."""
    alone = one_process(rows)
    series = [*replicated(rows).drop_duplicates("backend").itertuples()]
    looks = {
        f"{row.ranks} replicas, {name_of(row)}": measured.look(row.backend, row.algorithm)
        for row in series
    }
    steps = np.arange(len(alone.losses))
    parts = []
    for nth, (name, row) in enumerate(zip(looks, series, strict=True)):
        columns = {
            "step": steps + 1,
            "loss": row.losses,
            ALONE: alone.losses,
            "series": name,
        }
        parts.append(pd.DataFrame(columns)[nth :: len(series)])
    table = pd.concat(parts, ignore_index=True)
    chart = Curves(table, "step", "loss", "series", STEPS, looks.__getitem__)
    chart.points(joined=False).bound(ALONE, ALONE)
    return chart.picture(f"Loss of a batch of {alone.batch} by step")


def times(rows: Rows) -> Picture:
    """Return the time of a step of each series, beside one process and the model.

    The model is the time of computing as it was measured, and of the all-reduce as it is simulated.
    """
    found = measured.part(rows, "training")
    predicted = found.median_us - found.get("reduce_us", np.nan) + found.get("simulated_us", np.nan)
    found = found.assign(
        predicted=predicted.astype(float),
        name=[name_of(row) for row in found.itertuples()],
    )
    looks = {ALONE: NEUTRAL}
    for row in found[found.name != ALONE].itertuples():
        looks[row.name] = measured.look(row.backend, row.algorithm)
    axis = kit.US._replace(name="time of a step")
    chart = Dots(found, "median_us", "name", axis, looks=looks.__getitem__)
    chart.points(("low_us", "high_us"))
    if found.predicted.notna().any():
        chart.predicted("predicted")
    return chart.picture("Median time of a training step")


def resumed(rows: Rows) -> Picture:
    """Return the losses around a killed rank: of the training that resumed, and as dashes of an undisturbed one."""
    row, whole = pair(rows)
    kept = int(row.resumed_after)
    died = int(row.killed_at)
    undisturbed = whole.losses[: len(row.before)]
    columns = {
        "series": "until it was killed",
        "loss": row.before,
        "undisturbed": undisturbed,
    }
    until = pd.DataFrame(columns)
    columns = {"series": "resumed", "loss": row.losses, "undisturbed": whole.losses}
    after = pd.DataFrame(columns)[kept:]
    looks = {
        "until it was killed": measured.look(row.backend, row.algorithm),
        "resumed": VERMILION,
    }

    def killed(panels: Sequence[Axes], theme: Theme) -> None:
        panels[0].axvline(died, color=theme.ink, lw=0.9, ls=":")

    table = pd.concat([until, after])
    table = table.assign(step=table.index + 1).reset_index(drop=True)
    about = f"Losses around a rank that is killed in step {died}; the training resumes after step {kept}"
    chart = Curves(table, "step", "loss", "series", STEPS, looks.__getitem__)
    return chart.points().bound("undisturbed", "undisturbed").picture(about, then=killed)


def by_rule(rows: Rows) -> Rows:
    """Return the median accuracy over the seeds, with the least and the most, for each rule and batch."""
    grouped = measured.part(rows, "rates").groupby(["rule", "batch"], sort=False).accuracy
    return (
        grouped.agg(accuracy="median", low="min", high="max")
        .reset_index()
        .sort_values("batch", kind="stable")
    )


def rates(rows: Rows) -> Picture:
    """Return the accuracy after the same number of epochs against the size of the batch, by both rules."""
    table = by_rule(rows)
    table = table.assign(rule=table.rule.map(RULES))
    looks: dict[str, Mark] = dict(zip(RULES.values(), (BLUE, VERMILION), strict=True))
    batch = kit.Axis("samples of a batch", "{:g}".format, 2)
    share = kit.Axis("digits read right", "{:.0%}".format)
    chart = Curves(table, "batch", "accuracy", "rule", (batch, share), looks.__getitem__)
    return chart.points(("low", "high")).picture(
        "Share of unseen digits that are read right, against the samples of a batch"
    )
