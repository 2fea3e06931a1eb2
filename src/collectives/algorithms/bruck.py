"""Bruck's way: every rank sends 1, 2, 4, … ranks away, in ceil(log2 p) steps for any p.

    all-gather on 5 ranks, what rank 0 has after each step:      0 | 0 1 | 0 1 2 3 | 0 1 2 3 4

A message holds many pieces, so these win where latency matters more than bytes (Bruck et al. 1997).
"""

import numpy as np

from collectives.schedule import Schedule, Step


def all_gather(p: int) -> Schedule:
    """At step t, rank r sends the first 2**t parts it has, counted from its own, to rank r - 2**t.

    Steps: ceil(log2 p) for any p. Bytes each rank sends: (p-1)/p n, the least there is. Messages: one a step.

    >>> list(all_gather(3).steps())
    [Step(0->2:=0, 1->0:=1, 2->1:=2), Step(0->1:=0, 1->2:=1, 2->0:=2)]
    """

    def make(t: int) -> Step:
        distance = 1 << t
        rank, ahead = np.divmod(np.arange(p * min(distance, p - distance)), min(distance, p - distance))
        return Step(rank, (rank - distance) % p, (rank + ahead) % p)

    return Schedule("all_gather", p, p, (p - 1).bit_length(), make)


def all_to_all(p: int) -> Schedule:
    """A piece for the rank i further on travels by the binary digits of i: at step t, 2**t ranks if that digit is 1.

    Steps: ceil(log2 p) for any p. Bytes each rank sends: about n/2 a step, so up to n/2 ceil(log2 p): more than the
    pairwise (p-1)/p n, in far fewer messages.

    >>> list(all_to_all(3).steps())
    [Step(0->1:=1, 1->2:=5, 2->0:=6), Step(0->2:=2, 1->0:=3, 2->1:=7)]
    """
    source, distance = np.divmod(np.arange(p * p), p)
    piece = source * p + (source + distance) % p

    def make(t: int) -> Step:
        moves = (distance >> t & 1).astype(np.bool_)
        at = (source[moves] + distance[moves] % (1 << t)) % p
        return Step(at, (at + (1 << t)) % p, piece[moves])

    return Schedule("all_to_all", p, p * p, (p - 1).bit_length(), make)
