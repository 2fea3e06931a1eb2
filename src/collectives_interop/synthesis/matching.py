"""Make schedules by greedy matching: each free link takes a chunk that its receiver lacks, in random order.

The method is TACOS's (Won et al., "TACOS: Topology-Aware Collective Algorithm Synthesizer for
Distributed Machine Learning", MICRO 2024). Time is expanded: at each moment when a link becomes
free, every rank looks at the chunks that it lacks, in random order. For each it takes the free link
that brings it soonest from a rank that has it. A chunk takes the latency of the link, plus its
bytes by the link's rate. No solver is asked, so hundreds of ranks are no problem, but nothing says
that the schedule is the best one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from collectives.core.schedule import Ints, Schedule, Step, reverse, then
from collectives.core.verify import verify
from collectives.topology.graph import check_links

COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce")

# Moments of time that are closer together than this share are one: sums of the same times may
# differ in the last bits.
SAME = 1e-9


class Matched(NamedTuple):
    """A proved schedule, and the seconds that it takes if each message leaves as soon as its link matched it."""

    schedule: Schedule
    seconds: float


class _Network(NamedTuple):
    """Every link: its ends, and how long a chunk takes."""

    p: int
    src: Ints
    dst: Ints
    seconds: NDArray[np.float64]


def match(
    links: Ints,
    collective: str,
    nbytes: int,
    chunks: int,
    latency: ArrayLike,
    rate: ArrayLike,
    seed: int = 0,
) -> Matched:
    """Return a schedule for this topology by greedy matching, and the seconds that it takes.

    ``links[a, b]`` links lead from rank a to rank b. ``latency`` (seconds) and ``rate`` (bytes a
    second, of one link) are numbers, or matrices like ``links``. ``nbytes`` is the size of the
    whole buffer, which has ``chunks`` chunks per rank. A reduce-scatter is a reversed all-gather on
    reversed links, and an all-reduce is one before an all-gather. The schedule has one step for
    each moment at which messages leave. It is proved by `verify`.

    Raises ValueError for an invalid matrix, or a number that is not above 0. Cost: about 30
    microseconds a message.

    >>> ring = np.array([[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]])
    >>> matched = match(ring, "all_gather", nbytes=4000, chunks=1, latency=1e-6, rate=1e9)
    >>> matched.schedule.nsteps, round(matched.seconds * 1e6, 3)
    (2, 4.0)
    """
    _check_topology(links, collective, nbytes, chunks, latency, rate)
    network = _network(links, nbytes, chunks, latency, rate)
    made, seconds = _all_gather(network, chunks, np.random.default_rng(seed))
    if collective != "all_gather":
        backwards = network._replace(src=network.dst, dst=network.src)
        gathered, took = _all_gather(backwards, chunks, np.random.default_rng(seed))
        scattered = reverse(gathered, "reduce_scatter", add=True)
        if collective == "reduce_scatter":
            made, seconds = scattered, took
        else:
            made, seconds = then(scattered, made, collective), took + seconds
    verify(made)
    return Matched(made, seconds)


def _check_topology(
    links: Ints, collective: str, nbytes: int, chunks: int, latency: ArrayLike, rate: ArrayLike
) -> None:
    check_links(links)
    if collective not in COLLECTIVES:
        raise ValueError(f"collective: got {collective}, expected one of {', '.join(COLLECTIVES)}")
    if nbytes < 1 or chunks < 1:
        raise ValueError(f"bytes and chunks: got {nbytes} and {chunks}, expected 1 or more of each")
    for name, values in (("latency", np.asarray(latency)), ("rate", np.asarray(rate))):
        if values.shape not in ((), links.shape):
            raise ValueError(
                f"{name}: got shape {values.shape}, expected a number, or the shape of the links"
            )
        used = np.broadcast_to(values, links.shape)[links > 0]
        may_be_zero = name == "latency"
        is_large_enough = used >= 0 if may_be_zero else used > 0
        if not (np.isfinite(used) & is_large_enough).all():
            expected = "0 or more" if may_be_zero else "above 0"
            raise ValueError(f"{name} of a link: got {used.min()}, expected {expected}")


def _network(
    links: Ints, nbytes: int, chunks: int, latency: ArrayLike, rate: ArrayLike
) -> _Network:
    """Return an entry for each link; parallel links between two ranks have one each."""
    p = len(links)
    chunk_bytes = nbytes / (p * chunks)
    latencies = np.broadcast_to(np.asarray(latency, dtype=float), links.shape)
    rates = np.broadcast_to(np.asarray(rate, dtype=float), links.shape)
    pairs = np.repeat(np.arange(links.size), links.ravel())
    src, dst = np.divmod(pairs, p)
    return _Network(p, src, dst, latencies[src, dst] + chunk_bytes / rates[src, dst])


def _all_gather(on: _Network, chunks: int, random: np.random.Generator) -> tuple[Schedule, float]:
    """Return the steps of a matching, and the seconds at which the last chunk arrives."""
    k = on.p * chunks
    has = np.repeat(np.eye(on.p, dtype=bool), chunks, axis=1)
    lacks = ~has  # and nothing on its way
    until = np.zeros(len(on.src))
    carried = np.full(len(on.src), -1)  # the chunk on each link, or none
    into = [np.flatnonzero(on.dst == rank) for rank in range(on.p)]
    now = 0.0
    steps = []
    while lacks.any():
        rows: list[tuple[int, int, int]] = []  # sender, receiver, chunk
        waiting = np.flatnonzero(lacks.any(axis=1))
        for rank in waiting.tolist():
            links = into[rank]
            free = links[carried[links] < 0]
            for link, chunk in _taken(on, free, has, lacks[rank], random):
                until[link] = now + on.seconds[link]
                carried[link] = chunk
                lacks[rank, chunk] = False
                rows.append((int(on.src[link]), rank, chunk))
        if rows:
            src, dst, chunk_numbers = np.array(sorted(rows), dtype=np.int64).T
            steps.append(Step(src, dst, chunk_numbers))
        busy = carried >= 0
        now = float(until[busy].min())
        is_due = until <= now * (1 + SAME)
        arrived = np.flatnonzero(busy & is_due)
        has[on.dst[arrived], carried[arrived]] = True
        carried[arrived] = -1
    made = Schedule("all_gather", on.p, k, len(steps), steps.__getitem__, one_port=False)
    return made, float(until.max())


def _taken(
    on: _Network,
    free: Ints,
    has: NDArray[np.bool_],
    lacks: NDArray[np.bool_],
    random: np.random.Generator,
) -> list[tuple[int, int]]:
    """Return what the free links into one rank take now: (link, chunk).

    Of equally fast links one is drawn.
    """
    found = []
    senders = has[on.src[free]]
    wanted = np.flatnonzero(lacks & senders.any(axis=0))
    for chunk in random.permutation(wanted).tolist():
        # Links whose sender has the chunk.
        able = np.flatnonzero(senders[:, chunk])
        if able.size:
            soonest = on.seconds[free[able]]
            at = random.choice(able[soonest <= soonest.min() * (1 + SAME)])
            found.append((int(free[at]), chunk))
            free, senders = np.delete(free, at), np.delete(senders, at, axis=0)
        if not free.size:
            break
    return found
