"""Which rank the others wait for: a collective ends on all ranks together, and lasts shortest where it begins last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.units import duration
from collectives_logs.finding import MOST_NAMED, Finding, Place

if TYPE_CHECKING:
    from collectives.figures.style import Picture

# A rank is named if there are so many calls, and if it causes this much of the waiting and its calls are this shorter.
FEWEST_CALLS, MOSTLY, WIDE = 5, 0.75, 1.5

# Of fewer calls the first ones, which connect and compile, are too large a part to say that ranks wait by turns.
MANY_CALLS = 20

# A share of the time of all calls from which waiting is worth a look, if no rank is named.
MUCH = 0.1

# Collectives in which no rank can be done before all have begun.
TOGETHER = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")


class Waiting(NamedTuple):
    """How calls of one group of ranks wait; times have the unit of what was given."""

    share: float  # of all time in these calls, that which is beyond the shortest on any rank
    last: int | None  # the row that the others wait for most, if it is one
    often: int  # how many calls it is the shortest in
    own: float  # its median, in these calls
    others: float  # the others' median, in these calls


def waiting(durations: NDArray[np.float64]) -> Waiting:
    """What durations say, with a row for each of two or more ranks, and a column for each call.

    >>> slow = np.array([[9.0, 8.0, 9.0, 9.0, 1.0], [1.0, 1.0, 1.0, 1.0, 2.0], [9.0, 9.0, 9.0, 8.0, 1.0]])
    >>> waiting(slow)
    Waiting(share=0.8076923076923077, last=1, often=4, own=1.0, others=8.75)
    """
    shortest, least = durations.argmin(axis=0), durations.min(axis=0)
    waits = (durations.sum(axis=0) - least) / (len(durations) - 1) - least  # the others', in the mean
    caused = np.bincount(shortest, weights=waits, minlength=len(durations))
    row, total = int(caused.argmax()), float(durations.sum())
    mine = durations[:, shortest == row]
    own, others = mine[row], np.median(np.delete(mine, row, axis=0), axis=0)
    middle, beside = (float(np.median(each)) if each.size else 0.0 for each in (own, others))
    is_one = durations.shape[1] >= FEWEST_CALLS and caused[row] > MOSTLY * waits.sum() and beside > WIDE * middle
    share = 1 - float(least.sum()) * len(durations) / total if total else 0.0
    return Waiting(share, row if is_one else None, own.size, middle, beside)


def waiting_findings(
    collective: str, members: Sequence[tuple[str, Place]], microseconds: NDArray[np.float64]
) -> Iterator[Finding]:
    """Who waits for whom in calls of a collective; members are the rows' names and files."""
    if len(members) < 2 or microseconds.shape[1] < FEWEST_CALLS or collective not in TOGETHER:
        return
    of = waiting(microseconds)
    own, others, between = (duration(each / 1e6) for each in (of.own, of.others, of.others - of.own))
    if (row := of.last) is not None:
        name, at = members[row]
        yield Finding(
            "straggler",
            f"{name} begins last in {of.often:,} of {microseconds.shape[1]:,} calls of {collective}: a call takes "
            f"{own} there and {others} on the others",
            f"the others wait {between} in such a call: a collective ends on all ranks together",
            f"compare {name} with another rank: its data loader, its kernels, its host, its clocks "
            "(nvidia-smi -q -d CLOCK,PERFORMANCE)",
            (at,),
            lambda: _bars(collective, [name for name, _ in members], microseconds, row),
        )
    elif of.share > MUCH and microseconds.shape[1] >= MANY_CALLS:
        yield Finding(
            "waiting",
            f"{of.share:.0%} of the time in {collective} is beyond the shortest rank's, and no rank is always the last",
            "ranks begin at different times: their work differs from step to step",
            "balance the batches (lengths of sequences, experts' tokens); look at data loading and garbage collection",
            tuple(at for _, at in members)[:MOST_NAMED],
        )


def _bars(collective: str, names: Sequence[str], microseconds: NDArray[np.float64], row: int) -> Picture | None:
    from collectives_logs.report import times

    seconds = (np.median(microseconds, axis=1) / 1e6).tolist()
    return times(names, seconds, row, f"median time in {collective}")
