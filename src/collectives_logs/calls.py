"""Calls of ranks with their times: calls that are alike, their rates, and which rank the others wait for.

A collective ends on all ranks together, and lasts shortest where it begins last.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.core.bounds import busbw
from collectives.core.contracts import CONTRACTS
from collectives.units import duration
from collectives_logs.finding import Finding, finding
from collectives_logs.sources import Place

if TYPE_CHECKING:
    from collectives.figures.style import Picture

Floats = NDArray[np.float64]

# A rank is named if there are so many calls, and if it causes this much of the waiting and its
# calls are this shorter.
MIN_CALLS, MOSTLY, WIDE = 5, 0.75, 1.5

# Of fewer calls the first ones, which connect and compile, are too large a part to say that ranks
# wait by turns.
MANY_CALLS = 20

# A share of the time of all calls from which waiting is worth a look, if no rank is named.
MUCH = 0.1

# Collectives in which no rank can be done before all have begun.
TOGETHER = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")


@dataclass
class CallSeries:
    """Calls of one collective by one rank of a group: microseconds, and bytes of the whole buffer.

    0 for unknown.
    """

    size: int  # ranks of the group
    place: Place
    # Their numbers, or when they started.
    order: array[float] = field(default_factory=lambda: array("d"))
    durations: array[float] = field(default_factory=lambda: array("d"))
    nbytes: array[int] = field(default_factory=lambda: array("q"))

    def add(self, order: float, duration: float, nbytes: int) -> None:
        """Add a call."""
        self.order.append(order)
        self.durations.append(duration)
        self.nbytes.append(nbytes)


class CallKind(NamedTuple):
    """Calls that are alike."""

    collective: str
    size: int
    nbytes: int

    def busbw(self, microseconds: float) -> float:
        """Return the bus bandwidth of a call in GB/s.

        0 if the collective, its bytes or its ranks are not known.
        """
        is_known = self.collective in CONTRACTS and self.nbytes and self.size > 1 and microseconds
        return (
            busbw(self.collective, self.size, self.nbytes, microseconds / 1e6) if is_known else 0.0
        )


def by_kind(series: Iterable[tuple[str, CallSeries]]) -> dict[CallKind, Floats]:
    """Return the microseconds of calls of these collectives that are alike."""
    kinds: dict[CallKind, list[Floats]] = {}
    for collective, calls in series:
        nbytes, durations = np.asarray(calls.nbytes), np.asarray(calls.durations)
        for size in np.unique(nbytes).tolist():
            kind = CallKind(collective, calls.size, size)
            kinds.setdefault(kind, []).append(durations[nbytes == size])
    return {kind: np.concatenate(durations) for kind, durations in kinds.items()}


class Waiting(NamedTuple):
    """The waiting in calls of one group of ranks; times have the unit of what was given."""

    share: float  # of all time in these calls, that which is beyond the shortest on any rank
    last: int | None  # the row that the others wait for most, if it is one
    often: int  # how many calls it is the shortest in
    own: float  # its median, in these calls
    others: float  # the others' median, in these calls


def waiting(durations: Floats) -> Waiting:
    """Return who waits by durations, with a row for each of two or more ranks, and a column for each call.

    >>> slow = np.array([[9.0, 8.0, 9.0, 9.0, 1.0], [1.0, 1.0, 1.0, 1.0, 2.0], [9.0, 9.0, 9.0, 8.0, 1.0]])
    >>> waiting(slow)
    Waiting(share=0.8076923076923077, last=1, often=4, own=1.0, others=8.75)
    """
    ranks, calls = durations.shape
    shortest, least = durations.argmin(axis=0), durations.min(axis=0)
    # How long the others wait in a call, in the mean.
    waits = (durations.sum(axis=0) - least) / (ranks - 1) - least
    caused = np.bincount(shortest, weights=waits, minlength=ranks)
    row = int(caused.argmax())
    caused_by_row = durations[:, shortest == row]
    own, others = 0.0, 0.0
    often = caused_by_row.shape[1]
    if often:
        own = float(np.median(caused_by_row[row]))
        others = float(np.median(np.median(np.delete(caused_by_row, row, axis=0), axis=0)))
    is_one = calls >= MIN_CALLS and caused[row] > MOSTLY * waits.sum() and others > WIDE * own
    total = float(durations.sum())
    share = 1 - float(least.sum()) * ranks / total if total else 0.0
    return Waiting(share, row if is_one else None, often, own, others)


def waiting_findings(
    collective: str, members: Sequence[tuple[str, Place]], microseconds: Floats
) -> Iterator[Finding]:
    """Yield who waits for whom in calls of a collective; members are the rows' names and files."""
    calls = microseconds.shape[1]
    if len(members) < 2 or calls < MIN_CALLS or collective not in TOGETHER:
        return
    who = waiting(microseconds)
    row = who.last
    if row is not None:
        name, at = members[row]
        straggler = finding(
            "calls.straggler",
            at,
            name=name,
            often=who.often,
            calls=calls,
            collective=collective,
            own=duration(who.own / 1e6),
            others=duration(who.others / 1e6),
            between=duration((who.others - who.own) / 1e6),
        )
        names = [name for name, _ in members]
        yield straggler._replace(draw=lambda: _bars(collective, names, microseconds, row))
    elif who.share > MUCH and calls >= MANY_CALLS:
        files = [at for _, at in members]
        yield finding("calls.waiting", *files, share=who.share, collective=collective)


def _bars(collective: str, names: Sequence[str], microseconds: Floats, row: int) -> Picture | None:
    from collectives_logs.report import times

    seconds = (np.median(microseconds, axis=1) / 1e6).tolist()
    return times(names, seconds, row, f"median time in {collective}")
