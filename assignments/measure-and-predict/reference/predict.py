"""Measure a link, fit alpha and beta, predict where ring and two-tree take the same time, and find it in measurements.

A message of m bytes takes ``alpha + beta * m`` seconds. All times are in seconds, all sizes in
bytes.
"""

import math

import numpy as np
from variant import MESSAGES, MOST, PEER, UNIT


def measure(comm):
    """Time messages between ranks 0 and `PEER`: rank 0 returns (sizes, seconds), one entry for each sample.

    A sample is half of the time of a message there and back, by ``comm.time()``. Sizes are
    multiples of `UNIT` bytes, `MOST` at most. Rank 0 sends `MESSAGES` messages at most. All other
    ranks return None.
    """
    # solution: time messages there and back
    sizes = sorted({max(1, round(MOST / UNIT / 4**power)) * UNIT for power in range(8)})
    repetitions = MESSAGES // len(sizes)
    samples = []
    for _ in range(repetitions):
        samples += [(size, _there_and_back(comm, size)) for size in sizes]
    return tuple(zip(*samples, strict=True)) if comm.rank == 0 else None
    # end


# reference only
def _there_and_back(comm, size):
    message = np.zeros(size, np.uint8)
    start = comm.time()
    if comm.rank == 0:
        comm.send(message, PEER)
        comm.recv(message, PEER)
    elif comm.rank == PEER:
        comm.recv(message, 0)
        comm.send(message, 0)
    return (comm.time() - start) / 2


# end


def fit(sizes, seconds):
    """(alpha, beta) of the line that fits the samples.

    Some samples are far too long, and they do not count.
    """
    # solution: a line that outliers do not move
    sizes, seconds = np.asarray(sizes), np.asarray(seconds)
    distinct = np.unique(sizes)
    typical = np.array([np.median(seconds[sizes == size]) for size in distinct])
    # Every size's relative error counts alike.
    columns = np.stack([1 / typical, distinct / typical], axis=1)
    alpha, beta = np.linalg.lstsq(columns, np.ones(len(distinct)), rcond=None)[0]
    return float(alpha), float(beta)
    # end


def crossing(p, alpha, beta):
    """The bytes at which ring and two-tree all-reduce take the same time on p ranks.

    0 where the ring always leads.
    """
    # solution: solve for the bytes
    height = math.ceil(math.log2(p))
    steps, middle = 2 * (p - 1) - 4 * (height - 1), 2 * math.sqrt(2 * (height - 1))
    if height > 1 and steps > 0:
        root = (math.sqrt(middle**2 + 2 * steps / p) - middle) * p / 2  # of n beta / alpha
        if (height - 1) * root**2 >= 2:  # one segment or more
            return root**2 * alpha / beta
    one_segment = (2 * (p - 1) - 4 * height) / (2 * height - 2 * (p - 1) / p)
    return max(0.0, one_segment) * alpha / beta
    # end


def measured_crossing(sizes, ring, two_tree):
    """The bytes from which on the ring is faster, from the seconds of both at each of the sizes (in ascending order).

    Between two sizes, the logarithm of the ratio ring / two_tree is a straight line over the
    logarithm of the size. Returns 0 where the ring is faster at all sizes, and infinity where the
    two trees are. Where the lines cross more than once, the last crossing counts.
    """
    # solution: where the ratio becomes less than one for good
    ahead = np.log(np.asarray(ring) / np.asarray(two_tree))  # of the trees
    if (ahead <= 0).all():
        return 0.0
    last = int(np.flatnonzero(ahead > 0)[-1])
    if last == len(ahead) - 1:
        return math.inf
    share = ahead[last] / (ahead[last] - ahead[last + 1])
    low, high = math.log(sizes[last]), math.log(sizes[last + 1])
    return math.exp(low + share * (high - low))
    # end
