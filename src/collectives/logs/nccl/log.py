"""What a log of NCCL says: its communicators, settings, warnings and calls, each with the line that says it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from collectives.logs.finding import Place
from collectives.logs.nccl.forms import Form
from collectives.logs.nccl.torch_lines import Torch


class Process(NamedTuple):
    """Who wrote a line: a host, a process of it, and the process's device."""

    host: str
    pid: int
    device: int


NOBODY = Process("", 0, 0)


class Said(NamedTuple):
    """A warning or error: its first line, who said it, and the form that it has; None for one that is not known."""

    at: Place
    process: Process
    text: str
    form: Form | None


class Graph(NamedTuple):
    """The rings that NCCL's search found: channels, GB/s of each inside a node; and the GB/s of a GPU's links."""

    channels: int
    rate: float
    most: float


class Edges(NamedTuple):
    """A rank's place in a tree: its parent, None for the root, and its children."""

    parent: int | None
    children: tuple[int, ...]


@dataclass
class Communicator:
    """What was printed about one communicator; every value has the number of the line that says it."""

    name: str
    size: int
    is_named: bool = True  # by an identifier of NCCL's, or by its size
    is_several: bool = False  # of one size, without identifiers that would tell them apart
    processes: dict[int, Process] = field(default_factory=dict)  # by rank
    complete: dict[int, Place] = field(default_factory=dict)  # by rank: the line of "Init COMPLETE"
    rings: dict[int, tuple[tuple[int, ...], Place]] = field(default_factory=dict)  # by channel
    trees: dict[int, dict[int, tuple[Edges, Place]]] = field(default_factory=dict)  # by channel and rank
    connections: dict[tuple[int, int, int], tuple[str, Place]] = field(default_factory=dict)  # channel, from, to
    # By channel and sender: the first that it connects to. NCCL connects rings before trees.
    successors: dict[tuple[int, int], int] = field(default_factory=dict)
    graph: tuple[Graph, Place] | None = None
    told: int = 0  # on how many nodes it is, where NCCL prints that

    @property
    def nodes(self) -> int:
        """On how many nodes it is at least."""
        return max(self.told, len({process.host for process in self.processes.values()}))

    @property
    def is_one_node(self) -> bool:
        """Whether all its ranks share a node, as far as the log shows it."""
        return self.nodes == 1 and (self.told == 1 or len(self.processes) == self.size)


class Setting(NamedTuple):
    """A value that processes have, and the first line of it."""

    processes: set[Process]
    at: Place


@dataclass
class Log:
    """All that was found."""

    lines: int = 0
    own: int = 0  # lines of NCCL
    communicators: dict[str, Communicator] = field(default_factory=dict)
    versions: dict[str, Setting] = field(default_factory=dict)
    networks: dict[str, Setting] = field(default_factory=dict)
    environment: dict[str, dict[str, Setting]] = field(default_factory=dict)  # by variable and value
    nics: dict[str, Setting] = field(default_factory=dict)
    bridges: dict[str, Setting] = field(default_factory=dict)  # what uses Docker's bridge
    said: list[Said] = field(default_factory=list)
    torch: Torch = field(default_factory=Torch)
    has_geforce: bool = False
    choices: dict[tuple[str, int, str, str], tuple[int, Place]] = field(default_factory=dict)  # how often, first line
    calls: dict[tuple[str, Process], tuple[int, str, Place]] = field(default_factory=dict)  # the last

    @property
    def is_told(self) -> bool:
        """Return True if a line of a known form, or torch's watchdog, says that the job fails."""
        return bool(self.torch.kept) or any(said.form is not None for said in self.said)
