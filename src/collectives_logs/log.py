"""A log of a job, read line by line: what NCCL, torch, launchers and other programs print when it fails.

Any text is a log. Formats of NCCL 2.2 to 2.30 are known, as `init.cc`, `enqueue.cc` and `transport/` print them, and
the lines of `forms.toml`. Lines of several ranks may be interleaved, and any may be wrapped or cut short. Memory is
that of what is found, not of the file.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import NamedTuple

from collectives_logs.forms import ANYWHERE, IN_INFO, IN_NCCL, LITERALS, Form, form_of
from collectives_logs.sources import LineReader, LogLine, Place, reads
from collectives_logs.watchdog import WatchdogLog


class Process(NamedTuple):
    """A writer of lines: a host, or what a launcher calls it; a process of it, and the process's device."""

    host: str
    pid: int
    device: int


class LogMessage(NamedTuple):
    """A warning or error: its first line, its process, and the form that it has; None for one that is not known."""

    at: Place
    process: Process
    text: str
    form: Form | None


class Raised(NamedTuple):
    """An exception that ended a traceback: the frame that was printed last, and the exception's line."""

    at: Place
    process: Process
    frame: str
    text: str


class Setting(NamedTuple):
    """A value that processes have, and the first line of it."""

    processes: set[Process]
    at: Place


@dataclass
class LoggedCommunicator:
    """A communicator as it was printed."""

    name: str
    size: int
    is_several: bool = False  # of one size, without identifiers that would tell them apart
    begun: dict[int, Process] = field(default_factory=dict)  # by rank
    complete: dict[int, Place] = field(default_factory=dict)  # by rank: the line of "Init COMPLETE"


@dataclass
class JobLog:
    """All that was found."""

    lines: int = 0
    own: int = 0  # lines of NCCL
    messages: list[LogMessage] = field(default_factory=list)
    raised: list[Raised] = field(default_factory=list)
    torch: WatchdogLog = field(default_factory=WatchdogLog)
    communicators: dict[str, LoggedCommunicator] = field(default_factory=dict)
    settings: dict[str, dict[str, Setting]] = field(default_factory=dict)  # by name and value
    ways: dict[str, tuple[int, str, Place]] = field(default_factory=dict)  # that may be slow: lines, the first of them
    fast: bool = False  # a line of a connection between hosts is there
    nodes: int = 0  # on how many a communicator is, where NCCL prints that
    calls: dict[tuple[str, Process], tuple[int, str, Place]] = field(default_factory=dict)  # the last
    errors: list[LogLine] = field(default_factory=list)  # the first lines that speak of an error
    ends: dict[str, list[LogLine]] = field(default_factory=dict)  # the last lines of each file


# What is kept at most: ranks of a communicator, its pointers, warnings, and different values of anything else.
MAX_RANKS, MAX_POINTERS, MAX_WARNINGS, MAX_VALUES = 1 << 16, 1 << 20, 1 << 14, 1 << 12
# Each line with a version is compared with all versions before.
MAX_VERSIONS = 64
MAX_ERRORS, MAX_ENDS, LAST_LINES = 3, 64, 6

# What stands before a line, by what it is: a time, a line's number or a quotation's mark, which say nothing of the
# writer; and what launchers print, of which the group names the writer.
PREFIXES = {
    "time": r">{1,3} ?|\s{0,8}\| |std(?:out|err): | {0,7}\d{1,7}(?:\t|:(?=[^\s\d]|  ))"
    r"|\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.,]{0,12} ?(?:Z|[+-]\d\d:?\d\d)?\]?:? (?:std(?:out|err) [FP] )?",
    "syslog": r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d{1,9})? ([\w.-]{1,253}) [\w./@-]{1,80}(?:\[\d{1,10}\])?: ",
    "unit": r"([\w.-]{1,253}) [\w./@-]{1,80}\[\d{1,10}\]: ",
    "service": r"([\w.-]{1,80}) +\| ",
    "pod": r"\[pod/([^\]\s]{1,300})\] ",
    "local_rank": r"\[default(\d{1,6})\]:",
    "mpi_rank": r"\[(?:\d{1,6},)?(\d{1,6})\]<std(?:out|err)>: ?",
    "tagged": r"([\w.-]{1,80}) \[std(?:out|err)\] ",
    "worker": r"\((raylet|autoscaler|[^()\n]{0,120}\bpid=\d{0,10})[^()\n]{0,120}\) ",
    "task": r" {0,5}(\d{1,6}): (?!\[(?![EWFI][\d ])[A-Za-z](?!ank\d|efault))",  # not in a list of Horovod's
    "host": r"(?!\d+: )(?=[\w.-]{0,252}\d)([\w.-]{1,253})(?<!Error)(?<!Exception): ",
    "named": r"([\w.-]{1,253}): (?=[\w.-]{1,253}:\d{1,10}:\d|\[(?:rank|default)\d|\[[EWFI][\d ]|[\w.]{1,80}Error: )",
    "rank": r"\[rank(\d{1,7})\]:? ?",
}
PREFIX = re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in PREFIXES.items()))
NUMBERED = {"task": "task ", "mpi_rank": "rank ", "local_rank": "local rank ", "rank": "rank "}
MAX_PREFIXES = 6
REPEATED = re.compile(r" ?\[repeated \d{1,9}x across cluster\][^\n]{0,200}$")
# An author who quotes a log may have left out host and process, and the device, too; before 2.4 NCCL left out its name.
HEAD = re.compile(
    r"(?:(?<![\w.-])(?<!\w:)(?P<host>[\w.-]{1,253}):(?P<pid>\d{1,10}):(?P<thread>\d{1,10}) \[(?P<device>-?\d{1,4})\] "
    r"|^[\s>]{0,9}(?:\[\d{4}-[\d :.-]{1,30}\] )?(?:(?:[\w.-]{1,253} )?\[(?P<only>-?\d{1,4})\] )?)(?:[\d.]+ )?"
    r"(?P<source>[^\s:]{1,300}:\d+\S{0,200} (?:\(\w+\) )?)?(?(host)(?:NCCL )?|NCCL )(?P<level>INFO|WARN|TRACE) ",
    re.MULTILINE,
)
LEVELS = ("INFO ", "WARN ", "TRACE ")
# Where a line of torch begins that says something about calls; it may be wrapped.
TORCH = re.compile(
    r"\[[EWFI][\d :.]{0,40}ProcessGroup\w{1,20}\.cpp:\d|\[(?:PG [^\[\]]{1,300})?Rank \d{1,7}\]|\] (?:finished|joined)"
    r"|lagging ranks"
)
# A line is looked at if it has one of these: all literals of forms, and what the reader's own patterns have.
OWN_WORDS = (
    " WARN ", "nranks ", "nRanks ", " via ", "NCCL version", "Using network", "set by environment", "opCount ",
    "NVLS Head", "No route to host", "P2P is disabled", "eligible", "optimal provider", "docker0", "172.17.",
    "ProcessGroup", "Rank ", "] finished", "] joined", "lagging ranks", "Traceback", "GeForce", "GTX", "TITAN", "RTX ",
)  # fmt: skip
WORDS = re.compile("|".join(map(re.escape, dict.fromkeys((*OWN_WORDS, *LITERALS)))))
SPEAKS = re.compile(
    r"\b(?:\w*error|fatal|failed|failure|killed|aborted|segmentation fault|core dumped)\b", re.IGNORECASE
)
# Where what belongs to such a line ends, how many lines it has at most, and how much is read of each and shown of all.
END = re.compile(r"^\W*$|Exception raised from|frame #|Traceback|^  File |^(?!nccl)\S{1,60}Error: ")
MAX_LINES, MAX_READ, MAX_SHOWN = 12, 1 << 12, 600
MAX_OPEN = 1 << 13  # records, one for each writer
NOISE = re.compile(
    r", TensorDeviceTypes=TensorOptions\(.{0,400}?\(nullopt\)\)"
    r"|This (?:may indicate|typically indicates) .{0,1500}?(?:cause deadlock\.|debug the hang\.) ?"
)
LAST = re.compile(r"Last error:\s*(\S.*)")
VERSION = re.compile(r"NCCL version ((\d[\d.]*)[\w.+-]*)")
POINTER = re.compile(r"\bcomm (0x[0-9a-f]{1,16})\b")
# GPUs without GPU-direct RDMA, as nccl-tests names them.
GEFORCE = re.compile(r"\b(?:GeForce|GTX|TITAN|RTX [2-9]0[5-9]0)\b")
FRAME = re.compile(r'\s*File ("[^"]{1,400}", line \d{1,9}(?:, in \S{1,100})?)')
EXCEPTION = re.compile(r"[A-Za-z_][\w.]{0,150}(?::\s|:?$)")
MAX_TRACEBACK = 400  # lines

# Ways of messages that may be slower than others, as `advice.toml` calls them.
SOCKETS, NO_DIRECT, SHARED = "sockets", "InfiniBand without GPU-direct", "shared memory inside a node"


def way_of(via: str) -> str:
    """Return which slower way a connection goes; "" for one that is good.

    >>> way_of("NET/Socket/0"), way_of("NET/IB/0/GDRDMA"), way_of("SHM/direct/direct")
    ('sockets', '', 'shared memory inside a node')
    """
    if via.startswith("NET/IB"):
        return "" if "GDRDMA" in via else NO_DIRECT
    return SOCKETS if via.startswith("NET/Socket") else SHARED if via.startswith("SHM") else ""


def read(lines: Iterable[LogLine]) -> JobLog:
    """Return what these lines say.

    >>> from collectives_logs.sources import numbered
    >>> log = read(numbered(["n1:7:7 [0] NCCL INFO NCCL version 2.20.5", "n1:7:7 [0] a.cc:1 NCCL WARN x"], "job.log"))
    >>> log.own, [one.text for one in log.messages]
    (2, ['x'])
    """
    reader, ends, file = _LogReader(), deque[LogLine](maxlen=LAST_LINES), ""
    log, searched = reader.log, WORDS.search
    for line in lines:
        at, text = line
        log.lines += 1
        if at.file != file:
            reader.end()
            file, ends = at.file, deque(maxlen=LAST_LINES)
            if len(log.ends) < MAX_ENDS:
                log.ends[file] = ends  # type: ignore[assignment]
        if text.strip():
            ends.append(line)
        if "NCCL INFO" in text:
            log.own += 1
        elif len(log.errors) < MAX_ERRORS and SPEAKS.search(text):
            log.errors.append(line)
        for piece in text.split("\r") if "\r" in text else (text,):  # of a progress bar
            if reader.records or reader.tracing or searched(piece):
                reader.text(at, piece)
    reader.end()
    log.ends = {name: [*some] for name, some in log.ends.items()}
    return log


@dataclass
class _Record:
    """A line that says something beside NCCL's own, and the lines that belong to it."""

    at: Place
    process: Process
    job: int
    texts: list[str] = field(default_factory=list)


@dataclass
class _Tracing:
    """A traceback that has begun, its last frame, and how many lines it had."""

    frame: str = ""
    lines: int = 0


def without_prefix(text: str) -> tuple[str, str, int, str]:
    """Return a line's writer, what to call it, the job's rank of it (-1: unknown), and the line without these.

    >>> without_prefix("2026-11-29T04:30:31.5Z stdout F [rank3]: ValueError: x")
    ('[rank3]:', 'rank 3', 3, 'ValueError: x')
    >>> without_prefix(" 3: loss 0.3"), without_prefix("ValueError: x")
    (('3:', 'task 3', -1, 'loss 0.3'), ('', '', -1, 'ValueError: x'))
    """
    start, writer, label, rank = 0, "", "", -1
    for _ in range(MAX_PREFIXES):
        found = PREFIX.match(text, start)
        if found is None or found.end() == start:
            break
        start, kind = found.end(), str(found.lastgroup)
        if kind == "time":
            continue
        name = found[found.re.groupindex[kind] + 1]
        writer, label = writer + found[0].strip(), NUMBERED.get(kind, "") + name
        if kind == "rank":
            rank = int(name)
            break
    return writer, label, rank, text[start:]


class _LogReader(LineReader):
    """A reader of the log so far, and each process's communicator."""

    def __init__(self) -> None:
        self.log = JobLog()
        self.now: dict[Process, LoggedCommunicator] = {}
        self.records: dict[str, _Record] = {}  # of each writer
        self.tracing: dict[str, _Tracing] = {}  # by writer
        self.newest = ""  # who began a record last
        self.pointers: dict[tuple[str, int, str], LoggedCommunicator] = {}  # by host, process and NCCL's address of it

    def text(self, at: Place, text: str) -> None:
        """Read a line: those of NCCL in it, of which one may begin inside another, or a piece of another record."""
        writer, label, rank, text = without_prefix(REPEATED.sub("", text) if "[repeated" in text else text)
        process = Process(label, 0, 0)
        heads = [*HEAD.finditer(text)] if any(level in text for level in LEVELS) else []
        for head, following in zip_longest(heads, heads[1:]):
            self.log.own += head["level"] != "INFO" or "NCCL INFO" not in text
            pid, device = int(head["pid"] or 0), int(head["device"] or head["only"] or 0)
            by = Process(head["host"] or label, pid, device)
            self.line(at, by, head["level"], head["source"], text[head.end() : following and following.start()])
        begun = text[:MAX_READ]
        if writer in self.tracing or "Traceback" in begun:
            self.traceback(writer, at, process, begun)
        is_known = not heads and WORDS.search(begun) is not None
        is_new = bool(TORCH.search(begun)) or (is_known and (_opens(begun) or form_of(begun, ANYWHERE) is not None))
        newest = self.records.get(self.newest)
        if newest and writer != self.newest and self.newest.startswith(writer):  # what was wrapped has no prefix
            is_inside = re.match(r"[a-z]+ ", begun) and not re.search(r"[.:;!?)]\s*$", newest.texts[-1])
            writer, is_new = (writer, True) if is_new and not is_inside else (self.newest, False)
        if writer in self.records and (is_new or END.search(text)):
            self.close(writer)
        if len(self.records) >= MAX_OPEN:
            self.end()
        if is_new:
            self.records[writer] = _Record(at, process, rank)
            self.newest = writer
        if is_known and (found := VERSION.search(text)):
            self.version(found, at, process)
        if is_known and GEFORCE.search(begun):
            self.setting("GeForce", "", process, at)
        if (is_new or not heads) and (record := self.records.get(writer)):
            record.texts.append(begun)
            if len(record.texts) == MAX_LINES:
                self.close(writer)

    def end(self) -> None:
        """Close what the last file has left open."""
        self.tracing.clear()
        for writer in [*self.records]:
            self.close(writer)

    def close(self, writer: str) -> None:
        """Keep what a record says: a call that timed out, or the first form that it has, with torch's `Last error`."""
        if (record := self.records.pop(writer, None)) is None:
            return
        whole = "".join(text.rstrip() for text in record.texts)
        is_known = self.log.torch.record(record.at, re.sub(r"\s+", "", whole), record.job)
        shown = NOISE.sub("", " ".join(text.strip() for text in record.texts))
        last = LAST.search(shown)
        form = (last and form_of(last[1], IN_NCCL)) or form_of(whole, ANYWHERE)
        shown = shown if form and form.next else record.texts[0]
        if form and not (is_known and form.kind == "timeout"):
            self.message(LogMessage(record.at, record.process, last[1] if last else shown, form))

    def traceback(self, writer: str, at: Place, process: Process, text: str) -> None:
        """Read a line of a traceback, whose last one, not indented, is the exception."""
        if "Traceback (most recent call last)" in text:
            self.tracing[writer] = _Tracing()
            return
        now = self.tracing.get(writer)
        if now is None:
            return
        now.lines += 1
        if found := FRAME.match(text):
            now.frame = found[1]
        elif text[:1] not in (" ", "\t", "", "|", "^") or now.lines > MAX_TRACEBACK:
            del self.tracing[writer]
            if EXCEPTION.match(text) and len(self.log.raised) < MAX_WARNINGS:
                self.log.raised.append(Raised(at, process, now.frame, text.rstrip()[:MAX_SHOWN]))

    def message(self, message: LogMessage) -> None:
        if len(self.log.messages) < MAX_WARNINGS:
            self.log.messages.append(message._replace(text=message.text.strip()[:MAX_SHOWN]))

    def line(self, at: Place, process: Process, level: str, source: str | None, text: str) -> None:
        whole = f"{source or ''}{text[:MAX_READ]}"
        if level == "WARN" or "No route to host" in text:  # NCCL tries that again for minutes
            self.message(LogMessage(at, process, text, form_of(whole, IN_NCCL)))
        elif level == "INFO" and (form := form_of(whole, IN_INFO)):
            self.message(LogMessage(at, process, text, form))
        self.take(text, at, process)

    def setting(self, name: str, value: str, process: Process, at: Place) -> None:
        values = self.log.settings.setdefault(name, {}) if len(self.log.settings) < MAX_VALUES else {}
        if value in values or len(values) < MAX_VALUES:
            values.setdefault(value, Setting(set(), at)).processes.add(process)

    @reads(r"^(?:Channel|Ring) \d+(?:/\d+)? ?: (\d+)(?:\[\w+\])? -> (\d+)(?:\[\w+\])?.* via (.+)$")
    def connection(self, found: re.Match[str], at: Place, _: Process) -> None:
        if way := way_of(found[3].strip()):
            count, first, where = self.log.ways.get(way, (0, f"rank {found[1]} to {found[2]}", at))
            self.log.ways[way] = count + 1, first, where
        self.log.fast |= found[3].startswith("NET")

    @reads(r"\brank (\d+) n[rR]anks (\d+)\b")
    def rank(self, found: re.Match[str], at: Place, process: Process) -> None:
        """Read a line with rank and size; by its identifier, or else by its size, the communicator is known."""
        rank, size, text = int(found[1]), int(found[2]), found.string
        if not 0 <= rank < size <= MAX_RANKS or "Destroy" in text or "Abort" in text:
            return
        identifier, before = re.search(r"commId (0x[0-9a-f]+)", text), self.now.get(process)
        if identifier is None and before is not None and before.size == size:
            here = before
        else:
            name = identifier[1] if identifier else f"{size} ranks"
            if name not in self.log.communicators and len(self.log.communicators) >= MAX_VALUES:
                return
            here = self.log.communicators.setdefault(name, LoggedCommunicator(name, size))
        here.is_several |= identifier is None and here.begun.get(rank, process) != process
        self.now[process] = here
        if (pointer := POINTER.search(text)) and len(self.pointers) < MAX_POINTERS:
            self.pointers[process.host, process.pid, pointer[1]] = here
        here.begun.setdefault(rank, process)
        if nodes := re.search(r"\bnNodes (\d{1,6})\b", text):
            self.log.nodes = max(self.log.nodes, int(nodes[1]))
        if "Init COMPLETE" in text:
            here.complete.setdefault(rank, at)

    @reads(r"^(\w+): opCount ([0-9a-f]+) .*?(?:count (\d+)|$)")
    def call(self, found: re.Match[str], at: Place, process: Process) -> None:
        pointer = POINTER.search(found.string)
        here = self.pointers.get((process.host, process.pid, pointer[1])) if pointer else None
        if here is None or here.is_several or found[1] in ("Send", "Recv"):
            return  # of an unknown communicator, or between pairs: other ranks' calls may differ
        what = f"{found[1]} of {found[3]} elements" if found[3] else found[1]
        self.log.calls[here.name, process] = int(found[2], 16), what, at

    @reads(r"^(NCCL_\w+) set by environment to (.*)$")
    def variable(self, found: re.Match[str], at: Place, process: Process) -> None:
        self.setting(found[1], found[2].rstrip("."), process, at)

    @reads(VERSION)
    def version(self, found: re.Match[str], at: Place, process: Process) -> None:
        """Keep a version; torch prints one without its CUDA, and the same number is the same version."""
        versions = self.log.settings.setdefault("version", {})
        name = next((each for each in versions if each.partition("+")[0] == found[2]), found[1])
        if name in versions or len(versions) < MAX_VERSIONS:
            self.setting("version", name, process, at)

    @reads(r"^NVLS Head +\d{1,6}:((?: +\d{1,7})+)$")
    def heads(self, found: re.Match[str], _: Place, __: Process) -> None:
        """Read a list with a rank of each node."""
        self.log.nodes = max(self.log.nodes, len(found[1].split()))

    @reads(r"^Using network (.+)$")
    def network(self, found: re.Match[str], at: Place, process: Process) -> None:
        self.setting("network", found[1].strip(), process, at)

    @reads(r"^(NET/(?:IB|Socket)|Bootstrap) ?: Using .*(?:docker0|\b172\.17\.\d)")
    def bridge(self, found: re.Match[str], at: Place, process: Process) -> None:
        self.setting("bridge", found[1], process, at)


def _opens(text: str) -> bool:
    """Return True if a line is the first of a form that has several lines."""
    return "first observed failure" in text or "submitted to be reduced" in text
