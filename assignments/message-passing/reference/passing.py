"""Broadcast, scatter, gather and all-gather with send and recv alone: any number of ranks, any length, in place.

Your course's ranks have an order of their own: see `variant.py`. The first rank of the order is the
root. A buffer of p ranks has p chunks, and the rank at position i of the order owns chunk i.
"""

from variant import ORDER, SLOW


def order(p):
    """The p ranks in your course's order; the first is the root. This is given."""
    return [rank for rank in ORDER if rank < p]


def bounds(n, p):
    """Where the p chunks of n elements begin and end: p + 1 offsets.

    Sizes differ by one at most, larger ones first.
    """
    # solution: cut n elements into p chunks
    small, larger = divmod(n, p)
    return [chunk * small + min(chunk, larger) for chunk in range(p + 1)]
    # end


# reference only
def _chunks(buffer, p):
    ends = bounds(len(buffer), p)
    return [buffer[ends[chunk] : ends[chunk + 1]] for chunk in range(p)]


# end


def broadcast(comm, buffer):
    """Replace every rank's buffer by the root's, along a binomial tree: in step t, position i sends to i + 2**t."""
    # solution: receive from your parent, then send to your children
    ranks = order(comm.size)
    mine = ranks.index(comm.rank)
    if mine > 0:
        comm.recv(buffer, ranks[mine - (1 << (mine.bit_length() - 1))])
    for step in range(mine.bit_length(), (comm.size - 1).bit_length()):
        if mine + (1 << step) < comm.size:
            comm.send(buffer, ranks[mine + (1 << step)])
    # end


def scatter(comm, buffer):
    """Copy chunk i of the root's buffer into the buffer of the rank at position i, at the same place."""
    # solution: the root sends each rank its chunk
    ranks = order(comm.size)
    for chunk, rank in zip(_chunks(buffer, comm.size)[1:], ranks[1:], strict=True):
        if comm.rank == ranks[0]:
            comm.send(chunk, rank)
        elif comm.rank == rank:
            comm.recv(chunk, ranks[0])
    # end


def gather(comm, buffer):
    """Copy chunk i of the rank at position i into the root's buffer.

    Rank ``SLOW``, if there is one, begins late.
    """
    # solution: every rank sends its chunk to the root, which waits for no rank longer than it must
    ranks = order(comm.size)
    chunks = dict(zip(ranks, _chunks(buffer, comm.size), strict=True))
    for rank in sorted(ranks[1:], key=lambda rank: rank == SLOW):
        if comm.rank == ranks[0]:
            comm.recv(chunks[rank], rank)
        elif comm.rank == rank:
            comm.send(chunks[rank], ranks[0])
    # end


def all_gather(comm, buffer):
    """Copy chunk i of the rank at position i into every rank's buffer."""
    # solution: p - 1 steps round a ring; no deadlock where a send waits for its receiver
    ranks, chunks = order(comm.size), _chunks(buffer, comm.size)
    mine = ranks.index(comm.rank)
    after, before = ranks[(mine + 1) % comm.size], ranks[mine - 1]
    for step in range(comm.size - 1):
        out, into = chunks[(mine - step) % comm.size], chunks[(mine - step - 1) % comm.size]
        if mine % 2 == 0:
            comm.send(out, after)
            comm.recv(into, before)
        else:
            comm.recv(into, before)
            comm.send(out, after)
    # end
