"""A log of a job, read line by line: what NCCL, torch, launchers and other programs print when it fails.

Any text is a log. Formats of NCCL 2.2 to 2.30 are known, as `init.cc`, `enqueue.cc` and
`transport/` print them, and the lines of `forms.toml`. Lines of several ranks may be interleaved,
and any may be wrapped or cut short. Memory is that of what is found, not of the file.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import NamedTuple

from collectives_logs.forms import ANYWHERE, IN_INFO, IN_NCCL, LITERALS, Form, form_of, ranks_in
from collectives_logs.sources import LineReader, LogLine, Place, reads
from collectives_logs.watchdog import WatchdogLog


class Process(NamedTuple):
    """A writer of lines: a host, or what a launcher calls it.

    A process of it, and the process's device.
    """

    host: str
    pid: int
    device: int


class LogMessage(NamedTuple):
    """A warning or error: its first line, its process, its form (None: not known), and the ranks of each list in it."""

    at: Place
    process: Process
    text: str
    form: Form | None
    ranks: tuple[frozenset[int], ...] = ()


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
class JobLog:
    """All that was found."""

    lines: int = 0
    own: int = 0  # lines of NCCL
    messages: list[LogMessage] = field(default_factory=list)
    raised: list[Raised] = field(default_factory=list)
    torch: WatchdogLog = field(default_factory=WatchdogLog)
    communicators: dict[str, set[Process]] = field(default_factory=dict)  # by NCCL's identifier
    settings: dict[str, dict[str, Setting]] = field(default_factory=dict)  # by name and value
    # Slower ones: lines, the first of them.
    ways: dict[str, tuple[int, str, Place]] = field(default_factory=dict)
    errors: list[LogLine] = field(default_factory=list)  # the first lines that speak of an error
    ends: dict[str, Iterable[LogLine]] = field(default_factory=dict)  # the last lines of each file


# What is kept at most: warnings, different values of anything else, and processes of each.
MAX_WARNINGS, MAX_VALUES, MAX_PROCESSES = 1 << 14, 1 << 12, 1 << 16
MAX_ERRORS, MAX_ENDS, LAST_LINES = 3, 64, 6

# What stands before a line, by what it is: a time, a line's number or a quotation's mark, which say
# nothing of the writer; and what launchers print, of which the group names the writer.
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
    # Not in a list of Horovod's.
    "task": r" {0,5}(\d{1,6}): (?!\[(?![EWFI][\d ])[A-Za-z](?!ank\d|efault))",
    "host": r"(?!\d+: )(?=[\w.-]{0,252}\d)([\w.-]{1,253})(?<!Error)(?<!Exception): ",
    "named": r"([\w.-]{1,253}): (?=[\w.-]{1,253}:\d{1,10}:\d|\[(?:rank|default)\d|\[[EWFI][\d ]|[\w.]{1,80}Error: )",
    "rank": r"\[rank(\d{1,7})\]:? ?",
}
PREFIX = re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in PREFIXES.items()))
NUMBERED = {"task": "task ", "mpi_rank": "rank ", "local_rank": "local rank ", "rank": "rank "}
MAX_PREFIXES = 6
# mpirun may say who writes in the middle of a line, too.
TAG = re.compile(r"\[\d{1,6},\d{1,6}\]<\w{1,8}>:")
REPEATED = re.compile(r" ?\[repeated \d{1,9}x across cluster\][^\n]{0,200}$")
# An author who quotes a log may have left out host and process, and the device, too; before 2.4
# NCCL left out its name.
HEAD = re.compile(
    r"(?:(?<![\w.-])(?<!\w:)(?P<host>[\w.-]{1,253}):(?P<pid>\d{1,10}):(?P<thread>\d{1,10}) \[(?P<device>-?\d{1,4})\] "
    r"|^[\s>]{0,9}(?:\[\d{4}-[\d :.-]{1,30}\] )?(?:(?:(?P<shortened>[\w.-]{1,253})(?::\w{1,12}){0,2} )?"
    r"\[(?P<only>-?\d{1,4})\] )?)(?:[\d.]+ )?"
    r"(?P<source>[^\s:]{1,300}:\d+\S{0,200} (?:\(\w+\) )?)?(?(host)(?:NCCL )?|NCCL )(?P<level>INFO|WARN|TRACE) ",
    re.MULTILINE,
)
LEVELS = ("INFO ", "WARN ", "TRACE ")
# Where a line of torch begins that says something about calls; it may be wrapped.
TORCH = re.compile(
    r"\[[EWFI][\d :.]{0,40}ProcessGroup\w{1,20}\.cpp:\d|\[(?:PG [^\[\]]{1,300})?Rank \d{1,7}\]"
)
# A line is looked at if it has one of these: all literals of forms, and what the reader's own
# patterns have.
OWN_WORDS = (
    " WARN ", "commId 0x", " via NET", " via SHM", "NCCL version", "Using network", "set by environment",
    "No route to host", "P2P is disabled", "eligible", "optimal provider", "ProcessGroup", "Rank ",
    "Traceback", "Last error:", "GeForce", "GTX", "TITAN", "RTX ",
)  # fmt: skip
WORDS = re.compile("|".join(map(re.escape, dict.fromkeys((*OWN_WORDS, *LITERALS)))))
SPEAKS = (
    "error",
    "fatal",
    "failed",
    "failure",
    "killed",
    "aborted",
    "segmentation fault",
    "core dumped",
)
# The first lines of forms that have several.
OPENS = ("first observed failure", "submitted to be reduced", "NVRM: The NVIDIA GPU ")
# Where what belongs to such a line ends, how many lines it has at most, and how much is read of
# each and shown of all.
END = re.compile(r"^\W*$|Exception raised from|frame #|Traceback|^  File |^(?!nccl)\S{1,60}Error: ")
MAX_LINES, MAX_READ, MAX_SHOWN = 12, 1 << 12, 600
MAX_OPEN = 1 << 13  # records, one for each writer
NOISE = re.compile(
    r", TensorDeviceTypes=TensorOptions\(.{0,400}?\(nullopt\)\)"
    r"|This (?:may indicate|typically indicates) .{0,1500}?(?:cause deadlock\.|debug the hang\.) ?"
    r"|You can enable unused parameter detection .{0,1500}?list, dict, iterable\)\. ?"
)
LAST = re.compile(r"Last error:\s*(\S.*)")
VERSION = re.compile(r"NCCL version ((\d[\d.]*)[\w.+-]*)")
# GPUs without GPU-direct RDMA, as nccl-tests names them.
GEFORCE = re.compile(r"\b(?:GeForce|GTX|TITAN|RTX [2-9]0[5-9]0)\b")
FRAME = re.compile(r'\s*File ("[^"]{1,400}", line \d{1,9}(?:, in \S{1,100})?)')
EXCEPTION = re.compile(r"[A-Za-z_][\w.]{0,150}(?::\s|:?$)")
MAX_TRACEBACK = 400  # lines

# Ways of messages that may be slower than others, as `advice.toml` calls them.
SOCKETS, NO_DIRECT, SHARED = (
    "sockets",
    "InfiniBand without GPU-direct",
    "shared memory inside a node",
)


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
    reader, file = _LogReader(), ""
    log, searched = reader.log, WORDS.search
    ends: deque[LogLine] = deque(maxlen=LAST_LINES)
    for line in lines:
        at, text = line
        log.lines += 1
        if at.file != file:
            reader.end()
            file, ends = at.file, deque(maxlen=LAST_LINES)
            if len(log.ends) < MAX_ENDS:
                log.ends[file] = ends
        if text and not text.isspace():
            ends.append(line)
        if "NCCL INFO" in text:
            log.own += 1
        elif len(log.errors) < MAX_ERRORS and _speaks(text):
            log.errors.append(line)
        for piece in text.split("\r") if "\r" in text else (text,):  # of a progress bar
            if reader.records or reader.tracing or searched(piece):
                reader.text(at, piece)
    reader.end()
    return log


def _speaks(text: str) -> bool:
    """Return True if a line speaks of an error."""
    small = text.lower()
    return any(word in small for word in SPEAKS)


@dataclass
class _Record:
    """A line that says something beside NCCL's own, and the lines that belong to it."""

    at: Place
    process: Process
    job: int
    is_list: bool = False  # whose lines may have blank ones between them
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
    """A reader of the log so far, of what each writer has begun, and of who began something last."""

    def __init__(self) -> None:
        self.log = JobLog()
        self.records: dict[str, _Record] = {}  # by writer
        self.tracing: dict[str, _Tracing] = {}  # by writer
        self.newest = ""

    def text(self, at: Place, text: str) -> None:
        """Read a line: those of NCCL in it, or a piece of a record."""
        text = REPEATED.sub("", text) if "[repeated" in text else text
        writer, label, rank, text = without_prefix(text)
        text = TAG.sub("", text) if "]<std" in text else text
        process, begun = Process(label, 0, 0), text[:MAX_READ]
        heads = list(HEAD.finditer(text)) if any(level in text for level in LEVELS) else []
        self.lines(at, label, text, heads)
        if writer in self.tracing or "Traceback" in begun:
            self.traceback(writer, at, process, begun)
        is_known = not heads and WORDS.search(begun) is not None
        writer, is_new = self.owner(writer, begun, is_known=is_known)
        before = self.records.get(writer)
        is_between = before is not None and before.is_list and not text.strip()
        if is_new or (END.search(text) and not is_between):
            self.close(writer)
        if is_new:
            self.open(writer, _Record(at, process, rank, _opens(begun, None)))
        version = VERSION.search(text) if is_known else None
        if version:
            self.version(version, at, process)
        if is_known and GEFORCE.search(begun):
            self.setting("GeForce", "", process, at)
        record = self.records.get(writer)
        if record and (is_new or not heads):
            if begun.strip():
                record.texts.append(begun)
            if len(record.texts) == MAX_LINES:
                self.close(writer)

    def owner(self, writer: str, text: str, *, is_known: bool) -> tuple[str, bool]:
        """Return whose record a text belongs to, and True if it begins one.

        What was wrapped has no prefix.
        """
        newest = self.records.get(self.newest)
        is_wrapped = newest is not None and writer != self.newest and self.newest.startswith(writer)
        before = newest if is_wrapped else self.records.get(writer)
        is_new = TORCH.search(text) is not None
        if is_known and not is_new:
            form = form_of(text, ANYWHERE)
            is_new = _opens(text, before) or (
                form is not None and not _completes(before, text, form)
            )
        if newest is None or not is_wrapped:
            return writer, is_new
        is_inside = re.match(r"[a-z]+ ", text) and not re.search(r"[.:;!?)]\s*$", newest.texts[-1])
        return (writer, True) if is_new and not is_inside else (self.newest, False)

    def open(self, writer: str, record: _Record) -> None:
        if len(self.records) >= MAX_OPEN:
            self.end()
        self.records[writer], self.newest = record, writer

    def end(self) -> None:
        """Close what the last file has left open."""
        self.tracing.clear()
        for writer in list(self.records):
            self.close(writer)

    def close(self, writer: str) -> None:
        """Keep what a record says: a call that timed out, or the first form that it has."""
        record = self.records.pop(writer, None)
        if record is None:
            return
        whole = "".join(text.rstrip() for text in record.texts)
        is_known = self.log.torch.record(record.at, re.sub(r"\s+", "", whole), record.job)
        shown = " ".join(text.strip() for text in record.texts)
        last = LAST.search(shown) if "Last error:" in shown else None
        form = (last and form_of(last[1], IN_NCCL)) or form_of(whole, ANYWHERE)
        if form is None or (is_known and form.kind == "timeout"):
            return
        text = last[1] if last else NOISE.sub("", shown) if form.next else record.texts[0]
        self.message(LogMessage(record.at, record.process, text, form, ranks_in(whole, form)))

    def traceback(self, writer: str, at: Place, process: Process, text: str) -> None:
        """Read a line of a traceback, whose last one, not indented, is the exception."""
        if "Traceback (most recent call last)" in text:
            self.tracing[writer] = _Tracing()
            return
        now = self.tracing.get(writer)
        if now is None:
            return
        now.lines += 1
        frame = FRAME.match(text)
        if frame:
            now.frame = frame[1]
        elif text[:1] not in (" ", "\t", "", "|", "^") or now.lines > MAX_TRACEBACK:
            del self.tracing[writer]
            if EXCEPTION.match(text) and len(self.log.raised) < MAX_WARNINGS:
                self.log.raised.append(Raised(at, process, now.frame, text.rstrip()[:MAX_SHOWN]))

    def message(self, message: LogMessage) -> None:
        if len(self.log.messages) < MAX_WARNINGS:
            self.log.messages.append(message._replace(text=message.text.strip()[:MAX_SHOWN]))

    def lines(self, at: Place, label: str, text: str, heads: list[re.Match[str]]) -> None:
        """Read the lines of NCCL in a text, of which one may begin inside another."""
        for head, following in zip_longest(heads, heads[1:]):
            self.log.own += head["level"] != "INFO" or "NCCL INFO" not in text
            pid, device = int(head["pid"] or 0), int(head["device"] or head["only"] or 0)
            process = Process(head["host"] or head["shortened"] or label, pid, device)
            said = text[head.end() : following and following.start()]
            whole = f"{head['source'] or ''}{said[:MAX_READ]}"
            # Tried again for minutes.
            is_warning = head["level"] == "WARN" or "No route to host" in said
            form = form_of(whole, IN_NCCL if is_warning else IN_INFO)
            if is_warning or form:
                self.message(LogMessage(at, process, said, form))
            self.take(said, at, process)

    def setting(self, name: str, value: str, process: Process, at: Place) -> None:
        values = (
            self.log.settings.setdefault(name, {}) if len(self.log.settings) < MAX_VALUES else {}
        )
        if value in values or len(values) < MAX_VALUES:
            processes = values.setdefault(value, Setting(set(), at)).processes
            if len(processes) < MAX_PROCESSES:
                processes.add(process)

    @reads(r"^(?:Channel|Ring) \d+(?:/\d+)? ?: (\d+)(?:\[\w+\])? -> (\d+)(?:\[\w+\])?.* via (.+)$")
    def connection(self, found: re.Match[str], at: Place, _: Process) -> None:
        way = way_of(found[3].strip())
        if way:
            count, first, where = self.log.ways.get(way, (0, f"rank {found[1]} to {found[2]}", at))
            self.log.ways[way] = count + 1, first, where

    @reads(r"\bcommId (0x[0-9a-f]{1,16})\b(?!.* (?:Destroy|Abort))")
    def rank(self, found: re.Match[str], _: Place, process: Process) -> None:
        """Read a line that says in which communicator a process is."""
        known = self.log.communicators
        members = (
            known.setdefault(found[1], set())
            if len(known) < MAX_VALUES
            else known.get(found[1], set())
        )
        if len(members) < MAX_PROCESSES:
            members.add(process)

    @reads(r"^(NCCL_\w+) set by environment to (.*)$")
    def variable(self, found: re.Match[str], at: Place, process: Process) -> None:
        self.setting(found[1], found[2].rstrip("."), process, at)

    @reads(VERSION)
    def version(self, found: re.Match[str], at: Place, process: Process) -> None:
        """Keep a version.

        Torch prints one without its CUDA, and the same number is the same version.
        """
        known = (
            name
            for name in self.log.settings.get("version", {})
            if name.partition("+")[0] == found[2]
        )
        self.setting("version", next(known, found[1]), process, at)

    @reads(r"^Using network (.+)$")
    def network(self, found: re.Match[str], at: Place, process: Process) -> None:
        self.setting("network", found[1].strip(), process, at)


def _opens(text: str, before: _Record | None) -> bool:
    """Return True if a line is the first of a form that has several lines."""
    if before is None and "Last error:" in text:
        return True
    is_in_root_cause = before is not None and "first observed failure" in before.texts[0]
    is_listed = "(local_rank: " in text and not is_in_root_cause
    return is_listed or any(words in text for words in OPENS)


def _completes(before: _Record | None, text: str, form: Form) -> bool:
    """Return True if a line is the end of a list that says nothing without it."""
    if before is None or not before.is_list:
        return False
    begun = "".join(before.texts)
    return form_of(begun, ANYWHERE) is None and form_of(begun + text, ANYWHERE) is form
