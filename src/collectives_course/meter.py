"""How much of its time a rank has used: what it computes, and what it sleeps in its turn, but no wait for a processor.

So a submission gets the same on a machine that is busy with other things. A rank may use ``limit`` seconds in all calls
of a criterion together. What others make it wait for (a message, a processor, the grader) is free.
"""

import time
from collections.abc import Callable

TICK = 0.1  # seconds between two looks
Usage = Callable[[], tuple[float, bool]]


def by_clock() -> tuple[float, bool]:
    """The usage of a rank that is a thread: all time that passes."""
    return time.monotonic(), False


class Meter:
    """``usage`` gives a rank's processor time in seconds, and whether it sleeps; ``spent`` is what it has used."""

    def __init__(self, usage: Usage = by_clock) -> None:
        self.usage = usage
        self.spent = 0.0
        self.computed, _ = usage()
        self.at = time.monotonic()

    def start(self) -> None:
        """A call begins: the time since the last one counts only as far as the rank has computed."""
        self.look(is_silent=False)

    def look(self, is_silent: bool) -> None:
        """Count the time since the last look. ``is_silent``: it was the rank's turn, and it said nothing.

        A look that comes late, because the grader itself waited for a processor, counts no more sleep than one in time.
        """
        (computed, sleeps), now = self.usage(), time.monotonic()
        asleep = min(now - self.at, 2 * TICK) if is_silent and sleeps and computed <= self.computed else 0.0
        self.spent += max(computed - self.computed, asleep)
        self.computed, self.at = computed, now
