"""Compile a schedule, once, into what one rank reads from its peers' published buffers, and for whom it waits.

Every rank has two places for each chunk, beside its tensors, in memory that its peers read: its *slots*. A chunk has a
new *version* after each step that writes it. A version that peers read lies in a slot, and the versions in turn use
both. A rank counts its steps where its peers see it. So it waits for two things, and both are a peer's count:

- a version that it reads is there: its owner has done the step that writes it;
- a slot that it writes is free: the readers of the version before the last one have done the steps that read it.

A step waits for steps before it alone, so nothing deadlocks: reads of step t see the versions before step t, and a slot
that step t writes held a version that was replaced before step t.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from collectives.contracts import cells, contract
from collectives.schedule import Bools, Ints, Schedule

# Places of a chunk: memory of the rank's own, for what nobody reads; two slots; its data, and where its result goes.
OWN, FIRST_SLOT, SLOTS, SOURCE, TARGET = 0, 1, 2, 3, 4
ENTERED = 1  # a rank's count when its own data are published; after step t it is t + 1 higher
MOST_STEPS = (1 << 16) - 2
MOST_MOVES = 1 << 16  # chunks that all ranks move together: more would take a second to compile


class Version(NamedTuple):
    """The value of a chunk on one rank after a step: what is reduced, in which slot it is, and who reads it.

    ``replaced`` are the readers of the version that was in the slot before.
    """

    step: int
    operands: tuple[int, ...]  # ranks, in the order in which they are added
    slot: int
    readers: tuple[tuple[int, int], ...]  # (step, rank)
    replaced: tuple[tuple[int, int], ...]  # (step, rank)


class SlotPlan(NamedTuple):
    """One rank's part: arrays of rows, which `run` follows. A row of steps ends where the next one begins."""

    steps: Ints  # step, first wait, first op
    waits: Ints  # rank, its count
    ops: Ints  # chunk, place, whether the target gets it too, whether it is divided, first operand
    operands: Ints  # rank, place
    copies: Ints  # chunk, place: own data that peers read, in a slot; or that the target gets
    held: Ints  # of each chunk: whether the source has it, and the target gets it

    @property
    def needs_own(self) -> bool:
        """Whether anything is kept in memory of the rank's own."""
        return bool((self.ops[:-1, 1] == OWN).any())

    @property
    def nbytes(self) -> int:
        """Memory of the arrays."""
        return sum(each.nbytes for each in self)

    def layout(self, edges: Ints) -> Ints:
        """Of each chunk between ``edges``: its length, and where it begins in own memory, in source and in target.

        A source or a target has the chunks that are held, one after the other.
        """
        lengths = np.diff(edges)
        sizes = np.stack([lengths, lengths, *(lengths * self.held.T)])
        sizes[1:] = np.cumsum(sizes[1:], axis=1) - sizes[1:]
        return np.ascontiguousarray(sizes.T)


def nothing() -> SlotPlan:
    """A part without a step, of one chunk."""
    ends = _table([(0, 0, 0)], 3), _table([], 2), _table([(0,) * 5], 5)
    return SlotPlan(*ends, _table([], 2), _table([], 2), _table([(0, 0)], 2))


History = dict[tuple[int, int], list[Version]]  # (rank, chunk) -> its versions


def slot_plan(schedule: Schedule, rank: int, finished: dict[int, list[int]]) -> SlotPlan | None:
    """What ``rank`` does; None for a schedule that moves too much for it. Cost: a pass over all messages of all ranks.

    ``finished`` has the chunks, by step, whose sum this rank completes and divides if the op is an average.
    """
    versions = history(schedule)
    if versions is None:
        return None
    steps: dict[int, list[tuple[int, int]]] = defaultdict(list)  # step -> (chunk, number of the version)
    copies: list[tuple[int, ...]] = []
    for (owner, chunk), each in versions.items():
        if owner == rank:
            copies += [(chunk, each[0].slot)] if each[0].slot else []
            for nth in range(1, len(each)):
                steps[each[nth].step].append((chunk, nth))
    rows, waits, ops, operands = (list[tuple[int, ...]]() for _ in range(4))
    has, wanted = _held(schedule, rank)
    written = {chunk for each in steps.values() for chunk, _ in each}
    copies += [(chunk, TARGET) for chunk in range(schedule.k) if has[chunk] and wanted[chunk] and chunk not in written]
    for step in sorted(steps):
        rows.append((step, len(waits), len(ops)))
        needed: dict[int, int] = {}
        for chunk, nth in sorted(steps[step]):
            own = versions[rank, chunk]
            version, before = own[nth], own[nth - 1]
            is_result = nth == len(own) - 1 and wanted[chunk]
            place = TARGET if is_result and version.slot == OWN else version.slot
            ops.append((chunk, place, is_result and place != TARGET, chunk in finished.get(step, []), len(operands)))
            for source in version.operands:
                read = before if source == rank else _read(versions[source, chunk], step)
                is_first = source == rank and before.step < 0
                operands.append((source, SOURCE if is_first else read.slot))
                if source != rank:
                    needed[source] = max(needed.get(source, 0), ENTERED + read.step + 1)
            for at, reader in version.replaced:
                needed[reader] = max(needed.get(reader, 0), ENTERED + at + 1)
        waits += sorted(needed.items())
    rows.append((schedule.nsteps, len(waits), len(ops)))
    ops.append((0, 0, 0, 0, len(operands)))
    tables = _table(rows, 3), _table(waits, 2), _table(ops, 5), _table(operands, 2), _table(copies, 2)
    return SlotPlan(*tables, np.stack([has, wanted], axis=1).astype(np.int64))


def history(schedule: Schedule) -> History | None:
    """All versions of all chunks on all ranks; None if that is too much.

    >>> from collectives.algorithms import ALGORITHMS
    >>> for version in history(ALGORITHMS["all_reduce", "recursive_doubling"](2))[0, 0]:
    ...     print(version)
    Version(step=-1, operands=(), slot=1, readers=((0, 1),), replaced=())
    Version(step=0, operands=(0, 1), slot=0, readers=(), replaced=())
    """
    writes: dict[tuple[int, int], dict[int, list[tuple[int, bool]]]] = defaultdict(lambda: defaultdict(list))
    reads: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    moves = 0
    if schedule.nsteps > MOST_STEPS or schedule.participants > schedule.p:
        return None
    for t, step in enumerate(schedule.steps()):
        row, chunks = step.cells()
        moves += len(row)
        if moves > MOST_MOVES:
            return None
        columns = step.src[row], step.dst[row], chunks, step.add[row]
        for src, dst, chunk, add in zip(*(each.tolist() for each in columns), strict=True):
            writes[dst, chunk][t].append((src, add))
            reads[src, chunk].append((t, dst))
    return {cell: _versions(cell[0], writes.get(cell, {}), reads.get(cell, [])) for cell in {*writes, *reads}}


def _versions(rank: int, writes: dict[int, list[tuple[int, bool]]], reads: list[tuple[int, int]]) -> list[Version]:
    found: list[Version] = []
    in_slot: list[tuple[tuple[int, int], ...]] = []  # the readers of each published version
    for step, until in pairwise([-1, *sorted(writes), MOST_STEPS]):
        # Readers of the step that replaces it read it, too.
        readers = tuple(each for each in reads if step < each[0] <= until)
        sources = writes.get(step, [])
        operands = sorted([src for src, _ in sources] + [rank] * any(add for _, add in sources))
        slot, replaced = OWN, tuple[tuple[int, int], ...]()
        if readers:
            slot = FIRST_SLOT + len(in_slot) % SLOTS
            replaced = in_slot[-SLOTS] if len(in_slot) >= SLOTS else ()
            in_slot.append(readers)
        found.append(Version(step, tuple(operands), slot, readers, replaced))
    return found


def _read(versions: list[Version], step: int) -> Version:
    """The version that a reader of this step reads."""
    return next(each for each in reversed(versions) if each.step < step)


def _held(schedule: Schedule, rank: int) -> list[Bools]:
    """Of each chunk whether the rank has it before, and whether it must have its result."""
    promised, cell, shape = contract(schedule), cells(schedule, rank), (schedule.p, schedule.k)
    return [np.broadcast_to(each(cell), shape)[rank] for each in (promised.before, promised.where)]


def _table(rows: list[tuple[int, ...]], width: int) -> Ints:
    return np.array(rows, dtype=np.int64).reshape(-1, width)
