"""NCCL on one GPU: the rows of a report of ``make gpu-check`` as a table.

Every rank is a process on the same GPU, and NCCL takes each for a host, or several for one. On emulated hosts a time in
ms reads as us on the real link.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pandas as pd
from pydantic import BaseModel, Field, ValidationError

from collectives_book.figures.kit import Rows

# The columns of the table; a row is one configuration at one size.
#   hosts           as NCCL counts them
#   ranks           on all hosts together
#   where           "loopback", or "cluster:LATENCY,RATE" for emulated hosts
#   backend         "nccl" for NCCL's own collective, "p2p_nccl" for a schedule of ours over NCCL's messages
#   algorithm       "Ring" or "Tree", "default" for NCCL's own choice, or the name of our schedule
#   topology_file   what a file told NCCL about the link, such as "5ms,25MB/s"; None without a file
#   bytes           of a rank's buffer
#   samples         how many calls were timed
#   median_us, low_us, high_us    median of the slowest rank's times, and the interval that holds the true one
#   predicted_us    NCCL's own prediction, or NaN
#   wrong           elements that were not what they had to be
COLUMNS: tuple[str, ...] = ("hosts", "ranks", "where", "backend", "algorithm", "topology_file", "bytes", "samples")
COLUMNS += ("median_us", "low_us", "high_us", "predicted_us", "wrong")

MAX_BYTES, MAX_ROWS = 1 << 24, 1 << 14

Whole = Annotated[int, Field(ge=0, le=1 << 50)]
Positive = Annotated[int, Field(ge=1, le=1 << 20)]
Microseconds = Annotated[float, Field(ge=0, le=1e12)]


class MeasuredRow(BaseModel):
    """Hold the columns of a row of `bench` that the table shows."""

    ranks: Positive
    where: str
    backend: str
    algorithm: str
    bytes: Whole
    samples: list[Microseconds]
    median_us: Microseconds
    low_us: Microseconds
    high_us: Microseconds
    wrong: Whole


class MeasuredEvent(BaseModel):
    """Hold a row of a report, and what only the check knows about it."""

    row: MeasuredRow
    hosts: Positive = 1
    topology_file: str | None = None
    predicted_us: Microseconds | None = None


class Part(BaseModel):
    """Hold a part of a report: its result in words, its seconds, and its events, some of which have a row."""

    result: str
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    events: list[dict[str, Any]]


class Report(BaseModel, extra="allow"):
    """Hold what a report says of its machine, and beside it the parts by name."""

    machine: dict[str, Any]
    __pydantic_extra__: dict[str, Part] = Field(init=False)

    @property
    def parts(self) -> dict[str, Part]:
        """Return the parts, in the order in which they ran."""
        return self.__pydantic_extra__


def read(path: str | Path) -> Report:
    """Return a report. Raises OSError, and ValueError, which names the file, for anything else than a report."""
    with Path(path).open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"{path}: got more than {MAX_BYTES >> 20} MiB, expected a report of `make gpu-check`")
    try:
        return Report.model_validate_json(data)
    except ValidationError as error:
        raise ValueError(f"{path}: expected a report of `make gpu-check`: {_first(error)}") from None


def rows_of_report(path: str | Path) -> Rows:
    """Return the measured rows of a report with the columns of `COLUMNS`; none where no part measured any.

    Raises what `read` does, and ValueError for a row without its columns.
    """
    rows = []
    for name, part in read(path).parts.items():
        for event in part.events:
            if "row" in event:
                try:
                    rows.append(_columns(MeasuredEvent.model_validate(event)))
                except ValidationError as error:
                    raise ValueError(f"{path}: invalid row of {name}: {_first(error)}") from None
    if len(rows) > MAX_ROWS:
        raise ValueError(f"{path}: got {len(rows):,} rows, expected up to {MAX_ROWS:,}")
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype({"predicted_us": float})


def _columns(event: MeasuredEvent) -> dict[str, Any]:
    given = event.model_dump(exclude={"row"}) | event.row.model_dump()
    return given | {"samples": len(event.row.samples)}


def _first(error: ValidationError) -> str:
    """Return the first problem in a line."""
    problem = error.errors()[0]
    return f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}".removeprefix(": ")
