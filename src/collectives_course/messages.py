"""Messages between ranks: what one costs, one on its way, those that went over the wire, and what came of a call."""

from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple

from numpy.typing import NDArray

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
class Played:
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
