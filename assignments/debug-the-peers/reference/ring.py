"""Ring all-reduce: in p - 1 steps the sums are formed chunk by chunk, in p - 1 more they go round."""

import numpy as np
from variant import DIRECTION


def chunk_of(buffer, chunk, p):
    """One of the p chunks of a buffer, as a view."""
    chunk %= p
    return buffer[chunk * len(buffer) // p : (chunk + 1) * len(buffer) // p]


def exchange(comm, out, into):
    """Send to the next rank of the ring and receive from the one before."""
    comm.sendrecv(
        out, (comm.rank + DIRECTION) % comm.size, into, (comm.rank - DIRECTION) % comm.size
    )


def share_reduce(comm, buffer):
    """Afterwards rank r has the whole sum of chunk r."""
    for step in range(comm.size - 1):
        out, into = (comm.rank - DIRECTION * (step + 1 + each) for each in (0, 1))
        came = np.empty_like(chunk_of(buffer, into, comm.size))
        exchange(comm, chunk_of(buffer, out, comm.size), came)
        chunk_of(buffer, into, comm.size)[...] += came


def share_only(comm, buffer):
    """Every chunk goes round, from rank to rank."""
    for step in range(comm.size - 1):
        # solution
        out, into = (comm.rank - DIRECTION * (step + each) for each in (0, 1))
        exchange(comm, chunk_of(buffer, out, comm.size), chunk_of(buffer, into, comm.size))
        # instead
        # into = comm.rank - DIRECTION * (step + 1)
        # came = np.empty_like(buffer)
        # exchange(comm, buffer, came)
        # chunk_of(buffer, into, comm.size)[...] = chunk_of(came, into, comm.size)
        # end


def all_reduce(comm, buffer):
    """Replace every rank's buffer by the sum over all ranks."""
    share_reduce(comm, buffer)
    share_only(comm, buffer)
