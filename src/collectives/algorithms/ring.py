"""Everyone passes to the next: p-1 steps, each rank sending and receiving one chunk in each.

four ranks    0 -> 1
              ^    |      rank r only ever sends to r+1 and receives from r-1
              |    v
              3 <- 2
"""

from dataclasses import replace

import numpy as np

from collectives.algorithms.compose import in_segments
from collectives.core.schedule import Schedule, Step, beside, column, on, parallel, reverse, then


def all_gather(p: int) -> Schedule:
    """Pass each rank's part once round the ring: at step t, rank r passes on the part of rank r-t.

    Steps: p-1. Bytes each rank sends: (p-1)/p n, the least there is. Messages each rank sends: p-1.

    >>> list(all_gather(3).steps())
    [Step(0->1:=0, 1->2:=1, 2->0:=2), Step(0->1:=2, 1->2:=0, 2->0:=1)]
    """
    return _pass_on(p, 1)


def reduce_scatter(p: int) -> Schedule:
    """Add up each chunk round the ring until it reaches its owner: at step t, rank r sends chunk r-t-1.

    It is the reverse of an all-gather in the other direction, so both halves of an all-reduce use
    the ring in the same direction. Rank r ends with chunk r, as in MPI and torch.distributed.

    Steps: p-1. Bytes each rank sends: (p-1)/p n, the least there is. Messages each rank sends: p-1.

    >>> list(reduce_scatter(3).steps())
    [Step(2->0:+1, 0->1:+2, 1->2:+0), Step(2->0:+0, 0->1:+1, 1->2:+2)]
    """
    return reverse(_pass_on(p, -1), "reduce_scatter", add=True)


def all_reduce(p: int) -> Schedule:
    """Reduce and scatter, then gather (Patarasuk and Yuan 2009; for training, Gibiansky 2017).

    Steps: 2 (p-1). Bytes each rank sends: 2 (p-1)/p n, the least there is. Messages each rank
    sends: 2 (p-1), which is why a ring is slow for small buffers on many ranks.

    >>> all_reduce(4).nsteps
    6
    """
    return then(reduce_scatter(p), all_gather(p), "all_reduce")


def segmented_ring(p: int, segments: int = 2) -> Schedule:
    """Run the ring all-reduce with each chunk cut into segments: while one is in flight, another is sent.

    With one segment it is the plain ring, which waits a latency in each of its steps. Two hide a
    latency that is no longer than a segment takes to send; where latencies are longer than that,
    fewer and larger messages serve better.

    Steps: 2 (p-1) s for s segments. Bytes each rank sends: 2 (p-1)/p n, the least there is.
    Messages each rank sends: 2 (p-1) s. Open MPI has an algorithm of this name, too.

    >>> list(segmented_ring(2).steps())[:2]
    [Step(1->0:+0, 0->1:+2), Step(1->0:+1, 0->1:+3)]
    """
    scattered = reverse(_pass_on(p, -1, segments), "reduce_scatter", add=True)
    return then(scattered, _pass_on(p, 1, segments), "all_reduce")


def bidirectional_all_gather(p: int) -> Schedule:
    """Gather parts at all ranks round the ring both ways at once, each the shorter way, in half the steps.

    It pays where a port sends and receives at full rate at once and latency counts, because the
    bytes stay the same. torchcomms gathers like this up to 4 MiB (meta-pytorch/torchcomms,
    AllReduceRing.md, 2026).

    Steps: ceil((p-1)/2). Messages each rank sends in a step: one to each neighbour, in the last
    step of an even p one in all. Bytes each rank sends: (p-1)/p n, the least there is.

    >>> list(bidirectional_all_gather(3).steps())
    [Step(0->1:=0, 1->2:=1, 2->0:=2, 0->2:=0, 1->0:=1, 2->1:=2)]
    """
    on, back = (
        replace(_pass_on(p, way), nsteps=n, repeats=())
        for way, n in ((1, p // 2), (-1, (p - 1) // 2))
    )
    return replace(parallel(on, back, "all_gather"), one_port=p < 3)


def around_slow_rank(p: int, slow: int | None = None, segments: int = 1) -> Schedule:
    """Run a ring of all ranks but a slow one, which sends its buffer once and receives the sum once.

    In a ring each rank sends almost twice the buffer, so one port of half the rate doubles the
    time. Here the slow rank (the last one unless told) gives each of its parts to the rank that
    adds it first, the others pass sums round their ring, and each finished part goes to the slow
    rank while the others gather it. Segments follow one step apart, so that the slow rank's port
    never rests (OptCC, arXiv 2606.01680).

    Steps: 2 (p-1) - 2 + s for s segments and p > 2. Bytes the slow rank sends: n; every other sends
    (2 - 1/(p-1)) n, which is the least there is then (`collectives.core.bounds.slow_port_seconds`).
    Raises ValueError for no such rank.

    >>> list(around_slow_rank(3, slow=0).steps())
    [Step(0->2:+0, 0->1:+1), Step(2->1:+0, 1->2:+1), Step(1->0:=0, 2->0:=1, 1->2:=0, 2->1:=1)]
    """
    if slow is not None and not 0 <= slow < p:
        raise ValueError(f"slow rank: got {slow}, expected 0 to {p - 1}")
    q = p - 1  # ranks of the ring; the slow one is behind them
    part, last = np.arange(q), np.full(q, q)
    phases = max(2 * q - 1, 2)

    def phase(f: int) -> Step:
        """Return the steps of one segment, whose sum begins at the slow rank, then goes to it and round the ring."""
        if f < q:
            return Step((part + f) % q if f else last, (part + f + 1) % q, part, add=True)
        on_way = Step(part, (part + 1) % q, (part - (f - q)) % q) if q > 1 else Step([], [], [])
        if f > q:
            return on_way
        return beside(Step(part, last, part), on_way)

    one = Schedule("all_reduce", p, max(q, 1), phases if q else 0, phase)
    schedule = replace(in_segments(one, segments), one_port=p < 3)
    ranks = np.insert(part, q if slow is None else slow, q)  # place i of all has this number here
    # The segments of a chunk follow each other.
    chunk = np.arange(schedule.k).reshape(one.k, segments).T.ravel()
    return on(schedule, p, schedule.k, np.argsort(ranks), chunk)


def _pass_on(p: int, direction: int, segments: int = 1) -> Schedule:
    """Gather round the ring, to the next rank (1) or to the one before (-1), segment by segment."""
    rank = column(np.arange(p))
    to = column((rank + direction) % p)
    # A piece of it is every rank's chunk at step t: (rank - direction * t) % p.
    twice = np.concatenate([rank, rank])
    chunks = [column(twice * segments + segment) for segment in range(segments)]

    def make(t: int) -> Step:
        turn, segment = divmod(t, segments)
        # Reversed steps run backwards.
        segment = segment if direction > 0 else segments - 1 - segment
        first = -direction * turn % p
        return Step(rank, to, chunks[segment][first : first + p])

    nsteps = (p - 1) * segments
    return Schedule("all_gather", p, p * segments, nsteps, make, repeats=(range(nsteps),))
