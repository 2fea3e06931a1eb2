"""Everyone passes to the next: p-1 steps, each rank sending and receiving one chunk in each.

four ranks    0 -> 1
              ^    |      rank r only ever sends to r+1 and receives from r-1
              |    v
              3 <- 2
"""

import numpy as np

from collectives.schedule import Schedule, Step, column, reverse, then


def all_gather(p: int) -> Schedule:
    """Each rank's part travels once round the ring: at step t, rank r passes on the part of rank r-t.

    Steps: p-1. Bytes each rank sends: (p-1)/p n, the least there is. Messages each rank sends: p-1.

    >>> list(all_gather(3).steps())
    [Step(0->1:=0, 1->2:=1, 2->0:=2), Step(0->1:=2, 1->2:=0, 2->0:=1)]
    """
    return _pass_on(p, 1)


def reduce_scatter(p: int) -> Schedule:
    """A sum grows while it travels round the ring, and ends at its owner: at step t, rank r sends chunk r-t-1.

    It is the reverse of an all-gather in the other direction, so both halves of an all-reduce use the ring in
    the same direction. Rank r ends with chunk r, as in MPI and torch.distributed.

    Steps: p-1. Bytes each rank sends: (p-1)/p n, the least there is. Messages each rank sends: p-1.

    >>> list(reduce_scatter(3).steps())
    [Step(2->0:+1, 0->1:+2, 1->2:+0), Step(2->0:+0, 0->1:+1, 1->2:+2)]
    """
    return reverse(_pass_on(p, -1), "reduce_scatter", add=True)


def all_reduce(p: int) -> Schedule:
    """Reduce-scatter, then all-gather (Patarasuk and Yuan 2009; for training, Gibiansky 2017).

    Steps: 2 (p-1). Bytes each rank sends: 2 (p-1)/p n, the least there is. Messages each rank sends: 2 (p-1), which is
    why a ring is slow for small buffers on many ranks.

    >>> all_reduce(4).nsteps
    6
    """
    return then(reduce_scatter(p), all_gather(p), "all_reduce")


def segmented_ring(p: int, segments: int = 2) -> Schedule:
    """The ring all-reduce with each chunk cut into segments: while one is on its way, another is sent.

    With one segment it is the plain ring, which waits a latency in each of its steps. Two hide a latency that is no
    longer than a segment takes to send; where latencies are longer than that, fewer and larger messages serve better.

    Steps: 2 (p-1) s for s segments. Bytes each rank sends: 2 (p-1)/p n, the least there is. Messages each rank sends:
    2 (p-1) s. Open MPI has an algorithm of this name, too.

    >>> list(segmented_ring(2).steps())[:2]
    [Step(1->0:+0, 0->1:+2), Step(1->0:+1, 0->1:+3)]
    """
    scattered = reverse(_pass_on(p, -1, segments), "reduce_scatter", add=True)
    return then(scattered, _pass_on(p, 1, segments), "all_reduce")


def _pass_on(p: int, direction: int, segments: int = 1) -> Schedule:
    """All-gather round the ring, to the next rank (1) or to the one before (-1), segment by segment."""
    rank = column(np.arange(p))
    to = column((rank + direction) % p)
    twice = np.concatenate([rank, rank])  # a piece of it is every rank's chunk at step t: (rank - direction * t) % p
    chunks = [column(twice * segments + segment) for segment in range(segments)]

    def make(t: int) -> Step:
        turn, segment = divmod(t, segments)
        segment = segment if direction > 0 else segments - 1 - segment  # reversed steps run backwards
        first = -direction * turn % p
        return Step(rank, to, chunks[segment][first : first + p])

    nsteps = (p - 1) * segments
    return Schedule("all_gather", p, p * segments, nsteps, make, repeats=(range(nsteps),))
