"""Ring all-reduce over send and recv: any number of ranks, any length, in place.

Your course's ring has its own direction and its own owners: see `variant.py`. A rank sends only to
its next rank, ``(rank + DIRECTION) % size``, and receives only from the one before.
"""

import numpy as np
from variant import DIRECTION, SHIFT


def bounds(n, p):
    """Where the p chunks of n elements begin and end: p + 1 offsets.

    Sizes differ by one at most, larger ones first.
    """
    # solution: cut n elements into p chunks
    small, larger = divmod(n, p)
    return [chunk * small + min(chunk, larger) for chunk in range(p + 1)]
    # end


def owned(rank, p):
    """The chunk that a rank holds complete after `share_reduce`. This is given."""
    return (rank + SHIFT) % p


def share_reduce(comm, buffer):
    """Reduce-scatter in p - 1 steps: afterwards chunk ``owned(rank, p)`` of the buffer is the sum over all ranks."""
    # solution: p - 1 steps; in each, pass one chunk on and add the one that comes
    ends = bounds(len(buffer), comm.size)
    for step in range(comm.size - 1):
        out, into = (owned(comm.rank, comm.size) - DIRECTION * (step + 1 + each) for each in (0, 1))
        came = np.empty_like(_chunk(buffer, ends, into))
        _exchange(comm, _chunk(buffer, ends, out), came)
        _chunk(buffer, ends, into)[...] += came
    # end


def share_only(comm, buffer):
    """All-gather in p - 1 steps: every rank's chunk ``owned(rank, p)`` goes round.

    Nothing is added.
    """
    # solution: p - 1 steps; in each, pass on the chunk that came last
    ends = bounds(len(buffer), comm.size)
    for step in range(comm.size - 1):
        out, into = (owned(comm.rank, comm.size) - DIRECTION * (step + each) for each in (0, 1))
        _exchange(comm, _chunk(buffer, ends, out), _chunk(buffer, ends, into))
    # end


# reference only
def _chunk(buffer, ends, index):
    index %= len(ends) - 1
    return buffer[ends[index] : ends[index + 1]]


def _exchange(comm, out, into):
    after, before = (comm.rank + DIRECTION) % comm.size, (comm.rank - DIRECTION) % comm.size
    comm.sendrecv(out, after, into, before)


# end


def all_reduce(comm, buffer, op="sum"):
    """Replace every rank's buffer by the sum over all ranks, or by their mean where ``op`` is "mean"."""
    # solution: share_reduce, then share_only; a mean divides once
    share_reduce(comm, buffer)
    if op == "mean":
        buffer /= comm.size
    share_only(comm, buffer)
    # end
