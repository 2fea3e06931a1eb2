"""A table of a benchmark, time by size, made from the rows that a text, a JSON report or our own rows have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from collectives.contracts import CONTRACTS, REDUCING, ROOTED
from collectives.logs.benchmarks.curves import Floats
from collectives.logs.finding import Place

# What is kept at most: rows of a table, tables of all files, and ranks of a table.
MOST_ROWS, MOST_TABLES, MOST_RANKS = 1 << 12, 1 << 12, 1 << 16

# Sizes from 2^53 on are no whole numbers as floats.
MOST_SIZE = float(1 << 53)

# What nccl-tests calls collectives; longer names before those that end alike.
PROGRAMS = {
    "reduce_scatter": "reduce_scatter",
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "alltoallv": "",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "sendrecv": "send_recv",
    "hypercube": "",
    "scatter": "scatter",
    "gather": "gather",
    "reduce": "reduce",
}
PERF = re.compile(rf"(?<![A-Za-z0-9])({'|'.join(PROGRAMS)})_perf")


class Measured(NamedTuple):
    """One of a row's two parts: microseconds, GB/s, GB/s, and how many elements were wrong; NaN for what is unknown."""

    us: float = np.nan
    algbw: float = np.nan
    busbw: float = np.nan
    wrong: float = np.nan


class Row(NamedTuple):
    """A row: bytes, type and reduction ("" for none), root (-1 for none), and what was measured."""

    at: Place
    nbytes: float
    dtype: str
    op: str
    root: float | None
    out: Measured
    inside: Measured = Measured()


@dataclass
class Head:
    """What is said of a table outside its rows."""

    at: Place
    name: str = ""  # of the collective, if it is certain
    hints: list[str] = field(default_factory=list)  # names that occur before, or in the file's name
    program: str = "nccl-tests"
    label: str = ""
    command: str = ""
    size: int = 0  # ranks, if it is said otherwise than by naming them
    ranks: dict[int, tuple[str, str]] = field(default_factory=dict)  # host and device
    last: float = 0.0  # bytes of the largest size that was asked for
    step: float = 2.0
    is_whole: bool = False
    bad: float = 0.0  # values out of bounds
    failure: tuple[Place, str] | None = None


class Table(NamedTuple):
    """One sweep over sizes, those of 0 bytes left out; arrays have one element a size, ascending."""

    head: Head
    collective: str  # "" if nothing says which
    ranks: int  # 0 if nothing says how many
    hosts: tuple[str, ...]
    devices: tuple[str, ...]
    label: str  # type and reduction, or algorithm and back end
    factor: float  # busbw / algbw
    nbytes: Floats
    seconds: Floats
    in_place: Floats  # NaN where it was not measured
    wrong: Floats  # elements; NaN where nothing was checked
    places: tuple[Place, ...]

    @property
    def busbw(self) -> Floats:
        """Bus bandwidth in GB/s, out of place. The printed one has two digits after the point; this one has all."""
        return self.factor * self.nbytes / self.seconds / 1e9

    @property
    def columns(self) -> list[Floats]:
        """Seconds out of place and, if it was measured at each size, in place."""
        return [self.seconds, *([self.in_place] if np.isfinite(self.in_place).all() else [])]


def tables_of(head: Head, rows: Iterable[Row]) -> Iterator[Table]:
    """The tables that these rows make: a new one begins with another type, reduction or root, or where sizes fall.

    Rows without a time or with a size of 0 are left out.
    """
    some: list[Row] = []
    for row in rows:
        if some and (row[2:5] != some[-1][2:5] or row.nbytes <= some[-1].nbytes):
            yield _table(head, some)
            some = []
        if _is_valid(row) and len(some) < MOST_ROWS:
            some.append(row)
    yield _table(head, some)


def _is_valid(row: Row) -> bool:
    us = row.out.us if np.isfinite(row.out.us) else row.inside.us
    return bool(0 < row.nbytes < MOST_SIZE and 0 < us < 1e15)


def _table(head: Head, rows: list[Row]) -> Table:
    out, inside = _columns([row.out for row in rows]), _columns([row.inside for row in rows])
    nbytes = np.array([row.nbytes for row in rows], float)
    us = np.where(np.isfinite(out[0]), out[0], inside[0])
    in_place = np.where((inside[0] > 0) & (inside[0] < 1e15), inside[0], np.nan)
    unit = _unit(nbytes, us, out[1])
    ranks = max(max(head.ranks, default=-1) + 1, head.size)
    ratio = _ratio(out)
    collective = head.name or _guess(head, rows, ranks, ratio)
    wrong = np.where(
        np.isfinite(out[3]) | np.isfinite(inside[3]), np.nan_to_num(out[3]) + np.nan_to_num(inside[3]), np.nan
    )
    return Table(
        head,
        collective,
        ranks,
        tuple(dict.fromkeys(host for host, _ in head.ranks.values())),
        tuple(dict.fromkeys(device for _, device in head.ranks.values())),
        head.label or (f"{rows[0].dtype} {rows[0].op}".removesuffix(" none").strip() if rows else ""),
        _factor(collective, ranks, ratio),
        nbytes,
        us * unit,
        in_place * unit,
        wrong,
        tuple(row.at for row in rows),
    )


def _columns(parts: list[Measured]) -> Floats:
    """One row each of microseconds, algbw, busbw and wrong."""
    return np.array(parts, float).reshape(len(parts), 4).T


def _unit(nbytes: Floats, us: Floats, algbw: Floats) -> float:
    """Seconds of one unit of the column of times: microseconds, and before nccl-tests 2 milliseconds."""
    some = algbw > 0.1
    off = np.median(algbw[some] * us[some] * 1e3 / nbytes[some]) if some.any() else 1.0
    return 1e-3 if 0.5e-3 < off < 2e-3 else 1e-6


def _ratio(out: Floats) -> float:
    """Busbw / algbw as the table shows it, from rates with at least three digits; NaN if there are none."""
    some = (out[1] > 1) & (out[2] > 0)
    return float(np.median(out[2][some] / out[1][some])) if some.any() else np.nan


def _factor(collective: str, ranks: int, ratio: float) -> float:
    if collective in CONTRACTS and ranks > 1:
        return CONTRACTS[collective].factor(ranks)
    return ratio if np.isfinite(ratio) else 1.0


def _guess(head: Head, rows: list[Row], ranks: int, ratio: float) -> str:
    """A name that occurs before the table, or in the file's name, and agrees with the table; or what the table says."""
    possible = [name for name in CONTRACTS if rows and _agrees(name, rows[0], ranks, ratio)]
    named = [PROGRAMS[name] for name in reversed(head.hints)]
    if not np.isfinite(ratio) or ranks < 2:
        return named[0] if named else ""
    for name in named:
        if name in possible or name == "send_recv":
            return name
    return possible[0] if len(possible) == 1 else ""


def _agrees(name: str, row: Row, ranks: int, ratio: float) -> bool:
    """Whether a row and the ratio of both rates may be of this collective."""
    reduces = row.op not in ("", "none")
    rooted = (name in ROOTED) == (row.root is not None and row.root >= 0)
    factor = CONTRACTS[name].factor(ranks) if ranks > 1 else ratio
    return (name in REDUCING) == reduces and rooted and abs(factor / ratio - 1) < 0.02


def hints_of(path: Path) -> list[str]:
    """The program that a file's name has.

    >>> hints_of(Path("logs/all_reduce_perf.log")), hints_of(Path("nccl_alltoall.log"))
    (['all_reduce'], ['alltoall'])
    """
    found = re.search("|".join(PROGRAMS), path.name)
    return [found[0]] if found else []
