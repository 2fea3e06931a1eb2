"""What "auto" stands for: the algorithm, and its segments, that the law of a machine says is fastest.

The law is the closed form in alpha and beta; where one rank alone sends or receives, and in a segmented ring, latency
counts apart from overhead. The machine is the one that the environment variable COLLECTIVES_MACHINE names, a preset or
a file; `collectives calibrate` writes the file of the machine it runs on. Without one, a rule of thumb stands in.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from collectives.bounds import COSTS, LATENCIES, PIPELINES, lower_bound, segmented_ring_seconds, star_seconds
from collectives.machine import Link, Machine, machine

VARIABLE = "COLLECTIVES_MACHINE"

# Without a machine: what is taken up to SMALL_BYTES, where steps count most, and beyond, where bytes do.
SMALL_BYTES = 64 << 10
THUMB = {
    "broadcast": ("binomial", "scatter_allgather"),
    "scatter": ("binomial", "binomial"),
    "gather": ("binomial", "binomial"),
    "all_gather": ("bruck", "ring"),
    "all_to_all": ("pairwise", "pairwise"),
    "reduce": ("binomial", "rabenseifner"),
    "reduce_scatter": ("recursive_halving", "ring"),
    "all_reduce": ("recursive_doubling", "ring"),
}

# Without a machine a pipelined algorithm cuts its buffer into segments of about this size, but never into more than
# MOST_SEGMENTS.
SEGMENT_BYTES, MOST_SEGMENTS = 1 << 20, 64

# A segmented ring's: while one is on its way the other is sent. More would only help where latencies are longer than
# that, and there a ring is not the best.
RING_SEGMENTS = 2

# What a message costs a rank of ours at least, sent or received: a warm call with one each way took 55 us. A rank with
# many of them is busy all that time, also on links whose own overhead is less.
OVERHEAD = 30e-6


class Choice(NamedTuple):
    """An algorithm, how many segments it cuts its chunks into, and its law's seconds, if there is a machine."""

    algorithm: str
    segments: int
    seconds: float | None = None


def choose(
    collective: str,
    p: int,
    nbytes: int,
    algorithm: str = "auto",
    segments: int | None = None,
    on: Machine | None = None,
) -> Choice:
    """What to run for a collective of so many bytes on p ranks; what is not "auto" or None stays as it is.

    >>> from collectives.machine import machine
    >>> [choose("all_reduce", 32, nbytes, on=machine("textbook")).algorithm for nbytes in (4, 1 << 20)]
    ['recursive_doubling', 'halving_doubling']
    >>> choose("all_reduce", 32, 1 << 20, "two_tree", on=machine("textbook")).segments
    4
    >>> choose("all_reduce", 32, 1 << 20)
    Choice(algorithm='ring', segments=1, seconds=None)
    """
    if on is None:
        name = THUMB[collective][nbytes > SMALL_BYTES] if algorithm == "auto" else algorithm
        return Choice(name, segments or min(MOST_SEGMENTS, max(1, nbytes // SEGMENT_BYTES)))
    names = [name for of, name in {**COSTS, **PIPELINES} if of == collective] if algorithm == "auto" else [algorithm]
    laws = (_law(collective, name, p, nbytes, segments, _link(on, p)) for name in names)
    return min(laws, key=lambda law: (law.seconds is None, law.seconds))


def _law(collective: str, name: str, p: int, nbytes: int, segments: int | None, link: Link) -> Choice:
    """The time by an algorithm's closed form, with its best number of segments; None where there is no such form."""
    key, alpha, beta = (collective, name), link.alpha, link.beta
    if key == ("all_reduce", "segmented_ring"):
        cut = segments or RING_SEGMENTS
        return Choice(name, cut, segmented_ring_seconds(p, nbytes, cut, link.latency, link.overhead, beta))
    if key in LATENCIES:
        return Choice(name, 1, star_seconds(*key, p, nbytes, link.latency, max(link.overhead, OVERHEAD), beta))
    if p > 1 and key in PIPELINES:
        pipeline = PIPELINES[key](p)
        cut = segments or (pipeline.best(nbytes, alpha, beta) if alpha else MOST_SEGMENTS)
        return Choice(name, cut, pipeline.seconds(nbytes, cut, alpha, beta))
    return Choice(name, segments or 1, COSTS[key](p).seconds(nbytes, alpha, beta) if key in COSTS else None)


def _link(on: Machine, p: int) -> Link:
    """The slowest link that p ranks use."""
    return on.inside if on.inside is not None and p <= on.ranks_per_node else on.network


def bound(on: Machine, collective: str, p: int, nbytes: int) -> float:
    """Seconds that a collective takes at least on a machine, whatever the algorithm (`collectives.bounds`)."""
    link = _link(on, p)
    return lower_bound(collective, p, nbytes, link.alpha, link.beta, on.gamma, link.latency)


@cache
def named_machine(name: str | None) -> Machine | None:
    """The machine of this name, if there is one; ValueError says what is wrong with it."""
    return machine(name) if name else None
