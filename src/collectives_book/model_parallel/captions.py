"""Sentences about rows of the experiment ``model-parallel``; every number in them comes from the rows."""

from __future__ import annotations

from typing import Any

from collectives.bench.statistics import median_interval
from collectives.units import format_bytes
from collectives_book.figures import kit, measured, statements
from collectives_book.figures.statements import Rows
from collectives_book.model_parallel.figures import closed_form, steps, with_messages


def equal(rows: Rows) -> str:
    """A sentence: how far gradients are from those of one process at most."""
    worst = rows.difference.max()
    checked, pipelines = measured.part(rows, "step"), measured.part(rows, "pipeline")
    return (
        f"Every step was checked against one process: {len(checked)} kinds of data and tensor parallel steps and "
        f"{len(pipelines)} of pipelines. Gradients differ by at most {worst:.1g} of the largest gradient: "
        f"{'rounding in float32' if worst < 1e-5 else 'more than rounding in float32 explains'}."
    )


def counted(rows: Rows) -> str:
    """A sentence: the bytes that the messages of a step have, against the closed forms and the hosts' own counters."""
    table = measured.part(rows, "step")
    if "sent" not in table:
        return "The library chose its algorithm, so what it sent is not counted."
    off = [row.sent / closed_form(row) - 1 for row in table.itertuples()]
    said = f"Counted, the messages of {len(table)} kinds of steps carry {_of_form(max(map(abs, off)))}."
    if "wire" not in table:
        return said
    more = table.wire / table.sent - 1
    return f"{said} The kernels of the hosts counted {statements.span(more, '{:.1%}'.format)} more, headers included."


def _of_form(off: float) -> str:
    if off < 1e-9:
        return "exactly the bytes of the closed forms"
    return f"the bytes of the closed forms to {off:.2%}"


def crossing(rows: Rows, width: int) -> str:
    """A sentence: at which batch data and tensor parallelism send the same, by the counted bytes of one width."""
    table = steps(rows, width)
    if "sent" not in table:
        return "What was sent is not known, nor where the two cross."
    data, tensor = (next(table[table.way == way].itertuples()) for way in ("data", "tensor"))
    at = data.sent / (tensor.sent / tensor.batch)
    return (
        f"At width {width} a data parallel step sends {_short(data.sent)} whatever the batch, a tensor parallel "
        f"step {_short(tensor.sent / tensor.batch)} for each sample. They send the same at a batch of {at:,.1f}."
    )


def _short(nbytes: float) -> str:
    """A size in bytes to four digits.

    >>> _short(6306856), _short(6144)
    ('6.015 MiB', '6 KiB')
    """
    value, unit = format_bytes(nbytes).split()
    return f"{float(value):.4g} {unit}"


def faster(rows: Rows, width: int) -> str:
    """A sentence: at which batches which of the two spends less time in all-reduces."""
    table = steps(rows, width)
    found = [(int(batch), _ahead(group)) for batch, group in table.groupby("batch", sort=True)]
    return f"Faster in all-reduces, by batch: {statements.runs(found)}."


def _ahead(group: Rows) -> str:
    ahead = statements.leaders(group)
    return f"{ahead[0].way} parallel" if len(ahead) == 1 else "a tie"


def idle(rows: Rows, message: float | None = None) -> str:
    """A sentence: the least and the greatest bubble by each schedule, and how far it is from the formula."""
    parts = []
    for (name,), series in kit.series(measured.part(rows, "pipeline"), ["schedule"], "micro_batches"):
        first, last = (next(series.iloc[[i]].itertuples()) for i in (0, -1))
        parts.append(
            f"with {name} for {_idle(first)} of a step at m = {first.micro_batches} and {_idle(last)} at m = "
            f"{last.micro_batches}"
        )
    known = measured.part(rows, "pipeline").sort_values("micro_batches")
    return (
        f"Measured on {known.stages.iloc[0]} stages, a stage idles {'; '.join(parts)}. The formula gives "
        f"{known.formula.iloc[0]:.0%} and {known.formula.iloc[-1]:.0%}{_said(known, message)}."
    )


def _idle(row: Any) -> str:
    return f"{median_interval([float(share) for share in row.bubble])[1]:.0%}"


def _said(table: Rows, message: float | None) -> str:
    if message is None:
        return ""
    last = table[table.micro_batches == table.micro_batches.max()]
    expected = [f"{with_messages(row, message):.0%} for {row.schedule}" for row in last.itertuples()]
    return f"; with messages the timetable gives {statements.listed(expected)} at m = {last.micro_batches.iloc[0]}"


def computing(rows: Rows) -> str:
    """A clause: whether the stages of the pipeline computed or waited."""
    waited = measured.part(rows, "pipeline").waiting_us.max()
    return "the stages computed" if not waited else "waiting replaced computing"
