"""A report of NCCL's RAS (`ncclras -v`, text of NCCL 2.24 on): processes that do not answer, ranks that are behind.

A file may have several reports, one for each query; the last is read, and compared with the one
before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from collectives.units import MAX_RANKS, many
from collectives_logs.finding import ADVICE, MAX_NAMED, Finding, finding, named, ranks
from collectives_logs.sources import COLOURS, LineReader, LogLine, Place, lines_of, reads

# What is kept of a report: communicators, and ranks or processes in all blocks together.
MAX_BLOCKS, MAX_MEMBERS = 1 << 12, 1 << 20

TABLE = re.compile(
    r"^[ \t]*Group[ \t]+Comms[ \t]+Nodes(?:[ \t]+Ranks){3}[ \t]+Status[ \t]+Errors", re.MULTILINE
)
WHERE = re.compile(r"GPU (\S+)(?: \(NVML \S+\))? managed by process (\d{1,9}) on node (\S{1,255})")


class RasGroup(NamedTuple):
    """A row of the table: communicators that are alike."""

    number: int
    communicators: int
    size: int
    status: str
    errors: str
    at: Place


@dataclass
class RasValue:
    """A status, error or last operation, with how many ranks have it, and those that are named with their places."""

    text: str
    count: int
    at: Place
    members: dict[int, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return ranks(self.members) if len(self.members) == self.count else many(self.count, "rank")

    @property
    def operation(self) -> int:
        """Return the number of the last operation."""
        found = re.search(r"operation (\d{1,18})", self.text)
        return int(found[1]) if found else 0


@dataclass
class RasBlock:
    """A part of the report about a communicator, or about processes of the job."""

    name: str  # "#0-0 (fa93daea854b060b)", or ""
    kind: str
    at: Place
    # By what differs: "AllGather", "status".
    values: dict[str, list[RasValue]] = field(default_factory=dict)
    count: int = 0
    members: list[str] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)


@dataclass
class RasReport:
    """One answer of RAS."""

    version: str = ""
    nodes: int = 0
    processes: int = 0
    gpus: int = 0
    at: Place | None = None
    groups: dict[int, RasGroup] = field(default_factory=dict)
    blocks: list[RasBlock] = field(default_factory=list)
    warnings: list[tuple[str, Place]] = field(default_factory=list)


def begins(start: bytes) -> bool:
    """Return True if a file that begins so has a report of RAS."""
    return TABLE.search(COLOURS.sub("", start.decode("utf8", "replace"))) is not None


def read(lines: Iterable[LogLine]) -> list[RasReport]:
    """Return the last two reports in these lines.

    >>> from collectives_logs.sources import numbered
    >>> text = ["Warnings", "#0-0 (5eed) MISMATCH", "  Communicator ranks have different AllReduce operation counts"]
    >>> text += ["  7 ranks have launched up to operation 64", "  Rank 7 has launched up to operation 60 -- [unknown]"]
    >>> read(numbered(text, "ras.txt"))[-1].blocks[0].values["AllReduce"][1].members
    {7: ''}
    """
    reader = _ReportReader()
    for at, text in lines:
        reader.take(text.strip()[:2000], at)
    return reader.reports[-2:]


class _ReportReader(LineReader):
    """A reader of the reports so far, and of what the next line belongs to."""

    def __init__(self) -> None:
        self.reports = [RasReport()]
        self.block: RasBlock | None = None
        self.subject = ""
        self.is_totals = False
        self.members = 0

    @reads(r"^NCCL version (\S{1,60}) compiled with CUDA")
    def version(self, found: re.Match[str], at: Place) -> None:
        if self.reports[-1].groups or self.reports[-1].version:
            self.reports = [self.reports[-1], RasReport()]
            self.members = 0
        self.reports[-1].version = found[1]
        self.reports[-1].at = at
        self.block = None

    @reads(r"^\(total\)\s")
    def totals(self, _found: re.Match[str], _at: Place) -> None:
        self.is_totals = True

    @reads(
        r"^(\d{1,7}) +(\d{1,7}) +\d+ +\S+ +(\d{1,7}) +\d+ +(NOCOMM|INIT|RUNNING|FINALIZE|ABORT|UNKNOWN) +([A-Z,]+)$"
    )
    def group(self, found: re.Match[str], at: Place) -> None:
        groups = self.reports[-1].groups
        number, communicators, size = int(found[1]), int(found[2]), int(found[3])
        if len(groups) < MAX_BLOCKS and size <= MAX_RANKS:
            groups[number] = RasGroup(number, communicators, size, found[4], found[5], at)

    @reads(r"^(?:\d{1,9} +){2,4}\d{1,9}$")
    def numbers(self, found: re.Match[str], _: Place) -> None:
        """Read the row under "(total)": nodes, processes and GPUs."""
        row = [int(number) for number in found[0].split()]
        if self.is_totals and len(row) in (3, 5):
            report = self.reports[-1]
            report.nodes, report.processes, report.gpus = row[0], row[-2], row[-1]
        self.is_totals = False

    @reads(r"^(?:(#\d+-\d+ \([0-9a-f]+\)) )?(INCOMPLETE|DEAD|ERROR|MISMATCH|TIMEOUT)$")
    def begin(self, found: re.Match[str], at: Place) -> None:
        self.block, self.subject = RasBlock(found[1] or "", found[2], at), found[2]
        if len(self.reports[-1].blocks) < MAX_BLOCKS:
            self.reports[-1].blocks.append(self.block)

    @reads(r"^Communicator ranks have different (.{1,60})$")
    def differ(self, found: re.Match[str], _: Place) -> None:
        self.subject = found[1].removesuffix(" counts").removesuffix("operation").strip()

    @reads(
        r"^(?:Missing communicator data from (\d{1,7}) |(\d{1,7}) job process(?:es are| is) considered dead)"
    )
    def count(self, found: re.Match[str], _: Place) -> None:
        if self.block:
            self.block.count = int(found[1] or found[2])

    @reads(r"^(\d{1,7}) ranks (?:have )?((?:launched|not launched|status|reported) .{1,60})$")
    def value(self, found: re.Match[str], at: Place) -> None:
        """Read a number of ranks with the same value; the ranks that follow are some of them."""
        if self.block and self._has_room():
            values = self.block.values.setdefault(self.subject, [])
            values.append(RasValue(found[2], int(found[1]), at))

    @reads(r"^Rank (\d{1,7}) ((?:has|reported) .{1,60}?)?\s?-- (.*)$")
    def rank(self, found: re.Match[str], at: Place) -> None:
        """Read a rank, of the value before or with a value of its own."""
        if not self.block or not self._has_room():
            return
        number, where = int(found[1]), _where(found[3])
        text = (found[2] or "").removeprefix("has ").strip()
        if text:
            values = self.block.values.setdefault(self.subject, [])
            values.append(RasValue(text, 1, at))
        else:
            values = self.block.values.get(self.subject, [])
        if values:
            values[-1].members[number] = where
        else:
            self.block.ranks.append(number)
            self.block.members.append(where)

    @reads(r"^The missing ranks?: (.*)$")
    def missing(self, found: re.Match[str], _: Place) -> None:
        if self.block and self._has_room():
            numbers = re.findall(r"\d{1,7}", found[1])
            self.block.ranks += [int(number) for number in numbers[:MAX_NAMED]]

    @reads(r"^Process (\d{1,9}) on node (\S{1,255}) managing GPUs? (.{1,80})$")
    def process(self, found: re.Match[str], _: Place) -> None:
        if self.block and self._has_room():
            self.block.members.append(f"process {found[1]} on {found[2]} (GPU {found[3]})")

    @reads(r"^(?:Warning: )?((?:[Ee]ncountered|missing data|negative travel times) .{1,120})$")
    def warning(self, found: re.Match[str], at: Place) -> None:
        if self._has_room():
            self.reports[-1].warnings.append((found[1], at))

    def _has_room(self) -> bool:
        self.members += 1
        return self.members <= MAX_MEMBERS


def _where(text: str) -> str:
    """Return a process, as findings name it.

    >>> _where("GPU 4 managed by process 323032 on node 10.0.0.7")
    'process 323032 on 10.0.0.7 (GPU 4)'
    """
    found = WHERE.search(text)
    return f"process {found[2]} on {found[3]} (GPU {found[1]})" if found else ""


def findings_of(paths: Sequence[Path]) -> Iterator[Finding]:
    """Yield the findings in the last report of each file. Raises OSError."""
    for path in paths:
        yield from findings(read(lines_of([path])))


def findings(reports: Sequence[RasReport]) -> Iterator[Finding]:
    """Yield the job, its communicators, and what is wrong with each, of the last report.

    The reports before say what has moved since.
    """
    last = reports[-1]
    size = "no summary of the job"
    if last.nodes or last.gpus:
        size = f"{many(last.nodes, 'node')}, {many(last.gpus, 'GPU')}"
    job = f"NCCL {last.version or 'of an unknown version'}: {size}"
    yield Finding("job", job, at=(last.at,) if last.at else ())
    for group in last.groups.values():
        key = f"ras.{group.status}" if group.size else "ras.no rank"
        found = f"{many(group.communicators, 'communicator')} of {many(group.size, 'rank')}"
        found += f": {group.status}, {group.errors}"
        yield finding(key if key in ADVICE else "ras.communicator", group.at, found=found)
    earlier = _earlier(reports[:-1])
    for block in last.blocks:
        yield from _block(block, last)
        for what, values in block.values.items():
            before = earlier.get((block.name, block.kind, what))
            yield from _values(block, what, values, last, before)
    for text, place in last.warnings[:MAX_NAMED]:
        yield Finding("warning", f"RAS {text}", at=(place,))
    agrees = all(group.errors == "OK" for group in last.groups.values())
    if last.groups and not last.blocks and agrees:
        yield finding("ras.agree")


def _earlier(reports: Sequence[RasReport]) -> dict[tuple[str, str, str], list[RasValue]]:
    """Return the values of these reports, by a block's name and kind, and by what differs."""
    earlier = {}
    for report in reports:
        for block in report.blocks:
            for what, values in block.values.items():
                earlier[block.name, block.kind, what] = values
    return earlier


def _block(block: RasBlock, report: RasReport) -> Iterator[Finding]:
    """Yield processes and ranks that do not answer."""
    count = block.count or len(block.members)
    who = named([member for member in block.members if member])
    if block.kind in ("DEAD", "INCOMPLETE") and not block.name:
        processes = f"{count:,} process{'' if count == 1 else 'es'}"
        names = f": {who}" if who else ""
        yield finding(f"ras.{block.kind.lower()}", block.at, processes=processes, names=names)
    elif block.kind == "INCOMPLETE":
        found = f"{block.name} lacks {many(count or len(block.ranks), 'rank')}"
        if block.ranks:
            found += f": {ranks(block.ranks)}"
        if who:
            found += f" ({who})"
        lacks = finding("ras.lacks ranks", block.at, found=found)
        if report.groups and not _size(block, report):
            lacks = lacks._replace(follows="")
        if any(not other.name for other in report.blocks):  # processes, which explain the ranks
            lacks = lacks._replace(next="")
        yield lacks


def _values(
    block: RasBlock, what: str, values: list[RasValue], of: RasReport, before: list[RasValue] | None
) -> Iterator[Finding]:
    """Yield ranks whose status, error or number of launched operations is another one than the others'."""
    word = "reported " if block.kind == "ERROR" else ""
    texts = [value.text.removeprefix("status ").removeprefix("reported ") for value in values]
    found = "; ".join(f"{value} {word}{text}" for value, text in zip(values, texts, strict=True))
    if block.kind == "ERROR":
        yield finding("ras.error", block.at, name=block.name, values=found)
    elif what == "status":
        yield finding("ras.status differs", block.at, name=block.name, values=found)
    elif block.kind == "MISMATCH":
        yield _behind(block, what, values, of, before)


def _behind(
    block: RasBlock,
    what: str,
    values: list[RasValue],
    report: RasReport,
    before: list[RasValue] | None,
) -> Finding:
    """Return the ranks that are behind.

    The report names the fewer ranks, so those behind may be all others.
    """
    operations = [value.operation for value in values]
    late = [value for value in values if value.operation < max(operations)]
    processes = []
    for value in late:
        processes += [process for process in value.members.values() if process]
    numbers = _numbers(late, values, _size(block, report))
    count = many(sum(value.count for value in late), "rank")
    who = ranks(numbers) if numbers else f"{count}, not named"
    if processes:
        who += f" ({named(processes)})"
    is_stuck = False
    if before is not None:
        is_stuck = min(value.operation for value in before) == min(operations)
    fewest_first = sorted(values, key=lambda value: value.operation)
    return finding(
        "ras.stuck" if is_stuck else "ras.behind",
        block.at,
        *(value.at for value in late),
        name=block.name,
        what=what,
        values="; ".join(f"{value} up to {value.operation:,}" for value in fewest_first),
        ranks=who,
        process=processes[0] if processes else "such a process",
    )


def _numbers(late: list[RasValue], values: list[RasValue], size: int) -> list[int]:
    """Return the ranks that are behind, as named or as all others.

    [] if the report does not tell.
    """
    if all(len(value.members) == value.count for value in late):
        return list(chain.from_iterable(value.members for value in late))
    ahead = [value for value in values if value not in late]
    is_known = all(len(value.members) == value.count for value in ahead)
    if not is_known or size != sum(value.count for value in values):
        return []
    behind = set(range(size))
    for value in ahead:
        behind -= set(value.members)
    return sorted(behind)


def _size(block: RasBlock, of: RasReport) -> int:
    number = int(re.findall(r"\d+", block.name)[0]) if block.name else -1
    return of.groups[number].size if number in of.groups else 0
