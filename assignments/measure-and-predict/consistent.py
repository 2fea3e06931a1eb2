"""Whether a report agrees with itself: its fit, its prediction and its crossing follow from its own rows.

Nobody can tell here whether the rows were measured; what the text of the report says is for the
instructor to read.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from collectives.core.bounds import height
from collectives_course.assignment import read_report
from collectives_course.verdict import Failed

Seconds = Annotated[float, Field(gt=1e-15, lt=1e4, allow_inf_nan=False)]
Samples = Annotated[list[Seconds], Field(min_length=3, max_length=10_000)]
Bytes = Annotated[int, Field(gt=0, lt=1 << 50)]
Crossing = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Message(BaseModel):
    """Samples of one message."""

    bytes: Bytes
    seconds: Samples


class Times(BaseModel):
    """Samples of both algorithms."""

    bytes: Bytes
    ring: Samples
    two_tree: Samples


class Report(BaseModel):
    """What `report.ipynb` writes.

    ``measured_crossing`` is null where the two trees lead at all sizes.
    """

    model_config = ConfigDict(extra="forbid")

    version: Annotated[int, Field(ge=1, le=1)]
    units: dict[str, str]
    machine: dict[str, Any]
    where: Annotated[str, Field(min_length=1)]
    ranks: Annotated[int, Field(ge=2, le=1024)]
    messages: Annotated[list[Message], Field(min_length=4, max_length=1000)]
    # Below 0 where the samples are too noisy, which the text may say.
    alpha: Annotated[float, Field(gt=-10, lt=10)]
    beta: Seconds
    all_reduce: Annotated[list[Times], Field(min_length=4, max_length=1000)]
    predicted_crossing: Crossing
    measured_crossing: Crossing | None


def need_consistent(path: Path) -> None:
    """Raise Failed where the report is not written, or where a figure does not follow from the rows."""
    report = read_report(path, Report, "papermill report.ipynb report.ipynb")
    if report.units != {"bytes": "B", "seconds": "s"} or not report.machine.get("processor"):
        raise Failed("report.json: expected units B and s, and the machine's processor")
    _need_fit(report)
    _need(
        report.predicted_crossing,
        predicted(report.ranks, report.alpha, report.beta),
        "predicted_crossing",
    )
    rows = sorted(report.all_reduce, key=lambda row: row.bytes)
    medians = (
        [float(np.median(getattr(row, name))) for row in rows] for name in ("ring", "two_tree")
    )
    told = math.inf if report.measured_crossing is None else report.measured_crossing
    _need(told, crossed([row.bytes for row in rows], *medians), "measured_crossing")


def _need_fit(report: Report) -> None:
    """Not every good fit is the same, so this compares how far they are off."""
    sizes = np.array([row.bytes for row in report.messages], float)
    seconds = np.array([np.median(row.seconds) for row in report.messages])
    columns = np.stack([1 / seconds, sizes / seconds], axis=1)
    best = np.linalg.lstsq(columns, np.ones(len(sizes)), rcond=None)[0]
    ours, theirs = (
        float(np.sqrt(np.mean((columns @ line - 1) ** 2)))
        for line in (best, [report.alpha, report.beta])
    )
    if theirs > 1.3 * ours + 0.05:
        text = f"off by {theirs:.0%} in the mean, a least-squares fit by {ours:.0%}"
        raise Failed(f"report.json: alpha and beta do not fit its messages: {text}")


def _need(told: float, follows: float, name: str) -> None:
    if not (told == follows or math.isclose(told, follows, rel_tol=0.05)):
        raise Failed(
            f"report.json: {name} is {told:,.0f} bytes, from its own rows follows {follows:,.0f}"
        )


def predicted(p: int, alpha: float, beta: float) -> float:
    """Bytes at which the closed forms of ring and two-tree agree.

    0 where the ring leads at all sizes.
    """
    levels, alphas = height(p) - 1, 2 * (p - 1)
    saved = alphas - 4 * levels
    if saved > 0:
        root = p * (math.sqrt(2 * levels + saved / (2 * p)) - math.sqrt(2 * levels))
        if levels * root**2 >= 2:
            return root**2 * alpha / beta
    return max(0.0, (alphas - 4 * height(p)) / (2 * height(p) - alphas / p)) * alpha / beta


def crossed(sizes: Sequence[float], ring: Sequence[float], two_tree: Sequence[float]) -> float:
    """The last crossing, on a straight line between logarithms.

    0 and infinity where one leads at all sizes.
    """
    trees_lead = np.log(np.array(ring) / np.array(two_tree))
    if (trees_lead <= 0).all():
        return 0.0
    last = int(np.flatnonzero(trees_lead > 0)[-1])
    if last == len(sizes) - 1:
        return math.inf
    return float(np.exp(np.interp(0, -trees_lead[last : last + 2], np.log(sizes[last : last + 2]))))
