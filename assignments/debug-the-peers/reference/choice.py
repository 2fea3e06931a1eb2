"""All-reduce by one of two algorithms: short buffers are exchanged whole, long ones go round a ring.

An exchange needs room for all buffers at once. Every rank is told how many bytes of room it has.
"""

import numpy as np


def fits(nbytes, room, p):
    """Tell if an exchange of buffers of nbytes among p ranks fits into a rank's room.

    This is right.
    """
    return p * nbytes <= room


def chosen(comm, nbytes, room):
    """The algorithm for a buffer of nbytes: "exchange" or "ring"."""
    # solution
    least = np.array([room])
    for shift in range(1, comm.size):
        came = np.zeros(1, int)
        comm.sendrecv(
            np.array([room]), (comm.rank + shift) % comm.size, came, (comm.rank - shift) % comm.size
        )
        least = np.minimum(least, came)
    room = int(least[0])
    # instead
    # end
    return "exchange" if fits(nbytes, room, comm.size) else "ring"


def exchange(comm, buffer):
    """Every rank sends its whole buffer to every other rank."""
    mine = buffer.copy()
    for shift in range(1, comm.size):
        came = np.empty_like(buffer)
        comm.sendrecv(mine, (comm.rank + shift) % comm.size, came, (comm.rank - shift) % comm.size)
        buffer += came


def ring(comm, buffer):
    """Every rank sends one chunk at a time to the next rank: first sums, then results."""
    p, after, before = comm.size, (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    chunks = [buffer[c * len(buffer) // p : (c + 1) * len(buffer) // p] for c in range(p)]
    for step in range(2 * (p - 1)):
        out, into = chunks[(comm.rank - step) % p], chunks[(comm.rank - step - 1) % p]
        came = np.empty_like(into)
        comm.sendrecv(out, after, came, before)
        into[...] = into + came if step < p - 1 else came


def all_reduce(comm, buffer, room):
    """Replace every rank's buffer by the sum over all ranks.

    ``room``: this rank's room in bytes.
    """
    if chosen(comm, buffer.nbytes, int(room)) == "exchange":
        exchange(comm, buffer)
    else:
        ring(comm, buffer)
