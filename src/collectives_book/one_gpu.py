"""NCCL on one GPU: the rows of a report of ``make gpu-check`` as a table.

Every rank is a process on the same GPU, and NCCL takes each for a host, or several for one. On
emulated hosts a time in ms reads as us on the real link.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
from pydantic import BaseModel, Field, ValidationError

from collectives.algorithms import Mark, build
from collectives.figures.style import Picture, mark
from collectives.launch import links
from collectives.machine import machine
from collectives.simulator.scaling import Case, segmented
from collectives.simulator.simulation import simulate
from collectives.units import format_bytes
from collectives_book import nccl_formulas as nccl
from collectives_book.figures import kit
from collectives_book.figures.charts import Curves, Panels
from collectives_book.figures.kit import Rows
from collectives_book.figures.statements import us

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
COLUMNS: tuple[str, ...] = (
    "hosts",
    "ranks",
    "where",
    "backend",
    "algorithm",
    "topology_file",
    "bytes",
    "samples",
)
COLUMNS += ("median_us", "low_us", "high_us", "predicted_us", "wrong")

# Our schedules beside NCCL's algorithms.
OURS = {"Ring": "ring", "Tree": "two_tree"}

# Up to so many ranks on one GPU each has two channels, and one beyond.
FEW_RANKS = 8

MAX_BYTES = 1 << 24
MAX_ROWS = 1 << 14

Whole = Annotated[int, Field(ge=0, le=1 << 50)]
Positive = Annotated[int, Field(ge=1, le=1 << 20)]
Name = Annotated[str, Field(pattern=r"^[\w:,./ +-]{1,80}$")]
Microseconds = Annotated[float, Field(ge=0, le=1e12)]


class MeasuredRow(BaseModel):
    """Hold the columns of a row of `bench` that the table shows."""

    ranks: Positive
    where: Name
    backend: Name
    algorithm: Name
    bytes: Whole
    samples: list[Microseconds]
    median_us: Microseconds
    low_us: Microseconds
    high_us: Microseconds
    predicted_us: Microseconds | None = None
    wrong: Whole


class MeasuredEvent(BaseModel):
    """Hold a row of a report, and what only the check knows about it."""

    row: MeasuredRow
    hosts: Positive = 1
    topology_file: Name | None = None


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
    """Return a report.

    Raises OSError, and ValueError, which names the file, for anything else than a report.
    """
    with Path(path).open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(
            f"{path}: got more than {MAX_BYTES >> 20} MiB, expected a report of `make gpu-check`"
        )
    try:
        return Report.model_validate_json(data)
    except ValidationError as error:
        raise ValueError(
            f"{path}: expected a report of `make gpu-check`: {_first(error)}"
        ) from None


def rows_of_report(path: str | Path) -> Rows:
    """Return the measured rows of a report with the columns of `COLUMNS`.

    None where no part measured any.

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
    frame = pd.DataFrame(rows, columns=list(COLUMNS)).astype(
        {"predicted_us": float, "topology_file": object}
    )
    return frame.assign(topology_file=frame.topology_file.where(frame.topology_file.notna(), None))


def _columns(event: MeasuredEvent) -> dict[str, Any]:
    given = event.model_dump(exclude={"row"}) | event.row.model_dump()
    return given | {"samples": len(event.row.samples)}


def _first(error: ValidationError) -> str:
    """Return the first problem in a line."""
    problem = error.errors()[0]
    return f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}".removeprefix(": ")


def trial(path: str | Path) -> Rows:
    """Return the rows of a trial program, in ms, with the columns of `COLUMNS`.

    ``low_us`` is the least sample.
    """
    rows = pd.read_csv(path)
    times = {
        f"{new}_us": rows[f"{old}_ms"] * 1e3
        for new, old in (("median", "median"), ("low", "least"), ("high", "most"))
    }
    known: dict[str, Any] = {
        "ranks": rows.hosts,
        "where": "cluster:5ms,25MB/s",
        "backend": "nccl",
        "predicted_us": rows.estimate_us,
    }
    named = rows.algorithm.replace("chosen by NCCL", "default")
    told = rows.topology_file.astype(object).where(rows.topology_file.notna(), None)
    return rows.assign(algorithm=named, topology_file=told, **times, **known)[list(COLUMNS)]


def rings_and_trees(rows: Rows, hosts: int = 8) -> Rows:
    """Return NCCL's rings and trees on so many hosts of one rank each, behind links that the simulator knows."""
    own = rows[(rows.backend == "nccl") & rows.algorithm.isin(OURS) & rows.topology_file.isna()]
    own = own[(own.hosts == hosts) & (own.ranks == hosts)]
    return own[[links(where, hosts) is not None for where in own["where"]]]


def simulated_us(algorithm: str, where: str, ranks: int, nbytes: int) -> float:
    """Return the simulated time of our ring or two trees on these links, in the best number of segments.

    >>> us(simulated_us("Ring", "cluster:5ms,25MB/s", ranks=8, nbytes=4))
    '70 ms'
    """
    on = machine(str(links(where, ranks)))
    return segmented(Case("all_reduce", OURS[algorithm], ranks, nbytes, on))[1].seconds * 1e6


def as_nccl_cuts_us(algorithm: str, where: str, ranks: int, nbytes: int) -> float:
    """Return the simulated time of a ring or a tree that is cut as NCCL cuts its own (`nccl_formulas.cut`).

    >>> us(as_nccl_cuts_us("Tree", "cluster:5ms,25MB/s", ranks=8, nbytes=1 << 20))
    '240 ms'
    """
    channels, messages, sent = nccl.cut(
        algorithm.lower(), nbytes, ranks, 2 if ranks <= FEW_RANKS else 1
    )
    name = "segmented_ring" if algorithm == "Ring" else "two_tree" if channels == 2 else "tree"
    pieces = channels * messages if algorithm == "Ring" else messages
    schedule = build("all_reduce", name, ranks, segments=pieces)
    return simulate(schedule, machine(str(links(where, ranks))), sent * nbytes, name).seconds * 1e6


def times(rows: Rows) -> Picture:
    """Return the figure of NCCL's rings and trees by size over simulated lines: as we cut the buffer, and as NCCL does.

    ``rows`` as `rings_and_trees` has them.
    """
    if rows.empty:
        return kit.nothing()
    ours = lines(rows, simulated_us).assign(panel="lines: our ring and two trees")
    theirs = lines(rows, as_nccl_cuts_us).assign(panel="lines: cut as NCCL cuts them")
    drawn = pd.concat([ours, theirs], ignore_index=True)
    about = (
        f"NCCL's all-reduce on {rows.ranks.iloc[0]} emulated hosts that share a GPU, time by buffer"
    )
    axes = (kit.BYTES, kit.US)
    panels = Panels("panel")
    chart = Curves(drawn, "bytes", "median_us", "algorithm", axes, _look, panels)
    chart.simulated("simulated_us").points(("low_us", "high_us"))
    return chart.picture(about, height=5.8)


def _look(algorithm: str) -> Mark:
    return mark(OURS[algorithm])


def lines(rows: Rows, by: Callable[..., float]) -> Rows:
    """Return the rows with ``simulated_us`` as this function has it, and rows without a measurement between them."""
    sizes = sorted(
        {
            *rows.bytes,
            *(1 << power for power in range(17, int(rows.bytes.max()).bit_length())),
        }
    )
    points = (
        rows[["algorithm", "where", "ranks"]]
        .drop_duplicates()
        .merge(pd.Series(sizes, name="bytes"), how="cross")
    )
    points["simulated_us"] = [by(*point) for point in points.itertuples(index=False)]
    return points.merge(
        rows.drop(columns=["where", "ranks", "samples"]),
        on=["algorithm", "bytes"],
        how="left",
    )


def crossing(rows: Rows, column: str = "median_us") -> float:
    """Return the bytes at which the ring becomes faster than the tree, between two sizes as on a logarithmic figure."""
    wide = rows.pivot(index="bytes", columns="algorithm", values=column).dropna()
    ahead = np.log(wide.Ring / wide.Tree)
    sizes = np.log(wide.index.astype(float))
    nth = int(np.argmax(ahead <= 0))
    share = ahead.iloc[nth - 1] / (ahead.iloc[nth - 1] - ahead.iloc[nth])
    return float(np.exp(sizes[nth - 1] + share * (sizes[nth] - sizes[nth - 1])))


def predictions(rows: Rows) -> Rows:
    """Return NCCL's prediction, ours and the median, a line for each size: a table."""
    rows = rows.sort_values(["algorithm", "bytes"], kind="stable")
    cuts = [
        as_nccl_cuts_us(*point)
        for point in rows[["algorithm", "where", "ranks", "bytes"]].itertuples(index=False)
    ]
    said = {"NCCL": rows.predicted_us, "ours": cuts, "measured": rows.median_us}
    table = pd.DataFrame(said, rows.index).map(us)
    table = table.assign(size=rows.bytes.map(format_bytes), of=rows.algorithm)
    wide: Rows = table.pivot(index="size", columns="of", values=[*said]).swaplevel(axis="columns")
    wide = wide.loc[table["size"].unique(), list(product(OURS, said))]
    return wide.rename_axis(index=None, columns=[None] * 2)
