"""A report of NCCL's RAS (`ncclras -v`, text of NCCL 2.24 on), read line by line.

A file may have several reports, one for each query; the last is read, and compared with the one before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from collectives.logs.finding import COLOURS, MOST_NAMED, Line, Place
from collectives.units import MOST_RANKS

# What is kept of a report: communicators, and ranks or processes in all blocks together.
MOST_BLOCKS, MOST_MEMBERS = 1 << 12, 1 << 20

TABLE = re.compile(r"^[ \t]*Group[ \t]+Comms[ \t]+Nodes(?:[ \t]+Ranks){3}[ \t]+Status[ \t]+Errors", re.MULTILINE)
WHERE = re.compile(r"GPU (\S+)(?: \(NVML \S+\))? managed by process (\d{1,9}) on node (\S{1,255})")


class Group(NamedTuple):
    """A row of the table: communicators that are alike."""

    number: int
    communicators: int
    size: int
    status: str
    errors: str
    at: Place


@dataclass
class Value:
    """How many ranks have a status, an error, or a last operation; those that the report names, and where they are."""

    told: str
    count: int
    at: Place
    members: dict[int, str] = field(default_factory=dict)


@dataclass
class Block:
    """What the report says about a communicator, or about processes of the job."""

    name: str  # "#0-0 (fa93daea854b060b)", or ""
    kind: str
    at: Place
    values: dict[str, list[Value]] = field(default_factory=dict)  # by what differs: "AllGather", "status"
    count: int = 0
    members: list[str] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)


@dataclass
class Report:
    """One answer of RAS."""

    version: str = ""
    nodes: int = 0
    processes: int = 0
    gpus: int = 0
    at: Place | None = None
    groups: dict[int, Group] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)
    warnings: list[tuple[str, Place]] = field(default_factory=list)


def begins(start: bytes) -> bool:
    """Whether a file that begins so has a report of RAS."""
    return TABLE.search(COLOURS.sub("", start.decode("utf8", "replace"))) is not None


def read(lines: Iterable[Line]) -> list[Report]:
    """The last two reports in these lines.

    >>> from collectives.logs.finding import numbered
    >>> said = ["Warnings", "#0-0 (5eed) MISMATCH", "  Communicator ranks have different AllReduce operation counts"]
    >>> said += ["  7 ranks have launched up to operation 64", "  Rank 7 has launched up to operation 60 -- [unknown]"]
    >>> read(numbered(said, "ras.txt"))[-1].blocks[0].values["AllReduce"][1].members
    {7: ''}
    """
    reader = _Reader()
    for at, text in lines:
        for pattern, method in PATTERNS:
            if found := pattern.match(text.strip()[:2000]):
                method(reader, at, found)
                break
    return reader.reports[-2:]


class _Reader:
    """The reports so far, and what the next line belongs to."""

    def __init__(self) -> None:
        self.reports = [Report()]
        self.block: Block | None = None
        self.subject = ""
        self.is_totals = False
        self.members = 0

    def version(self, at: Place, found: re.Match[str]) -> None:
        if self.reports[-1].groups or self.reports[-1].version:
            self.reports = [*self.reports[-1:], Report()]
            self.members = 0
        self.reports[-1].version, self.reports[-1].at, self.block = found[1], at, None

    def totals(self, _at: Place, _found: re.Match[str]) -> None:
        self.is_totals = True

    def numbers(self, _: Place, found: re.Match[str]) -> None:
        """The row under "(total)": nodes, processes and GPUs."""
        if self.is_totals and len(row := [int(each) for each in found[0].split()]) in (3, 5):
            of = self.reports[-1]
            of.nodes, of.processes, of.gpus = (row[0], *row[-2:])
        self.is_totals = False

    def group(self, at: Place, found: re.Match[str]) -> None:
        of = self.reports[-1]
        if len(of.groups) < MOST_BLOCKS and int(found[3]) <= MOST_RANKS:
            of.groups[int(found[1])] = Group(int(found[1]), int(found[2]), int(found[3]), found[4], found[5], at)

    def begin(self, at: Place, found: re.Match[str]) -> None:
        self.block, self.subject = Block(found[1] or "", found[2], at), found[2]
        if len(self.reports[-1].blocks) < MOST_BLOCKS:
            self.reports[-1].blocks.append(self.block)

    def differ(self, _: Place, found: re.Match[str]) -> None:
        self.subject = found[1].removesuffix(" counts").removesuffix("operation").strip()

    def count(self, _: Place, found: re.Match[str]) -> None:
        if self.block:
            self.block.count = int(found[1])

    def value(self, at: Place, found: re.Match[str]) -> None:
        """A number of ranks with the same value; the ranks that follow are some of them."""
        if self.block and self._has_room():
            self.block.values.setdefault(self.subject, []).append(Value(found[2], int(found[1]), at))

    def rank(self, at: Place, found: re.Match[str]) -> None:
        """A rank, of the value before or with a value of its own."""
        if not self.block or not self._has_room():
            return
        number, told, where = int(found[1]), (found[2] or "").removeprefix("has ").strip(), _where(found[3])
        values = self.block.values.setdefault(self.subject, []) if told else self.block.values.get(self.subject)
        if told and values is not None:
            values.append(Value(told, 1, at))
        if values:
            values[-1].members[number] = where
        else:
            self.block.ranks.append(number)
            self.block.members.append(where)

    def missing(self, _: Place, found: re.Match[str]) -> None:
        if self.block and self._has_room():
            self.block.ranks += [int(each) for each in re.findall(r"\d{1,7}", found[1])[:MOST_NAMED]]

    def process(self, _: Place, found: re.Match[str]) -> None:
        if self.block and self._has_room():
            self.block.members.append(f"process {found[1]} on {found[2]} (GPU {found[3]})")

    def warning(self, at: Place, found: re.Match[str]) -> None:
        if self._has_room():
            self.reports[-1].warnings.append((found[1], at))

    def _has_room(self) -> bool:
        self.members += 1
        return self.members <= MOST_MEMBERS


def _where(text: str) -> str:
    """A process, as findings name it.

    >>> _where("GPU 4 managed by process 323032 on node 10.0.0.7")
    'process 323032 on 10.0.0.7 (GPU 4)'
    """
    found = WHERE.search(text)
    return f"process {found[2]} on {found[3]} (GPU {found[1]})" if found else ""


PATTERNS: tuple[tuple[re.Pattern[str], Callable[[_Reader, Place, re.Match[str]], None]], ...] = (
    (re.compile(r"NCCL version (\S{1,60}) compiled with CUDA"), _Reader.version),
    (re.compile(r"\(total\)\s"), _Reader.totals),
    (
        re.compile(
            r"(\d{1,7}) +(\d{1,7}) +\d+ +\S+ +(\d{1,7}) +\d+ +(NOCOMM|INIT|RUNNING|FINALIZE|ABORT|UNKNOWN) +([A-Z,]+)$"
        ),
        _Reader.group,
    ),
    (re.compile(r"(?:\d{1,9} +){2,4}\d{1,9}$"), _Reader.numbers),
    (re.compile(r"(?:(#\d+-\d+ \([0-9a-f]+\)) )?(INCOMPLETE|DEAD|ERROR|MISMATCH|TIMEOUT)$"), _Reader.begin),
    (re.compile(r"Communicator ranks have different (.{1,60})$"), _Reader.differ),
    (re.compile(r"Missing communicator data from (\d{1,7}) "), _Reader.count),
    (re.compile(r"(\d{1,7}) job process(?:es are| is) considered dead"), _Reader.count),
    (re.compile(r"(\d{1,7}) ranks (?:have )?((?:launched|not launched|status|reported) .{1,60})$"), _Reader.value),
    (re.compile(r"Rank (\d{1,7}) ((?:has|reported) .{1,60}?)?\s?-- (.*)$"), _Reader.rank),
    (re.compile(r"The missing ranks?: (.*)$"), _Reader.missing),
    (re.compile(r"Process (\d{1,9}) on node (\S{1,255}) managing GPUs? (.{1,80})$"), _Reader.process),
    (re.compile(r"(?:Warning: )?((?:[Ee]ncountered|missing data|negative travel times) .{1,120})$"), _Reader.warning),
)
