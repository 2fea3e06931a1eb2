"""Count what a schedule sends: messages and bytes, for every rank."""

from typing import NamedTuple

import numpy as np

from collectives.core.schedule import Ints, Schedule


class Traffic(NamedTuple):
    """Per rank, and then per switch: messages sent and received, bytes (or elements) sent and received."""

    messages_sent: Ints
    messages_received: Ints
    sent: Ints
    received: Ints


def traffic(schedule: Schedule, n: int) -> Traffic:
    """Count what every rank sends and receives when the buffer has ``n`` bytes (or elements), without empty messages.

    >>> from collectives.algorithms import ALGORITHMS
    >>> traffic(ALGORITHMS["all_reduce", "ring"](4), n=1000).sent.tolist()
    [1500, 1500, 1500, 1500]
    """
    edges = schedule.cut(n)
    total = Traffic(*(np.zeros(schedule.participants, dtype=np.int64) for _ in Traffic._fields))
    for step in schedule.steps():
        src, dst, size, _, _ = step.messages(edges)
        one = np.ones_like(size)
        for counter, ranks, amount in zip(
            total, (src, dst, src, dst), (one, one, size, size), strict=True
        ):
            np.add.at(counter, ranks, amount)
    return total
