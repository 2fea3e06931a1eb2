"""Closed forms: what an algorithm must cost by the alpha-beta model, and nccl-tests' bus-bandwidth factors.

A message of m bytes takes ``alpha + beta * m`` seconds, plus ``gamma`` seconds for each byte that
is added up. These formulas are what schedules are tested against; none of them moves data. p ranks,
n bytes, all times in seconds.
"""

from heapq import heappush, heapreplace
from math import sqrt
from typing import NamedTuple

from collectives.core.contracts import CONTRACTS


class Cost(NamedTuple):
    """The alphas, n-fold betas and n-fold gammas of an algorithm: ``alpha*steps + n*(beta*sent + gamma*added)``.

    >>> round(Cost(steps=6, sent=1.5, added=0.75).seconds(n=8e6, alpha=5e-6, beta=1e-9), 5)
    0.01203
    """

    steps: float
    sent: float
    added: float

    def seconds(self, n: float, alpha: float, beta: float, gamma: float = 0.0) -> float:
        """Return the seconds for n bytes."""
        return alpha * self.steps + n * (beta * self.sent + gamma * self.added)


def height(p: int) -> int:
    """Return ceil(log2 p): the height of a binary tree on p ranks, and the steps of an algorithm that doubles in each.

    >>> [height(p) for p in (1, 2, 3, 8, 9, 4096)]
    [0, 1, 2, 3, 4, 12]
    """
    return (p - 1).bit_length()


def core(p: int) -> int:
    """Return the largest power of two not above p, into whose ranks the others fold.

    >>> [core(p) for p in (1, 2, 3, 8, 9)]
    [1, 2, 2, 8, 8]
    """
    return 1 << (p.bit_length() - 1)


def even(p: int) -> int:
    """Return the largest even number not above p, or 1.

    On a ring of these every rank has a partner on either side.
    """
    return max(1, p - p % 2)


def default_node(p: int) -> int:
    """Return the ranks of a node that an algorithm assumes if nothing is said: as square as p allows.

    >>> [default_node(p) for p in (1, 7, 8, 12, 16, 64)]
    [1, 1, 2, 3, 4, 8]
    """
    return max(g for g in range(1, int(p**0.5) + 1) if p % g == 0)


def _fold(p: int, whole: int) -> int:
    """Return the steps for folding p ranks into the ``whole`` first: 2, or 0 if these are all."""
    return 0 if p == whole else 2


def recursive_doubling(p: int) -> Cost:
    """Return the cost of whole buffers in every step, with 2 more steps if ranks fold."""
    fold = _fold(p, core(p))
    steps = height(core(p)) + fold
    return Cost(steps, steps, steps - fold // 2)


def halving_doubling(p: int, whole: int | None = None) -> Cost:
    """Return the cost on the core, or on the first ``whole``.

    Ranks that fold send whole buffers.
    """
    whole = whole or core(p)
    fold = _fold(p, whole)
    return Cost(
        2 * height(whole) + fold, 2 * (whole - 1) / whole + fold, (whole - 1) / whole + fold / 2
    )


def gather_by_doubling(p: int) -> Cost:
    """Return the cost of the all-gather by doubling.

    A folded rank hands in its part and gets all others.
    """
    whole = core(p)
    parts = sum((1 << t) + min(p - whole, 1 << t) for t in range(height(whole))) + (
        p if p > whole else 0
    )
    return Cost(height(whole) + _fold(p, whole), parts / p, 0)


def scatter_by_halving(p: int) -> Cost:
    """Return the cost of the all-gather by doubling in reverse, which adds what it receives."""
    cost = gather_by_doubling(p)
    return cost._replace(added=cost.sent)


def weights(p: int, radix: int) -> list[int]:
    """Return the weights of the digits, to the base ``radix`` of 2 or more, that the numbers below p have.

    >>> weights(17, 4), weights(64, 8), weights(1, 2)
    ([1, 4, 16], [1, 8], [])
    """
    return [radix**digit for digit in range(height(p)) if radix**digit < p]


def bruck_all_to_all(p: int, radix: int = 2) -> Cost:
    """Return the cost of Bruck's all-to-all: a piece for the rank i further on moves once for every digit of i but 0.

    There is a step for each such digit that the numbers below p have.

    >>> bruck_all_to_all(64), bruck_all_to_all(64, radix=8), bruck_all_to_all(64, radix=64)
    (Cost(steps=6, sent=3.0, added=0), Cost(steps=14, sent=1.75, added=0), Cost(steps=63, sent=0.984375, added=0))
    """
    steps = moves = 0
    for weight in weights(p, radix):
        steps += min(radix - 1, (p - 1) // weight)
        # Of each radix * weight numbers, the first weight have the digit 0.
        whole, rest = divmod(p, radix * weight)
        moves += p - whole * weight - min(rest, weight)
    return Cost(steps, moves / p, 0)


def hierarchical_ring(p: int, ranks_per_node: int | None = None) -> Cost:
    """Return the cost of both rings in turn, as if all links were the same, by default on the squarest nodes."""
    g, inside = ranks_per_node or default_node(p), inside_nodes(p, ranks_per_node)
    outside = 2 * (p // g - 1)
    sent = inside.sent + outside / p
    return Cost(inside.steps + outside, sent, sent / 2)


def inside_nodes(p: int, ranks_per_node: int | None = None) -> Cost:
    """Return the part of a hierarchical ring's cost inside nodes, by default of `default_node` ranks.

    >>> inside_nodes(16)
    Cost(steps=6, sent=1.5, added=0.75)
    """
    g = ranks_per_node or default_node(p)
    return Cost(2 * (g - 1), 2 * (g - 1) / g, (g - 1) / g)


def on_channels(ring: Cost, p: int, ranks_per_node: int | None = None) -> Cost:
    """Return the cost of a ring over all channels of its nodes, in every step a message inside and one outside.

    On the squarest nodes unless told; the two messages one after the other, as if they had the same
    port.

    >>> on_channels(share(16, 15), 16)
    Cost(steps=30, sent=0.9375, added=0)
    """
    return ring._replace(steps=2 * ring.steps) if (ranks_per_node or default_node(p)) > 1 else ring


def inside_channels(ring: Cost, p: int, ranks_per_node: int | None = None) -> Cost:
    """Return the part of `on_channels` that stays inside nodes.

    >>> inside_channels(share(16, 15), 16)
    Cost(steps=15, sent=0.703125, added=0.0)
    """
    g = ranks_per_node or default_node(p)
    return Cost(ring.steps if g > 1 else 0, ring.sent * (g - 1) / g, ring.added * (g - 1) / g)


def ring(p: int) -> Cost:
    """Return the cost of a reduce-scatter and an all-gather, each round the whole ring."""
    return Cost(2 * (p - 1), 2 * (p - 1) / p, (p - 1) / p)


def share(p: int, steps: int, adds: bool = False) -> Cost:
    """Return the least cost of moving each part but a rank's own once, in ``steps`` messages."""
    return Cost(steps, (p - 1) / p, (p - 1) / p if adds else 0)


class Pipeline(NamedTuple):
    """A pipelined algorithm: at most ``fixed + period * s`` steps, each of one of s segments of n / share bytes.

    In the share ``adds`` of its steps ranks add what they receive: a half, if a broadcast follows a
    reduce.
    """

    fixed: int
    period: int
    share: int
    adds: float = 0.0

    def seconds(
        self, n: float, segments: int, alpha: float, beta: float, gamma: float = 0.0
    ) -> float:
        """Return the seconds for n bytes in ``segments`` segments (of each tree)."""
        byte = beta + self.adds * gamma
        return (self.fixed + self.period * segments) * (alpha + byte * n / (self.share * segments))

    def best(self, n: float, alpha: float, beta: float, gamma: float = 0.0) -> int:
        """Return the number of segments with the least time: sqrt(fixed beta n / (period share alpha)), at least 1.

        A byte costs gamma, too, in the steps that add. More segments fill the pipeline better, but
        each costs its own alpha; Sanders, Speck and Träff 2009 balance the same two terms.

        >>> chain(10).best(n=8e6, alpha=5e-6, beta=1e-9)
        113
        """
        byte = beta + self.adds * gamma
        return max(1, round(sqrt(self.fixed * byte * n / (self.period * self.share * alpha))))


def binary_trees(levels: int, trees: int) -> Pipeline:
    """Reduce and broadcast, each with two steps a level and two a segment."""
    return Pipeline(max(0, 4 * levels - 4), 4, trees, adds=0.5)


def overlapped_tree(p: int) -> Pipeline:
    """Return the pipeline with a step for each neighbour of an interior rank: three, if there are four ranks or more.

    Some rank adds in every step but the last ones.
    """
    period = max(1, min(3, p - 1))
    return Pipeline(max(0, (period + 1) * height(p) - period), period, 1, adds=1.0)


def chain(p: int) -> Pipeline:
    """Return the pipeline of a chain: one step a hop, and one a segment."""
    return Pipeline(max(0, p - 2), 1, 1)


def circulant(p: int) -> Pipeline:
    """Return the pipeline of one step a segment and ceil(log2 p) for the last: the fewest there are (Träff 2023)."""
    return Pipeline(max(0, height(p) - 1), 1, 1)


def in_network(p: int) -> Pipeline:
    """Return the pipeline of a step to the switch, and one back for the last segment, with n bytes each way."""
    return Pipeline(min(1, p - 1), 1, 1)


def fed_trees(p: int) -> Pipeline:
    """Return the pipeline of two trees on all ranks but the root, which feeds both."""
    return Pipeline(2 * height(max(1, p - 1)), 2, 2)


def star_seconds(
    cost: Cost, latencies: int, n: float, latency: float, overhead: float, beta: float
) -> float:
    """Return the seconds for n bytes if one rank alone sends, or receives, and ``latencies`` pass one after the other.

    Its messages pay their overhead and their bytes one by one, but are on their way together. Not
    for algorithms in which all ranks do so at once: their messages meet in switches and on
    processors, which these forms leave out.

    >>> both = Cost(steps=62, sent=62, added=31)  # all-reduce through a root, 32 ranks
    >>> [star_seconds(both, 2, 4, 5e-3 * share, 5e-3 * (1 - share), 4e-8) for share in (1, 0)]
    [0.01000992, 0.31000992]
    """
    return cost.seconds(n, overhead, beta) + (latencies * latency if cost.steps else 0.0)


def segmented_ring_seconds(
    p: int, n: float, segments: int, latency: float, overhead: float, beta: float
) -> float:
    """Return the seconds of a ring in segments on links whose port is free again while a message is in flight.

    A segment may be passed on when it has arrived, and when those before it have left: a turn takes
    the longer of a latency and one segment, and of all segments. With one segment that is the ring,
    with latency + overhead for alpha.

    >>> [round(segmented_ring_seconds(32, 16e6, s, latency=5e-3, overhead=0, beta=4e-8), 3) for s in (1, 2)]
    [1.55, 1.245]
    """
    each = overhead + beta * n / (p * segments)
    turn = max(segments * each, latency + each)
    return (2 * p - 3) * turn + segments * each + latency if p > 1 else 0.0


def slow_port_seconds(p: int, n: float, slower: float, beta: float) -> float:
    """Return the seconds of an all-reduce at least, if a byte takes ``slower`` times as long by one rank's port.

    The slow rank sends its buffer once or more, all ranks together 2 (p-1) n: what it does not
    send, the others do. Their ports and its own end together if it sends 2 (p-1) n / (slower (p-1)
    + 1). A ring takes ``slower`` times its 2 (p-1)/p n. Start-up is left out (OptCC, arXiv
    2606.01680).

    >>> slow_port_seconds(8, 7e9, slower=2, beta=1e-9), round(ring(8).seconds(7e9, alpha=0, beta=2e-9), 3)
    (14.0, 24.5)
    """
    return slower * max(1.0, 2 * (p - 1) / (slower * (p - 1) + 1)) * n * beta if p > 1 else 0.0


def pipelined_seconds(
    p: int, n: float, segments: int, alpha: float, beta: float, trees: int = 2
) -> float:
    """Return the seconds of one or two pipelined binary trees, each with its share of n bytes in ``segments``.

    >>> round(pipelined_seconds(8, 8e6, segments=40, alpha=5e-6, beta=1e-9) * 1e3, 3)
    17.64
    """
    return binary_trees(height(p), trees).seconds(n, segments, alpha, beta) if p > 1 else 0.0


def best_segments(p: int, n: float, alpha: float, beta: float, trees: int = 2) -> int:
    """Return the number of segments that makes `pipelined_seconds` least.

    >>> best_segments(8, 8e6, alpha=5e-6, beta=1e-9)
    40
    """
    return binary_trees(height(p), trees).best(n, alpha, beta)


def algbw(nbytes: int, seconds: float) -> float:
    """Return the algorithm bandwidth in GB/s (1e9): the buffer's bytes over the time, nccl-tests' ``algbw``.

    >>> algbw(8_000_000, 0.004)
    2.0
    """
    return nbytes / seconds / 1e9 if seconds > 0 else 0.0


def busbw(collective: str, p: int, nbytes: int, seconds: float) -> float:
    """Return the bus bandwidth in GB/s: ``algbw`` times the factor that compares it with a link's rate for any p.

    >>> busbw("all_reduce", 4, 8_000_000, 0.004)
    3.0
    """
    return algbw(nbytes, seconds) * CONTRACTS[collective].factor(p)


def reach_seconds(p: int, latency: float, overhead: float) -> float:
    """Return the LogP lower bound in seconds for one rank's data to reach p ranks, each of which sends it on at once.

    A message occupies its sender for the overhead and arrives a latency later. Without latency, the
    number of ranks that have it doubles each time; without overhead, all have it after one latency.
    Karp, Sahay, Santos and Schauser 1993. Takes O(p log p).

    >>> [round(reach_seconds(32, latency, overhead), 6) for latency, overhead in ((0, 5e-6), (5e-6, 0), (4e-6, 1e-6))]
    [2.5e-05, 5e-06, 1.5e-05]
    """
    free, last = [0.0], 0.0  # when each rank that has it can send next
    for _ in range(p - 1):
        left = heapreplace(free, free[0] + overhead) + overhead
        last = left + latency
        heappush(free, last)
    return last


def lower_bound(
    collective: str,
    p: int,
    n: float,
    alpha: float,
    beta: float,
    gamma: float = 0.0,
    latency: float = 0.0,
) -> float:
    """Return the seconds that no algorithm of ranks beats: the longest of reaching all, the busiest port, and adding.

    What one rank has must reach all others, or what all have must reach one; without a latency that
    takes ceil(log2 p) alpha. ``latency`` is the part of alpha in which no port is occupied
    (`reach_seconds`). A port moves at least the bytes that the bus-bandwidth factor counts. Where a
    switch adds, a rank sends n only (`in_network`), and this bound does not apply. Start-up and
    work: Chan, Heimlich, Purkayastha and van de Geijn 2007; bytes of an all-reduce: Patarasuk and
    Yuan 2009.

    >>> lower_bound("all_reduce", 4, 8e6, alpha=5e-6, beta=1e-9)
    0.012
    """
    contract = CONTRACTS[collective]
    added = (p - 1) / p if contract.reduces else 0
    moved = contract.factor(p) if p > 1 else 0
    return max(reach_seconds(p, latency, alpha - latency), moved * n * beta, added * n * gamma)
