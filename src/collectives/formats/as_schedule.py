"""A program that is right as one of our schedules: one cell for each GPU and chunk, and steps instead of thread blocks.

A value is read after the rows that make it, and before the next one is written to its cell, or in the same step. The
earliest step of each message that respects this is a longest path.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, product

from collectives.formats.levels import CycleError, Edge, levels
from collectives.formats.one_cell import Content, contents
from collectives.formats.program import Program
from collectives.formats.prove import proved
from collectives.formats.table import wrong
from collectives.formats.values import Held, Row, Values
from collectives.schedule import Schedule, Step


def schedule(program: Program) -> Schedule:
    """The schedule that sends the same messages: as many, between the same ranks, of the same chunks.

    Each message of the program is one message of the schedule, in the earliest step that the data allows. Raises
    ScheduleError for a program that is wrong (`proved`), and for one in which a GPU needs two different sums of one
    chunk at the same time, because a rank has one cell for a chunk.

    Cost: that of `proved`, and about 50 microseconds for each chunk of a message.
    """
    order, _, (layout, *_) = proved(program)
    values = Values(program, order, layout)
    cells = contents(values)
    level = _levels(values, cells)
    adds = {row for cell in cells for content in cell for row in content.adds}
    rows: list[list[Row]] = [[] for _ in range(max(level.values(), default=-1) + 1)]
    for message, t in level.items():
        rows[t] += values.messages[message]
    steps = [_step(sorted(each, key=lambda row: (row.src, row.dst)), adds) for each in rows]
    return replace(layout.contract, nsteps=len(steps), make=steps.__getitem__, one_port=False)


def _levels(values: Values, cells: list[list[Content]]) -> dict[int, int]:
    """The step of each message, by the instruction that sends it."""
    sent = list(values.messages)
    number = {message: i for i, message in enumerate(sent)}
    edges = {*_by_cells(values, cells), *_one_by_one(values)}
    try:
        found = levels(len(sent), [(number[one], number[other], later) for one, other, later in edges])
    except CycleError as error:
        message = sent[error.message]
        what = f"not a schedule: the message of {values.program.name(message)} has to be in two steps"
        raise wrong(values.program, message, what, "a second cell for its chunk is needed here") from None
    return dict(zip(sent, found, strict=True))


def _by_cells(values: Values, cells: list[list[Content]]) -> Iterator[Edge]:
    """Which message comes after which other one, or no earlier, because of a cell."""
    reads: dict[Held, list[int]] = defaultdict(list)
    for row in (row for rows in values.messages.values() for row in rows):
        reads[row.src, row.value].append(row.message)
    for cell in cells:
        for content in cell:
            yield from _after(content.replaces, content.adds)
            yield from _after(content.writes, content.again)
            yield from ((one.message, other.message, 1) for one, other in pairwise(content.again))
            yield from ((row.message, read, 1) for row, read in product(content.writes, reads[content.held]))
        for old, new in pairwise(cell):
            yield from ((read, row.message, 0) for read, row in product(reads[old.held], new.writes))
            yield from _after(old.writes + old.again, new.replaces)
            yield from _after(old.replaces + old.again, new.adds)


def _after(some: list[Row], others: list[Row]) -> Iterator[Edge]:
    return ((one.message, other.message, 1) for one, other in product(some, others))


def _one_by_one(values: Values) -> Iterator[Edge]:
    """Two messages from one GPU to another are in different steps, or they would be one."""
    pairs: dict[tuple[int, int], list[int]] = defaultdict(list)
    for message, (row, *_) in values.messages.items():
        pairs[row.src, row.dst].append(message)
    for messages in pairs.values():
        yield from ((one, other, 1) for one, other in pairwise(messages))


def _step(rows: list[Row], adds: set[Row]) -> Step:
    """A step; consecutive chunks of a message are one row."""
    runs: list[tuple[Row, int, bool]] = []
    for row in rows:
        last, count, add = runs[-1] if runs else (None, 0, False)
        follows = (row.message, row.value.chunk, row in adds)
        if last and (last.message, last.value.chunk + count, add) == follows:
            runs[-1] = last, count + 1, add
        else:
            runs.append((row, 1, row in adds))
    columns = [(row.src, row.dst, row.value.chunk, count, add) for row, count, add in runs]
    return Step(*zip(*columns, strict=True))
