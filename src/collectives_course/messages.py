"""Messages, and what the grader knows of each rank that waits for one: costs, results, deadlocks, time used up."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from numpy.typing import NDArray

from collectives_course.channel import Channel
from collectives_course.verdict import EndedError

Array = NDArray[Any]


class Sent(NamedTuple):
    """One message, as it went over the wire; times in seconds of the simulated clock."""

    src: int
    dst: int
    bytes: int
    start: float
    end: float


@dataclass(frozen=True)
class Network:
    """What a message costs, and whether a send waits for its receiver (small buffers). ``late``: start of each rank."""

    alpha: float = 1e-6
    beta: float = 1e-9
    small_buffers: bool = False
    late: tuple[float, ...] = ()


@dataclass(frozen=True)
class RunResult:
    """What came of one call on all ranks."""

    values: list[Any]
    arguments: list[list[Any]]
    sent: list[Sent]
    seconds: float
    unreceived: list[tuple[int, int]]

    def bytes_sent(self, p: int) -> list[int]:
        """Bytes that each rank has sent."""
        counted: Counter[int] = Counter()
        for message in self.sent:
            counted[message.src] += message.bytes
        return [counted[rank] for rank in range(p)]

    def messages_sent(self, p: int) -> list[int]:
        """Messages that each rank has sent."""
        counted = Counter(message.src for message in self.sent)
        return [counted[rank] for rank in range(p)]


@dataclass
class Post:
    """A message that its sender has handed over."""

    src: int
    dst: int
    array: Array
    at: float


@dataclass
class Rank:
    """What the grader knows of one rank: its clock, and what it waits for."""

    number: int
    channel: Channel
    clock: float = 0.0
    egress_free: float = 0.0
    ingress_free: float = 0.0
    sending: Post | None = None
    receiving: dict[str, Any] | None = None
    received: Array | None = None
    collective: int | None = None
    asks: str = ""
    line: int = 0
    returned: dict[str, Any] | None = None
    error: EndedError | None = None

    @property
    def has_ended(self) -> bool:
        """Whether it has returned, or raised an error."""
        return self.returned is not None or self.error is not None

    @property
    def waits(self) -> bool:
        """Whether it waits for another rank."""
        return self.sending is not None or self.receiving is not None or self.collective is not None

    @property
    def has_turn(self) -> bool:
        """Return True if it can go on by itself."""
        return not self.waits and not self.has_ended

    @property
    def peer(self) -> int:
        """The rank that it waits for."""
        return int(self.receiving["from"]) if self.receiving is not None else self.sending.dst  # type: ignore[union-attr]


def stuck(ranks: Sequence[Rank]) -> list[Rank]:
    """All ranks that wait for another, if none of them can go on; otherwise none."""
    return [] if any(rank.has_turn for rank in ranks) else [rank for rank in ranks if rank.waits]


def cycle_from(ranks: Sequence[Rank], rank: Rank) -> str:
    """Who waits for whom, from this rank on: a cycle, or a rank that has returned."""
    path: list[Rank] = []
    while rank not in path and rank.waits:
        path.append(rank)
        rank = ranks[rank.peer]
    if not rank.waits:
        return f"{_doing(path[-1])}, which has returned"
    cycle = path[path.index(rank) :]
    names = [str(each.number) for each in cycle]
    whole = f"ranks {', '.join(names[:-1])} and {names[-1]} wait for each other"
    return f"{whole}: {'; '.join(_doing(each) for each in cycle[:4])}{'; …' if len(cycle) > 4 else ''}"


def _doing(rank: Rank) -> str:
    verb = "receive from" if rank.receiving is not None else "send to"
    return f"rank {rank.number} waits (line {rank.line}) to {verb} rank {rank.peer}"


def used_up(ranks: Sequence[Rank], first: Rank, file: str, limit: float) -> str:
    """That this rank has used its time, at which line it is, and who waited meanwhile."""
    line = first.channel.stack(file)
    where = f" ({file}, line {line})" if line else ""
    waiting = [str(rank.number) for rank in ranks if rank.waits]
    others = f"; {'rank' if len(waiting) == 1 else 'ranks'} {', '.join(waiting)} waited" if waiting else ""
    return f"rank {first.number} has used the {limit:g} s that it has for a criterion{where}{others}"
