"""A log of NCCL (NCCL_DEBUG=INFO or TRACE), read line by line: ranks, rings, trees, connections, settings, calls.

Formats of NCCL 2.4 to 2.29 are known, as `init.cc`, `enqueue.cc`, `graph/connect.cc` and `transport/` print them. Lines
of other programs are counted and passed over; lines of several ranks may be interleaved, and any may be cut short.
Memory is that of what is found, not of the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import zip_longest

from collectives.logs.finding import COLOURS, Line, Place
from collectives.logs.nccl.log import NOBODY, Communicator, Edges, Graph, Log, Process, Setting
from collectives.logs.nccl.torch_lines import is_torch

# What is kept at most: ranks of a communicator, its connections, warnings, and different values of anything else.
MOST_RANKS, MOST_CONNECTIONS, MOST_WARNINGS, MOST_VALUES = 1 << 16, 1 << 20, 1000, 1 << 14
# Each line with a version is compared with all versions before.
MOST_VERSIONS = 64

# An author who quotes a log may have left out host and process, and the device, too.
HEAD = re.compile(
    r"(?:(?<![\w.-])(?<!\w:)(?P<host>[\w.-]{1,253}):(?P<pid>\d{1,10}):(?P<thread>\d{1,10}) \[(?P<device>-?\d{1,4})\] "
    r"|^[\s>]{0,9}(?:\[(?P<only>-?\d{1,4})\] )?)(?:[\d.]+ )?(?:[\w./]+:\d+ )?NCCL (?P<level>INFO|WARN|TRACE) ",
    re.MULTILINE,
)
VERSION = re.compile(r"NCCL version ((\d[\d.]*)[\w.+-]*)")
# GPUs without GPU-direct RDMA, as nccl-tests names them.
GEFORCE = re.compile(r"\b(?:GeForce|GTX|TITAN|RTX [2-9]0[5-9]0)\b")
# What any line that is read has.
WORDS = ("NCCL", "Last error:", "collective #", "lagging ranks")

# A rank's place in a channel's tree: children -> rank -> parent; before NCCL 2.7 parent -> rank -> children.
TREE = re.compile(
    r"\[(\d{1,6})\] (?:(-?\d{1,9}(?:/-?\d{1,9})+)->(\d{1,9})->(-?\d{1,9})(?![\d/])"
    r"|(-?\d{1,9})->(\d{1,9})->(-?\d{1,9}(?:/-?\d{1,9})+))"
)

ALGORITHMS = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
PROTOCOLS = ("LL", "LL128", "Simple")


def begins(start: bytes) -> bool:
    """Whether a file that begins so has lines of NCCL, or of torch about it."""
    return is_own(COLOURS.sub("", start.decode("utf8", "replace")))


def is_own(text: str) -> bool:
    """Whether a text has a line of NCCL, or of torch about it."""
    return "NCCL" in text and (HEAD.search(text) is not None or is_torch(text))


def read(lines: Iterable[Line]) -> Log:
    """The log in these lines.

    >>> from collectives.logs.finding import numbered
    >>> log = ["n1:7:7 [0] NCCL INFO Channel 00/02 : 0 1", "n1:7:7 [0] NCCL INFO comm 0x1 rank 0 nranks 2"]
    >>> [one.rings for one in read(numbered(log, "job.log")).communicators.values()]
    [{0: ((0, 1), Place(file='job.log', line=1))}]
    """
    reader = _Reader()
    for at, text in lines:
        reader.log.lines += 1
        reader.log.has_geforce = reader.log.has_geforce or GEFORCE.search(text) is not None
        if reader.log.torch.last is None and not any(word in text for word in WORDS):
            continue
        heads = [*HEAD.finditer(text)]  # of interleaved lines, one begins inside another
        for head, following in zip_longest(heads, heads[1:]):
            reader.log.own += 1
            process = Process(head["host"] or "", int(head["pid"] or 0), int(head["device"] or head["only"] or 0))
            reader.line(at, process, head["level"], text[head.end() : following and following.start()])
        reader.outside(at, text, is_own=bool(heads))
    reader.flush()
    return reader.log


class _Reader:
    """The log so far, the communicator of each process, and what older versions print before they name it."""

    def __init__(self) -> None:
        self.log = Log()
        self.now: dict[Process, Communicator] = {}
        self.early: dict[Process, list[tuple[int, Callable[[Communicator], None]]]] = {}
        self.waiting = 0
        self.finished: set[Process] = set()  # whose next rings belong to a communicator that is not named yet
        self.links: dict[Process, float] = {}

    def line(self, at: Place, process: Process, level: str, text: str) -> None:
        if level == "WARN":
            self.warning(at, process, text)
        for pattern, method in PATTERNS:
            if found := pattern.search(text):
                method(self, at, process, found)
                return

    def outside(self, at: Place, text: str, *, is_own: bool) -> None:
        """What torch says in a line, or a library in one without NCCL's head."""
        if error := self.log.torch.line(at, text):
            self.warning(at, NOBODY, error)
        if not is_own and (found := VERSION.search(text)):
            self.version(at, NOBODY, found)

    def warning(self, at: Place, process: Process, text: str) -> None:
        if len(self.log.warnings) < MOST_WARNINGS:
            self.log.warnings.append((at, process, text))

    def version(self, at: Place, process: Process, found: re.Match[str]) -> None:
        """Torch prints a version without its CUDA: the same number is the same version."""
        alike = (each for each in self.log.versions if each.partition("+")[0] == found[2])
        name = next(alike, found[1])
        if name in self.log.versions or len(self.log.versions) < MOST_VERSIONS:
            _add(self.log.versions, name, process, at)

    def network(self, at: Place, process: Process, found: re.Match[str]) -> None:
        _add(self.log.networks, found[1].strip(), process, at)

    def variable(self, at: Place, process: Process, found: re.Match[str]) -> None:
        if found[1] in self.log.environment or len(self.log.environment) < MOST_VALUES:
            _add(self.log.environment.setdefault(found[1], {}), found[2].rstrip("."), process, at)

    def rank(self, at: Place, process: Process, found: re.Match[str]) -> None:
        """A line that names rank and size; by its identifier, or else by its size, the communicator is known."""
        rank, size, text = int(found[1]), int(found[2]), found.string
        if not 0 <= rank < size <= MOST_RANKS or "Destroy" in text or "Abort" in text:
            return
        told = re.search(r"commId (0x[0-9a-f]+)", text)
        before = self.now.get(process)
        if told is None and before is not None and before.size == size:
            here = before
        else:
            name = told[1] if told else f"{size} ranks"
            if name not in self.log.communicators and len(self.log.communicators) >= MOST_VALUES:
                return
            here = self.log.communicators.setdefault(name, Communicator(name, size, told is not None))
            if told and before is not None and not before.is_named and before.size == size:
                self._join(before, here)
        here.is_several |= told is None and here.processes.get(rank, process) != process
        self.now[process] = here
        here.processes.setdefault(rank, process)
        if nodes := re.search(r"\bnNodes (\d{1,6})\b", text):
            here.told = max(here.told, int(nodes[1]))
        self.finished.discard(process)
        if "Init COMPLETE" in text:
            here.complete.setdefault(rank, at)
            if told is None:
                self.finished.add(process)
        for _, act in self.early.pop(process, []):
            act(here)

    def _join(self, unnamed: Communicator, here: Communicator) -> None:
        """What was printed before the communicator's identifier belongs to it."""
        self.log.communicators.pop(unnamed.name, None)
        for name in ("rings", "trees", "connections", "successors"):
            vars(here)[name] = vars(unnamed)[name] | vars(here)[name]
        here.graph = here.graph or unnamed.graph

    def ring(self, at: Place, process: Process, found: re.Match[str]) -> None:
        channel, order = int(found[1]), tuple(map(int, found[2].split()))
        self._later(process, len(order), lambda here: here.rings.setdefault(channel, (order, at)))

    def trees(self, at: Place, process: Process, found: re.Match[str]) -> None:
        for channel, *parts in TREE.findall(found.string):
            down, rank, up = parts[:3] if parts[0] else parts[:2:-1]
            children = tuple(int(child) for child in down.split("/") if int(child) >= 0)
            edges = Edges(int(up) if int(up) >= 0 else None, children)
            self._place(at, process, int(channel), int(rank), edges)

    def _place(self, at: Place, process: Process, channel: int, rank: int, edges: Edges) -> None:
        least = 1 + max(rank, edges.parent or 0, *edges.children, 0)

        def act(here: Communicator) -> None:
            here.trees.setdefault(channel, {}).setdefault(rank, (edges, at))

        self._later(process, least, act)

    def connection(self, at: Place, process: Process, found: re.Match[str]) -> None:
        channel, a, b, way = int(found[1]), int(found[2]), int(found[3]), found[4].strip()

        def act(here: Communicator) -> None:
            if len(here.connections) < MOST_CONNECTIONS:
                here.connections.setdefault((channel, a, b), (way, at))
                if "[receive]" not in found.string:
                    here.successors.setdefault((channel, a), b)

        self._later(process, 1 + max(a, b), act)

    def system(self, _: Place, process: Process, found: re.Match[str]) -> None:
        """The rate of a GPU's links; the search for rings follows."""
        self.links[process] = float(found[1])

    def searched(self, at: Place, process: Process, found: re.Match[str]) -> None:
        graph = Graph(int(found[1]), float(found[2]), self.links.get(process, 0.0))
        self._later(process, 1, lambda here: setattr(here, "graph", here.graph or (graph, at)))

    def heads(self, _: Place, process: Process, found: re.Match[str]) -> None:
        """A rank of each node."""
        those = [int(each) for each in found[1].split()]
        self._later(process, 1 + max(those), lambda here: setattr(here, "told", max(here.told, len(those))))

    def choice(self, at: Place, _: Process, found: re.Match[str]) -> None:
        algorithm, protocol = _name(found[3], ALGORITHMS), _name(found[4], PROTOCOLS)
        key = (found[1] or "", int(found[2]), algorithm, protocol)
        if len(self.log.choices) >= MOST_VALUES and key not in self.log.choices:
            return
        often, first = self.log.choices.get(key, (0, at))
        self.log.choices[key] = often + 1, first

    def call(self, at: Place, process: Process, found: re.Match[str]) -> None:
        here = self.now.get(process)
        size = re.search(r"\[nranks=(\d+)\]", found.string)
        name = here.name if here else f"{size[1]} ranks" if size else ""
        what = f"{found[1]} of {found[3]} elements" if found[3] else found[1]
        self.log.calls[name, process] = int(found[2], 16), what, at

    def _later(self, process: Process, least: int, act: Callable[[Communicator], object]) -> None:
        """Now, if the process's communicator is known and large enough; otherwise when it is."""
        here = self.now.get(process)
        if here is not None and least <= here.size and process not in self.finished:
            act(here)
        elif least <= MOST_RANKS and self.waiting < MOST_CONNECTIONS:
            self.waiting += 1
            self.early.setdefault(process, []).append((least, act))  # type: ignore[arg-type]

    def flush(self) -> None:
        """What no line has named a communicator for belongs to one as large as its largest rank says."""
        waiting = [each for some in self.early.values() for each in some]
        if not waiting:
            return
        size = max(least for least, _ in waiting)
        fitting = [one for one in self.log.communicators.values() if one.size >= size]
        here = min(fitting, key=lambda one: one.size, default=Communicator(f"{size} ranks", size, is_named=False))
        self.log.communicators.setdefault(here.name, here)
        for _, act in waiting:
            act(here)


def _add(to: dict[str, Setting], value: str, process: Process, at: Place) -> None:
    if value in to or len(to) < MOST_VALUES:
        to.setdefault(value, Setting(set(), at)).processes.add(process)


def _name(given: str, known: tuple[str, ...]) -> str:
    """The name of a number or name as NCCL prints it, in NCCL's own spelling.

    >>> _name("1", ALGORITHMS), _name("RING", ALGORITHMS), _name("SIMPLE", PROTOCOLS)
    ('Ring', 'Ring', 'Simple')
    """
    if given.isdecimal():
        return known[int(given)] if int(given) < len(known) else given
    squeezed = {name.lower(): name for name in known}
    return squeezed.get(given.lower().replace("_", ""), given)


PATTERNS: tuple[tuple[re.Pattern[str], Callable[[_Reader, Place, Process, re.Match[str]], None]], ...] = (
    (re.compile(r"^Trees? \[\d+\]"), _Reader.trees),
    (re.compile(r"^(?:Channel|Ring) (\d+)(?:/\d+)? ?:((?:\s+\d+)+)\s*$"), _Reader.ring),
    (
        re.compile(r"^(?:Channel|Ring) (\d+)(?:/\d+)? ?: (\d+)(?:\[\w+\])? -> (\d+)(?:\[\w+\])?.* via (.+)$"),
        _Reader.connection,
    ),
    (re.compile(r"^=== System : max(?:Bw|Width) [\d.]+ total(?:Bw|Width) (\d{1,6}\.?\d{0,6}) "), _Reader.system),
    (re.compile(r"^Pattern 4, .*nChannels (\d{1,4}), (?:speed|bw) (\d{1,6}\.?\d{0,6})/"), _Reader.searched),
    (re.compile(r"\brank (\d+) n[rR]anks (\d+)\b"), _Reader.rank),
    (re.compile(r"^(?:(\w+): +)?(\d+) Bytes -> Algo (\w+) proto (\w+)"), _Reader.choice),
    (re.compile(r"^(\w+): opCount ([0-9a-f]+) .*?(?:count (\d+)|$)"), _Reader.call),
    (re.compile(r"^(NCCL_\w+) set by environment to (.*)$"), _Reader.variable),
    (VERSION, _Reader.version),
    (re.compile(r"^NVLS Head +\d{1,6}:((?: +\d{1,7})+)$"), _Reader.heads),
    (re.compile(r"^Using network (.+)$"), _Reader.network),
)
