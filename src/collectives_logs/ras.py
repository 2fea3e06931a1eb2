"""A report of NCCL's RAS (`ncclras -v`, text of NCCL 2.24 on), read line by line.

A file may have several reports, one for each query; the last is read, and compared with the one before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from collectives.units import MAX_RANKS, many
from collectives_logs.finding import COLOURS, MOST_NAMED, Finding, Line, Place, lines_of, named, ranks

# What is kept of a report: communicators, and ranks or processes in all blocks together.
MOST_BLOCKS, MOST_MEMBERS = 1 << 12, 1 << 20

TABLE = re.compile(r"^[ \t]*Group[ \t]+Comms[ \t]+Nodes(?:[ \t]+Ranks){3}[ \t]+Status[ \t]+Errors", re.MULTILINE)
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
    """How many ranks have a status, an error, or a last operation; those that the report names, and where they are."""

    told: str
    count: int
    at: Place
    members: dict[int, str] = field(default_factory=dict)


@dataclass
class RasBlock:
    """What the report says about a communicator, or about processes of the job."""

    name: str  # "#0-0 (fa93daea854b060b)", or ""
    kind: str
    at: Place
    values: dict[str, list[RasValue]] = field(default_factory=dict)  # by what differs: "AllGather", "status"
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
    """Whether a file that begins so has a report of RAS."""
    return TABLE.search(COLOURS.sub("", start.decode("utf8", "replace"))) is not None


def read(lines: Iterable[Line]) -> list[RasReport]:
    """The last two reports in these lines.

    >>> from collectives_logs.finding import numbered
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
        self.reports = [RasReport()]
        self.block: RasBlock | None = None
        self.subject = ""
        self.is_totals = False
        self.members = 0

    def version(self, at: Place, found: re.Match[str]) -> None:
        if self.reports[-1].groups or self.reports[-1].version:
            self.reports = [*self.reports[-1:], RasReport()]
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
        if len(of.groups) < MOST_BLOCKS and int(found[3]) <= MAX_RANKS:
            of.groups[int(found[1])] = RasGroup(int(found[1]), int(found[2]), int(found[3]), found[4], found[5], at)

    def begin(self, at: Place, found: re.Match[str]) -> None:
        self.block, self.subject = RasBlock(found[1] or "", found[2], at), found[2]
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
            self.block.values.setdefault(self.subject, []).append(RasValue(found[2], int(found[1]), at))

    def rank(self, at: Place, found: re.Match[str]) -> None:
        """A rank, of the value before or with a value of its own."""
        if not self.block or not self._has_room():
            return
        number, told, where = int(found[1]), (found[2] or "").removeprefix("has ").strip(), _where(found[3])
        values = self.block.values.setdefault(self.subject, []) if told else self.block.values.get(self.subject)
        if told and values is not None:
            values.append(RasValue(told, 1, at))
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
    (
        re.compile(r"(\d{1,7}) ranks (?:have )?((?:launched|not launched|status|reported) .{1,60})$"),
        _Reader.value,
    ),
    (re.compile(r"Rank (\d{1,7}) ((?:has|reported) .{1,60}?)?\s?-- (.*)$"), _Reader.rank),
    (re.compile(r"The missing ranks?: (.*)$"), _Reader.missing),
    (re.compile(r"Process (\d{1,9}) on node (\S{1,255}) managing GPUs? (.{1,80})$"), _Reader.process),
    (
        re.compile(r"(?:Warning: )?((?:[Ee]ncountered|missing data|negative travel times) .{1,120})$"),
        _Reader.warning,
    ),
)


# What a status in the table says, if it is not RUNNING.
STATUS = {
    "INIT": (
        "a rank has not finished ncclCommInitRank, and the others wait for it",
        "look at the last lines of each rank",
    ),
    "FINALIZE": ("ranks have begun to give it up", "repeat the query: it is a fault only if it stays so"),
    "ABORT": ("a rank has aborted it", "find the first error in the ranks' logs"),
    "NOCOMM": ("no process that answers is a member of it", "repeat the query: it is a fault only if it stays so"),
    "UNKNOWN": ("no process that answers is a member of it", "repeat the query: it is a fault only if it stays so"),
}


def findings_of(paths: Sequence[Path]) -> Iterator[Finding]:
    """The findings in the last report of each file. Raises OSError."""
    for path in paths:
        yield from findings(read(lines_of([path])))


def findings(reports: Sequence[RasReport]) -> Iterator[Finding]:
    """The job, its communicators, and what is wrong with each; the report before says what has moved since."""
    of = reports[-1]
    job = f"NCCL {of.version or 'of an unknown version'}: {many(of.nodes, 'node')}, {many(of.gpus, 'GPU')}"
    yield Finding("job", job.replace("0 nodes, 0 GPUs", "no summary of the job"), at=(of.at,) if of.at else ())
    for group in of.groups.values():
        yield from _group(group)
    before = {(b.name, b.kind, what): v for r in reports[:-1] for b in r.blocks for what, v in b.values.items()}
    for block in of.blocks:
        yield from _block(block, of)
        for what, values in block.values.items():
            yield from _values(block, what, values, of, before.get((block.name, block.kind, what)))
    for text, at in of.warnings[:MOST_NAMED]:
        yield Finding("warning", f"RAS {text}", at=(at,))
    if of.groups and not of.blocks and {group.errors for group in of.groups.values()} == {"OK"}:
        yield Finding(
            "agree",
            "all ranks answer, and have launched the same numbers of collectives",
            "",
            "if the job hangs nevertheless, a launched collective does not end: read a flight recorder's dump, and the "
            "network's counters",
        )


def _group(group: RasGroup) -> Iterator[Finding]:
    each = f"{many(group.communicators, 'communicator')} of {many(group.size, 'rank')}"
    follows, advice = STATUS.get(group.status, ("", ""))
    if not group.size:
        follows, advice = "RAS knows none of its ranks, which may be a fault of RAS itself (nccl#1762)", ""
    yield Finding("communicator", f"{each}: {group.status}, {group.errors}", follows, advice, (group.at,))


def _block(block: RasBlock, of: RasReport) -> Iterator[Finding]:
    """Processes and ranks that do not answer."""
    count, who = block.count or len(block.members), named([each for each in block.members if each])
    processes = f"{count:,} process{'' if count == 1 else 'es'}"
    if block.kind in ("DEAD", "INCOMPLETE") and not block.name:
        state = f"RAS considers {processes} dead" if block.kind == "DEAD" else f"RAS has no answer from {processes}"
        yield Finding(
            block.kind.lower(),
            f"{state}{f': {who}' if who else ''}",
            "a process that has ended or is stopped: collectives with its ranks cannot end",
            "see on its node whether it runs, how its log ends, and dmesg (Xid, out of memory)",
            (block.at,),
        )
    elif block.kind == "INCOMPLETE":
        told = f": {ranks(block.ranks)}" if block.ranks else ""
        yield Finding(
            "incomplete",
            f"{block.name} lacks {many(count or len(block.ranks), 'rank')}{told}{f' ({who})' if who else ''}",
            "the other ranks wait for them in the next collective" if _size(block, of) or not of.groups else "",
            "" if any(not each.name for each in of.blocks) else "repeat the query: it is a fault only if it stays so",
            (block.at,),
        )


def _values(
    block: RasBlock, what: str, values: list[RasValue], of: RasReport, before: list[RasValue] | None
) -> Iterator[Finding]:
    """Ranks whose status, error or number of launched operations is another one than the others'."""
    told = "; ".join(f"{_who(value)} {'reported ' if block.kind == 'ERROR' else ''}{_say(value)}" for value in values)
    if block.kind == "ERROR":
        advice = "find the first NCCL WARN in the logs of these ranks"
        yield Finding("error", f"{block.name}: {told}", "the communicator cannot be used further", advice, (block.at,))
    elif what == "status":
        follows = "ranks are in different phases: some have not begun, or have given up, what others have"
        advice = "repeat the query: it is a fault only if it stays so"
        yield Finding("status differs", f"{block.name}: {told}", follows, advice, (block.at,))
    elif block.kind == "MISMATCH":
        yield from _behind(block, what, values, of, before)


def _behind(
    block: RasBlock, what: str, values: list[RasValue], of: RasReport, before: list[RasValue] | None
) -> Iterator[Finding]:
    """The report names the fewer ranks, even if they are ahead: those behind may be all others."""
    most = max(_operation(value) for value in values)
    late = [value for value in values if _operation(value) < most]
    numbers = _numbers(late, values, _size(block, of))
    places = [where for value in late for where in value.members.values() if where]
    told = "; ".join(f"{_who(value)} up to {_operation(value):,}" for value in sorted(values, key=_operation))
    follows = (
        f"behind: {ranks(numbers)}" if numbers else f"behind: {many(sum(v.count for v in late), 'rank')}, not named"
    )
    follows += f" ({named(places)})" if places else ""
    least = min(map(_operation, values))
    stuck = before is not None and min(map(_operation, before)) == least
    since = (
        "they have launched nothing since the report before: " if stuck else "repeat the query: if they stay there, "
    )
    yield Finding(
        "stuck" if stuck else "behind",
        f"{block.name} launched {what} operations: {told}",
        f"{follows}; the others may wait for them",
        f"{since}see what {places[0] if places else 'such a process'} does (py-spy dump --pid)",
        (block.at, *(value.at for value in late))[:MOST_NAMED],
    )


def _numbers(late: list[RasValue], values: list[RasValue], size: int) -> list[int]:
    """The ranks that are behind, as named or as all others; [] if the report does not tell."""
    if all(len(value.members) == value.count for value in late):
        return [rank for value in late for rank in value.members]
    others = {rank for value in values if value not in late for rank in value.members}
    is_told = all(len(value.members) == value.count for value in values if value not in late)
    return [*sorted(set(range(size)) - others)] if is_told and size == sum(value.count for value in values) else []


def _size(block: RasBlock, of: RasReport) -> int:
    number = int(re.findall(r"\d+", block.name)[0]) if block.name else -1
    return of.groups[number].size if number in of.groups else 0


def _operation(value: RasValue) -> int:
    found = re.search(r"operation (\d{1,18})", value.told)
    return int(found[1]) if found else 0


def _who(value: RasValue) -> str:
    return ranks(value.members) if len(value.members) == value.count else many(value.count, "rank")


def _say(value: RasValue) -> str:
    return value.told.removeprefix("status ").removeprefix("reported ")
