"""All-reduce on a binomial tree, which leaves out the zeros at a buffer's end and says how much it has sent."""

import numpy as np
from variant import ROOT


def _send(comm, buffer, dst):
    """Send how many elements there are up to the last that is not zero, then these."""
    filled = int(np.max(np.flatnonzero(buffer), initial=-1)) + 1
    comm.send(np.array([filled]), dst)
    comm.send(buffer[:filled], dst)
    # solution
    return 8 + buffer[:filled].nbytes
    # instead
    # return buffer.nbytes
    # end


def _receive(comm, like, src):
    filled, buffer = np.zeros(1, int), np.zeros_like(like)
    comm.recv(filled, src)
    comm.recv(buffer[: filled[0]], src)
    return buffer


def all_reduce(comm, buffer):
    """Replace every rank's buffer by the sum; returns the bytes that this rank has sent."""
    place, sent = (comm.rank - ROOT) % comm.size, 0
    # Of this place's bits; a root has all below it.
    lowest = place & -place or 1 << comm.size.bit_length()
    children = [
        place + (1 << bit)
        for bit in range(lowest.bit_length() - 1)
        if place + (1 << bit) < comm.size
    ]
    ranks = [(each + ROOT) % comm.size for each in children]
    parent = (place - lowest + ROOT) % comm.size
    for child in ranks:
        buffer += _receive(comm, buffer, child)
    if place:
        sent += _send(comm, buffer, parent)
        buffer[...] = _receive(comm, buffer, parent)
    for child in reversed(ranks):
        sent += _send(comm, buffer, child)
    return sent
