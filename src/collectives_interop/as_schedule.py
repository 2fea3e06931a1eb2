"""Turn a program that is right into a schedule: one cell for each GPU and chunk, and steps instead of thread blocks.

A value that a GPU sends, or ends with, is in its cell at some time. One that is only added to
another goes there as a row that adds, so that scratch and local copies vanish. A value is read
after the rows that make it, and before the next one is written to its cell, or in the same step.
The earliest step of each message that respects this is a longest path.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from collectives.core.contracts import REDUCING, after, where
from collectives.core.schedule import Schedule, ScheduleError, Step
from collectives_interop import msccl
from collectives_interop.program import Layout, Program, wrong
from collectives_interop.prove import Contents, Order, inputs, proved, replay

MAX_VALUES_SHOWN = 3  # in an error

# One message, another, and how many steps later that comes at least: 0 or 1.
Edge = tuple[int, int, int]
Graph = list[list[int]]


class Value(NamedTuple):
    """A sum of contributions to one chunk: bit r of ``ranks`` is 1 if rank r's is in it."""

    chunk: int
    ranks: int

    def __str__(self) -> str:
        ranks = [str(r) for r in range(self.ranks.bit_length()) if self.ranks >> r & 1]
        if len(ranks) == 1:
            return f"rank {ranks[0]}"
        return f"the sum of ranks {', '.join(ranks)}"


class SentChunk(NamedTuple):
    """One chunk of a message: the step that sends it, the sender, the receiver, and what is sent."""

    message: int
    src: int
    dst: int
    value: Value


Held = tuple[int, Value]  # on a GPU
INPUT: tuple[()] = ()
# An input, the first row that brings it, or the sum of two values.
Origin = tuple[()] | SentChunk | tuple[Value, Value]


def _values(cells: Contents) -> list[Value | None]:
    """Return the value of each cell.

    None for uninitialised data, several chunks, and what is counted twice.
    """
    ranks = np.packbits(cells.counts[:, :-1] > 0, axis=1, bitorder="little")
    is_uninitialised = cells.counts[:, -1] > 0
    is_twice = (cells.counts > 1).any(axis=1)
    bad = (cells.chunk < 0) | is_uninitialised | is_twice
    values: list[Value | None] = []
    for chunk, bits, is_bad in zip(cells.chunk.tolist(), ranks, bad.tolist(), strict=True):
        value = Value(chunk, int.from_bytes(bits.tobytes(), "little"))
        values.append(None if is_bad else value)
    return values


def _asked(program: Program) -> set[Held]:
    """Return the values that the collective asks for at the end."""
    rank, chunk = np.nonzero(where(program.contract))
    values = _values(Contents(after(program.contract), chunk))
    found = set()
    for gpu, value in zip(rank.tolist(), values, strict=True):
        if value:
            found.add((gpu, value))
    return found


class Values:
    """The values of a program that was proved, in the order in which they come to be, and its messages."""

    def __init__(self, program: Program, order: Order, layout: Layout) -> None:
        self.program = program
        self.origin: dict[Held, Origin] = {}
        self.arrivals: dict[Held, list[SentChunk]] = defaultdict(list)
        self.messages: dict[int, list[SentChunk]] = {}  # by the step that sends it
        self.last = _asked(program)
        cells = inputs(program, layout)
        for gpu, (begin, end) in enumerate(pairwise(layout.begins)):
            for value in _values(cells.at(range(begin, end))):
                if value:
                    self.origin[gpu, value] = INPUT
        receiver: dict[int, int] = {}  # the GPU that receives what a step sends
        for receive, send in order.sender.items():
            receiver[send] = program.gpu_of(receive)
        for number, operands, total in replay(program, order, layout, cells):
            gpu = program.gpu_of(number)
            if number in order.sender:
                self._receive(gpu, self.messages[order.sender[number]])
            if total and len(operands) == 2:
                self._add(gpu, operands, total)
            if total and number in receiver:
                values = [self._check(number, value) for value in _values(total)]
                self.messages[number] = [
                    SentChunk(number, gpu, receiver[number], value) for value in values
                ]

    def _receive(self, gpu: int, message: list[SentChunk]) -> None:
        """Note that a GPU receives a message."""
        for row in message:
            self.origin.setdefault((gpu, row.value), row)
            self.arrivals[gpu, row.value].append(row)

    def _add(self, gpu: int, operands: list[Contents], total: Contents) -> None:
        """Note that a GPU adds up two operands."""
        summands, others = _values(operands[0]), _values(operands[1])
        for one, other, value in zip(summands, others, _values(total), strict=True):
            if one and other and value:
                self.origin.setdefault((gpu, value), (one, other))

    def _check(self, number: int, value: Value | None) -> Value:
        if value is None:
            name = self.program.name(number)
            problem = f"not a schedule: {name} sends no sum of different contributions to one chunk"
            raise wrong(self.program, number, problem, "nothing can use this")
        return value

    def needed(self) -> set[Held]:
        """Return the values that a GPU sends or ends with.

        Where nothing is summed, also those that nobody needs.
        """
        needed = {(row.src, row.value) for row in self.rows()}
        needed |= self.last
        if self.program.collective not in REDUCING:
            needed |= self.arrivals.keys()
        return needed

    def rows(self) -> Iterator[SentChunk]:
        """Yield the chunks of all messages."""
        for message in self.messages.values():
            yield from message


class CellContent(NamedTuple):
    """A value in a cell, and what it adds to.

    The rows that replace, add, and bring it once again.
    """

    held: Held
    base: Value | None
    replaces: list[SentChunk]  # one, or none
    adds: list[SentChunk]
    again: list[SentChunk]

    @property
    def writes(self) -> list[SentChunk]:
        """Return the rows after which the value is there."""
        return self.replaces + self.adds


def read(path: Path) -> Schedule:
    """Return the program in a file in MSCCL XML as a schedule.

    Raises ValueError for a file that is no program, ScheduleError for one that is wrong or no
    schedule (`schedule`).
    """
    return schedule(msccl.read(path))


def schedule(program: Program) -> Schedule:
    """Return the schedule that sends the same messages: as many, between the same ranks, of the same chunks.

    Each message of the program is one message of the schedule, in the earliest step that the data
    allows. Raises ScheduleError for a program that is wrong (`proved`), and for one in which a GPU
    needs two different sums of one chunk at the same time, because a rank has one cell for a chunk.

    Cost: that of `proved`, and about 50 microseconds for each chunk of a message.
    """
    order, layouts = proved(program)
    values = Values(program, order, layouts[0])
    cells = cell_contents(values)
    level = _levels(values, cells)
    added: set[SentChunk] = set()
    for cell in cells:
        for content in cell:
            added.update(content.adds)
    count = 1 + max(level.values(), default=-1)
    rows: list[list[SentChunk]] = [[] for _ in range(count)]
    for message, t in level.items():
        rows[t] += values.messages[message]
    steps = [_step(of_step, added) for of_step in rows]
    return replace(program.contract, nsteps=count, make=steps.__getitem__, one_port=False)


def _levels(values: Values, cells: list[list[CellContent]]) -> dict[int, int]:
    """Return the step of each message, by the instruction that sends it."""
    sent = list(values.messages)
    number = {message: i for i, message in enumerate(sent)}
    edges = set(_by_cells(values, cells))
    edges.update(_one_by_one(values))
    numbered = [(number[one], number[other], later) for one, other, later in edges]
    try:
        found = levels(len(sent), numbered)
    except CycleError as error:
        message = sent[error.message]
        name = values.program.name(message)
        problem = f"not a schedule: the message of {name} has to be in two steps"
        note = "a second cell for its chunk is needed here"
        raise wrong(values.program, message, problem, note) from None
    return dict(zip(sent, found, strict=True))


def _by_cells(values: Values, cells: list[list[CellContent]]) -> Iterator[Edge]:
    """Yield the messages that come after other ones, or no earlier, because of a cell."""
    reads: dict[Held, list[SentChunk]] = defaultdict(list)
    for row in values.rows():
        reads[row.src, row.value].append(row)
    for cell in cells:
        for content in cell:
            yield from _edges(content.replaces, content.adds)
            yield from _edges(content.writes, content.again)
            for one, other in pairwise(content.again):
                yield one.message, other.message, 1
            yield from _edges(content.writes, reads[content.held])
        for old, new in pairwise(cell):
            yield from _edges(reads[old.held], new.writes, later=0)
            yield from _edges(old.writes + old.again, new.replaces)
            yield from _edges(old.replaces + old.again, new.adds)


def _edges(some: list[SentChunk], others: list[SentChunk], later: int = 1) -> Iterator[Edge]:
    """Yield that each of the other messages comes so many steps later than each of some."""
    for one, other in product(some, others):
        yield one.message, other.message, later


def _one_by_one(values: Values) -> Iterator[Edge]:
    """Yield pairs of messages from one GPU to another: in one step they would be one."""
    pairs: dict[tuple[int, int], list[int]] = defaultdict(list)
    for message, rows in values.messages.items():
        pairs[rows[0].src, rows[0].dst].append(message)
    for messages in pairs.values():
        for one, other in pairwise(messages):
            yield one, other, 1


def _step(rows: list[SentChunk], added: set[SentChunk]) -> Step:
    """Return a step; consecutive chunks of a message are one row."""
    columns: list[list[int]] = []  # sender, receiver, chunk, count, whether it is added
    last: SentChunk | None = None
    for row in sorted(rows, key=lambda row: (row.src, row.dst)):
        chunk, is_added = row.value.chunk, row in added
        if last and last.message == row.message:
            first, count, was_added = columns[-1][2:]
            if first + count == chunk and was_added == is_added:
                columns[-1][3] += 1
                continue
        columns.append([row.src, row.dst, chunk, 1, is_added])
        last = row
    src, dst, first_chunk, counts, add = zip(*columns, strict=True)
    return Step(src, dst, first_chunk, counts, add)


def cell_contents(values: Values) -> list[list[CellContent]]:
    """Return the values of each cell in order.

    ScheduleError if a GPU needs two sums of one chunk at the same time.
    """
    needed = values.needed()
    needed |= {held for held, origin in values.origin.items() if origin == INPUT}
    cells: dict[tuple[int, int], list[CellContent]] = defaultdict(list)
    for held in values.origin:
        if held in needed:
            gpu, value = held
            cells[gpu, value.chunk].append(_content(values, held, needed))
    found = [_in_order(values, cell) for cell in cells.values()]
    _check_rows(values, found)
    return found


def _content(values: Values, held: Held, needed: set[Held]) -> CellContent:
    """Return a value as the sum of at most one other that is needed, and of rows."""
    gpu = held[0]
    origin = values.origin[held]
    arrivals = values.arrivals.get(held, [])
    if isinstance(origin, SentChunk):
        return CellContent(held, None, [origin], [], arrivals[1:])
    bases: list[Value] = []
    rows: list[SentChunk] = []
    summands = list(origin)
    for value in summands:
        come = values.origin[gpu, value]
        if (gpu, value) in needed:
            bases.append(value)
        elif isinstance(come, SentChunk):
            rows.append(come)
        else:
            summands += come
    if len(bases) > 1:
        raise _two_values(values, held, bases)
    if bases:
        return CellContent(held, bases[0], [], rows, arrivals)
    return CellContent(held, None, rows[:1], rows[1:], arrivals)


def _in_order(values: Values, cell: list[CellContent]) -> list[CellContent]:
    """Put each sum right after the value that it adds to, and at the end what the collective asks for."""
    following: dict[Value, CellContent] = {}  # the sum that adds to a value
    chains: list[list[CellContent]] = []
    for content in cell:
        if content.base is None:
            chains.append([content])
        else:
            following[content.base] = content
    for chain in chains:
        while chain[-1].held[1] in following:
            chain.append(following.pop(chain[-1].held[1]))

    def is_asked_for(chain: list[CellContent]) -> bool:
        return any(content.held in values.last for content in chain)

    ordered: list[CellContent] = []
    for chain in sorted(chains, key=is_asked_for):
        ordered += chain
    is_replaced = is_asked_for(ordered[:-1])
    has_writes = all(content.writes for content in ordered[1:])
    if len(ordered) < len(cell) or is_replaced or not has_writes:
        raise _two_values(values, cell[0].held, [content.held[1] for content in cell])
    return ordered


def _check_rows(values: Values, cells: list[list[CellContent]]) -> None:
    """Raise unless each row is in one content: it may be in none, or in several sums."""
    used: Counter[SentChunk] = Counter()
    for cell in cells:
        for content in cell:
            used.update(content.writes)
            used.update(content.again)
    for row in values.rows():
        times = used[row]
        if times != 1:
            name = values.program.name(row.message)
            problem = (
                f"not a schedule: {times} values need chunk {row.value.chunk} of {name}, "
                "expected one"
            )
            note = f"needed {times} times on GPU {row.dst}"
            raise wrong(values.program, row.message, problem, note)


def _two_values(values: Values, held: Held, several: list[Value]) -> ScheduleError:
    gpu, chunk = held[0], held[1].chunk
    shown = [f"{value}{_use(values, gpu, value)}" for value in several[:MAX_VALUES_SHOWN]]
    if len(several) > MAX_VALUES_SHOWN:
        shown.append(f"… ({len(several) - MAX_VALUES_SHOWN} more)")
    return ScheduleError(
        f"not a schedule: GPU {gpu} needs several values of chunk {chunk} at the same time, "
        "expected one, because a rank of a schedule has one cell for a chunk: "
        f"{'; '.join(shown)}"
    )


def _use(values: Values, gpu: int, value: Value) -> str:
    """Name the step that sends the value, or say that it is asked for at the end."""
    for row in values.rows():
        if row.src == gpu and row.value == value:
            return f" that {values.program.name(row.message)} sends"
    return " at the end" if (gpu, value) in values.last else ""


class CycleError(ValueError):
    """A message comes after itself."""

    def __init__(self, message: int) -> None:
        super().__init__(f"message {message} comes after itself")
        self.message = message


def levels(count: int, edges: Iterable[Edge]) -> list[int]:
    """Return the earliest step of each of ``count`` messages; CycleError if there is none.

    An edge (one, other, later) puts message ``other`` at least ``later`` steps behind ``one``: 0
    for the same step or a later one, 1 for a later one.

    >>> levels(3, [(0, 1, 1), (1, 2, 0), (2, 1, 0)])
    [0, 1, 1]
    """
    edges = set(edges)
    # Messages that wait for each other share a step: they are a group. A group's number is above
    # those of all groups that it waits for.
    group_of = _groups(count, edges)
    waits_for: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    for one, other, later in edges:
        if group_of[one] != group_of[other]:
            waits_for[group_of[other]].append((group_of[one], later))
        elif later:
            raise CycleError(one)
    level: list[int] = []  # of each group
    for earlier in waits_for:
        level.append(max((level[group] + later for group, later in earlier), default=0))
    return [level[group] for group in group_of]


def _groups(count: int, edges: set[Edge]) -> list[int]:
    """Number the messages, the same if neither comes earlier than the other, and else in an order (Kosaraju)."""
    behind: Graph = [[] for _ in range(count)]
    before: Graph = [[] for _ in range(count)]
    for one, other, _ in edges:
        behind[one].append(other)
        before[other].append(one)
    group = [-1] * count
    number = 0
    for start in reversed(_finished(behind)):
        if group[start] >= 0:
            continue
        todo = [start]
        for at in todo:
            if group[at] < 0:
                group[at] = number
                todo += [other for other in before[at] if group[other] < 0]
        number += 1
    return group


def _finished(behind: Graph) -> list[int]:
    """Order messages depth first, each after all that were found behind it."""
    seen = [False] * len(behind)
    finished: list[int] = []
    for start in range(len(behind)):
        if seen[start]:
            continue
        seen[start] = True
        path = [start]
        left = [iter(behind[start])]  # what is not looked at yet, for each message of the path
        while path:
            following = next((other for other in left[-1] if not seen[other]), None)
            if following is None:
                finished.append(path.pop())
                left.pop()
            else:
                seen[following] = True
                path.append(following)
                left.append(iter(behind[following]))
    return finished
