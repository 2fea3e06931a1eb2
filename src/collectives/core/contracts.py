"""The eight collectives: what each rank holds before and must hold after, as counts of contributions.

A contract says for every (rank, chunk, contributor) how many times that rank's data is in that
cell: 0 or 1. Counting each contributor on its own matters: a total per cell would accept one rank
counted twice and another dropped.

Counts saturate: 0, 1, or 2 for "more than once". This loses nothing. min(a + b, 2) depends on a and
b only through min(a, 2) and min(b, 2), and a contract asks for 0 or 1. So no number of additions
makes a wrong count look right.

One more contributor stands for *uninitialised* data, the content of a cell that holds nothing yet.
A schedule that adds to such a cell, or passes it on as a result, shows this contributor at the end.

A switch contributes nothing and owes nothing: its cells begin without any contributor, and none of
them is asked for.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.core.schedule import PARTS, Bools, Ints, Schedule, ScheduleError, owner

Counts = NDArray[np.uint8]


class Cells(NamedTuple):
    """Every (rank, chunk) cell as index arrays that broadcast to (p, k), and whose contribution is asked about."""

    rank: Ints
    chunk: Ints
    who: Ints | int
    p: int
    k: int
    root: int | None

    @property
    def mine(self) -> Bools:
        """Tell if the contribution asked about is the rank's own."""
        return np.asarray(self.rank == self.who)

    @property
    def at_root(self) -> Bools:
        """Tell if the cell is at the root."""
        return np.asarray(self.rank == self.root)

    @property
    def from_root(self) -> Bools:
        """Tell if the contribution is the root's."""
        return np.asarray(self.who == self.root)

    @property
    def at_owner(self) -> Bools:
        """Tell if the cell is at the rank whose part the chunk is in."""
        return np.asarray(self.rank == owner(self.chunk, self.p, self.k))

    @property
    def from_owner(self) -> Bools:
        """Tell if the contribution is that of the rank whose part the chunk is in."""
        return np.asarray(owner(self.chunk, self.p, self.k) == self.who)

    @property
    def at_receiver(self) -> Bools:
        """Tell if, in an all-to-all, the cell is at the rank that the chunk is for."""
        return np.asarray(self.rank == self.chunk * self.p * self.p // self.k % self.p)

    @property
    def everyone(self) -> Bools:
        """Tell if it is any rank's contribution, and not uninitialised data."""
        return np.asarray(self.who < self.p)

    @property
    def everywhere(self) -> Bools:
        """Return True for every cell."""
        return np.asarray(self.rank >= 0)


class Contract(NamedTuple):
    """The promise of a collective, which every algorithm keeps: one record each, in `CONTRACTS`."""

    before: Callable[[Cells], Bools]  # what is held before …
    after: Callable[[Cells], Bools]  # … and what must be held after …
    where: Callable[[Cells], Bools]  # … at these cells
    factor: Callable[[float], float]  # busbw / algbw: least traffic of the busiest link, in buffers
    # The buffer has p ** parts parts, each of which belongs to a rank (or, in an all-to-all, to
    # two).
    parts: int = 0
    rooted: bool = False  # it starts from one rank, or ends at one
    upwards: bool = False  # in its trees a rank sends to its parent
    reduces: bool = False
    in_place: bool = False  # torch.distributed performs it on the caller's own tensor
    # A rank's input, or its output, is its own part of the buffer, not the whole one.
    input_is_part: bool = False
    output_is_part: bool = False
    # The tensor that the root alone has: "input", "output", or "" where all ranks have both.
    root_only: str = ""
    compact: bool = False  # a rank has room for a part of the buffer only


def _full_buffer(_: float) -> float:
    return 1.0


def _others(p: float) -> float:
    """Return the share of all parts but the rank's own."""
    return (p - 1) / p


def _both_ways(p: float) -> float:
    return 2 * (p - 1) / p


# fmt: off
CONTRACTS: dict[str, Contract] = {
    "broadcast": Contract(
        lambda x: x.mine & x.at_root, lambda x: x.from_root, lambda x: x.everywhere, _full_buffer,
        rooted=True, in_place=True),
    "scatter": Contract(
        lambda x: x.mine & x.at_root, lambda x: x.from_root, lambda x: x.at_owner, _others,
        parts=1, rooted=True, compact=True, output_is_part=True, root_only="input"),
    "gather": Contract(
        lambda x: x.mine & x.at_owner, lambda x: x.from_owner, lambda x: x.at_root, _others,
        parts=1, rooted=True, upwards=True, compact=True, input_is_part=True, root_only="output"),
    "all_gather": Contract(
        lambda x: x.mine & x.at_owner, lambda x: x.from_owner, lambda x: x.everywhere, _others,
        parts=1, in_place=True, input_is_part=True),
    "all_to_all": Contract(
        lambda x: x.mine & x.at_owner, lambda x: x.from_owner, lambda x: x.at_receiver, _others,
        parts=2, compact=True),
    "reduce": Contract(
        lambda x: x.mine, lambda x: x.everyone, lambda x: x.at_root, _full_buffer,
        rooted=True, upwards=True, reduces=True, in_place=True, root_only="output"),
    "reduce_scatter": Contract(
        lambda x: x.mine, lambda x: x.everyone, lambda x: x.at_owner, _others,
        parts=1, reduces=True, output_is_part=True),
    "all_reduce": Contract(
        lambda x: x.mine, lambda x: x.everyone, lambda x: x.everywhere, _both_ways,
        reduces=True, in_place=True),
}
# fmt: on
PARTS.update({name: each.parts for name, each in CONTRACTS.items()})
ROOTED = tuple(name for name, each in CONTRACTS.items() if each.rooted)
REDUCING = tuple(name for name, each in CONTRACTS.items() if each.reduces)
IN_PLACE = tuple(name for name, each in CONTRACTS.items() if each.in_place)
COMPACT = tuple(name for name, each in CONTRACTS.items() if each.compact)


def contract(schedule: Schedule) -> Contract:
    """Return the contract that a schedule has to keep.

    Raises ScheduleError for a collective without one.
    """
    if schedule.collective not in CONTRACTS:
        raise ScheduleError(
            f"unknown collective {schedule.collective!r}; known are {', '.join(CONTRACTS)}"
        )
    found = CONTRACTS[schedule.collective]
    if found.rooted != (schedule.root is not None):
        raise ScheduleError(
            f"{schedule.collective} {'needs a' if schedule.root is None else 'has no'} root"
        )
    return found


def cells(schedule: Schedule, who: Ints | int) -> Cells:
    """Return all cells of a schedule's ranks, asked about one contributor, or with an array about one for each."""
    # P**4 exceeds 32 bits.
    rank, chunk = (axis.astype(np.int64) for axis in np.ogrid[: schedule.p, : schedule.k])
    return Cells(rank, chunk, who, schedule.p, schedule.k, schedule.root)


def add_counts(a: Counts, b: Counts) -> Counts:
    """Return the counts of a sum of two cells, saturated at 2.

    >>> add_counts(np.uint8([0, 1, 1, 2]), np.uint8([1, 0, 1, 2])).tolist()
    [1, 1, 2, 2]
    """
    total: Counts = np.minimum(a + b, np.uint8(2))
    return total


def before(schedule: Schedule) -> Counts:
    """Return the counts of each cell at the start, of shape (participants, k, p + 1).

    The last contributor is uninitialised data. A switch holds nothing at all.

    >>> from collectives.algorithms import ALGORITHMS
    >>> before(ALGORITHMS["broadcast", "binomial"](2))[:, 0].tolist()  # rank 1 holds nothing
    [[1, 0, 0], [0, 0, 1]]
    """
    rank = np.arange(schedule.p)[:, None]
    own = np.broadcast_to(
        contract(schedule).before(cells(schedule, rank)), (schedule.p, schedule.k)
    )
    held = np.zeros((schedule.participants, schedule.k, schedule.p + 1), dtype=np.uint8)
    np.put_along_axis(held[: schedule.p], np.where(own, rank, schedule.p)[..., None], 1, axis=2)
    return held


def after(schedule: Schedule) -> Counts:
    """Return the counts that the cells of `where` must have at the end, p + 1 for each.

    >>> from collectives.algorithms import ALGORITHMS
    >>> after(ALGORITHMS["reduce", "binomial"](3)).tolist()  # one cell, at the root: all three once
    [[1, 1, 1, 0]]
    """
    asked, shape, at = (
        contract(schedule).after,
        (schedule.p, schedule.k),
        where(schedule)[: schedule.p],
    )
    each = (
        np.broadcast_to(asked(cells(schedule, who)), shape)[at] for who in range(schedule.p + 1)
    )
    return np.stack(list(each), axis=-1, dtype=np.uint8)


def where(schedule: Schedule) -> Bools:
    """Return the (rank, chunk) that the contract asks about, of shape (participants, k), and none of a switch."""
    asked = np.zeros((schedule.participants, schedule.k), dtype=np.bool_)
    asked[: schedule.p] = contract(schedule).where(cells(schedule, 0))
    return asked
