"""Check that a report agrees with itself: rows follow from the logs and traces in it, and choices follow from the rows.

Nobody can tell here whether the samples were measured.
"""

import json
import math
import tempfile
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from collectives.core.contracts import CONTRACTS
from collectives_course.assignment import read_report
from collectives_course.verdict import Failed
from collectives_logs import kineto
from collectives_logs.benchmark_tables import printed_tables
from collectives_logs.sources import numbered

UNITS = {"bytes": "B", "seconds": "s", "busbw": "GB/s", "ts": "us"}
Text = Annotated[str, Field(min_length=1)]
Seconds = Annotated[float, Field(gt=1e-15, lt=1e4, allow_inf_nan=False)]
Samples = Annotated[list[Seconds], Field(max_length=10_000)]
Bytes = Annotated[int, Field(gt=0, lt=1 << 50)]
UpTo = Annotated[int, Field(ge=0, lt=1 << 50)]
Ranks = Annotated[int, Field(ge=2, le=1024)]
Megabytes = Annotated[float, Field(gt=0, lt=1e6)]


class Part(BaseModel):
    """Hold a part of the report; a field that it does not name is refused."""

    model_config = ConfigDict(extra="forbid")


class Environment(Part):
    """Name the machine; ``gpu`` is null if the rows were measured on a processor."""

    processor: Text
    gpu: Text | None
    torch: Text


class Log(Part):
    """Hold a log of nccl-tests."""

    source: Literal["recorded", "measured"]
    text: Text


class Logs(Part):
    """Hold a log for each value of NCCL_ALGO, and for none."""

    ring: Log
    tree: Log
    free: Log


class Timed(Part):
    """Hold a row of a log."""

    algorithm: Literal["ring", "tree", "free"]
    bytes: Bytes
    seconds: Seconds
    busbw: Annotated[float, Field(ge=0, allow_inf_nan=False)]


class RingAgainstTree(Part):
    """Hold part A."""

    ranks: Ranks
    rows: Annotated[list[Timed], Field(min_length=12, max_length=1000)]
    tree_up_to: UpTo


class Compared(Part):
    """Hold the samples of one-shot and ring at one size."""

    bytes: Bytes
    one_shot: Samples
    ring: Samples


class OneShot(Part):
    """Hold part B."""

    ranks: Ranks
    command: Text
    rows: Annotated[list[Compared], Field(min_length=4, max_length=1000)]
    one_shot_up_to: UpTo


class Event(Part):
    """Hold an event of a trace."""

    ph: Literal["X"]
    cat: str
    name: str
    ts: Annotated[float, Field(allow_inf_nan=False)]
    dur: Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Bucket(Part):
    """Hold the steps with buckets of one size, and the trace of one more."""

    bucket_cap_mb: Megabytes
    steps: Samples
    events: Annotated[list[Event], Field(min_length=1, max_length=10_000)]
    exposed: Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Buckets(Part):
    """Hold part C."""

    ranks: Ranks
    command: Text
    rows: Annotated[list[Bucket], Field(min_length=3, max_length=100)]
    best: Megabytes


class Report(Part):
    """Hold the report that `report.py` writes."""

    version: Annotated[int, Field(ge=1, le=1)]
    units: dict[str, str]
    environment: Environment
    logs: Logs
    ring_against_tree: RingAgainstTree
    one_shot: OneShot
    buckets: Buckets


def need_consistent(path: Path, samples: int) -> None:
    """Raise Failed where the report is not written, has too few samples, or where a figure does not follow."""
    report = read_report(path, Report, "python report.py")
    if report.units != UNITS:
        raise Failed(f"report.json: got units {report.units}, expected {UNITS}")
    _need_logs(report)
    _need_one_shot(report.one_shot, samples)
    _need_buckets(report.buckets, samples)


def _need(told: Any, follows: Any, what: str) -> None:
    if not math.isclose(told, follows, rel_tol=1e-3, abs_tol=1e-9):
        raise Failed(
            f"report.json: {what} is {told:,.6g}, from its own rows follows {follows:,.6g}"
        )


def _need_logs(report: Report) -> None:
    part, times = report.ring_against_tree, {}
    for name, log in report.logs:
        tables = list(
            printed_tables(numbered(log.text.splitlines(), f"{name}.log"), ["all_reduce"])
        )
        if len(tables) != 1 or not tables[0].nbytes.size or tables[0].ranks != part.ranks:
            ranks = [table.ranks for table in tables]
            raise Failed(
                f"report.json: {name}.log has tables of {ranks} ranks, expected one of {part.ranks}"
            )
        times |= {
            (name, int(n)): s for n, s in zip(tables[0].nbytes, tables[0].times[0], strict=True)
        }
    told = {(row.algorithm, row.bytes): row for row in part.rows}
    odd = sorted({*told} ^ {*times}) or len(told) != len(part.rows)
    if odd:
        raise Failed(
            f"report.json: rows of ring_against_tree are not those of the logs: {odd!r:.200}"
        )
    for (name, nbytes), row in told.items():
        seconds = times[name, nbytes]
        _need(row.seconds, seconds, f"the time of {name} with {nbytes:,} bytes")
        rate = CONTRACTS["all_reduce"].factor(part.ranks) * nbytes / seconds / 1e9
        _need(row.busbw, rate, f"busbw of {name} with {nbytes:,} bytes")
    ring, tree = (
        {n: s for (name, n), s in times.items() if name == which} for which in ("ring", "tree")
    )
    _need(part.tree_up_to, up_to(tree, ring), "tree_up_to")


def up_to(first: dict[int, float], second: dict[int, float]) -> int:
    """Return the bytes up to which the first is faster, at this size and each smaller one of both.

    0 if at none.
    """
    won = 0
    for nbytes in sorted({*first} & {*second}):
        if first[nbytes] >= second[nbytes]:
            break
        won = nbytes
    return won


def _need_samples(found: Iterable[list[float]], samples: int, part: str) -> None:
    """Raise Failed unless each list has enough samples."""
    least = min(map(len, found))
    if least < samples:
        raise Failed(
            f"report.json: {part} has {least} samples of a row, expected {samples} or more"
        )


def _need_one_shot(part: OneShot, samples: int) -> None:
    """Raise Failed unless the border between both algorithms follows from the medians."""
    both = chain.from_iterable((row.one_shot, row.ring) for row in part.rows)
    _need_samples(both, samples, "one_shot")
    one_shot, ring = (
        {row.bytes: float(np.median(getattr(row, name))) for row in part.rows}
        for name in ("one_shot", "ring")
    )
    _need(part.one_shot_up_to, up_to(one_shot, ring), "one_shot_up_to")


def _need_buckets(part: Buckets, samples: int) -> None:
    """Raise Failed unless exposed times and the best bucket follow from the events and the medians."""
    _need_samples((row.steps for row in part.rows), samples, "buckets")
    medians = {row.bucket_cap_mb: float(np.median(row.steps)) for row in part.rows}
    for row in part.rows:
        _need(
            row.exposed, _exposed(row.events), f"exposed with buckets of {row.bucket_cap_mb:g} MB"
        )
    _need(part.best, min(medians, key=lambda cap: medians[cap]), "the best bucket")


def _exposed(events: list[Event]) -> float:
    """Return the seconds of communication beside which nothing computes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        path.write_text(
            json.dumps({"traceEvents": [event.model_dump() for event in events]}), encoding="utf8"
        )
        return kineto.read(path).exposed * 1e-6
