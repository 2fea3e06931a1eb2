"""How much of its time a rank has used: what it computes, and what it sleeps in its turn, but no wait for a processor.

So a submission gets the same on a machine that is busy with other things. A rank may use ``limit`` seconds in all calls
of a criterion together. What others make it wait for (a message, a processor, the grader) is free.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

TICK = 0.1  # seconds between two looks


class Used(NamedTuple):
    """Of a rank: processor time so far in seconds, whether it sleeps now, and the bytes of memory that are its own."""

    seconds: float
    sleeps: bool
    memory: int = 0


Usage = Callable[[], Used]


def by_clock() -> Used:
    """The usage of a rank that is a thread: all time that passes."""
    return Used(time.monotonic(), False)


class Meter:
    """``usage`` tells what a rank uses; ``spent``: the seconds that count, ``memory``: its bytes by the last look."""

    def __init__(self, usage: Usage = by_clock) -> None:
        self.usage = usage
        self.spent = 0.0
        self.computed, _, self.memory = usage()
        self.at = time.monotonic()

    def start(self) -> None:
        """A call begins: the time since the last one counts only as far as the rank has computed."""
        self.look(is_silent=False)

    def look(self, is_silent: bool) -> None:
        """Count the time since the last look. ``is_silent``: it was the rank's turn, and it said nothing.

        A look that comes late, because the grader itself waited for a processor, counts no more sleep than one in time.
        """
        (computed, sleeps, self.memory), now = self.usage(), time.monotonic()
        asleep = min(now - self.at, 2 * TICK) if is_silent and sleeps and computed <= self.computed else 0.0
        self.spent += max(computed - self.computed, asleep)
        self.computed, self.at = computed, now
