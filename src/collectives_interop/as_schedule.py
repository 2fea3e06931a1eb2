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
        return f"rank {ranks[0]}" if len(ranks) == 1 else f"the sum of ranks {', '.join(ranks)}"


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
    bad = (cells.chunk < 0) | (cells.counts[:, -1] > 0) | (cells.counts > 1).any(axis=1)
    rows = zip(cells.chunk.tolist(), ranks, bad.tolist(), strict=True)
    return [
        None if is_bad else Value(chunk, int.from_bytes(bits.tobytes(), "little"))
        for chunk, bits, is_bad in rows
    ]


class Values:
    """The values of a program that was proved, in the order in which they come to be, and its messages."""

    def __init__(self, program: Program, order: Order, layout: Layout) -> None:
        self.program = program
        self.origin: dict[Held, Origin] = {}
        self.arrivals: dict[Held, list[SentChunk]] = defaultdict(list)
        self.messages: dict[int, list[SentChunk]] = {}  # by the step that sends it
        rank, chunk = np.nonzero(where(program.contract))
        last = _values(Contents(after(program.contract), chunk))
        self.last = {(r, value) for r, value in zip(rank.tolist(), last, strict=True) if value}
        cells = inputs(program, layout)
        for gpu, begin, end in zip(
            range(program.p), layout.begins, layout.begins[1:], strict=False
        ):
            self.origin |= {
                (gpu, value): INPUT for value in _values(cells.at(range(begin, end))) if value
            }
        receiver = {send: program.gpu_of(receive) for receive, send in order.sender.items()}
        for number, operands, total in replay(program, order, layout, cells):
            gpu = program.gpu_of(number)
            for row in self.messages[order.sender[number]] if number in order.sender else ():
                self.origin.setdefault((gpu, row.value), row)
                self.arrivals[gpu, row.value].append(row)
            if total and len(operands) == 2:
                for one, other, value in zip(*map(_values, (*operands, total)), strict=True):
                    if one and other and value:
                        self.origin.setdefault((gpu, value), (one, other))
            if total and number in receiver:
                ends = number, gpu, receiver[number]
                self.messages[number] = [
                    SentChunk(*ends, self._check(number, value)) for value in _values(total)
                ]

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
        found = {(row.src, row.value) for rows in self.messages.values() for row in rows}
        return (
            found
            | self.last
            | (set() if self.program.collective in REDUCING else self.arrivals.keys())
        )


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
    order, (layout, *_) = proved(program)
    values = Values(program, order, layout)
    cells = cell_contents(values)
    level = _levels(values, cells)
    adds = {row for cell in cells for content in cell for row in content.adds}
    rows: list[list[SentChunk]] = [[] for _ in range(max(level.values(), default=-1) + 1)]
    for message, t in level.items():
        rows[t] += values.messages[message]
    steps = [_step(sorted(each, key=lambda row: (row.src, row.dst)), adds) for each in rows]
    return replace(program.contract, nsteps=len(steps), make=steps.__getitem__, one_port=False)


def _levels(values: Values, cells: list[list[CellContent]]) -> dict[int, int]:
    """Return the step of each message, by the instruction that sends it."""
    sent = list(values.messages)
    number = {message: i for i, message in enumerate(sent)}
    edges = {*_by_cells(values, cells), *_one_by_one(values)}
    try:
        found = levels(
            len(sent), [(number[one], number[other], later) for one, other, later in edges]
        )
    except CycleError as error:
        message = sent[error.message]
        what = (
            f"not a schedule: the message of {values.program.name(message)} has to be in two steps"
        )
        raise wrong(
            values.program, message, what, "a second cell for its chunk is needed here"
        ) from None
    return dict(zip(sent, found, strict=True))


def _by_cells(values: Values, cells: list[list[CellContent]]) -> Iterator[Edge]:
    """Yield the messages that come after other ones, or no earlier, because of a cell."""
    reads: dict[Held, list[int]] = defaultdict(list)
    for row in (row for rows in values.messages.values() for row in rows):
        reads[row.src, row.value].append(row.message)
    for cell in cells:
        for content in cell:
            yield from _after(content.replaces, content.adds)
            yield from _after(content.writes, content.again)
            yield from ((one.message, other.message, 1) for one, other in pairwise(content.again))
            yield from (
                (row.message, read, 1) for row, read in product(content.writes, reads[content.held])
            )
        for old, new in pairwise(cell):
            yield from (
                (read, row.message, 0) for read, row in product(reads[old.held], new.writes)
            )
            yield from _after(old.writes + old.again, new.replaces)
            yield from _after(old.replaces + old.again, new.adds)


def _after(some: list[SentChunk], others: list[SentChunk]) -> Iterator[Edge]:
    return ((one.message, other.message, 1) for one, other in product(some, others))


def _one_by_one(values: Values) -> Iterator[Edge]:
    """Yield pairs of messages from one GPU to another: in one step they would be one."""
    pairs: dict[tuple[int, int], list[int]] = defaultdict(list)
    for message, (row, *_) in values.messages.items():
        pairs[row.src, row.dst].append(message)
    for messages in pairs.values():
        yield from ((one, other, 1) for one, other in pairwise(messages))


def _step(rows: list[SentChunk], adds: set[SentChunk]) -> Step:
    """Return a step; consecutive chunks of a message are one row."""
    runs: list[tuple[SentChunk, int, bool]] = []
    for row in rows:
        last, count, add = runs[-1] if runs else (None, 0, False)
        follows = (row.message, row.value.chunk, row in adds)
        if last and (last.message, last.value.chunk + count, add) == follows:
            runs[-1] = last, count + 1, add
        else:
            runs.append((row, 1, row in adds))
    columns = [(row.src, row.dst, row.value.chunk, count, add) for row, count, add in runs]
    return Step(*zip(*columns, strict=True))


def cell_contents(values: Values) -> list[list[CellContent]]:
    """Return the values of each cell in order.

    ScheduleError if a GPU needs two sums of one chunk at the same time.
    """
    needed = values.needed() | {held for held, origin in values.origin.items() if origin == INPUT}
    last = values.last
    cells: dict[tuple[int, int], list[CellContent]] = defaultdict(list)
    for held in values.origin:
        if held in needed:
            cells[held[0], held[1].chunk].append(_content(values, held, needed))
    found = [_in_order(values, cell, last) for cell in cells.values()]
    _check_rows(values, found)
    return found


def _content(values: Values, held: Held, needed: set[Held]) -> CellContent:
    """Return a value as the sum of at most one other that is needed, and of rows."""
    gpu, origin, arrivals = held[0], values.origin[held], values.arrivals.get(held, [])
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
    first = 1 if not bases else 0
    return CellContent(held, bases[0] if bases else None, rows[:first], rows[first:], arrivals)


def _in_order(values: Values, cell: list[CellContent], last: set[Held]) -> list[CellContent]:
    """Put each sum right after the value that it adds to, and at the end what the collective asks for."""
    following = {content.base: content for content in cell if content.base is not None}
    chains = [[content] for content in cell if content.base is None]
    for chain in chains:
        while chain[-1].held[1] in following:
            chain.append(following.pop(chain[-1].held[1]))
    chains.sort(key=lambda chain: any(content.held in last for content in chain))
    found = [content for chain in chains for content in chain]
    is_lost = any(content.held in last for content in found[:-1]) or not all(
        content.writes for content in found[1:]
    )
    if len(found) < len(cell) or is_lost:
        raise _two_values(values, cell[0].held, [content.held[1] for content in cell])
    return found


def _check_rows(values: Values, cells: list[list[CellContent]]) -> None:
    """Raise unless each row is in one content: it may be in none, or in several sums."""
    used = Counter(
        row for cell in cells for content in cell for row in content.writes + content.again
    )
    for row in (row for rows in values.messages.values() for row in rows):
        if used[row] != 1:
            name = values.program.name(row.message)
            what = f"not a schedule: {used[row]} values need chunk {row.value.chunk} of {name}, expected one"
            raise wrong(
                values.program, row.message, what, f"needed {used[row]} times on GPU {row.dst}"
            )


def _two_values(values: Values, held: Held, several: list[Value]) -> ScheduleError:
    gpu, chunk = held[0], held[1].chunk
    shown = "; ".join(f"{value}{_use(values, gpu, value)}" for value in several[:MAX_VALUES_SHOWN])
    more = (
        f"; … ({len(several) - MAX_VALUES_SHOWN} more)" if len(several) > MAX_VALUES_SHOWN else ""
    )
    return ScheduleError(
        f"not a schedule: GPU {gpu} needs several values of chunk {chunk} at the same time, expected one, because a "
        f"rank of a schedule has one cell for a chunk: {shown}{more}"
    )


def _use(values: Values, gpu: int, value: Value) -> str:
    """Name the step that sends the value, or say that it is asked for at the end."""
    sent = (
        row.message
        for rows in values.messages.values()
        for row in rows
        if (row.src, row.value) == (gpu, value)
    )
    step = next(sent, None)
    if step is not None:
        return f" that {values.program.name(step)} sends"
    return " at the end" if (gpu, value) in values.last else ""


class CycleError(ValueError):
    """A message comes after itself."""

    def __init__(self, message: int) -> None:
        super().__init__(f"message {message} comes after itself")
        self.message = message


def levels(count: int, edges: Iterable[Edge]) -> list[int]:
    """Return the earliest step of each of ``count`` messages; CycleError if there is none.

    >>> levels(3, [(0, 1, 1), (1, 2, 0), (2, 1, 0)])
    [0, 1, 1]
    """
    edges = set(edges)
    group = _groups(count, edges)
    into: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    for one, other, later in edges:
        if group[one] != group[other]:
            into[group[other]].append((group[one], later))
        elif later:
            raise CycleError(one)
    level: list[int] = []
    for before in into:
        level.append(max((level[each] + later for each, later in before), default=0))
    return [level[each] for each in group]


def _groups(count: int, edges: set[Edge]) -> list[int]:
    """Number the messages, the same if neither comes earlier than the other, and else in an order (Kosaraju)."""
    behind: Graph = [[] for _ in range(count)]
    before: Graph = [[] for _ in range(count)]
    for one, other, _ in edges:
        behind[one].append(other)
        before[other].append(one)
    group, number = [-1] * count, 0
    for start in reversed(_finished(behind)):
        todo = [start] if group[start] < 0 else []
        for at in todo:
            if group[at] < 0:
                group[at] = number
                todo += [each for each in before[at] if group[each] < 0]
        number += bool(todo)
    return group


def _finished(behind: Graph) -> list[int]:
    """Order messages depth first, each after all that were found behind it."""
    seen, finished = bytearray(len(behind)), []
    for start in range(len(behind)):
        path = [] if seen[start] else [(start, iter(behind[start]))]
        seen[start] = True
        while path:
            following = next((each for each in path[-1][1] if not seen[each]), None)
            if following is None:
                finished.append(path.pop()[0])
            else:
                seen[following] = True
                path.append((following, iter(behind[following])))
    return finished
