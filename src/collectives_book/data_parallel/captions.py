"""Rows of the experiment ``data-parallel`` in parts, and as sentences whose numbers come from the rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from collectives.units import duration
from collectives_book.figures import measured, statements
from collectives_book.figures.statements import Rows

# Half the distance of neighbouring numbers of float32, relative to the number: the rounding error of one operation.
ROUNDING = float(np.finfo(np.float32).eps) / 2

ALONE = "one process"

RULES = {"same": "the same rate", "linear": "a rate that grows with the batch"}

# A batch is still as good as the smallest where its median accuracy is at most this much lower.
LOST = 0.03


def one_process(rows: Rows) -> Any:
    """The row of the training in one process."""
    return next(measured.part(rows, "training")[lambda found: found.backend == ALONE].itertuples())


def replicated(rows: Rows) -> Rows:
    """The rows of the same training on several replicas."""
    found = measured.part(rows, "training")
    return found[found.backend != ALONE]


def name_of(row: Any) -> str:
    """The name of a row's series: Horovod's says whether it fuses tensors."""
    if row.backend == ALONE:
        return ALONE
    if row.backend == "horovod":
        return "horovod, tensor fusion" if row.fusion else "horovod, no fusion"
    return measured.label(row.backend, row.algorithm)


def differences(rows: Rows) -> dict[str, float]:
    """Of each series, the largest relative difference of a loss from that of one process."""
    alone = np.array(one_process(rows).losses)
    return {
        name_of(row): float(np.max(np.abs(np.array(row.losses) - alone) / alone))
        for row in replicated(rows).itertuples()
    }


def replicas_of(row: Any) -> str:
    """How many replicas a row is of, and what joins them."""
    return f"{row.ranks} replicas, {name_of(row)}"


def equality(rows: Rows) -> str:
    """A sentence: how far the replicas' losses are from those of one process, in units of float32's rounding."""
    found = differences(rows)
    series = replicated(rows)
    worst = max(found, key=lambda name: found[name])
    return (
        f"Over {series.steps.iloc[0]} steps with {series.batch.iloc[0]} samples on {series.ranks.iloc[0]} replicas, no "
        f"loss differs from that of one process by more than {found[worst]:.1e} of its value ({worst}). One float32 "
        f"operation rounds by up to {ROUNDING:.1e}."
    )


def fastest(rows: Rows) -> str:
    """A sentence: which series has the shortest step."""
    series = replicated(rows)
    said = statements.fastest(series, name_of, statements.us)
    return f"Of the replicas, {said}."


def share(rows: Rows) -> str:
    """A sentence: how much of a step the all-reduce takes, of those back ends where it is a call of its own."""
    series = replicated(rows)
    if "reduce_us" not in series or series.reduce_us.isna().all():
        return ""
    shares = (series.reduce_us / series.median_us).dropna()
    size = series.bytes.iloc[0] / 1e3
    return f"Summing the {size:.1f} kB of gradients takes {statements.span(shares, '{:.0%}'.format)} of a step."


def worth(rows: Rows) -> str:
    """A sentence: how many of the series take a step in less time than one process."""
    series = replicated(rows)
    faster = int((series.median_us < one_process(rows).median_us).sum())
    count = f"{faster or 'none'} of the {len(series)} series {'take' if faster > 1 else 'takes'}"
    return f"With this small model, {count} a shorter step than one process."


def fusion(rows: Rows) -> str:
    """A sentence: what tensor fusion changes for Horovod; empty where it was not measured with and without."""
    series = replicated(rows)
    found = {bool(row.fusion): row for row in series[series.backend == "horovod"].itertuples()}
    if len(found) < 2:
        return ""
    return (
        f"A step of Horovod takes {statements.us(found[True].median_us)} with tensor fusion and "
        f"{statements.us(found[False].median_us)} without it: {statements.times_as_long(found[False], found[True])}."
    )


def pair(rows: Rows) -> tuple[Any, Any]:
    """The row of the training that was killed, and that of the same training without."""
    row = next(measured.part(rows, "resumed").itertuples())
    series = replicated(rows)
    return row, next(series[(series.backend == row.backend) & (series.algorithm == row.algorithm)].itertuples())


def same_again(rows: Rows) -> str:
    """A sentence: whether the resumed losses are those of the undisturbed training."""
    row, whole = pair(rows)
    differ = int(np.sum(np.array(row.losses) != np.array(whole.losses)))
    if not differ:
        return "Every loss equals the undisturbed one, bit for bit."
    return f"Losses that differ from the undisturbed ones: {differ} of {len(row.losses)}."


def said(rows: Rows) -> str:
    """A sentence: what the launcher said of the killed rank, and when."""
    row, _ = pair(rows)
    return (
        f"{duration(row.seconds)} after the rank was killed, the launcher had ended all others and said: `{row.said}`."
    )


def by_rule(rows: Rows) -> Rows:
    """The median accuracy over the seeds, with the least and the most, for each rule and batch."""
    grouped = measured.part(rows, "rates").groupby(["rule", "batch"], sort=False).accuracy
    return grouped.agg(accuracy="median", low="min", high="max").reset_index().sort_values("batch", kind="stable")


def largest_good(rows: Rows, rule: str) -> int:
    """The largest batch up to which no batch loses more than `LOST` of accuracy against the smallest."""
    series = by_rule(rows)[lambda found: found.rule == rule]
    good = series.accuracy >= series.accuracy.iloc[0] - LOST
    return int(series.batch[good.cummin()].iloc[-1])


def rule_of_rates(rows: Rows) -> str:
    """A sentence for each rule: up to which batch it keeps the accuracy, and what the largest batch ends with."""
    table = by_rule(rows)
    parts = []
    for rule, series in table.groupby("rule", sort=False):
        end = series.iloc[-1]
        parts.append(
            f"With {RULES[str(rule)]}, accuracy stays within {LOST * 100:.0f} points of that of the smallest batch "
            f"up to {largest_good(rows, str(rule)):,} samples; "
            f"at {end.batch:,} samples {end.accuracy:.0%} are read right."
        )
    return " ".join(parts)


def conditions(record: dict[str, Any]) -> str:
    """A sentence about where the rows come from, out of their record."""
    settings, first = record["settings"][0], record["environment"][0]
    return (
        f"{settings['ranks']} ranks ({measured.WHERE[settings['where'].partition(':')[0]]}; {first['processor']}, "
        f"{first['usable_cores']} cores, {first['system']}), torch {first['torch']}."
    )


def agreement(rows: Rows) -> str:
    """A sentence: how far measured all-reduces are from simulated ones; empty where the links are not known."""
    series = replicated(rows)
    if "simulated_us" not in series or series.simulated_us.isna().all():
        return ""
    off = (series.reduce_us / series.simulated_us).dropna() - 1
    return f"Measured all-reduces differ from simulated ones by {statements.span(off, statements.signed)}."
