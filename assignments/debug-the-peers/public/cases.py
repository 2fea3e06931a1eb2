"""The case of each program that the answers are about: the arguments of every rank.

You need not edit this file.
"""

import numpy as np
from variant import ELEMENTS, FILLED, GROUPS, RING, ROOM


def groups():
    """For ``groups.total``, with small buffers: a send waits until its receiver is ready."""
    return [[np.arange(3) + 10.0 * rank] for rank in range(sum(map(len, GROUPS)))]


def ring():
    """For ``ring.all_reduce``."""
    return [[np.arange(RING * ELEMENTS) + 0.5 * rank] for rank in range(RING)]


def counted():
    """For ``counted.all_reduce``: every rank's buffer ends with zeros."""
    return [
        [np.where(np.arange(ELEMENTS) < filled, rank + 1.0, 0.0)]
        for rank, filled in enumerate(FILLED)
    ]


def choice(elements):
    """For ``choice.all_reduce`` with buffers of so many elements."""
    return [[np.arange(elements) + 10.0 * rank, room] for rank, room in enumerate(ROOM)]
