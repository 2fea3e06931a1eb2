"""Compile a schedule, once, into what one rank reads from its peers' slots in shared memory, and for whom it waits.

Every rank has two places for each chunk, beside its tensors, in memory that its peers read: its
*slots*. A chunk has a new *version* after each step that writes it. A version that peers read lies
in a slot, and the versions in turn use both. A rank counts its steps where its peers see it. So it
waits for two things, and both are a peer's count:

- a version that it reads is there: its owner has done the step that writes it;
- a slot that it writes is free: the readers of the version before the last one have done the steps
  that read it.

A step waits for steps before it alone, so nothing deadlocks: reads of step t see the versions
before step t, and a slot that step t writes held a version that was replaced before step t.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from collectives.core.contracts import cells, contract
from collectives.core.schedule import Bools, Ints, Schedule, Step
from collectives.engine.program import Span, StepMessages, reductions, step_messages

# Places of a chunk: memory of the rank's own, for what nobody reads; two slots; its data, and where
# its result goes.
OWN, FIRST_SLOT, SLOTS, SOURCE, TARGET = 0, 1, 2, 3, 4
ENTERED = 1  # a rank's count when its own data are in its slots; after step t it is t + 1 higher
MOST_STEPS = (1 << 16) - 2
MOST_MOVES = 1 << 16  # chunks that all ranks move together: more would take a second to compile


class SlotPlan(NamedTuple):
    """Keep one rank's program as arrays of rows, which `shm.run` follows.

    A row of steps ends where the next begins.
    """

    steps: Ints  # step, first wait, first op
    waits: Ints  # rank, its count
    ops: Ints  # chunk, place, whether the target gets it too, whether it is divided, first operand
    operands: Ints  # rank, place
    copies: Ints  # chunk, place: own data that peers read, in a slot; or that the target gets
    held: Ints  # of each chunk: whether the source has it, and the target gets it

    @property
    def needs_own(self) -> bool:
        """Tell if anything is kept in memory of the rank's own."""
        return bool((self.ops[:-1, 1] == OWN).any())

    @property
    def nbytes(self) -> int:
        """Return the bytes of the arrays."""
        return sum(each.nbytes for each in self)

    def layout(self, edges: Ints) -> Ints:
        """Return each chunk's length, and where it begins in own memory, in source and in target.

        Chunks lie between ``edges``. A source or a target has the chunks that are held, one after
        the other.
        """
        lengths = np.diff(edges)
        sizes = np.stack([lengths, lengths, *(lengths * self.held.T)])
        sizes[1:] = np.cumsum(sizes[1:], axis=1) - sizes[1:]
        return np.ascontiguousarray(sizes.T)


def nothing() -> SlotPlan:
    """Return a plan without a step, of one chunk."""
    ends = _table([(0, 0, 0)], 3), _table([], 2), _table([(0,) * 5], 5)
    return SlotPlan(*ends, _table([], 2), _table([], 2), _table([(0, 0)], 2))


def slot_plan(schedule: Schedule, rank: int, finished: dict[int, list[int]]) -> SlotPlan | None:
    """Return what ``rank`` does, or None for a schedule that moves too much for it.

    ``finished`` has the chunks, by step, whose sum this rank completes and divides if the op is an
    average. Cost: a pass over all messages of the rank and of those from which it reads.
    """
    steps = _steps(schedule)
    if steps is None:
        return None
    sources = {rank}.union(*(step.src[step.dst == rank].tolist() for step in steps))
    # So that spans are chunks, because the plan is for buffers of any size.
    edges = np.arange(schedule.k + 1)
    exchanges = [step_messages(step, sources, edges) for step in steps]
    versions = _versions(exchanges)
    has, wanted = _held(schedule, rank)
    rows, waits, ops, operands, copies = (list[tuple[int, ...]]() for _ in range(5))
    for t, exchange in enumerate(exchanges):
        receives = exchange[rank].receives if rank in exchange else []
        needed: dict[int, int] = {}  # rank -> its count
        if receives:
            rows.append((t, len(waits), len(ops)))
        for into, contributions in sorted(reductions(rank, receives)):
            for chunk in range(into.start, into.stop):
                own = versions[rank, chunk]
                version = next(each for each in own if each.step == t)
                is_result = version is own[-1] and wanted[chunk]
                place = TARGET if is_result and version.slot == OWN else version.slot
                ops.append(
                    (
                        chunk,
                        place,
                        is_result and place != TARGET,
                        chunk in finished.get(t, []),
                        len(operands),
                    )
                )
                for source, _ in contributions:
                    read = next(each for each in reversed(versions[source, chunk]) if each.step < t)
                    operands.append(
                        (source, SOURCE if source == rank and read.step < 0 else read.slot)
                    )
                    if source != rank:
                        needed[source] = max(needed.get(source, 0), ENTERED + read.step + 1)
                for step, reader in version.replaced:
                    needed[reader] = max(needed.get(reader, 0), ENTERED + step + 1)
        waits += sorted(needed.items())
    rows.append((schedule.nsteps, len(waits), len(ops)))
    for chunk in range(schedule.k):
        own = versions[rank, chunk]
        copies += [(chunk, own[0].slot)] if own[0].slot else []
        copies += [(chunk, TARGET)] if has[chunk] and wanted[chunk] and len(own) == 1 else []
    ops.append((0, 0, 0, 0, len(operands)))
    tables = (
        _table(rows, 3),
        _table(waits, 2),
        _table(ops, 5),
        _table(operands, 2),
        _table(copies, 2),
    )
    return SlotPlan(*tables, np.stack([has, wanted], axis=1).astype(np.int64))


def _steps(schedule: Schedule) -> list[Step] | None:
    """Return the steps, or None if they are too many, move too much, or need switches."""
    if schedule.nsteps > MOST_STEPS or schedule.participants > schedule.p:
        return None
    steps, moves = list[Step](), 0
    for step in schedule.steps():
        moves += int(step.count.sum())
        if moves > MOST_MOVES:
            return None
        steps.append(step)
    return steps


@dataclass(slots=True)
class Version:
    """Describe the value of a chunk on one rank after a step: in which slot it is, and who reads it.

    ``replaced`` are the readers of the version that was in the slot before.
    """

    step: int
    slot: int = OWN
    readers: list[tuple[int, int]] = field(default_factory=list)  # (step, rank)
    replaced: Sequence[tuple[int, int]] = ()  # (step, rank)


def _versions(exchanges: list[dict[int, StepMessages]]) -> dict[tuple[int, int], list[Version]]:
    """Return the versions of each (rank, chunk), of the ranks whose messages these are.

    Step -1 is before the first.

    >>> swap = Step([0, 1], [1, 0], 0, add=True)
    >>> for version in _versions([step_messages(swap, {0, 1}, np.array([0, 1]))])[0, 0]:
    ...     print(version)
    Version(step=-1, slot=1, readers=[(0, 1)], replaced=())
    Version(step=0, slot=0, readers=[], replaced=())
    """
    versions: dict[tuple[int, int], list[Version]] = defaultdict(lambda: [Version(-1)])
    # Those that peers read, which are in slots.
    shared: dict[tuple[int, int], list[Version]] = defaultdict(list)
    for t, exchange in enumerate(exchanges):
        for rank, (sends, receives) in exchange.items():
            for _, reader, pieces in sends:
                for chunk in _chunks(pieces):
                    version, before = versions[rank, chunk][-1], shared[rank, chunk]
                    if not version.readers:
                        version.slot = FIRST_SLOT + len(before) % SLOTS
                        version.replaced = before[-SLOTS].readers if len(before) >= SLOTS else ()
                        before.append(version)
                    version.readers.append((t, reader))
            written = set[int]()
            for _, _, pieces in receives:
                written.update(_chunks(pieces))
            for chunk in written:
                versions[rank, chunk].append(Version(t))
    return versions


def _chunks(pieces: Iterable[tuple[Span, bool]]) -> Iterator[int]:
    for span, _ in pieces:
        yield from range(span.start, span.stop)


def _held(schedule: Schedule, rank: int) -> list[Bools]:
    """Return for each chunk if the rank has it before, and if it must have its result."""
    promised, cell, shape = contract(schedule), cells(schedule, rank), (schedule.p, schedule.k)
    return [np.broadcast_to(each(cell), shape)[rank] for each in (promised.before, promised.where)]


def _table(rows: list[tuple[int, ...]], width: int) -> Ints:
    return np.array(rows, dtype=np.int64).reshape(-1, width)
