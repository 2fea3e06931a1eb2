"""Count the pieces into which NCCL cuts a buffer for trees and switches, by its own rules (enqueue.cc of NCCL 2.30.7).

A channel moves its part of the buffer chunk by chunk, and a chunk is forwarded once it is there.
The rules look at the depth of the tree and at the channels; they know no latency. So a network with
long latencies gets many small messages. Sizes are bytes.
"""

from collectives.nccl.formulas import Job, log2, most_channels

# The chunk of each protocol at first: an eighth of a channel's buffer, of which LL uses half for
# data, and LL128 120 of 128 bytes.
LL, LL128, SIMPLE = 32 << 10, 576_000, 512 << 10

# A chunk of Simple is halved down to so many bytes while a channel has fewer chunks than the depth
# times so many.
HALVED = ((128 << 10, 8), (64 << 10, 4), (32 << 10, 1))

# One of LL128 is halved while it is above so many bytes and a channel has fewer chunks than the
# steps times so many over the ranks of a node.
HALVED_LL128 = ((128 << 10, 64), (32 << 10, 16))

# A chunk of switches that add, and of NVLSTree from `MANY` nodes on. It is made smaller where the
# buffer has fewer than so many chunks for each channel and head.
SWITCH, SWITCH_OF_MANY, MANY = 128 << 10, 64 << 10, 4
SMALLER = {
    "nvls": ((64 << 10, 64), (32 << 10, 8), (16 << 10, 2)),
    "nvls_tree": ((64 << 10, 4), (32 << 10, 1)),
}


def pieces(of: Job, algorithm: str, protocol: str, nbytes: int) -> int:
    """Return into how many pieces, one after another, NCCL cuts a buffer for an algorithm by a protocol.

    A ring is not cut, because its parts are its pieces.

    >>> from collectives.nccl.formulas import job
    >>> of = job("all_reduce", 2, 8, "hopper", 370.8, 8, 50)
    >>> [pieces(of, "tree", "Simple", n) for n in (8, 1 << 20, 1 << 26)]
    [1, 2, 64]
    >>> [pieces(of, "nvls_tree", "Simple", n) for n in (1 << 22, 1 << 26)]
    [1, 4]
    """
    together = most_channels(of, algorithm)
    if algorithm in SMALLER:
        together *= of.switches.number if of.switches else 1  # each channel has a head at each GPU
        chunk = _of_switches(of.nodes, algorithm, nbytes / together)
    elif algorithm == "tree":
        chunk = _of_tree(of, protocol, nbytes // together)
    else:
        return 1
    return max(1, -(-nbytes // (together * chunk)))


def _of_tree(of: Job, protocol: str, share: int) -> int:
    """Return the bytes of a tree's chunk, for a channel's share of the buffer."""
    if protocol == "LL":
        return LL
    if protocol == "LL128":
        chunk = LL128
        steps = 1 + log2(of.nodes) + 0.1 * of.ranks_per_node
        for least, times in HALVED_LL128:
            wanted = steps * times / of.ranks_per_node
            chunk = _halved(chunk, least, share, wanted)
        return chunk
    chunk = SIMPLE
    depth = of.ranks_per_node + log2(of.nodes)
    for least, times in HALVED:
        chunk = _halved(chunk, least, share, depth * times)
    return chunk


def _halved(chunk: int, least: int, share: int, wanted: float) -> int:
    while chunk > least and share // chunk < wanted:
        chunk //= 2
    return chunk


def _of_switches(nodes: int, algorithm: str, share: float) -> int:
    """Return the bytes of a chunk of switches that add, for the share of a channel and head."""
    is_shorter = algorithm == "nvls_tree" and nodes >= MANY
    chunk = SWITCH_OF_MANY if is_shorter else SWITCH
    for smaller, wanted in SMALLER[algorithm]:
        if share < wanted * chunk and chunk > smaller:
            chunk = smaller
    return chunk
