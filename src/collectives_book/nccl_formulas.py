"""The formulas by which NCCL predicts its rings and trees and chooses between them: a second opinion on our model.

NCCL 2.4, which the article of 2019 measured, has one number for each kind of hop (init.cc). NCCL 2.5 and 2.7 have a
table of latencies for each algorithm and protocol (tuning.cc); `TABLES` holds both, and 2.7's once more without the
factor that our machine leaves out. `HOPPER` names the table of today's NCCL for H100. All say how long a whole
all-reduce takes; none follows a message. Sizes in bytes, times in seconds, on nodes of g GPUs joined by NVLink.

The article names no number of channels. Four, of the 5 GB/s that 2.4 assumes for one, are our inference.
"""

from math import ceil, inf
from typing import NamedTuple

CHANNELS = 4
CHANNEL_RATE = 5e9
BUS = CHANNELS * CHANNEL_RATE  # the rate of all channels of a node together

# NCCL 2.4's trees cut the buffer into chunks of 512 KiB or less: (least chunk, chunks of a channel per depth).
CHUNK = 512 << 10
CHUNK_RULE = ((128 << 10, 8), (64 << 10, 4), (32 << 10, 1))


PROTOCOLS = ("LL", "LL128", "Simple")


class Hops(NamedTuple):
    """A table's latencies for one algorithm and protocol, in µs: once, by NVLink, by network."""

    base: float
    inside: float
    network: float


class Table(NamedTuple):
    """One release's tuning.cc, for several nodes: its rows NVLINK and NET, and its refinements.

    ``shares``: of the bus bandwidth. ``corrections``: by how much a tree's rate falls short of the model, for 64 B,
    128 B, ... 128 MiB; beyond, not at all. ``ll_inside``: how many times as long LL takes inside a node where there are
    several. ``plateau``: how many times as long a ring by Simple takes from 4 KiB a rank on. ``ll_most``: the bus
    bandwidth that LL never exceeds. ``chained``: the share of its rate that a tree keeps where one GPU has all
    its links between nodes.
    """

    latencies: dict[tuple[str, str], Hops]
    shares: dict[tuple[str, str], float]
    corrections: dict[str, tuple[float, ...]]
    ll_inside: float = 1.0
    plateau: float = 1.0
    ll_most: float = inf
    chained: float = 1.0


_SIMPLE_TREES = (*[0.9] * 7, 0.8, 0.7, 0.6, 0.6, *[0.5] * 6, 0.6, 0.6, 0.7, 0.8, 0.9)

# Both releases also limit rates, to more than `CHANNELS` have.
_2_5 = Table(
    latencies={
        # A ring's steps all take what one by network takes.
        ("ring", "LL"): Hops(3.6, 0.9, 0.9),
        ("ring", "LL128"): Hops(3.6, 2.5, 2.5),
        ("ring", "Simple"): Hops(8.4, 6.6, 6.6),
        ("tree", "LL"): Hops(4.4, 0.5, 5.0),
        ("tree", "LL128"): Hops(4.4, 1.9, 7.5),
        ("tree", "Simple"): Hops(0.0, 28.0, 50.0),
    },
    shares={
        ("ring", "LL"): 1 / 4,
        ("ring", "LL128"): 120 / 128,
        ("ring", "Simple"): 1.0,
        ("tree", "LL"): 0.9 / 3,
        ("tree", "LL128"): 0.9 * 7 / 9,
        ("tree", "Simple"): 0.9,
    },
    corrections={
        "LL": (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.9, 0.9, 1, 1, 1),
        "LL128": (*[1] * 5, 0.9, *[0.8] * 4, 0.7, 0.7, 0.7, 0.6, 0.6, 0.7, 0.7, 0.8, 0.8, 0.9, 0.9, 1),
        "Simple": _SIMPLE_TREES,
    },
)
_2_7 = Table(
    latencies={
        ("ring", "LL"): Hops(3.6, 0.47, 2.7),
        ("ring", "LL128"): Hops(10.0, 1.9, 4.0),
        ("ring", "Simple"): Hops(8.4, 3.4, 9.6),
        ("tree", "LL"): Hops(4.4, 0.52, 5.0),
        ("tree", "LL128"): Hops(4.4, 1.2, 8.5),
        ("tree", "Simple"): Hops(0.0, 28.0, 50.0),
    },
    shares={
        ("ring", "LL"): 1 / 4,
        ("ring", "LL128"): 0.92,
        ("ring", "Simple"): 1.0,
        ("tree", "LL"): 0.9 / 3.8,
        ("tree", "LL128"): 0.9 * 0.915,
        ("tree", "Simple"): 0.9,
    },
    corrections={
        "LL": (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1),
        "LL128": (*[1] * 5, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.5, 0.6, 0.6, 0.7, 0.7, 0.8, 0.9, 0.9, 1),
        "Simple": _SIMPLE_TREES,
    },
    ll_inside=1.8,
    plateau=1.9,
)
WITHOUT_FACTOR = "2.7 without 1.8"
TABLES = {"2.5": _2_5, "2.7": _2_7, WITHOUT_FACTOR: _2_7._replace(ll_inside=1.0)}

# Equal in tuning.cc of v2.23.4-1, v2.27.5-1 and v2.30.7-1: H100 with Intel's CPUs, on three nodes or more. A hop inside
# a node by LL counts as the 1 µs that posting to the network takes. NCCL's plateau begins at 64 B a rank and channel.
HOPPER, BALANCED = "2.23 to 2.30", "2.23 to 2.30, balanced trees"
_BASE, _INSIDE, _NETWORK = (6.6, 14, 8.4, 6.8, 14, 8.4), (1, 1.9, 3.4, 0.6, 1.25, 4), (2.7, 4, 14, 5, 8.5, 14)
_HOPPER = _2_7._replace(
    latencies=dict(zip(_2_7.latencies, map(Hops, _BASE, _INSIDE, _NETWORK), strict=True)),
    shares=dict(zip(_2_7.shares, (1 / 2, 0.92, 1, 0.92 / 3.8, 0.92 * 120 / 128, 0.92), strict=True)),
    corrections={
        "LL": _2_7.corrections["LL"],
        "LL128": (*[1] * 5, 0.9, 0.8, 0.8, 0.8, 0.7, *[0.6] * 6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1),
        "Simple": (*[0.9] * 7, 0.8, 0.7, 0.6, 0.6, *[0.5] * 4, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9),
    },
    ll_inside=1.0,
    plateau=1.4,
    ll_most=20.4e9,
    chained=0.85,
)
_ALL = TABLES | {HOPPER: _HOPPER, BALANCED: _HOPPER._replace(chained=1.0)}


def segments(n: int, ranks_per_node: int, nodes: int, channels: int = CHANNELS) -> int:
    """Into how many segments NCCL 2.4.8's rule cuts each of the two trees' halves of n bytes.

    A chunk is 512 KiB, and halved while a channel would have too few of them for the depth of its tree. Half of the
    channels serve each tree, side by side, so that one segment of ours is a chunk of each of them.

    >>> segments(64 << 20, ranks_per_node=6, nodes=4096), segments(8, ranks_per_node=6, nodes=4096)
    (128, 1)
    """
    depth, chunk = ranks_per_node + _log2(nodes), CHUNK
    for least, wanted in CHUNK_RULE:
        while chunk > least and n / (channels * chunk) < depth * wanted:
            chunk //= 2
    return max(1, ceil(n / (channels * chunk)))


def latency_2_4(algorithm: str, ranks: int, ranks_per_node: int) -> float:
    """NCCL 2.4's latency of a ``ring`` (6 µs a GPU) or a ``tree`` (15 µs a level of nodes, 4 µs a GPU of the chain).

    >>> latency_2_4("tree", ranks=24576, ranks_per_node=6)
    0.0002
    """
    if algorithm == "ring":
        return 6 * (ranks - 1) / 1e6
    return (15 * _log2(ranks // ranks_per_node) + 4 * (ranks_per_node - 1)) / 1e6


def rate_2_4(algorithm: str, nodes: int, channels: int = CHANNELS) -> float:
    """NCCL 2.4's rate, buffer by time: a tree has 3/4 of a ring's, and twice that between two nodes."""
    ring = channels * CHANNEL_RATE
    return ring if algorithm == "ring" else ring * 3 / 4 * (2 if nodes == 2 else 1)


def seconds_2_4(algorithm: str, n: int, ranks: int, ranks_per_node: int) -> float:
    """Latency plus bytes by rate: the model whose two lines meet at `threshold_2_4`."""
    rate = rate_2_4(algorithm, ranks // ranks_per_node)
    return latency_2_4(algorithm, ranks, ranks_per_node) + n / rate


def threshold_2_4(ranks: int, ranks_per_node: int) -> float:
    """Up to how many bytes NCCL 2.4 takes its trees: 0 on one node, endless where a tree has the higher rate.

    >>> round(threshold_2_4(ranks=96, ranks_per_node=6) / 1e6, 1)  # MB
    29.4
    """
    nodes = ranks // ranks_per_node
    ring, tree = rate_2_4("ring", nodes), rate_2_4("tree", nodes)
    ahead = latency_2_4("ring", ranks, ranks_per_node) - latency_2_4("tree", ranks, ranks_per_node)
    if nodes < 2 or ahead <= 0:
        return 0.0
    return float("inf") if tree > ring else ring * tree / (ring - tree) * ahead


def seconds(
    table: str, algorithm: str, protocol: str, n: int, ranks: int, ranks_per_node: int, bus: float = BUS
) -> float:
    """Return the time of a ``ring`` or a ``tree`` by a protocol, as a table has it, on two nodes or more (2.23: three).

    >>> round(seconds("2.7", "tree", "LL", 8, ranks=24576, ranks_per_node=6) * 1e6)
    134
    """
    of = _ALL[table]
    rate = min(bus * of.shares[algorithm, protocol], of.ll_most if protocol == "LL" else inf)
    if algorithm == "ring":
        return _ring_latency(of, protocol, n, ranks, ranks_per_node) + n / (rate * ranks / (2 * (ranks - 1)))
    size, corrections = _log2(n // 64), of.corrections[protocol]
    correction = of.chained * (corrections[size] if size < len(corrections) else 1.0)
    return _tree_latency(of, protocol, ranks, ranks_per_node) + n / (rate / 2 * correction)


def best(table: str, algorithm: str, n: int, ranks: int, ranks_per_node: int, bus: float = BUS) -> tuple[float, str]:
    """Return the least of the protocols' times, and whose it is; NCCL chooses so, where LL128 is enabled.

    >>> best("2.7", "ring", 64 << 20, ranks=96, ranks_per_node=6)[1]
    'LL128'
    """
    return min((seconds(table, algorithm, protocol, n, ranks, ranks_per_node, bus), protocol) for protocol in PROTOCOLS)


def _ring_latency(of: Table, protocol: str, n: int, ranks: int, ranks_per_node: int) -> float:
    hops, outside = of.latencies["ring", protocol], 2 * (ranks // ranks_per_node - 1)
    plateau = of.plateau if protocol == "Simple" and n >= 4096 * ranks else 1.0  # as the source calls it
    steps = (2 * (ranks - 1) - outside) * _inside(of, hops, protocol) + outside * hops.network
    return plateau * (hops.base + steps) / 1e6


def _tree_latency(of: Table, protocol: str, ranks: int, ranks_per_node: int) -> float:
    hops, levels = of.latencies["tree", protocol], _log2(ranks // ranks_per_node)
    return (hops.base + 2 * ((ranks_per_node - 1) * _inside(of, hops, protocol) + levels * hops.network)) / 1e6


def _inside(of: Table, hops: Hops, protocol: str) -> float:
    return hops.inside * (of.ll_inside if protocol == "LL" else 1.0)


def _log2(n: int) -> int:
    """Rounded down, and 0 for 0, as NCCL counts."""
    return max(0, n.bit_length() - 1)
