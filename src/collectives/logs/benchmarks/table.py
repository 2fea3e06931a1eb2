"""A table of a benchmark, time by size, made from rows of text or JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.contracts import CONTRACTS
from collectives.logs.finding import Place, named
from collectives.logs.names import COLLECTIVES

Floats = NDArray[np.float64]

# What is kept at most: rows of a table, tables of all files, and ranks of a table.
MOST_ROWS, MOST_TABLES, MOST_RANKS = 1 << 12, 1 << 12, 1 << 16

# Sizes from 2^53 on are no whole numbers as floats.
MOST_SIZE, MOST_US = 1 << 53, 1e15

# What nccl-tests calls collectives, and which it calls otherwise than this library.
PROGRAM = "all_reduce|all_?gather|reduce_scatter|alltoall|broadcast|sendrecv|scatter|gather|reduce"
PERF = re.compile(rf"(?<!concluded: )(?<![A-Za-z0-9])({PROGRAM})_perf")

SEND = COLLECTIVES["sendrecv"]
NAMES = {"all_to_all": "alltoall", SEND: "sendrecv", "": "all_reduce"}

# How many hosts, or devices, a sentence names.
MOST_HOSTS = 2


class Row(NamedTuple):
    """A size's row; `values`: µs, GB/s (algbw, busbw), wrong elements, out of place, then in place; NaN for unknown."""

    at: Place
    nbytes: float
    dtype: str
    op: str  # "" or "none" for no reduction
    root: float  # -1 for none
    values: list[float]


@dataclass
class Head:
    """What is said of a table outside its rows."""

    at: Place
    name: str = ""  # of the collective, if it is certain
    hints: list[str] = field(default_factory=list)  # its names in lines before, the last one first, or in the file's
    label: str = ""
    command: str = ""  # that measures it, if that is not nccl-tests
    size: int = 0  # ranks, if it is said otherwise than by naming them
    ranks: dict[int, tuple[str, str]] = field(default_factory=dict)  # host and device
    last: float = 0.0  # bytes of the largest size that was asked for
    is_whole: bool = False
    bad: int = 0  # values out of bounds
    failure: tuple[Place, str] | None = None


class Table(NamedTuple):
    """One sweep over sizes; arrays have one element a size, ascending, each once."""

    head: Head
    collective: str  # "" if nothing says which
    ranks: int  # 0 if nothing says how many
    hosts: tuple[str, ...]
    devices: tuple[str, ...]
    label: str  # type and reduction, or algorithm and back end
    factor: float  # busbw / algbw
    nbytes: Floats
    times: Floats  # seconds of shape (2, sizes): out of place and in place; or (1, sizes)
    wrong: Floats  # elements; 0 where nothing was checked
    places: tuple[Place, ...]

    @property
    def busbw(self) -> Floats:
        """Bus bandwidth in GB/s, out of place. The printed one has two digits after the point; this one has all."""
        return np.asarray(self.factor * self.nbytes / self.times[0] / 1e9)

    @property
    def title(self) -> str:
        """The collective and its hosts, as far as they are known."""
        on = f" on {named(self.hosts, MOST_HOSTS)}" if self.hosts else ""
        return f"{self.collective or 'a collective'}{on}"

    def again(self, first: float, last: float) -> str:
        """The command that measures these sizes again."""
        low, high = int(first), int(last)
        if self.head.command:
            return f"`{self.head.command} --bytes {low}{f' {high}' if high > low else ''} --repetitions 100`"
        program = NAMES.get(self.collective, self.collective)
        return f"`{program}_perf -b {low} -e {high} -f 2 -w 20 -n 100`"


def tables_of(head: Head, rows: Iterable[Row]) -> Iterator[Table]:
    """The tables that these rows make: a new one begins with another type, reduction or root, or where sizes fall.

    Rows without a time or a size are left out. Without rows, there is a table if sizes were asked for or a run failed.
    """
    some: list[Row] = []
    for row in rows:
        us = row.values[0] if np.isfinite(row.values[0]) else row.values[4]
        if not (0 < row.nbytes < MOST_SIZE and 0 < us < MOST_US):
            continue
        if some and (row[2:5] != some[-1][2:5] or row.nbytes <= some[-1].nbytes):
            yield _table(head, some)
            some = []
        if len(some) < MOST_ROWS:
            some.append(row)
    if some or head.failure or head.last:
        yield _table(head, some)


def _table(head: Head, rows: list[Row]) -> Table:
    us, _, busbw, wrong = np.array([row.values for row in rows]).reshape(-1, 2, 4).transpose(2, 1, 0)
    nbytes = np.array([row.nbytes for row in rows])
    times = np.where(np.isfinite(us), us, us[::-1]) * 1e-6
    has_both = bool(np.all((us[1] > 0) & (us[1] < MOST_US)))
    ranks = max(max(head.ranks, default=-1) + 1, head.size)
    # Rates of at least three digits. Algbw is not always bytes over time: some versions print busbw there.
    some = busbw[0] > 1
    ratio = float(np.median(busbw[0, some] * us[0, some] * 1e3 / nbytes[some])) if some.any() else np.nan
    collective = head.name or _collective(head.hints, rows, ranks, ratio)
    is_known = collective in CONTRACTS and ranks > 1
    return Table(
        head,
        collective,
        ranks,
        tuple(dict.fromkeys(host for host, _ in head.ranks.values())),
        tuple(dict.fromkeys(device for _, device in head.ranks.values())),
        head.label or (f"{rows[0].dtype} {rows[0].op}".removesuffix(" none").strip() if rows else ""),
        CONTRACTS[collective].factor(ranks) if is_known else ratio if np.isfinite(ratio) else 1.0,
        nbytes,
        times if has_both else times[:1],
        np.nansum(wrong, axis=0),
        tuple(row.at for row in rows),
    )


def _collective(hints: list[str], rows: list[Row], ranks: int, ratio: float) -> str:
    """The last name that was mentioned and agrees with the rows and the ratio of rates; or the only one that agrees."""
    if not np.isfinite(ratio) or ranks < 2:
        return hints[0] if hints else ""
    kind = (rows[0].op not in ("", "none"), rows[0].root >= 0)
    possible = [
        name
        for name, each in CONTRACTS.items()
        if (each.reduces, each.rooted) == kind and abs(each.factor(ranks) / ratio - 1) < 0.02
    ]
    return next((name for name in hints if name in (*possible, SEND)), possible[0] if len(possible) == 1 else "")
