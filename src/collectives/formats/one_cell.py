"""One cell for each GPU and chunk: the values that it holds one after the other, and the rows that write them.

A value that a GPU sends, or ends with, is in its cell at some time. One that is only added to another goes there as a
row that adds, so that scratch and local copies vanish.
"""

from collections import Counter, defaultdict
from typing import NamedTuple

from collectives.formats.table import wrong
from collectives.formats.values import INPUT, Held, Row, Value, Values
from collectives.schedule import ScheduleError

MOST_VALUES = 3  # that an error names


class Content(NamedTuple):
    """A value in a cell, and what it adds to; the rows that replace, add, and bring it once again."""

    held: Held
    base: Value | None
    replaces: list[Row]  # one, or none
    adds: list[Row]
    again: list[Row]

    @property
    def writes(self) -> list[Row]:
        """The rows after which the value is there."""
        return self.replaces + self.adds


def contents(values: Values) -> list[list[Content]]:
    """For each cell its values in order; ScheduleError if a GPU needs two sums of one chunk at the same time."""
    needed = values.needed() | {held for held, origin in values.origin.items() if origin == INPUT}
    last = values.last()
    cells: dict[tuple[int, int], list[Content]] = defaultdict(list)
    for held in values.origin:
        if held in needed:
            cells[held[0], held[1].chunk].append(_content(values, held, needed))
    found = [_in_order(values, cell, last) for cell in cells.values()]
    _need_each_row_once(values, found)
    return found


def _content(values: Values, held: Held, needed: set[Held]) -> Content:
    """A value as the sum of at most one other that is needed, and of rows."""
    gpu, origin, arrivals = held[0], values.origin[held], values.arrivals.get(held, [])
    if isinstance(origin, Row):
        return Content(held, None, [origin], [], arrivals[1:])
    bases: list[Value] = []
    rows: list[Row] = []
    summands = list(origin)
    for value in summands:
        come = values.origin[gpu, value]
        if (gpu, value) in needed:
            bases.append(value)
        elif isinstance(come, Row):
            rows.append(come)
        else:
            summands += come
    if len(bases) > 1:
        raise _two_values(values, held, bases)
    first = 1 if not bases else 0
    return Content(held, bases[0] if bases else None, rows[:first], rows[first:], arrivals)


def _in_order(values: Values, cell: list[Content], last: set[Held]) -> list[Content]:
    """Each sum right after the value that it adds to, and at the end what the collective asks for."""
    following = {content.base: content for content in cell if content.base is not None}
    chains = [[content] for content in cell if content.base is None]
    for chain in chains:
        while chain[-1].held[1] in following:
            chain.append(following.pop(chain[-1].held[1]))
    chains.sort(key=lambda chain: any(content.held in last for content in chain))
    found = [content for chain in chains for content in chain]
    is_lost = any(content.held in last for content in found[:-1]) or not all(content.writes for content in found[1:])
    if len(found) < len(cell) or is_lost:
        raise _two_values(values, cell[0].held, [content.held[1] for content in cell])
    return found


def _need_each_row_once(values: Values, cells: list[list[Content]]) -> None:
    """Raise unless each row is in one content: it may be in none, or in several sums."""
    used = Counter(row for cell in cells for content in cell for row in content.writes + content.again)
    for row in (row for rows in values.messages.values() for row in rows):
        if used[row] != 1:
            name = values.program.name(row.message)
            what = f"not a schedule: {used[row]} values need chunk {row.value.chunk} of {name}, expected one"
            raise wrong(values.program, row.message, what, f"needed {used[row]} times on GPU {row.dst}")


def _two_values(values: Values, held: Held, several: list[Value]) -> ScheduleError:
    gpu, chunk = held[0], held[1].chunk
    shown = "; ".join(f"{value}{_use(values, gpu, value)}" for value in several[:MOST_VALUES])
    more = f"; … ({len(several) - MOST_VALUES} more)" if len(several) > MOST_VALUES else ""
    return ScheduleError(
        f"not a schedule: GPU {gpu} needs several values of chunk {chunk} at the same time, expected one, because a "
        f"rank of a schedule has one cell for a chunk: {shown}{more}"
    )


def _use(values: Values, gpu: int, value: Value) -> str:
    """Which step sends the value, or that it is asked for at the end."""
    sent = (row.message for rows in values.messages.values() for row in rows if (row.src, row.value) == (gpu, value))
    step = next(sent, None)
    if step is not None:
        return f" that {values.program.name(step)} sends"
    return " at the end" if (gpu, value) in values.last() else ""
