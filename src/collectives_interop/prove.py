"""Prove a program: no deadlock, no race, every contribution exactly once, in every order in which it can run.

The k-th send of a connection (GPU, GPU, channel) meets its k-th receive. A step is done before the
next one of its block, before those that wait for it, and before the step that receives its message.
With n slots a connection holds n messages, so that a send also waits for the receive n messages
earlier. With 0 slots both ends act at the same time.

A race is two steps that use one cell, one of which writes it, and that nothing orders. Every thread
block has a clock: the number of its last step. A step's vector clock says, for every block, the
last step that is certainly done before it: by program order, a dependency, or a message. A step
happens before another exactly if the other's clock has reached it. In one order of all steps, only
neighbouring uses of a cell are compared (`CellUses`): if each of these pairs is ordered, all pairs
are.

If no two steps race, every order ends the same, so that one order, replayed on counts
(`contracts`), proves all.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.core.contracts import CONTRACTS, Counts, add_counts, after, before, where
from collectives.core.schedule import Ints, ScheduleError
from collectives_interop.program import SLOTS, CellUses, Layout, Program, wrong

# Limits of a proof, each half a GiB or ten seconds: clocks of four bytes, counts of one byte in all
# cells, and chunks of all steps, alone and with a count for each GPU.
MAX_CLOCKS, MAX_COUNTS, MAX_MOVED = 1 << 27, 1 << 29, 1 << 20

# Steps that the search for needless dependencies looks at, a few seconds. The largest published
# programs take 50,000. A pair of steps that numpy compares costs a share of a step.
MAX_LOOKS, PAIRS_PER_LOOK = 1 << 22, 32

# In place of a cell's chunk: nothing but uninitialised data, and contributions to several chunks.
NONE, MIXED = -1, -2

Connection = tuple[int, int, int]


class Order:
    """A program's steps as a graph.

    ScheduleError if a message has no receiver, or a receiver no message.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        sends: dict[Connection, list[int]] = defaultdict(list)
        receives: dict[Connection, list[int]] = defaultdict(list)
        for number, step in enumerate(program.steps):
            block = program.blocks[program.block_of[number]]
            if step.kind.sends:
                sends[block.gpu, block.send, block.channel].append(number)
            if step.kind.receives:
                receives[block.receive, block.gpu, block.channel].append(number)
        self.connections: list[list[tuple[int, int]]] = []  # each with its pairs (send, receive)
        self.sender: dict[int, int] = {}  # of each step that receives
        for connection in dict.fromkeys([*sends, *receives]):
            pairs = _paired(program, connection, sends[connection], receives[connection])
            self.connections.append(pairs)
            for send, receive in pairs:
                self.sender[receive] = send
        self.looks = 0  # of `needless`, up to `MAX_LOOKS`

    @cached_property
    def before(self) -> list[list[int]]:
        """Return the steps that must be done before each step, whatever the number of slots."""
        program = self.program
        found: list[list[int]] = [[] for _ in program.steps]
        for first, last in pairwise(program.first):
            for step in range(first + 1, last):
                found[step].append(step - 1)
        for step, other in program.waits.items():
            found[step].append(other)
        for receive, send in self.sender.items():
            found[receive].append(send)
        return found

    @cached_property
    def steps(self) -> list[int]:
        """Return all steps, each after those that it waits for; ScheduleError for a deadlock."""
        order, stuck = _sorted(self.before)
        if stuck:
            raise self._deadlock(self.before, stuck, "")
        return order

    def check_no_deadlock(self) -> None:
        """Raise ScheduleError for a deadlock, with unlimited slots or with those of the protocol."""
        if not self.steps:  # which raises for a deadlock with any number of slots
            return
        protocol = self.program.protocol
        slots = SLOTS[protocol]
        before = self._limited(slots)
        stuck = _sorted(before)[1]
        if stuck:
            most = max(len(messages) for messages in self.connections)
            enough = self._least(slots, most)
            limit = f" with the {slots} slots of {protocol} ({enough} suffice)"
            raise self._deadlock(before, stuck, limit)

    def slots(self) -> int:
        """Return the smallest number of slots that suffices, if those of the protocol do."""
        return self._least(0, SLOTS[self.program.protocol])

    def _least(self, low: int, high: int) -> int:
        """Return the smallest number of slots with which nothing is stuck.

        ``high`` slots suffice.
        """

        def suffice(slots: int) -> bool:
            _, stuck = _sorted(self._limited(slots))
            return not stuck

        return bisect_left(range(high), True, lo=low, key=suffice)

    def depth(self) -> int:
        """Return the longest chain of messages of which each is sent after the one before has arrived."""
        depth = [0] * len(self.before)
        for step in self.steps:
            for other in self.before[step]:
                is_message = self.sender.get(step) == other
                chain = depth[other] + 1 if is_message else depth[other]
                depth[step] = max(depth[step], chain)
        return max(depth, default=0)

    def _limited(self, slots: int) -> list[list[int]]:
        """Return the steps before each step, with this number of slots."""
        if not slots:
            return self._joined()
        found = [list(others) for others in self.before]
        for messages in self.connections:
            for earlier, later in zip(messages, messages[slots:], strict=False):
                receive, send = earlier[1], later[0]
                found[send].append(receive)
        return found

    def _joined(self) -> list[list[int]]:
        """Let a chain of steps that pass on one message act as its first step does, because there is no slot."""
        first = list(range(len(self.before)))  # the step as which each one acts
        for step in self.steps:
            first[step] = first[self.sender.get(step, step)]
        found: list[list[int]] = [[] for _ in first]
        for step, others in enumerate(self.before):
            for other in others:
                if other != self.sender.get(step):
                    found[first[step]].append(first[other])
        return found

    def _deadlock(self, before: list[list[int]], stuck: set[int], slots: str) -> Exception:
        cycle = _cycle(before, stuck)
        names = [self.program.name(step) for step in cycle]
        shown = list(names)
        if len(names) > 6:
            shown[5:] = [f"… ({len(names) - 5} more)"]
        shown.append(names[0])
        blocks = len({self.program.block_of[step] for step in stuck})
        problem = (
            f"deadlock{slots}: {len(stuck)} of {len(before)} steps never run, "
            f"{blocks} thread blocks are stuck; {' waits for '.join(shown)}"
        )
        return wrong(self.program, cycle[0], problem, "waits for itself")

    @cached_property
    def clocks(self) -> NDArray[np.int32]:
        """Return a row for each step: the last step of each block done before it, its own block's being itself."""
        shape = len(self.program.steps), len(self.program.blocks)
        clocks = np.full(shape, -1, dtype=np.int32)
        for step in self.steps:
            row = clocks[step]
            for other in self.before[step]:
                np.maximum(row, clocks[other], out=row)
            row[self.program.block_of[step]] = self.program.index(step)
        return clocks

    @cached_property
    def _blocks(self) -> Ints:
        return np.array(self.program.block_of, dtype=np.int64)

    @cached_property
    def _first(self) -> Ints:
        return np.array(self.program.first, dtype=np.int64)

    def ordered(self, first: int, second: int) -> bool:
        """Return whether the first step is done before the second begins, or is the same."""
        clock = self.clocks[second, self.program.block_of[first]]
        return bool(clock >= self.program.index(first))

    def pairs(self, layout: Layout) -> Iterator[tuple[int, int, int]]:
        """Yield neighbouring uses of a cell of which one writes it: two different steps, and the cell."""
        uses = CellUses[int]()
        for number in self.steps:
            reads, writes = layout.uses(number)
            for other, cell in uses.before(number, reads, writes):
                yield other, number, cell

    def check_no_race(self, layout: Layout) -> None:
        """Raise ScheduleError for two steps that race for a cell, or one that reads a cell it writes for another."""
        program = self.program
        for number, step in enumerate(program.steps):
            reads, writes = layout.uses(number)
            if reads and writes and 0 < abs(reads.start - writes.start) < step.chunks:
                name = program.name(number)
                problem = f"race: {name} reads cells that it writes for another of its chunks"
                raise wrong(program, number, problem, "its source and destination overlap")
        for first, second, cell in self.pairs(layout):
            if not self.ordered(first, second):
                problem = (
                    f"race: {program.name(first)} and {program.name(second)} "
                    f"use {layout.place(cell)}, at least one writes it, and nothing orders them"
                )
                block = program.blocks[program.block_of[first]].id
                note = f"may run before or after step {program.index(first)} of block {block}"
                raise wrong(program, second, problem, note)

    def needless(self, layouts: list[Layout]) -> list[int] | None:
        """List steps whose dependency, taken away alone, leaves no race: whatever it orders is ordered without it.

        None if the search would look at more than `MAX_LOOKS` steps: it is cubic in the steps at
        worst.
        """
        used: dict[int, set[tuple[int, int]]] = defaultdict(set)  # pairs of steps, by GPU
        for layout in layouts:
            for first, second, _ in self.pairs(layout):
                used[self.program.gpu_of(first)].add((first, second))
        arrays = {gpu: np.array(sorted(pairs)) for gpu, pairs in used.items()}
        no_pairs = np.empty((0, 2), dtype=np.int64)
        found = []
        for step, other in self.program.waits.items():
            pairs = arrays.get(self.program.gpu_of(step), no_pairs)
            if not self._needs(step, other, pairs):
                found.append(step)
        return found if self.looks < MAX_LOOKS else None

    def _needs(self, step: int, other: int, pairs: NDArray[np.int64]) -> bool:
        """Return whether some pair is ordered only because ``step`` waits for ``other``.

        True once looks are spent.
        """
        if self.looks >= MAX_LOOKS:
            return True
        rest = list(self.before[step])
        rest.remove(other)
        if any(self.ordered(other, remaining) for remaining in rest):
            return False
        self.looks += len(pairs) // PAIRS_PER_LOOK
        first, second = pairs.T
        blocks = self._blocks[first]
        # The wait can only order pairs of which it comes after the first and before the second.
        is_after = self.clocks[other, blocks] >= first - self._first[blocks]
        clock = self.clocks[second, self.program.block_of[step]]
        is_before = clock >= self.program.index(step)
        between = pairs[is_after & is_before]
        return any(not self._reaches(one, two, step, rest) for one, two in between.tolist())

    def _reaches(self, first: int, second: int, step: int, rest: list[int]) -> bool:
        """Return whether ``first`` is ordered before ``second`` even if ``step`` waits for ``rest`` only.

        Goes back from ``second`` along what each step waits for. False, too, once looks are spent:
        the caller then keeps a dependency that may be needless.
        """
        todo, seen = [second], {second}
        while todo and self.looks < MAX_LOOKS:
            self.looks += 1
            at = todo.pop()
            waits_for = rest if at == step else self.before[at]
            for other in waits_for:
                if other == first:
                    return True
                # Where not even all dependencies order `first` before a step, fewer do not.
                if other not in seen and self.ordered(first, other):
                    seen.add(other)
                    todo.append(other)
        return False


def _paired(
    program: Program, connection: Connection, sends: list[int], receives: list[int]
) -> list[tuple[int, int]]:
    """Return each send of a connection with its receive."""
    src, dst, channel = connection
    if len(sends) != len(receives):
        is_sent = len(sends) > len(receives)
        extra = sends[len(receives)] if is_sent else receives[len(sends)]
        problem = (
            f"{program.name(extra)} has no partner: got {len(sends)} sends "
            f"from GPU {src} to GPU {dst} on channel {channel} and {len(receives)} receives"
        )
        note = "its message is never received" if is_sent else "its message is never sent"
        raise wrong(program, extra, problem, note)
    pairs = list(zip(sends, receives, strict=True))
    for send, receive in pairs:
        sent, received = program.steps[send].chunks, program.steps[receive].chunks
        if sent != received:
            problem = (
                f"{program.name(receive)} receives {received} chunks "
                f"of {sent} that {program.name(send)} sends"
            )
            raise wrong(program, receive, problem, "another number of chunks is sent")
    return pairs


def _sorted(before: list[list[int]]) -> tuple[list[int], set[int]]:
    """Return the steps in an order that ``before`` allows, and those that are in no such order."""
    behind: list[list[int]] = [[] for _ in before]
    missing = [len(others) for others in before]
    for step, others in enumerate(before):
        for other in others:
            behind[other].append(step)
    order = [step for step, count in enumerate(missing) if not count]
    for step in order:
        for other in behind[step]:
            missing[other] -= 1
            if not missing[other]:
                order.append(other)
    return order, set(range(len(before))).difference(order)


def _cycle(before: list[list[int]], stuck: set[int]) -> list[int]:
    """Return steps that wait for each other in a circle."""
    path: dict[int, int] = {}
    step = min(stuck)
    while step not in path:
        path[step] = len(path)
        step = next(other for other in before[step] if other in stuck)
    return list(path)[path[step] :]


@dataclass(frozen=True)
class Contents:
    """The contents of cells: contributions of each rank to one chunk, counted, and uninitialised data the last."""

    counts: Counts
    chunk: Ints  # or NONE, or MIXED

    def at(self, cells: range) -> "Contents":
        """Return a copy of some cells."""
        some = slice(cells.start, cells.stop)
        return Contents(self.counts[some].copy(), self.chunk[some].copy())

    def put(self, cells: range, value: "Contents") -> None:
        """Replace some cells."""
        some = slice(cells.start, cells.stop)
        self.counts[some] = value.counts
        self.chunk[some] = value.chunk

    def __add__(self, other: "Contents") -> "Contents":
        one, two = self.chunk, other.chunk
        chunk = np.where(one == two, one, MIXED)
        chunk = np.where(one == NONE, two, chunk)
        chunk = np.where(two == NONE, one, chunk)
        return Contents(add_counts(self.counts, other.counts), chunk)


class Replayed(NamedTuple):
    """A step that has run: its number, the contents that it has added up, and the sum.

    None if it does nothing.
    """

    number: int
    operands: list[Contents]
    total: Contents | None


def inputs(program: Program, layout: Layout) -> Contents:
    """Return the cells of all GPUs before the first step."""
    held = before(program.contract)
    total = layout.begins[-1]
    counts = np.zeros((total, program.p + 1), dtype=np.uint8)
    counts[:, -1] = 1  # uninitialised
    chunks = np.full(total, NONE, dtype=np.int64)
    rank, chunk = np.nonzero(held[..., -1] == 0)
    at = layout.inputs(rank, chunk)
    counts[at] = held[rank, chunk]
    chunks[at] = chunk
    return Contents(counts, chunks)


def replay(program: Program, order: Order, layout: Layout, cells: Contents) -> Iterator[Replayed]:
    """Run all steps on the cells, in one order."""
    sent: dict[int, Contents] = {}
    for source, target in layout.copies():
        cells.put(target, cells.at(source))
    for number in order.steps:
        kind = program.steps[number].kind
        reads, writes = layout.uses(number)
        operands: list[Contents] = []
        if kind.receives:
            operands.append(sent.pop(order.sender[number]))
        if kind.reads:
            operands.append(cells.at(reads))
        if kind.accumulates:
            operands.append(cells.at(writes))
        total = operands[0] if operands else None
        if len(operands) == 2:
            total = operands[0] + operands[1]
        if total and kind.stores:
            cells.put(writes, total)
        if total and kind.sends:
            sent[number] = total
        yield Replayed(number, operands, total)


def check_result(program: Program, order: Order, layout: Layout) -> None:
    """Raise ScheduleError for a cell that does not hold what the collective asks for."""
    cells = inputs(program, layout)
    for _ in replay(program, order, layout, cells):
        pass
    rank, chunk = np.nonzero(where(program.contract))
    at = layout.outputs(rank, chunk)
    asked = after(program.contract)
    has_other_counts = (cells.counts[at] != asked).any(axis=1)
    has_other_chunk = cells.chunk[at] != chunk
    bad = np.flatnonzero(has_other_counts | has_other_chunk)
    if bad.size:
        first = bad[0]
        contributors = np.flatnonzero(asked[first])
        wanted = set((contributors * program.contract.k + chunk[first]).tolist())
        name = f"GPU {rank[first]}, chunk {chunk[first]}"
        raise _wrong_result(program, order, layout, int(at[first]), name, wanted)


def _wrong_result(
    program: Program, order: Order, layout: Layout, cell: int, name: str, wanted: set[int]
) -> ScheduleError:
    """Return the verdict on a cell that should hold each of the ``wanted`` contributions (rank * k + chunk) once."""
    k = program.contract.k
    cells = inputs(program, layout)
    first: dict[int, int] = {}  # the contribution that a cell holds before the first step
    for at in np.flatnonzero(cells.chunk >= 0).tolist():
        rank = int(cells.counts[at].argmax())
        first[at] = rank * k + int(cells.chunk[at])
    held: Counter[int] = Counter()
    for at, times in _sources(program, order, layout, cell).items():
        held[first.get(at, NONE)] += times
    is_uninitialised = held.pop(NONE, 0) > 0
    twice = sorted(number for number, times in held.items() if times > 1)
    extra = sorted(held.keys() - wanted)
    missing = sorted(wanted - held.keys())
    faults = []
    if is_uninitialised:
        faults.append("uninitialised data")
    if twice:
        faults.append(f"{_names(twice, k)} more than once")
    if extra:
        faults.append(f"{_names(extra, k)}, not asked for")
    if missing:
        faults.append(f"not {_names(missing, k)}")
    place = layout.place(cell)
    problem = f"wrong result: {name} (cell {place}) holds {', '.join(faults)}"
    if twice:
        counted = {at for at, contribution in first.items() if contribution == twice[0]}
        again = _counts_again(program, order, layout, counted)
        return wrong(program, again, problem, "counted again here")
    for number in reversed(order.steps):
        if cell in layout.uses(number)[1]:
            return wrong(program, number, problem, f"the last write of {place}")
    return ScheduleError(f"{problem}; no step writes this cell")


def _counts_again(program: Program, order: Order, layout: Layout, counted: set[int]) -> int:
    """Return the first step that adds up what two of its operands have from the ``counted`` cells."""
    total = layout.begins[-1]
    counts = np.zeros((total, 1), dtype=np.uint8)
    counts[sorted(counted)] = 1
    cells = Contents(counts, np.zeros(total, dtype=np.int64))
    for step in replay(program, order, layout, cells):
        if step.total and len(step.operands) > 1 and step.total.counts.max() > 1:
            return step.number
    raise AssertionError("a contribution is there twice, and no step adds it to itself")


def _sources(program: Program, order: Order, layout: Layout, cell: int) -> Counter[int]:
    """Return how often each cell's first content is in a cell at the end: 2 for "more than once".

    All steps are followed backwards, so that what a sum of several chunks consists of is known,
    too.
    """
    times = Counter({cell: 1})
    sent: dict[int, list[int]] = {}
    for number in reversed(order.steps):
        step = program.steps[number]
        reads, writes = layout.uses(number)
        total = sent.pop(number, [0] * step.chunks)
        for i, at in enumerate(writes):
            total[i] = min(total[i] + times.pop(at, 0), 2)
        if not any(total):
            continue
        if step.kind.receives:
            sent[order.sender[number]] = total
        operands = [reads, writes] if step.kind.accumulates else [reads]
        for operand in operands:
            for at, count in zip(operand, total, strict=False):
                times[at] = min(times[at] + count, 2)
    for source, target in reversed(list(layout.copies())):
        times[source.start] += times.pop(target.start, 0)
    return Counter({at: count for at, count in times.items() if count > 0})


def _names(contributions: list[int], k: int) -> str:
    """Name contributions of ranks, or a few of them."""
    names = [f"chunk {number % k} of rank {number // k}" for number in contributions]
    if len(names) > 4:
        names[3:] = [f"… ({len(names) - 3} more)"]
    return ", ".join(names)


class Report(NamedTuple):
    """Facts of a program that is right.

    Loads are multiples of the buffer's size, as bus bandwidth counts it.
    """

    instructions: int
    messages: int
    depth: int  # the longest chain of messages of which each needs the one before
    slots: int  # the smallest number of messages that a connection must hold
    dependencies: int
    # Steps that need not wait, each taken alone; None: too many to look through.
    needless: tuple[str, ...] | None
    busiest_sent: float  # by the busiest sender in all
    busiest_received: float
    busiest_link: float  # the most from one GPU to one other
    least: float  # by some GPU in any algorithm


def prove(program: Program) -> Report:
    """Raise a ScheduleError, as `proved` does; else return what is true of the program.

    Cost: about 50 microseconds a step, 4 bytes for every step and thread block, and a byte for
    every cell and GPU. ``needless`` is None for a program of which the search for needless
    dependencies would take more than seconds.

    >>> from collectives_interop.program import BufferOffset, Instruction, ThreadBlock
    >>> swap = tuple(Instruction(name, BufferOffset("i", 0), BufferOffset("i", 0), 1) for name in ("s", "rrc"))
    >>> blocks = ThreadBlock(0, 0, 1, 1, 0, swap), ThreadBlock(1, 0, 0, 0, 0, swap)
    >>> report = prove(Program("all_reduce", 2, 1, None, "Simple", (True,), blocks, (0, 0), (), {}))
    >>> report.messages, report.slots, report.busiest_sent, report.least
    (2, 1, 1.0, 1.0)
    """
    order, layouts = proved(program)
    needless = order.needless(layouts)
    names = None if needless is None else tuple(program.name(step) for step in needless)
    links: Counter[tuple[int, int]] = Counter()
    sent: Counter[int] = Counter()
    received: Counter[int] = Counter()
    for receive, send in order.sender.items():
        src, dst = program.gpu_of(send), program.gpu_of(receive)
        chunks = program.steps[send].chunks
        links[src, dst] += chunks
        sent[src] += chunks
        received[dst] += chunks
    return Report(
        instructions=len(program.steps),
        messages=len(order.sender),
        depth=order.depth(),
        slots=order.slots(),
        dependencies=len(program.waits),
        needless=names,
        busiest_sent=max(sent.values(), default=0) / program.whole,
        busiest_received=max(received.values(), default=0) / program.whole,
        busiest_link=max(links.values(), default=0) / program.whole,
        least=CONTRACTS[program.collective].factor(program.p),
    )


def proved(program: Program) -> tuple[Order, list[Layout]]:
    """Raise a ScheduleError, with GPU, thread block and step, unless the program is right in each of its modes.

    Checked, in this order: every message has a receiver; no step waits for itself, with unlimited
    slots and with those of the protocol; no two steps race for a cell; and every cell that the
    collective asks for holds each contribution once and no uninitialised data. Raises ValueError
    for a program whose proof would take gigabytes or hours. Returns the order of its steps, and a
    layout for each mode.
    """
    _check_size(program)
    order = Order(program)
    layouts = [Layout(program, in_place) for in_place in program.modes]
    order.check_no_deadlock()
    for layout in layouts:
        order.check_no_race(layout)
        check_result(program, order, layout)
    return order, layouts


def _check_size(program: Program) -> None:
    """Raise ValueError for a program whose proof would take gigabytes or hours."""
    moved = sum(step.chunks for step in program.steps)
    clocks = len(program.steps) * len(program.blocks)
    cells = program.p * sum(program.sizes) + sum(program.scratch)
    contributors = program.p + 1  # and uninitialised data
    for what, size, most in (
        ("steps times thread blocks", clocks, MAX_CLOCKS),
        ("cells times GPUs", cells * contributors, MAX_COUNTS),
        ("chunks of all steps", moved, MAX_MOVED),
        ("chunks of all steps, times GPUs", moved * contributors, MAX_COUNTS),
    ):
        if size > most:
            raise ValueError(f"size of the program: got {size:,} {what}, expected at most {most:,}")
