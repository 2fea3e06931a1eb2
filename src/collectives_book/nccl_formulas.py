"""Predict NCCL's ring and trees by NCCL's own formula, by which it chooses between them: a second opinion on our model.

The constants are equal in tuning.cc of v2.23.4-1, v2.27.5-1 and v2.30.7-1: H100 with Intel's CPUs,
on three nodes or more, joined by NVLink inside. The formula says how long a whole all-reduce takes;
it follows no message. Sizes in bytes, times in seconds, rates in bytes a second.
"""

from math import ceil, inf
from typing import NamedTuple

from collectives.nccl import formulas
from collectives.nccl.formulas import GENERATIONS, PROTOCOLS, Channels, Job, log2

# NCCL 2.4's trees cut the buffer into chunks of 512 KiB or less: (least chunk, chunks of a channel
# per depth).
CHANNELS = 4
CHUNK = 512 << 10
CHUNK_RULE = ((128 << 10, 8), (64 << 10, 4), (32 << 10, 1))

# NCCL 2.28 takes another channel for every 32 KiB of the buffer, and cuts no message of Simple
# below that. A ring by Simple sends a part in this many slices.
LEAST = 32 << 10
SLICES = 2

# The rate that NCCL's search for paths gives a port of 10 Gbit/s, and what it takes where it finds
# no path.
SLOW_PORT, NO_PATH = 1.2e9, 0.1e9

# What a tree keeps of its rate where one GPU has all its links between nodes, as NCCL has it for H100.
CHAINED = GENERATIONS["hopper"].chained
# Rates of H100 without the most that a channel has, because here the channels are not known.
_ANY = (inf, inf, inf)
_UNCAPPED = GENERATIONS["hopper"]._replace(ring_ll128=_ANY, tree=_ANY, tree_ll128=_ANY)


def segments(n: int, ranks_per_node: int, nodes: int, channels: int = CHANNELS) -> int:
    """Return into how many segments NCCL 2.4.8's rule cuts each of the two trees' halves of n bytes.

    A chunk is 512 KiB, and halved while a channel would have too few of them for the depth of its
    tree. Half of the channels serve each tree, side by side, so that one segment of ours is a chunk
    of each of them. The article of 2019 names no number of channels; four, of 5 GB/s each, are our
    inference.

    >>> segments(64 << 20, ranks_per_node=6, nodes=4096), segments(8, ranks_per_node=6, nodes=4096)
    (128, 1)
    """
    depth = ranks_per_node + log2(nodes)
    chunk = CHUNK
    for least, wanted in CHUNK_RULE:
        while chunk > least and n / (channels * chunk) < depth * wanted:
            chunk //= 2
    return max(1, ceil(n / (channels * chunk)))


def seconds(
    algorithm: str,
    protocol: str,
    n: int,
    ranks: int,
    ranks_per_node: int,
    rate: float,
    chained: float = CHAINED,
    latency: float = 0.0,
) -> float:
    """Return the seconds of a ``ring`` or ``tree`` by a protocol, for n bytes on nodes that send at ``rate`` each.

    ``chained`` is 1 for balanced trees, whose two links between nodes belong to two GPUs.
    ``latency`` is that of the network in seconds where NCCL learns it, from a plug-in or a topology
    file; a hop by Simple counts it twice.

    >>> round(seconds("tree", "LL", 8, ranks=1024, ranks_per_node=8, rate=400e9) * 1e6, 1)
    85.2
    """
    # NCCL's least, which runs as two channels.
    channels = Channels(1, rate / 1e9, rate / 1e9)
    job = Job(
        "all_reduce",
        ranks // ranks_per_node,
        ranks_per_node,
        _UNCAPPED._replace(chained=chained),
        rings=channels,
        trees=channels,
        latency=latency,
    )
    return formulas.seconds(job, algorithm, protocol, n)


def best(
    algorithm: str,
    n: int,
    ranks: int,
    ranks_per_node: int,
    rate: float,
    chained: float = CHAINED,
) -> tuple[float, str]:
    """Return the least of the protocols' times, and its protocol.

    NCCL chooses so, where LL128 is enabled.

    >>> best("ring", 64 << 20, ranks=32, ranks_per_node=8, rate=400e9)[1]
    'LL128'
    """
    times = {
        protocol: seconds(algorithm, protocol, n, ranks, ranks_per_node, rate, chained)
        for protocol in PROTOCOLS
    }
    quickest = min(sorted(times), key=times.__getitem__)
    return times[quickest], quickest


class Cut(NamedTuple):
    """Hold an all-reduce's channels, messages of a channel's part in a step, and bytes sent for one of the buffer."""

    channels: int
    messages: int
    sent: int


def cut(algorithm: str, n: int, ranks: int, most_channels: int, rate: float = SLOW_PORT) -> Cut:
    """Return how NCCL 2.28.9 cuts n bytes with one rank on each node (enqueue.cc, prims_simple.h).

    LL sends a flag with every 4 bytes. By Simple a ring sends a part in two slices, a tree in
    chunks of 512 KiB.

    >>> cut("tree", 1 << 20, ranks=8, most_channels=2), cut("ring", 1 << 20, ranks=8, most_channels=2)
    (Cut(channels=2, messages=1, sent=1), Cut(channels=2, messages=2, sent=1))
    """
    by_ll = seconds(algorithm, "LL", n, ranks, 1, rate)
    by_simple = seconds(algorithm, "Simple", n, ranks, 1, rate)
    channels = max(1, min(most_channels, n // LEAST))
    if by_ll <= by_simple:
        return Cut(channels, messages=1, sent=2)
    part = n / channels  # the bytes of a channel
    if algorithm == "tree":
        return Cut(channels, ceil(part / CHUNK), sent=1)
    return Cut(channels, min(SLICES, ceil(part / ranks / LEAST)), sent=1)
