"""Rows of the experiment ``data-parallel`` as figures, and as sentences whose numbers come from the rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from collectives.algorithms import NEUTRAL, Mark
from collectives.figures import kit, measured, statements
from collectives.figures.statements import Rows
from collectives.figures.style import Picture, Theme, picture
from collectives.units import duration

# Half the distance of neighbouring numbers of float32, relative to the number: the rounding error of one operation.
ROUNDING = float(np.finfo(np.float32).eps) / 2

ALONE = "one process"

# Columns of whole numbers, which pandas reads as floats where another part has none.
WHOLE = ("ranks", "batch", "steps", "parameters", "bytes", "killed_at", "resumed_after", "seed")

RULES = {"same": "the same rate", "linear": "a rate that grows with the batch"}
LOOKS = {"same": Mark("#0072B2", "o"), "linear": Mark("#D55E00", "^")}


def part(rows: Rows, name: str) -> Rows:
    """The rows of one part, with the columns that it has."""
    found = rows[rows.part == name].dropna(axis=1, how="all")
    return found.astype({column: int for column in WHOLE if column in found and found[column].notna().all()})


def one_process(rows: Rows) -> Any:
    """The row of the training in one process."""
    return next(part(rows, "training")[lambda found: found.backend == ALONE].itertuples())


def replicated(rows: Rows) -> Rows:
    """The rows of the same training on several replicas."""
    found = part(rows, "training")
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


def losses(rows: Rows) -> Picture:
    """The loss of every step: in one process a line, on replicas markers upon it."""
    alone, series = one_process(rows), list(replicated(rows).itertuples())
    steps = np.arange(1, len(alone.losses) + 1)

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        axes.plot(steps, alone.losses, color=theme.ink, lw=1.2, label=ALONE)
        for nth, row in enumerate(series):
            at = slice(nth, None, 3 * len(series))
            look = measured.look(row.backend, row.algorithm)
            axes.plot(steps[at], np.array(row.losses)[at], look.marker, color=look.colour, label=_replicas(row), ms=5)
        axes.set_xlabel("step")
        axes.set_ylabel("loss of the batch")
        axes.set_ylim(bottom=0)
        kit.legend(figure)

    return picture(paint, _losses_alt(rows), kit.WIDTH, 3.8)


def _replicas(row: Any) -> str:
    return f"{row.ranks} replicas, {name_of(row)}"


def _losses_alt(rows: Rows) -> str:
    alone = one_process(rows)
    worst = max(differences(rows).values())
    names = statements.listed([_replicas(row) for row in replicated(rows).itertuples()])
    return (
        f"The loss of a batch of {alone.batch} falls from {alone.losses[0]:.2f} to {alone.losses[-1]:.2f} in "
        f"{len(alone.losses)} steps in one process. "
        f"{names} have the same losses, to a relative difference of {worst:.1g}."
    )


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


def times(rows: Rows) -> Picture:
    """The time of a step, a line of the figure for each series, beside one process and what the simulator says."""
    drawn = [row for row in part(rows, "training").itertuples() if len(getattr(row, "samples", ()))]

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        for nth, row in enumerate(drawn):
            _dot(axes, -nth, row)
        if points := [(_predicted(row), -nth) for nth, row in enumerate(drawn) if _predicted(row)]:
            axes.plot(*zip(*points, strict=True), "|", color=theme.ink, ms=16, mew=1.4, label="predicted")
            kit.legend(figure)
        axes.set_yticks([-nth for nth in range(len(drawn))], [name_of(row) for row in drawn])
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: duration(value * 1e-6)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_ylim(0.6 - len(drawn), 0.4)
        axes.set_xlabel("time of a step")

    return picture(paint, _times_alt(drawn), kit.WIDTH, 1.3 + 0.36 * len(drawn))


def _dot(axes: Axes, y: float, row: Any) -> None:
    look = NEUTRAL if row.backend == ALONE else measured.look(row.backend, row.algorithm)
    bars = [[max(0.0, row.median_us - row.low_us)], [max(0.0, row.high_us - row.median_us)]]
    axes.errorbar([row.median_us], [y], xerr=bars, color=look.colour, marker=look.marker, capsize=2, ls="")
    axes.annotate(
        duration(row.median_us * 1e-6),
        (row.median_us, y),
        xytext=(0, 6),
        textcoords="offset points",
        ha="center",
        fontsize=9,
    )


def _predicted(row: Any) -> float | None:
    """Microseconds of a step by the model: computing as it was measured, and the all-reduce as it is simulated."""
    simulated = getattr(row, "simulated_us", float("nan"))
    return None if pd.isna(simulated) else row.median_us - row.reduce_us + simulated


def _times_alt(drawn: list[Any]) -> str:
    said = [f"{name_of(row)} {duration(row.median_us * 1e-6)}" for row in drawn]
    predicted = [f"{name_of(row)} {duration(at * 1e-6)}" for row in drawn if (at := _predicted(row)) is not None]
    more = f" Predicted: {'; '.join(predicted)}." if predicted else ""
    return f"Median time of a training step: {'; '.join(said)}.{more}"


def fastest(rows: Rows) -> str:
    """A sentence: which series has the shortest step."""
    series = replicated(rows)
    said = statements.fastest(series, name_of, lambda microseconds: duration(microseconds * 1e-6))
    return f"Of the replicas, {said}."


def share(rows: Rows) -> str:
    """A sentence: how much of a step the all-reduce takes, of those back ends where it is a call of its own."""
    series = replicated(rows)
    if "reduce_us" not in series or series.reduce_us.isna().all():
        return ""
    shares = (series.reduce_us / series.median_us).dropna()
    size = series.bytes.iloc[0] / 1024
    return f"Summing the {size:.0f} KiB of gradients takes {statements.span(shares, '{:.0%}'.format)} of a step."


def fusion(rows: Rows) -> str:
    """A sentence: what tensor fusion changes for Horovod; empty where it was not measured with and without."""
    series = replicated(rows)
    found = {bool(row.fusion): row for row in series[series.backend == "horovod"].itertuples()}
    if len(found) < 2:
        return ""
    return (
        f"Without tensor fusion a step of Horovod takes {duration(found[False].median_us * 1e-6)}, with it "
        f"{duration(found[True].median_us * 1e-6)}: without it a step takes "
        f"{statements.times_as_long(found[False], found[True])}."
    )


def resumed(rows: Rows) -> Picture:
    """The losses around a killed rank: those of an undisturbed training, and those of the one that resumed."""
    row, whole = _resumed(rows)
    kept, died, end = int(row.resumed_after), int(row.killed_at), len(row.losses)
    steps = np.arange(1, end + 1)

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        axes.plot(steps, whole.losses, color=theme.ink, lw=1.2, label="undisturbed")
        look = measured.look(row.backend, row.algorithm)
        before = row.before
        axes.plot(steps[: len(before)], before, look.marker, color=look.colour, ms=5, label="until it was killed")
        after = np.array(row.losses[kept:])
        axes.plot(steps[kept:], after, look.marker, mfc="none", color=look.colour, ms=8, label="resumed")
        axes.axvline(died, color=theme.ink, lw=0.9, ls=(0, (5, 3)))
        axes.annotate(
            f"a rank is killed in step {died};\nthe last checkpoint is of step {kept}",
            (died, max(row.losses) * 0.92),
            xytext=(8, 0),
            textcoords="offset points",
            ha="left",
            fontsize=9,
        )
        axes.set_xlabel("step")
        axes.set_ylabel("loss of the batch")
        axes.set_ylim(bottom=0)
        kit.legend(figure)

    alt = (
        f"Losses of {end} steps. A rank is killed in step {died}, and the ranks that are started then go on after step "
        f"{kept}. {same_again(rows)}"
    )
    return picture(paint, alt, kit.WIDTH, 3.6)


def _resumed(rows: Rows) -> tuple[Any, Any]:
    """The row of the training that was killed, and that of the same training without."""
    row = next(part(rows, "resumed").itertuples())
    series = replicated(rows)
    return row, next(series[(series.backend == row.backend) & (series.algorithm == row.algorithm)].itertuples())


def same_again(rows: Rows) -> str:
    """A sentence: whether the resumed losses are those of the undisturbed training."""
    row, whole = _resumed(rows)
    differ = int(np.sum(np.array(row.losses) != np.array(whole.losses)))
    what = "every loss is the same, bit for bit" if not differ else f"{differ} of {len(row.losses)} losses differ"
    return f"Beside an undisturbed training, {what}."


def said(rows: Rows) -> str:
    """A sentence: what the launcher said of the killed rank, and when."""
    row, _ = _resumed(rows)
    return (
        f"{duration(row.seconds)} after the rank was killed the launcher had ended all others, and said: `{row.said}`."
    )


def rates(rows: Rows) -> Picture:
    """Accuracy after the same number of epochs against the size of the batch, by both rules."""
    table = by_rule(rows)

    def paint(figure: Figure, _: Theme) -> None:
        axes = figure.subplots()
        for rule, series in table.groupby("rule", sort=False):
            look = LOOKS[str(rule)]
            bars = [series.accuracy - series.low, series.high - series.accuracy]
            axes.errorbar(
                series.batch, series.accuracy, yerr=bars, color=look.colour, marker=look.marker, capsize=2, lw=1.2
            )
        for rule, y in (("linear", 0.1), ("same", 0.2)):
            axes.annotate(RULES[rule], (0.04, y), xycoords="axes fraction", color=LOOKS[rule].colour, fontsize=10)
        kit.binary_axis(axes, sorted(table.batch.unique()), "samples of a batch", "{:g}".format)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
        axes.set_ylim(0, 1.02)
        axes.set_ylabel("digits read right")

    return picture(paint, f"Share of unseen digits that are read right. {rule_of_rates(rows)}", kit.WIDTH, 3.6)


def by_rule(rows: Rows) -> Rows:
    """The median accuracy over the seeds, with the least and the most, for each rule and batch."""
    grouped = part(rows, "rates").groupby(["rule", "batch"], sort=False).accuracy
    return grouped.agg(accuracy="median", low="min", high="max").reset_index().sort_values("batch", kind="stable")


# A batch is still as good as the smallest where its median accuracy is at most this much lower.
LOST = 0.03


def largest_good(rows: Rows, rule: str) -> int:
    """The largest batch up to which no batch loses more than `LOST` of accuracy against the smallest."""
    series = by_rule(rows)[lambda found: found.rule == rule]
    good = series.accuracy >= series.accuracy.iloc[0] - LOST
    return int(series.batch[good.cummin()].iloc[-1])


def rule_of_rates(rows: Rows) -> str:
    """A sentence: up to which batch each rule keeps the accuracy, and what the largest batch ends with."""
    table = by_rule(rows)
    parts = []
    for rule, series in table.groupby("rule", sort=False):
        end = series.iloc[-1]
        parts.append(
            f"with {RULES[str(rule)]} up to {largest_good(rows, str(rule))} samples a batch, and "
            f"{end.accuracy:.0%} are read right at {end.batch:,}"
        )
    return f"Accuracy stays within {LOST * 100:.0f} points of that of the smallest batch {'; '.join(parts)}."


def conditions(record: dict[str, Any]) -> str:
    """A sentence about where the rows come from, out of their record."""
    settings, first = record["settings"][0], record["environment"][0]
    return (
        f"{settings['ranks']} ranks ({measured.WHERE[settings['where'].partition(':')[0]]}; {first['processor']}, "
        f"{first['usable_cores']} cores, {first['system']}), torch {first['torch']}."
    )
