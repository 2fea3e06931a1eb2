"""A schedule as text: one line per step, one column per rank, what each rank receives.

And such a text as a schedule.

``+2<0`` reads: chunk 2 from rank 0 is added; ``=2<0``: it replaces what was there; ``+0<1,2``: from
ranks 1 and 2; ``+0<1(x3)``: in three rows; ``+2-4<0``: chunks 2 to 4. Steps run downwards here, as
a terminal does. A switch has a column behind the ranks.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple, NoReturn

from collectives.core.contracts import CONTRACTS
from collectives.core.schedule import Schedule, ScheduleError, Step, parts, run, sign

MAX_STEPS, MAX_RANKS, MAX_CELL = 24, 12, 160

# What `parse_grid` reads at most: characters, rows of all steps, chunks that these move, and the
# largest chunk.
MAX_TEXT, MAX_ROWS, MAX_MOVED, MAX_CHUNK = 1 << 20, 1 << 16, 1 << 18, (1 << 16) - 1

ITEM = re.compile(
    r"([+=])(\d{1,9})(?:-(\d{1,9}))?<(\d{1,9}(?:\(x\d{1,9}\))?(?:,\d{1,9}(?:\(x\d{1,9}\))?)*)",
    re.ASCII,
)
SOURCE = re.compile(r"(\d+)(?:\(x(\d+)\))?", re.ASCII)
NOTE, BLANK, SHOWN = "   <--", " \t\r", 40


def grid(
    schedule: Schedule, mark: tuple[int, int, str] | None = None, *, whole: bool = False
) -> str:
    """Return the schedule as a table of what every rank receives in every step.

    ``mark = (step, rank, note)`` points at one cell. Of a large schedule only a window is shown,
    around the mark; with ``whole`` all of it. `parse_grid` reads a table that is whole and has no
    switches.

    >>> from collectives.algorithms import ALGORITHMS
    >>> print(grid(ALGORITHMS["all_reduce", "ring"](3)))
    step | rank 0 | rank 1 | rank 2
       0 | +1<2   | +2<0   | +0<1
       1 | +0<2   | +1<0   | +2<1
       2 | =2<2   | =0<0   | =1<1
       3 | =1<2   | =2<0   | =0<1
    """
    at_step, at_rank, note = mark or (0, 0, "")
    ranks = _window(schedule.participants, at_rank, schedule.participants if whole else MAX_RANKS)
    steps = _window(schedule.nsteps, at_step, schedule.nsteps if whole else MAX_STEPS)
    lines = [["step", *(f"{'rank' if r < schedule.p else 'switch'} {r}" for r in ranks)]]
    for t in steps:
        received = _received(schedule.step(t))
        cells = [received.get(r, "") if whole else _short(received.get(r, "")) for r in ranks]
        if mark and t == at_step and at_rank in ranks:
            cells[ranks.index(at_rank)] = f">{cells[ranks.index(at_rank)] or '?'}<"
        lines.append([f"{t:4}", *cells])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    texts = [
        " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    if mark and at_step in steps:
        texts[1 + steps.index(at_step)] += f"   <-- {note}"
    return "\n".join(texts + _left_out(schedule, steps, ranks))


def _window(length: int, centre: int, most: int) -> range:
    start = max(0, min(centre - most // 2, length - most))
    return range(start, min(length, start + most))


def _received(step: Step) -> dict[int, str]:
    """Return what each rank receives, by row and not by message, because a fault is in a row.

    Rows that differ only in their source are written together.
    """
    sources: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    rows = zip(*(getattr(step, name).tolist() for name in Step.__slots__), strict=True)
    for src, dst, chunk, count, add in rows:
        sources[dst][sign(add) + run(chunk, count)].append(src)
    return {
        dst: " ".join(f"{what}<{_from(src)}" for what, src in into.items())
        for dst, into in sources.items()
    }


def _from(sources: list[int]) -> str:
    """Return the ranks that rows come from, each once: ``1,2``, or ``1(x3)`` for three rows."""
    return ",".join(
        f"{src}(x{rows})" if rows > 1 else str(src)
        for src, rows in sorted(Counter(sources).items())
    )


def _short(cell: str) -> str:
    return cell if len(cell) <= MAX_CELL else f"{cell[: MAX_CELL - 1]}…"


def _left_out(schedule: Schedule, steps: range, ranks: range) -> list[str]:
    hidden = {"step": schedule.nsteps - len(steps), "rank": schedule.participants - len(ranks)}
    counts = " and ".join(f"{n} more {what}{'s' * (n > 1)}" for what, n in hidden.items() if n)
    return [f"({counts} {'are' if sum(hidden.values()) > 1 else 'is'} not shown)"] if counts else []


class _Part(NamedTuple):
    """A piece of the text, and where it begins; lines and columns count from 1, as in an editor."""

    text: str
    line: int
    column: int

    def at(self, first: int, last: int) -> "_Part":
        return _Part(self.text[first:last], self.line, self.column + first)

    def stripped(self) -> "_Part":
        first = len(self.text) - len(self.text.lstrip(BLANK))
        return self.at(first, max(first, len(self.text.rstrip(BLANK))))

    def fail(self, expected: str) -> NoReturn:
        raise ScheduleError(
            f"line {self.line}, column {self.column}: got '{self.text[:SHOWN]}', expected {expected}"
        )


Row = tuple[int, int, int, int, bool]


def parse_grid(
    text: str, collective: str, p: int, *, root: int | None = None, k: int | None = None
) -> Schedule:
    r"""Parse the table that ``grid(schedule, whole=True)`` shows to a schedule without switches.

    The text has a heading, ``step | rank 0 | … | rank p-1``, and a line for each step, numbered
    from 0. Spaces do not matter; a mark (``>+1<0<``) and its note are skipped. ``root`` is 0 if the
    collective has a root and none is given. ``k`` is the least number of chunks that the text and
    the collective allow, if not given. A table does not say whether a rank may send several
    messages in a step, so the schedule promises nothing: ``one_port`` is false.

    Raises ScheduleError, with line and column and what is allowed there, if the text is not such a
    table of ``p`` ranks, and if it has more than a million characters, 65,536 rows or 65,536
    chunks, or if its rows move more than 262,144 chunks in all. Whether the schedule is right,
    `verify` says.

    >>> parse_grid("step | rank 0 | rank 1\n 0 | +0<1 | +0<0", collective="all_reduce", p=2).step(0)
    Step(1->0:+0, 0->1:+0)
    >>> parse_grid("step | rank 0 | rank 1\n 0 | +0<7 |", collective="all_reduce", p=2)
    Traceback (most recent call last):
        ...
    collectives.core.schedule.ScheduleError: line 2, column 9: got '7', expected another rank, 0 to 1
    """
    if collective not in CONTRACTS:
        raise ScheduleError(
            f"unknown collective: got '{collective}', expected one of {', '.join(CONTRACTS)}"
        )
    if len(text) > MAX_TEXT:
        raise ScheduleError(
            f"text of a schedule: got {len(text)} characters, expected at most {MAX_TEXT}"
        )
    if CONTRACTS[collective].rooted and root is None:
        root = 0
    steps = _steps(text, p)
    used = max((chunk + count for rows in steps for _, _, chunk, count, _ in rows), default=1)
    divisor = parts(collective, p)
    if k is not None and used > k:
        raise ScheduleError(f"chunks of the text: got chunk {used - 1}, expected at most {k - 1}")
    parsed = [
        Step(*zip(*rows, strict=True)) if rows else Step([], [], [], [], []) for rows in steps
    ]
    chunks = k or -(-used // divisor) * divisor
    return Schedule(collective, p, chunks, len(parsed), parsed.__getitem__, root, one_port=False)


def _steps(text: str, p: int) -> list[list[Row]]:
    lines = [
        _Part(line.partition(NOTE)[0], number, 1) for number, line in enumerate(text.split("\n"), 1)
    ]
    lines = [line for line in lines if line.text.strip(BLANK)]
    for r, cell in enumerate(_cells(lines[0] if lines else _Part("", 1, 1), p), -1):
        name = "step" if r < 0 else f"rank {r}"
        if re.sub(r"[ \t]+", " ", cell.text) != name:
            cell.fail(f"the heading {name}")
    steps: list[list[Row]] = []
    left, unmoved = MAX_ROWS, MAX_MOVED
    for line in lines[1:]:
        number, *cells = _cells(line, p)
        if number.text != str(len(steps)):
            number.fail(f"step {len(steps)}")
        steps.append([])
        for rank, cell in enumerate(cells):
            for rows in _rows(cell, rank, p, left, unmoved):
                left -= len(rows)
                unmoved -= sum(count for _, _, _, count, _ in rows)
                steps[-1] += rows
    return steps


def _cells(line: _Part, p: int) -> list[_Part]:
    """Return the cells of a line, without the spaces and the mark around them."""
    ends = [at for at, letter in enumerate(line.text) if letter == "|"] + [len(line.text)]
    if len(ends) != p + 1:
        line.stripped().fail(f"{p + 1} columns, step and {p} ranks, not {len(ends)}")
    cells = [
        line.at(first, last).stripped()
        for first, last in zip([0, *(end + 1 for end in ends)], ends, strict=False)
    ]
    marked = [len(cell.text) > 1 and cell.text[0] == ">" and cell.text[-1] == "<" for cell in cells]
    cells = [
        cell.at(1, len(cell.text) - 1) if is_marked else cell
        for cell, is_marked in zip(cells, marked, strict=True)
    ]
    return [
        cell.at(0, 0) if is_marked and cell.text == "?" else cell
        for cell, is_marked in zip(cells, marked, strict=True)
    ]


def _rows(cell: _Part, rank: int, p: int, left: int, unmoved: int) -> Iterator[list[Row]]:
    """Yield the rows of each item of a cell, such as +2-4<0,1(x3).

    ``left`` rows of ``unmoved`` chunks may come.
    """
    for found in re.finditer(r"[^ \t]+", cell.text):
        item = cell.at(*found.span())
        parsed = ITEM.fullmatch(item.text)
        if not parsed:
            item.fail("a cell such as +2<0, =2<0, +2-4<0 or +0<1,2(x3)")
        chunk, last = int(parsed[2]), int(parsed[3] or parsed[2])
        if not chunk <= last <= MAX_CHUNK:
            item.at(1, parsed.end(3) if parsed[3] else parsed.end(2)).fail(
                f"chunks in order, up to {MAX_CHUNK}"
            )
        rows: list[Row] = []
        count = last - chunk + 1
        for source in SOURCE.finditer(parsed[4]):
            src, times = int(source[1]), int(source[2] or 1)
            where = item.at(parsed.start(4) + source.start(), parsed.start(4) + source.end())
            if src == rank or src >= p:
                where.fail(f"another rank, 0 to {p - 1}")
            if times > left - len(rows) or not times:
                where.fail(f"1 to {MAX_ROWS} rows in the whole text")
            if times * count > unmoved:
                where.fail(f"rows that move up to {MAX_MOVED} chunks in the whole text")
            unmoved -= times * count
            rows += [(src, rank, chunk, count, parsed[1] == "+")] * times
        left -= len(rows)
        yield rows
