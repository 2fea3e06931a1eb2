"""Bruck's way: every rank sends 1, 2, 4, … ranks away, in ceil(log2 p) steps for any p.

    all-gather on 5 ranks, what rank 0 has after each step:      0 | 0 1 | 0 1 2 3 | 0 1 2 3 4

A message holds many parts, so these win where latency matters more than bytes (Bruck et al. 1997).
Reversed, the all-gather is a reduce-scatter, and both together an all-reduce with the fewest bytes
for any p.
"""

import numpy as np

from collectives.algorithms.compose import scatter_and_gather
from collectives.core.bounds import weights
from collectives.core.schedule import Schedule, Step, reverse


def all_gather(p: int) -> Schedule:
    """Gather by doubling: at step t rank r sends the first 2**t parts it has, from its own on, to rank r - 2**t.

    Steps: ceil(log2 p) for any p. Bytes each rank sends: (p-1)/p n, the least there is. Messages:
    one a step.

    >>> list(all_gather(3).steps())
    [Step(0->2:=0, 1->0:=1, 2->1:=2), Step(0->1:=0, 1->2:=1, 2->0:=2)]
    >>> all_gather(4).step(1)  # rank 3 has parts 3 and 0
    Step(0->2:=0-1, 1->3:=1-2, 2->0:=2-3, 3->1:=3, 3->1:=0)
    """
    rank = np.arange(p)

    def make(t: int) -> Step:
        distance = 1 << t
        # How many of the parts are those of ranks 0, 1, ….
        beyond = rank + min(distance, p - distance) - p
        wraps = beyond > 0
        src = np.concatenate([rank, rank[wraps]])
        chunk = np.concatenate([rank, np.zeros_like(rank[wraps])])
        count = np.concatenate([p - rank + np.minimum(beyond, 0), beyond[wraps]])
        return Step(src, (src - distance) % p, chunk, count)

    return Schedule("all_gather", p, p, (p - 1).bit_length(), make)


def reduce_scatter(p: int) -> Schedule:
    """Reduce and scatter by halving: sums of ever fewer parts travel …, 4, 2, 1 ranks on, the all-gather in reverse.

    Steps: ceil(log2 p) for any p. Bytes each rank sends, and adds: (p-1)/p n, the least there is.
    No rank folds and waits, so every port works in every step (Träff 2024, with distances of his
    own).

    >>> list(reduce_scatter(3).steps())
    [Step(1->0:+0, 2->1:+1, 0->2:+2), Step(2->0:+0, 0->1:+1, 1->2:+2)]
    """
    return reverse(all_gather(p), "reduce_scatter", add=True)


def all_reduce(p: int) -> Schedule:
    """Reduce-scatter, then all-gather: for any p the fewest bytes there are, in the steps of halving and doubling.

    Steps: 2 ceil(log2 p). Bytes each rank sends: 2 (p-1)/p n, the least there is. Halving and
    doubling costs the same for a power of two, and up to n more in as many steps for any other p.
    Each chunk is summed at one rank, so every rank ends with the same bits (Träff 2024, Optimal,
    Non-pipelined Reduce-scatter and Allreduce Algorithms).

    >>> all_reduce(6).nsteps, all_reduce(96).nsteps, all_reduce(128).nsteps
    (6, 14, 14)
    """
    return scatter_and_gather(all_gather(p))


def all_to_all(p: int) -> Schedule:
    """Send a part to the rank i further on by the binary digits of i: at step t, 2**t ranks on if that digit is 1.

    Steps: ceil(log2 p) for any p. Bytes each rank sends: about n/2 a step, so up to n/2 ceil(log2
    p): more than the pairwise (p-1)/p n, in far fewer messages.

    >>> list(all_to_all(3).steps())
    [Step(0->1:=1, 1->2:=5, 2->0:=6), Step(0->2:=2, 1->0:=3, 2->1:=7)]
    """
    return all_to_all_by_digits(p, radix=2)


def all_to_all_by_digits(p: int, radix: int) -> Schedule:
    """Send a part to the rank i further on by the digits of i to any base of 2 or more, the lowest digit first.

    The parts with the same value v of the digit with weight w, v > 0, go v w ranks on in one
    message. So a larger radix has more messages, and a part fewer stops. With radix p each part goes
    straight to its receiver: that is the pairwise exchange (Bruck et al. 1997, section 3).

    Steps: at most (radix-1) ceil(log p / log radix), for any p. Bytes each rank sends: those of its
    parts, times the digits of i that are not 0 (`collectives.core.bounds.bruck_all_to_all`).

    >>> [all_to_all_by_digits(64, radix).nsteps for radix in (2, 4, 8, 64)]
    [6, 9, 14, 63]
    >>> list(all_to_all_by_digits(3, 3).steps())
    [Step(0->1:=1, 1->2:=5, 2->0:=6), Step(0->2:=2, 1->0:=3, 2->1:=7)]
    """
    rank = np.arange(p)
    source = rank[:, None]
    moves = [
        (weight, value)
        for weight in weights(p, radix)
        for value in range(1, min(radix - 1, (p - 1) // weight) + 1)
    ]

    def make(t: int) -> Step:
        weight, value = moves[t]
        distance = np.flatnonzero(rank // weight % radix == value)
        at = (source + distance % weight) % p
        part = source * p + (source + distance) % p
        return Step(at.ravel(), (at + value * weight).ravel() % p, part.ravel())

    return Schedule("all_to_all", p, p * p, len(moves), make)
