"""Tables that nccl-tests and rccl-tests print, among lines of NCCL, launchers and anything else.

The columns are those that a table's own heading names. A row may be cut in two by lines of other programs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from collectives.logs.benchmarks.table import (
    MOST_RANKS,
    MOST_ROWS,
    MOST_TABLES,
    PERF,
    Head,
    Measured,
    Row,
    Table,
    tables_of,
)
from collectives.logs.finding import COLOURS, Line, Place

# Processes whose lines a launcher marks: each may print a table of its own.
MOST_STREAMS = 1 << 12

# mpirun --tag-output and srun --label say which process printed a line.
PROCESS = re.compile(r"^\s{0,8}(?:\[\d{1,6},\d{1,6}\](?:<\w{1,8}>)?:?|\d{1,6}:(?= ))")
TITLES = re.compile(r"(?:size|bytes)\s{1,40}(?:count|N)\s{1,40}type\b.{0,120}?\b(?:cpu)?time\s{1,40}algbw\s{1,40}busbw")
CONFIG = re.compile(
    r"nThread \d{1,9} nGpus \d{1,9} minBytes \d{1,19} maxBytes (?P<last>\d{1,19}) "
    r"step: (?P<step>\d{1,19})\((?P<kind>factor|bytes)\)"
)
RANK = re.compile(
    r"Rank\s{1,8}(?P<rank>\d{1,7})\b.{0,60}?\bon\s{1,20}(?P<host>\S{1,253})\s{1,8}device\s{1,8}\d{1,4}\s{1,4}"
    r"\[[^\]]{0,40}\]\s{1,4}(?P<device>\S.{0,99})"
)
NAME = re.compile(r"Collective test starting: ")
FOOTER = re.compile(r"(Out of bounds values|Avg bus bandwidth)\s{0,40}: (\S{1,20})")
FAILED = re.compile(r"Test (?:NCCL|CUDA) failure (.{1,200})")
ROW = re.compile(r"(?<![\w.])(\d{1,19})[ \t]{1,40}(\d{1,19})[ \t]{1,40}([a-z][a-z0-9_]{1,15})\b")
OP = re.compile(r"[ \t]{1,40}((?!nan|inf)[a-z]\w{1,11})\b")
NUMBER = re.compile(r"[ \t]{0,40}(-?\d{1,20}(?:\.\d{1,20})?(?:e[-+]?\d{1,3})?|N/A|-?nan|-?inf)")

# A row that was cut goes on with at least a time and two rates.
LEAST_REST = 3


def begins(start: bytes) -> bool:
    """Whether a text that begins so has a table of nccl-tests, or its first lines."""
    text = COLOURS.sub("", start.decode("utf8", "replace"))
    return CONFIG.search(text) is not None or TITLES.search(text) is not None


class _Begun(NamedTuple):
    """A row of which the numbers are not all there yet."""

    at: Place
    nbytes: float
    dtype: str
    op: str
    numbers: list[float]


class _Stream:
    """What one process printed: the table that is being read."""

    def __init__(self, at: Place, hints: list[str]) -> None:
        self.file_hints = hints
        self.clear(at)

    def clear(self, at: Place) -> None:
        self.head = Head(at, hints=[*self.file_hints])
        self.rows: list[Row] = []
        self.titles: list[str] = []
        self.begun: _Begun | None = None


def tables(lines: Iterable[Line], hints: list[str]) -> Iterator[Table]:
    """The tables in these lines of one file; `hints` are names that the file's name has.

    >>> from collectives.logs.finding import numbered
    >>> text = ["# size count type redop root time algbw busbw #wrong", "1024 256 float sum -1 20.0 0.05 0.05 0"]
    >>> [(table.collective, len(table.nbytes)) for table in tables(numbered(text, "a.log"), ["all_reduce"])]
    [('all_reduce', 1)]
    """
    streams: dict[str, _Stream] = {}
    found = 0
    for at, text in lines:
        process = PROCESS.match(text)
        name = process[0].strip() if process else ""
        if name not in streams and len(streams) >= MOST_STREAMS:
            continue
        stream = streams.setdefault(name, _Stream(at, hints))
        for table in _line(stream, at, text[process.end() :] if process else text):
            if found < MOST_TABLES:
                yield table
            found += 1
    for stream in streams.values():
        for table in _ended(stream, stream.head.at):
            if found < MOST_TABLES:
                yield table
            found += 1


def _line(stream: _Stream, at: Place, text: str) -> Iterator[Table]:
    """Read a line; tables that it ends."""
    starts = NAME.search(text) or CONFIG.search(text) or RANK.search(text) or TITLES.search(text)
    names = PERF.findall(text) if "_perf" in text else []
    is_next = starts or (names and stream.head.is_whole and "concluded" not in text)
    if is_next and (stream.rows or (stream.titles and starts and starts.re is not RANK)):
        yield from _ended(stream, at)
    # The last ones count; a file may have many.
    stream.head.hints = [*stream.head.hints, *names][-4:]
    if starts:
        _heading(stream, at, text, starts)
    elif found := FOOTER.search(text):
        _finish(stream)
        stream.head.is_whole = True
        if found[1].startswith("Out") and found[2].isdecimal():
            stream.head.bad = float(found[2])
    elif found := FAILED.search(text):
        stream.head.failure = stream.head.failure or (at, found[0])
    elif stream.titles:
        _numbers(stream, at, text)


def _heading(stream: _Stream, at: Place, text: str, found: re.Match[str]) -> None:
    """A line before a table's rows."""
    head = stream.head
    if found.re is CONFIG:
        head.at = at
        head.last, head.step = float(found["last"]), float(found["step"]) if found["kind"] == "factor" else 1.0
    elif found.re is RANK:
        rank = int(found["rank"])
        if rank < MOST_RANKS:
            head.ranks[rank] = (found["host"], found["device"].strip())
    elif found.re is TITLES:
        head.at = head.at if head.last else at
        stream.titles = text[found.start() :].split()


def _numbers(stream: _Stream, at: Place, text: str) -> None:
    """A row, or the rest of one."""
    if found := ROW.search(text):
        _finish(stream)
        op = OP.match(text, found.end())
        numbers = _read(text, op.end() if op else found.end())
        stream.begun = _Begun(at, float(found[1]), found[3], op[1] if op else "", numbers)
    elif stream.begun and len(more := _read(text, 0)) >= LEAST_REST:
        stream.begun.numbers.extend(more)
    else:
        return
    if len(stream.begun.numbers) >= len(_expected(stream)):
        _finish(stream)


def _read(text: str, start: int) -> list[float]:
    """The numbers from here on; N/A is NaN.

    >>> _read(" -1  12.5 N/A 0host: x", 0)
    [-1.0, 12.5, nan, 0.0]
    """
    found = []
    while number := NUMBER.match(text, start):
        found.append(float("nan") if number[1] == "N/A" else float(number[1]))
        start = number.end()
    return found


def _expected(stream: _Stream) -> list[str]:
    """The titles of a row's numbers after the size, the count and the type."""
    titles = [title for title in stream.titles if title not in ("redop", "op", "timestamp")]
    return titles[titles.index("type") + 1 :]


def _finish(stream: _Stream) -> None:
    """Keep the row that was begun, if one part of it is whole."""
    row, stream.begun = stream.begun, None
    if row is None or len(stream.rows) >= MOST_ROWS:
        return
    titles = _expected(stream)
    root = row.numbers[0] if titles[0] == "root" and row.numbers else None
    values = row.numbers[1:] if root is not None else row.numbers
    titles = titles[1:] if titles[0] == "root" else titles
    half = next((i for i, title in enumerate(titles) if i and title.endswith("time")), len(titles))
    parts = [_measured(titles[:half], values[:half]), _measured(titles[half:], values[half:])]
    if len(values) >= half:
        stream.rows.append(Row(row.at, row.nbytes, row.dtype, row.op, root, *parts))


def _measured(titles: list[str], values: list[float]) -> Measured:
    """A row's part; the column `error` of older versions holds a difference, not a count."""
    by_title = dict(zip(titles, values, strict=False))
    us = by_title.get("time", by_title.get("cputime", float("nan")))
    rates = [by_title.get(title, float("nan")) for title in ("algbw", "busbw", "#wrong")]
    return Measured(us, *rates)


def _ended(stream: _Stream, at: Place) -> Iterator[Table]:
    """The tables that were read so far; the stream is ready for the next."""
    _finish(stream)
    if stream.rows or (stream.titles and stream.head.last) or stream.head.failure:
        yield from tables_of(stream.head, stream.rows)
    stream.clear(at)
