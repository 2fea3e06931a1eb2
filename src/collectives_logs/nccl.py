"""A log of NCCL (NCCL_DEBUG=INFO or TRACE), read line by line: ranks, rings, trees, connections, settings, calls.

Formats of NCCL 2.2 to 2.30 are known, as `init.cc`, `enqueue.cc`, `graph/connect.cc` and `transport/` print them. Lines
of other programs are counted and passed over, but for those that say why the job fails (`forms.toml`); lines of several
ranks may be interleaved, and any may be wrapped or cut short. Memory is that of what is found, not of the file.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib import resources
from itertools import zip_longest
from typing import NamedTuple

from collectives_logs.finding import COLOURS, LineReader, LogLine, Place, named, reads
from collectives_logs.watchdog import WatchdogLog, is_torch

# How near to the cause a line is: it names one, follows from another process's, or only names a result.
CAUSE, CONSEQUENCE, RESULT = WEIGHTS = ("cause", "consequence", "result")


class Form(NamedTuple):
    """A form of a line; `follows` is true of every such line, whatever else the file says."""

    text: re.Pattern[str]
    follows: str = ""
    next: str = ""
    kind: str = "failed"
    weight: str = CAUSE


TABLE = tomllib.loads((resources.files(__package__) / "forms.toml").read_text(encoding="utf8"))
WORDS: tuple[str, ...] = tuple(TABLE["words"])  # of which any line that is read has one


def _forms(rows: list[dict[str, str]]) -> tuple[Form, ...]:
    """Return the forms of a part of the table; a space in a pattern may be a line's end."""
    patterns = (re.sub(r" (?![*?+{])", r"\\s*", row["text"]) for row in rows)
    return tuple(
        Form(**row | {"text": re.compile(text, re.DOTALL)})  # type: ignore[arg-type]
        for text, row in zip(patterns, rows, strict=True)
    )


IN_NCCL, ANYWHERE, BESIDE = (_forms(TABLE[name]) for name in ("nccl", "anywhere", "beside"))


def form_of(text: str, forms: tuple[Form, ...] = IN_NCCL + ANYWHERE) -> Form | None:
    """Return the first form that a text has, or None.

    >>> form_of("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000").kind, form_of("hello")
    ('failed', None)
    """
    return next((form for form in forms if form.text.search(text)), None)


class Process(NamedTuple):
    """A writer of lines: a host, a process of it, and the process's device."""

    host: str
    pid: int
    device: int


NOBODY = Process("", 0, 0)


class LogMessage(NamedTuple):
    """A warning or error: its first line, its process, and the form that it has; None for one that is not known."""

    at: Place
    process: Process
    text: str
    form: Form | None


class RingSearch(NamedTuple):
    """The rings that NCCL's search found: channels, GB/s of each inside a node; and the GB/s of a GPU's links."""

    channels: int
    rate: float
    most: float


class TreeEdges(NamedTuple):
    """A rank's place in a tree: its parent, None for the root, and its children."""

    parent: int | None
    children: tuple[int, ...]


@dataclass
class LoggedCommunicator:
    """A communicator as it was printed; every value has the number of the line that says it."""

    name: str
    size: int
    is_named: bool = True  # by an identifier of NCCL's, or by its size
    is_several: bool = False  # of one size, without identifiers that would tell them apart
    processes: dict[int, Process] = field(default_factory=dict)  # by rank
    complete: dict[int, Place] = field(default_factory=dict)  # by rank: the line of "Init COMPLETE"
    rings: dict[int, tuple[tuple[int, ...], Place]] = field(default_factory=dict)  # by channel
    trees: dict[int, dict[int, tuple[TreeEdges, Place]]] = field(default_factory=dict)  # by channel and rank
    connections: dict[tuple[int, int, int], tuple[str, Place]] = field(default_factory=dict)  # channel, from, to
    # By channel and sender: the first that it connects to. NCCL connects rings before trees.
    successors: dict[tuple[int, int], int] = field(default_factory=dict)
    graph: tuple[RingSearch, Place] | None = None
    printed_nodes: int = 0  # on how many nodes it is, where NCCL prints that

    @property
    def nodes(self) -> int:
        """Return on how many nodes it is at least."""
        return max(self.printed_nodes, len({process.host for process in self.processes.values()}))

    @property
    def is_one_node(self) -> bool:
        """Return True if all its ranks share a node, as far as the log shows it."""
        return self.nodes == 1 and (self.printed_nodes == 1 or len(self.processes) == self.size)


class Setting(NamedTuple):
    """A value that processes have, and the first line of it."""

    processes: set[Process]
    at: Place


@dataclass
class NcclLog:
    """All that was found."""

    lines: int = 0
    own: int = 0  # lines of NCCL
    communicators: dict[str, LoggedCommunicator] = field(default_factory=dict)
    versions: dict[str, Setting] = field(default_factory=dict)
    networks: dict[str, Setting] = field(default_factory=dict)
    environment: dict[str, dict[str, Setting]] = field(default_factory=dict)  # by variable and value
    nics: dict[str, Setting] = field(default_factory=dict)
    bridges: dict[str, Setting] = field(default_factory=dict)  # what uses Docker's bridge
    messages: list[LogMessage] = field(default_factory=list)
    torch: WatchdogLog = field(default_factory=WatchdogLog)
    has_geforce: bool = False
    choices: dict[tuple[str, int, str, str], tuple[int, Place]] = field(default_factory=dict)  # how often, first line
    calls: dict[tuple[str, Process], tuple[int, str, Place]] = field(default_factory=dict)  # the last

    @property
    def is_explained(self) -> bool:
        """Return True if a line of a known form, or torch's watchdog, says that the job fails."""
        return bool(self.torch.kept) or any(each.form is not None for each in self.messages)


# What is kept at most: ranks of a communicator, its connections, warnings, and different values of anything else.
MAX_RANKS, MAX_CONNECTIONS, MAX_WARNINGS, MAX_VALUES = 1 << 16, 1 << 20, 1 << 14, 1 << 14
# Each line with a version is compared with all versions before.
MAX_VERSIONS = 64

# An author who quotes a log may have left out host and process, and the device, too; before 2.4 NCCL left out its name.
HEAD = re.compile(
    r"(?:(?<![\w.-])(?<!\w:)(?P<host>[\w.-]{1,253}):(?P<pid>\d{1,10}):(?P<thread>\d{1,10}) \[(?P<device>-?\d{1,4})\] "
    r"|^[\s>]{0,9}(?:\[\d{4}-[\d :.-]{1,30}\] )?(?:\[(?P<only>-?\d{1,4})\] )?)(?:[\d.]+ )?"
    r"(?P<source>[\w./+-]+:\d+ (?:\(\w+\) )?)?(?(host)(?:NCCL )?|NCCL )(?P<level>INFO|WARN|TRACE) ",
    re.MULTILINE,
)
LEVELS = ("INFO ", "WARN ", "TRACE ")
# What launchers print before a line: a time, a task, a host, a worker of Ray; and torchrun or torch the job's rank.
PREFIX = re.compile(
    r"(?:\d{4}-\d\d-\d\d[T ][\d:.,]{5,20}(?:Z|[+-]\d\d:?\d\d)? (?:std(?:out|err) [FP] )?)?"
    r"(?P<writer>(?:\[default\d{1,6}\]:|\[\d{1,6},\d{1,6}\]<std(?:out|err)>: ?"
    r"|\((?:[A-Za-z_]\w{0,60}(?: \w{1,20}){0,2} )?pid=\d{1,10}[^)]{0,80}\) "
    r"|[\w.-]{1,253}: (?=[\w.-]{1,253}:\d{1,10}:\d|\[(?:rank|default)\d|\[[EWFI][\d ]|[\w.]{1,80}Error: ))*"
    r"(?:\[rank(?P<rank>\d{1,7})\]:? ?)?)"
)
# Where a line of torch begins that says something about calls; it may be wrapped.
TORCH = re.compile(
    r"\[[EWFI][\d :.]{0,40}ProcessGroup\w{1,20}\.cpp:\d|\[(?:PG [^\[\]]{1,300})?Rank \d{1,7}\]|\] (?:finished|joined)"
    r"|lagging ranks"
)
OWN = re.compile(r"\[[EF][\d :.]{0,40}ProcessGroup\w{1,20}\.cpp:\d")
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

# A rank's place in a channel's tree: children -> rank -> parent; before NCCL 2.7 parent -> rank -> children.
TREE = re.compile(
    r"\[(\d{1,6})\] (?:(-?\d{1,9}(?:/-?\d{1,9})+)->(\d{1,9})->(-?\d{1,9})(?![\d/])"
    r"|(-?\d{1,9})->(\d{1,9})->(-?\d{1,9}(?:/-?\d{1,9})+))"
)

ALGORITHMS = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
PROTOCOLS = ("LL", "LL128", "Simple")


def begins(start: bytes) -> bool:
    """Return True if a file that begins so has lines of NCCL, or of a library that says why a job fails."""
    return any(is_own(line) for line in COLOURS.sub("", start.decode("utf8", "replace")).splitlines())


def is_own(text: str) -> bool:
    """Return True if a line is NCCL's, or has one of the forms that say why a job fails."""
    text = text[:MAX_READ]
    if not any(word in text for word in WORDS):
        return False
    is_one = (
        (any(level in text for level in LEVELS) and HEAD.search(text)) or OWN.search(text) or form_of(text, ANYWHERE)
    )
    return bool(is_one) or is_torch(re.sub(r"\s+", "", text))


def read(lines: Iterable[LogLine]) -> NcclLog:
    """Return the log in these lines.

    >>> from collectives_logs.finding import numbered
    >>> log = ["n1:7:7 [0] NCCL INFO Channel 00/02 : 0 1", "n1:7:7 [0] NCCL INFO comm 0x1 rank 0 nranks 2"]
    >>> [one.rings for one in read(numbered(log, "job.log")).communicators.values()]
    [{0: ((0, 1), Place(file='job.log', line=1))}]
    """
    reader = _LogReader()
    for at, text in lines:
        reader.log.lines += 1
        reader.log.has_geforce = reader.log.has_geforce or GEFORCE.search(text) is not None
        if reader.file != at.file:
            reader.end(at.file)
        for piece in text.split("\r"):  # of a progress bar
            if reader.records or any(word in piece for word in WORDS):
                reader.text(at, piece)
    reader.flush()
    return reader.log


@dataclass
class _Record:
    """A line that says something beside NCCL's own, and the lines that belong to it."""

    at: Place
    process: Process
    job: int
    texts: list[str] = field(default_factory=list)


class _LogReader(LineReader):
    """A reader of the log so far, each process's communicator, and what older versions print before they name it."""

    def __init__(self) -> None:
        self.log = NcclLog()
        self.now: dict[Process, LoggedCommunicator] = {}
        self.early: dict[Process, list[tuple[int, Callable[[LoggedCommunicator], None]]]] = {}
        self.waiting = 0
        self.finished: set[Process] = set()  # whose next rings belong to a communicator that is not named yet
        self.links: dict[Process, float] = {}
        self.records: dict[str, _Record] = {}  # of each writer
        self.file = ""
        self.newest = ""  # who began a record last
        self.pointers: dict[tuple[str, int, str], LoggedCommunicator] = {}  # by host, process and NCCL's address of it

    def text(self, at: Place, text: str) -> None:
        """Read a line: those of NCCL in it, of which one may begin inside another, or a piece of another record."""
        prefix = next(PREFIX.finditer(text))
        (writer, rank), text = prefix.groups(), text[prefix.end() :]
        heads = [*HEAD.finditer(text)] if any(level in text for level in LEVELS) else []
        for head, following in zip_longest(heads, heads[1:]):
            self.log.own += 1
            process = Process(head["host"] or "", int(head["pid"] or 0), int(head["device"] or head["only"] or 0))
            self.line(at, process, head["level"], head["source"], text[head.end() : following and following.start()])
        begun = text[:MAX_READ]
        is_new = TORCH.search(begun) or (not heads and form_of(begun, ANYWHERE + BESIDE))
        if not writer and (newest := self.records.get(self.newest)):  # what was wrapped has no prefix
            is_inside = re.match(r"[a-z]+ ", begun) and not re.search(r"[.:;!?)]\s*$", newest.texts[-1])
            writer, is_new = ("", is_new) if is_new and not is_inside else (self.newest, None)
        if is_new or END.search(text):
            self.close(writer)
        if len(self.records) >= MAX_OPEN:
            self.end(at.file)
        if is_new:
            process = Process(f"rank {rank}", 0, 0) if rank else NOBODY
            self.records[writer] = _Record(at, process, int(rank or -1))
            self.newest = writer
        if not heads and (found := VERSION.search(text)):
            self.version(found, at, NOBODY)
        if (is_new or not heads) and (record := self.records.get(writer)):
            record.texts.append(begun)
            if len(record.texts) == MAX_LINES:
                self.close(writer)

    def end(self, file: str = "") -> None:
        """Close what the last file has left open."""
        for writer in [*self.records]:
            self.close(writer)
        self.file = file

    def close(self, writer: str) -> None:
        """Keep what a record says: a call that timed out, or the first form that it has, with torch's `Last error`."""
        if (record := self.records.pop(writer, None)) is None:
            return
        whole = "".join(text.rstrip() for text in record.texts)
        is_known = self.log.torch.record(record.at, re.sub(r"\s+", "", whole), record.job)
        shown = NOISE.sub("", " ".join(text.strip() for text in record.texts))
        last = LAST.search(shown)
        form = (last and form_of(last[1], IN_NCCL)) or form_of(whole, ANYWHERE + BESIDE)
        shown = shown if form and form.next else record.texts[0]
        if form and not (is_known and form.kind == "timeout"):
            self.message(LogMessage(record.at, record.process, last[1] if last else shown, form))

    def message(self, message: LogMessage) -> None:
        if len(self.log.messages) < MAX_WARNINGS:
            self.log.messages.append(message._replace(text=message.text[:MAX_SHOWN]))

    def line(self, at: Place, process: Process, level: str, source: str | None, text: str) -> None:
        if level == "WARN" or "No route to host" in text:  # NCCL tries that again for minutes
            self.message(LogMessage(at, process, text, form_of(f"{source or ''}{text[:MAX_READ]}", IN_NCCL)))
        self.take(text, at, process)

    def _join(self, unnamed: LoggedCommunicator, here: LoggedCommunicator) -> None:
        """Give a communicator what was printed before its identifier."""
        self.log.communicators.pop(unnamed.name, None)
        for name in ("rings", "trees", "connections", "successors"):
            vars(here)[name] = vars(unnamed)[name] | vars(here)[name]
        here.graph = here.graph or unnamed.graph

    def _place(self, at: Place, process: Process, channel: int, rank: int, edges: TreeEdges) -> None:
        least = 1 + max(rank, edges.parent or 0, *edges.children, 0)

        def act(here: LoggedCommunicator) -> None:
            here.trees.setdefault(channel, {}).setdefault(rank, (edges, at))

        self._later(process, least, act)

    @reads(r"^Trees? \[\d+\]")
    def trees(self, found: re.Match[str], at: Place, process: Process) -> None:
        for channel, *parts in TREE.findall(found.string):
            down, rank, up = parts[:3] if parts[0] else parts[:2:-1]
            children = tuple(int(child) for child in down.split("/") if int(child) >= 0)
            edges = TreeEdges(int(up) if int(up) >= 0 else None, children)
            self._place(at, process, int(channel), int(rank), edges)

    @reads(r"^(?:Channel|Ring) (\d+)(?:/\d+)? ?:((?:\s+\d+)+)\s*$")
    def ring(self, found: re.Match[str], at: Place, process: Process) -> None:
        channel, order = int(found[1]), tuple(map(int, found[2].split()))
        self._later(process, len(order), lambda here: here.rings.setdefault(channel, (order, at)))

    @reads(r"^(?:Channel|Ring) (\d+)(?:/\d+)? ?: (\d+)(?:\[\w+\])? -> (\d+)(?:\[\w+\])?.* via (.+)$")
    def connection(self, found: re.Match[str], at: Place, process: Process) -> None:
        channel, a, b, way = int(found[1]), int(found[2]), int(found[3]), found[4].strip()

        def act(here: LoggedCommunicator) -> None:
            if len(here.connections) < MAX_CONNECTIONS:
                here.connections.setdefault((channel, a, b), (way, at))
                if "[receive]" not in found.string:
                    here.successors.setdefault((channel, a), b)

        self._later(process, 1 + max(a, b), act)

    @reads(r"^=== System : max(?:Bw|Width) [\d.]+ total(?:Bw|Width) (\d{1,6}\.?\d{0,6}) ")
    def system(self, found: re.Match[str], _: Place, process: Process) -> None:
        """Keep the rate of a GPU's links; the search for rings follows."""
        self.links[process] = float(found[1])

    @reads(r"^Pattern 4, .*nChannels (\d{1,4}), (?:speed|bw) (\d{1,6}\.?\d{0,6})/")
    def searched(self, found: re.Match[str], at: Place, process: Process) -> None:
        graph = RingSearch(int(found[1]), float(found[2]), self.links.get(process, 0.0))
        self._later(process, 1, lambda here: setattr(here, "graph", here.graph or (graph, at)))

    @reads(r"\brank (\d+) n[rR]anks (\d+)\b")
    def rank(self, found: re.Match[str], at: Place, process: Process) -> None:
        """Read a line with rank and size; by its identifier, or else by its size, the communicator is known."""
        rank, size, text = int(found[1]), int(found[2]), found.string
        if not 0 <= rank < size <= MAX_RANKS or "Destroy" in text or "Abort" in text:
            return
        identifier = re.search(r"commId (0x[0-9a-f]+)", text)
        before = self.now.get(process)
        if identifier is None and before is not None and before.size == size:
            here = before
        else:
            name = identifier[1] if identifier else f"{size} ranks"
            if name not in self.log.communicators and len(self.log.communicators) >= MAX_VALUES:
                return
            here = self.log.communicators.setdefault(name, LoggedCommunicator(name, size, identifier is not None))
            if identifier and before is not None and not before.is_named and before.size == size:
                self._join(before, here)
        here.is_several |= identifier is None and here.processes.get(rank, process) != process
        self.now[process] = here
        if (pointer := POINTER.search(text)) and len(self.pointers) < MAX_CONNECTIONS:
            self.pointers[process.host, process.pid, pointer[1]] = here
        here.processes.setdefault(rank, process)
        if nodes := re.search(r"\bnNodes (\d{1,6})\b", text):
            here.printed_nodes = max(here.printed_nodes, int(nodes[1]))
        self.finished.discard(process)
        if "Init COMPLETE" in text:
            here.complete.setdefault(rank, at)
            if identifier is None:
                self.finished.add(process)
        for _, act in self.early.pop(process, []):
            act(here)

    @reads(r"^(?:(\w+): +)?(\d+) Bytes -> Algo (\w+) proto (\w+)")
    def choice(self, found: re.Match[str], at: Place, _: Process) -> None:
        algorithm, protocol = _name(found[3], ALGORITHMS), _name(found[4], PROTOCOLS)
        key = (found[1] or "", int(found[2]), algorithm, protocol)
        if len(self.log.choices) >= MAX_VALUES and key not in self.log.choices:
            return
        often, first = self.log.choices.get(key, (0, at))
        self.log.choices[key] = often + 1, first

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
        if found[1] in self.log.environment or len(self.log.environment) < MAX_VALUES:
            _add(self.log.environment.setdefault(found[1], {}), found[2].rstrip("."), process, at)

    @reads(VERSION)
    def version(self, found: re.Match[str], at: Place, process: Process) -> None:
        """Keep a version; torch prints one without its CUDA, and the same number is the same version."""
        alike = (each for each in self.log.versions if each.partition("+")[0] == found[2])
        name = next(alike, found[1])
        if name in self.log.versions or len(self.log.versions) < MAX_VERSIONS:
            _add(self.log.versions, name, process, at)

    @reads(r"^NVLS Head +\d{1,6}:((?: +\d{1,7})+)$")
    def heads(self, found: re.Match[str], _: Place, process: Process) -> None:
        """Read a list with a rank of each node."""
        those = [int(each) for each in found[1].split()]
        self._later(
            process, 1 + max(those), lambda here: setattr(here, "printed_nodes", max(here.printed_nodes, len(those)))
        )

    @reads(r"^Using network (.+)$")
    def network(self, found: re.Match[str], at: Place, process: Process) -> None:
        _add(self.log.networks, found[1].strip(), process, at)

    @reads(r"^(NET/(?:IB|Socket)|Bootstrap) ?: ((?:Using|No device) .+)$")
    def nic(self, found: re.Match[str], at: Place, process: Process) -> None:
        """Keep what NCCL sends over, without addresses."""
        using = found[2].partition(";")[0]
        names = re.findall(r"(?:\[\d{1,3}\]|Using )([^\s:\[\]]{1,60}(?::\d{1,3}/\w{1,20})?)", using)
        value = f"{found[1]}: {named(names) or found[2][:80]}"
        beside = re.search(r"OOB ([\w.-]{1,60}):", found[2])
        _add(self.log.nics, f"{value}, out of band by {beside[1]}" if beside else value, process, at)
        if re.search(r"docker0|\b172\.17\.\d", found[2]):
            _add(self.log.bridges, found[1], process, at)

    def _later(self, process: Process, least: int, act: Callable[[LoggedCommunicator], object]) -> None:
        """Act now, if the process's communicator is known and large enough; otherwise when it is."""
        here = self.now.get(process)
        if here is not None and least <= here.size and process not in self.finished:
            act(here)
        elif least <= MAX_RANKS and self.waiting < MAX_CONNECTIONS:
            self.waiting += 1
            self.early.setdefault(process, []).append((least, act))  # type: ignore[arg-type]

    def flush(self) -> None:
        """Give what no line has named a communicator for to one as large as its largest rank says."""
        self.end()
        waiting = [each for some in self.early.values() for each in some]
        if not waiting:
            return
        size = max(least for least, _ in waiting)
        fitting = [one for one in self.log.communicators.values() if one.size >= size]
        here = min(fitting, key=lambda one: one.size, default=LoggedCommunicator(f"{size} ranks", size, is_named=False))
        self.log.communicators.setdefault(here.name, here)
        for _, act in waiting:
            act(here)


def _add(to: dict[str, Setting], value: str, process: Process, at: Place) -> None:
    if value in to or len(to) < MAX_VALUES:
        to.setdefault(value, Setting(set(), at)).processes.add(process)


def _name(given: str, known: tuple[str, ...]) -> str:
    """Return the name of a number or name as NCCL prints it, in NCCL's own spelling.

    >>> _name("1", ALGORITHMS), _name("RING", ALGORITHMS), _name("SIMPLE", PROTOCOLS)
    ('Ring', 'Ring', 'Simple')
    """
    if given.isdecimal():
        return known[int(given)] if int(given) < len(known) else given
    squeezed = {name.lower(): name for name in known}
    return squeezed.get(given.lower().replace("_", ""), given)
