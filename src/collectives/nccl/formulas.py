"""Predict which algorithm NCCL takes, and its time, by the formulas with which NCCL itself chooses.

They are those of NCCL 2.30.7: the constants and times of ``src/graph/tuning.cc``, and the rates of
channels in ``src/graph/search.cc``. The formulas count whole calls and follow no message; a launch
of the kernel is not in them. Sizes are bytes, times seconds, rates of channels GB/s, as there.
Processors are Intel's, or have as little overhead; LL128 is enabled, as it is wherever ranks of a
node are joined by NVLink and GPUs reach a port without the processor.
"""

import re
from math import inf
from typing import NamedTuple

VERSION = "2.30.7"

PROTOCOLS = ("LL", "LL128", "Simple")

# The algorithms of a collective. NCCL makes others of sends and receives, and chooses nothing.
ALGORITHMS = {
    "all_reduce": ("ring", "tree", "nvls", "nvls_tree", "collnet_direct", "collnet_chain"),
    "all_gather": ("ring", "nvls", "collnet_direct", "pat"),
    "reduce_scatter": ("ring", "nvls", "collnet_direct", "pat"),
    "broadcast": ("ring",),
    "reduce": ("ring",),
}
# As NCCL_ALGO and NCCL's logs write them.
TITLES = {
    "ring": "Ring",
    "tree": "Tree",
    "nvls": "NVLS",
    "nvls_tree": "NVLSTree",
    "collnet_direct": "CollNetDirect",
    "collnet_chain": "CollNetChain",
    "pat": "PAT",
}

BySize = tuple[float, float, float]  # on one node, on two, on more


class Generation(NamedTuple):
    """Hold what NCCL assumes of a generation of GPUs, in GB/s where it is a rate."""

    ll: float  # the most that LL reaches on one node
    ring_ll128: BySize  # the most of a channel, as the next three
    tree: BySize
    tree_ll128: BySize
    nvls_tree: BySize
    switch: float  # the share of NVLink's rate that a switch which adds reaches, 0 for none
    switch_channels: tuple[int, int]  # on one node, on more
    plateau: float  # how many times as long a ring by Simple takes between nodes
    chained: (
        float  # the share of its rate that a tree keeps: 1 if two GPUs of a node share its links
    )
    inside: tuple[float, ...]  # the rates that a channel may have in one node
    network: tuple[float, ...]  # and between nodes


_INSIDE = (40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3)
_NETWORK = (48, 30, 28, 24, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3, 2.4, 1.2, 0.24, 0.12)
GENERATIONS = {
    "volta": Generation(
        ll=39,
        ring_ll128=(20, 20, 20),
        tree=(26.5, 18.5, 10),
        tree_ll128=(20, 20, 20),
        nvls_tree=(26.5, 18.5, 10),
        switch=0,
        switch_channels=(0, 0),
        plateau=1.9,
        chained=1,
        inside=_INSIDE,
        network=_NETWORK,
    ),
    "ampere": Generation(
        ll=87.7,
        ring_ll128=(20, 20, 20),
        tree=(24, 23.6, 17.8),
        tree_ll128=(20, 20, 20),
        nvls_tree=(24, 23.6, 17.8),
        switch=0,
        switch_channels=(0, 0),
        plateau=1.4,
        chained=1,
        inside=_INSIDE,
        network=_NETWORK,
    ),
    "hopper": Generation(
        ll=141,
        ring_ll128=(36.7, 36.7, 36.7),
        tree=(38.7, 41.4, 36),
        tree_ll128=(36.7, 36.7, 29),
        nvls_tree=(0, 57.7, 45.5),
        switch=0.85,
        switch_channels=(16, 16),
        plateau=1.4,
        chained=0.85,
        inside=(60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3),
        network=(48, 45, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, 0.24, 0.12),
    ),
    "blackwell": Generation(
        ll=282,
        ring_ll128=(40, 40, 40),
        tree=(70, 42.8, 24),
        tree_ll128=(55.6, 31.67, 20),
        nvls_tree=(0, 96, 80),
        switch=0.74,
        switch_channels=(24, 32),
        plateau=1.4,
        chained=0.85,
        inside=(90, 80, 70, 60, 50, 45, 40, 30, 24, 20, 19, 18),
        network=(
            96,
            86,
            80,
            48,
            45.1,
            42,
            40,
            30,
            24,
            22,
            20,
            17.5,
            15,
            12,
            6,
            3,
            2.4,
            1.2,
            0.24,
            0.12,
        ),
    ),
}
# Ranks of a node up to which switches serve more than the all-reduce: NCCL_MAX_NVLS_ARITY of src/enqueue.cc.
MOST_RANKS_OF_NVLS = 32
LL_BETWEEN = (39, 20.4)  # the most that LL reaches, in GB/s: on two nodes, on more

# Which generation a machine's name tells, as "h100" in dgx-h100.
NAMED = {
    "blackwell": "b200|b300|gb200|gb300",
    "hopper": "h100|h200|h800|h20|gh200|p5",
    "ampere": "a100|a800|p4d|marenostrum-a",
    "volta": "v100|dgx1|dgx-1v|dgx2|summit|ndv2",
}


class Latency(NamedTuple):
    """Hold the microseconds of an algorithm by a protocol: once a call, a hop by NVLink, and one by network."""

    base: float
    inside: float
    network: float


LATENCIES = {
    ("ring", "LL"): Latency(6.6, 0.6, 2.7),
    ("ring", "LL128"): Latency(14, 1.9, 4),
    ("ring", "Simple"): Latency(8.4, 3.4, 14),
    ("tree", "LL"): Latency(6.8, 0.6, 5),
    ("tree", "LL128"): Latency(14, 1.25, 8.5),
    ("tree", "Simple"): Latency(8.4, 4, 14),
    ("collnet_direct", "Simple"): Latency(0, 3.7, 31),
    ("collnet_chain", "Simple"): Latency(0, 2.8, 30),
    ("nvls", "Simple"): Latency(0, 25, 18),
    ("nvls_tree", "Simple"): Latency(0, 25, 20.9),
    ("pat", "Simple"): Latency(8, 4, 14),
}
# Posting a message to the network takes so many microseconds, by Simple three times as many.
POST = 1.0

# By how much a tree's rate falls short of the model: for 64 B, 128 B, ... 512 MiB.
CORRECTIONS = {
    protocol: tuple(float(number) for number in numbers.split())
    for protocol, numbers in {
        "LL": "1 1 1 1 .9 .8 .7 .7 .7 .7 .6 .5 .4 .4 .5 .6 .7 .8 .9 1 1 1 1 1",
        "LL128": "1 1 1 1 1 .9 .8 .8 .8 .7 .6 .6 .6 .6 .6 .6 .8 .9 .9 .9 .9 1 1 1",
        "Simple": ".9 .9 .9 .9 .9 .9 .9 .8 .7 .6 .6 .5 .5 .5 .5 .6 .7 .8 .7 .7 .8 .9 .9 .9",
    }.items()
}
# Where a ring by Simple begins to take longer: from so many bytes of a channel and rank on.
PLATEAU_BYTES = 64


class Channels(NamedTuple):
    """Count the channels that NCCL's search finds, with the rate of one inside a node and between nodes, in GB/s.

    A call uses twice as many rings or trees, at half the rate each.
    """

    number: int
    inside: float
    network: float


class Job(NamedTuple):
    """Hold what NCCL's formulas know of a call: its ranks, and the channels of each kind of path."""

    collective: str
    nodes: int
    ranks_per_node: int
    gpus: Generation
    rings: Channels
    trees: Channels
    switches: Channels | None = None  # through switches that add
    latency: float = 0.0  # of the network in seconds, where a plug-in or a topology file says it

    @property
    def ranks(self) -> int:
        """Return the number of ranks."""
        return self.nodes * self.ranks_per_node


class Prediction(NamedTuple):
    """The time of an algorithm by a protocol, how much of it is latency, and how many channels it has at most."""

    algorithm: str
    protocol: str
    channels: int
    seconds: float
    latency: float


def generation_of(machine: str) -> str | None:
    """Return the generation of GPUs that a machine's name tells, None if it tells none.

    >>> generation_of("dgx-h100"), generation_of("gb200-nvl72"), generation_of("mi250")
    ('hopper', 'blackwell', None)
    """
    for name, pattern in NAMED.items():
        if re.search(pattern, machine.lower()):
            return name
    return None


def job(
    collective: str,
    nodes: int,
    ranks_per_node: int,
    gpus: str,
    inside: float,
    ports: int,
    port: float,
) -> Job:
    """Return the job that NCCL's search for paths makes of these rates in GB/s.

    ``inside`` is the rate of a GPU's links in its node, ``port`` that of one of the node's
    ``ports`` to the network. NCCL prints what it found with NCCL_DEBUG_SUBSYS=GRAPH.

    >>> job("all_reduce", 1, 8, "hopper", 370.8, 8, 50).rings
    Channels(number=12, inside=30.0, network=30.0)
    >>> job("all_reduce", 2, 8, "hopper", 370.8, 8, 50).switches
    Channels(number=8, inside=45, network=48)
    """
    of = GENERATIONS[gpus]
    adds = of.switch > 0 and ranks_per_node > 1
    if nodes == 1:
        rings = _in_one_node(of, inside)
        each = _at_most(of.inside, inside / ranks_per_node)
        raised = _raised(of.inside, each, inf)
        switches = Channels(ranks_per_node, each, raised) if adds else None
        return Job(collective, nodes, ranks_per_node, of, rings, rings, switches)
    ring = _at_most(of.network, min(port, inside / ports))
    tree = _raised(of.network, ring, inside / ports)
    rings = _doubled(of, Channels(ports, ring, ring))
    trees = _doubled(of, Channels(ports, ring, ring))
    trees = trees._replace(inside=tree * ports / trees.number)
    raised = _raised(of.network, ring, port)
    switches = Channels(ports, ring, raised) if adds and ports > 1 else None
    return Job(collective, nodes, ranks_per_node, of, rings, trees, switches)


def _in_one_node(of: Generation, rate: float) -> Channels:
    """Return the channels that use the most of a GPU's rate, of several such the fewest."""
    best = Channels(1, min(rate, of.inside[-1]), 0)
    for speed in of.inside:
        count = min(32, int(rate / speed))
        if count * speed > best.number * best.inside:
            best = Channels(count, speed, speed)
    return _doubled(of, best)


def _doubled(of: Generation, found: Channels) -> Channels:
    """Return twice as many channels of half the rate, which NCCL takes where a channel is fast."""
    is_enough = of.switch > 0 and found.inside < 50 and found.number > 4
    if found.inside < 25 or is_enough:
        return found
    return Channels(2 * found.number, found.inside / 2, found.network / 2)


def _at_most(speeds: tuple[float, ...], rate: float) -> float:
    """Return the highest of these speeds that a rate allows, or the lowest.

    >>> _at_most((48, 24, 12), 25), _at_most((48, 24, 12), 5)
    (24, 12)
    """
    allowed = [speed for speed in speeds if speed <= rate]
    return allowed[0] if allowed else speeds[-1]


def _raised(speeds: tuple[float, ...], rate: float, most: float) -> float:
    """Return the speed to which the search raises the other end of a path: up to twice as fast, at most ``most``.

    >>> _raised((60, 50, 40, 30), 40, inf), _raised((60, 50, 40, 30), 30, 50), _raised((60, 50), 20, 10)
    (60, 50, 20)
    """
    higher = [speed for speed in reversed(speeds) if rate <= speed <= most]
    twice = [speed for speed in higher if speed >= 2 * rate]
    if twice:
        return twice[0]
    return higher[-1] if higher else rate


def default_algorithms(of: Job) -> list[str]:
    """Return the algorithms that NCCL takes without being asked to: without CollNet, which needs SHARP in the network.

    >>> default_algorithms(job("all_reduce", 2, 8, "hopper", 370.8, 8, 50))
    ['ring', 'tree', 'nvls_tree']
    >>> default_algorithms(job("all_gather", 1, 72, "blackwell", 741.6, 72, 50))
    ['ring']
    """
    is_one_node = of.nodes == 1
    is_served = of.collective == "all_reduce" or of.ranks_per_node <= MOST_RANKS_OF_NVLS
    switches_add = of.switches is not None and is_served
    able = {
        "ring": True,
        "tree": True,
        "nvls": switches_add and is_one_node,
        "nvls_tree": switches_add and not is_one_node,
        "pat": of.ranks_per_node == 1,
    }
    return [name for name in ALGORITHMS[of.collective] if able.get(name)]


def predictions(of: Job, nbytes: int, algorithms: list[str]) -> list[Prediction]:
    """Return the predictions of these algorithms by every protocol that they have, the fastest first.

    The first is NCCL's choice.

    >>> of = job("all_reduce", 2, 8, "hopper", 370.8, 8, 50)
    >>> [predictions(of, n, default_algorithms(of))[0][:2] for n in (8, 1 << 30)]
    [('tree', 'LL'), ('nvls_tree', 'Simple')]
    """
    found = []
    for algorithm in algorithms:
        for protocol in PROTOCOLS:
            if (algorithm, protocol) in LATENCIES:
                channels = most_channels(of, algorithm)
                latency = _latency(of, algorithm, protocol, nbytes)
                total = seconds(of, algorithm, protocol, nbytes)
                found.append(Prediction(algorithm, protocol, channels, total, latency))
    return sorted(found, key=lambda each: each.seconds)


def seconds(of: Job, algorithm: str, protocol: str, nbytes: int) -> float:
    """Return the seconds of an algorithm by a protocol, for ``nbytes`` bytes as nccl-tests counts them.

    >>> of = job("all_reduce", 1, 8, "hopper", 370.8, 8, 50)
    >>> round(seconds(of, "nvls", "Simple", 4 << 30) * 1e3, 2)
    15.82
    """
    rate = _rate(of, algorithm, protocol) * _correction(of, algorithm, protocol, nbytes)
    return _latency(of, algorithm, protocol, nbytes) + nbytes / (rate * 1e9)


def most_channels(of: Job, algorithm: str) -> int:
    """Return how many channels an algorithm has at most.

    >>> most_channels(job("all_reduce", 2, 8, "hopper", 370.8, 8, 50), "tree")
    16
    """
    if algorithm.startswith("nvls"):
        return of.gpus.switch_channels[0 if of.nodes == 1 else 1]
    return 2 * of.rings.number


def _correction(of: Job, algorithm: str, protocol: str, nbytes: int) -> float:
    table = CORRECTIONS[protocol]
    size = log2(nbytes // 64)
    corrected = 0
    if of.collective == "all_reduce" and algorithm == "tree":
        corrected = len(table) - 1
    elif of.collective == "all_reduce" and algorithm == "nvls_tree" and of.gpus.switch == 0.74:
        corrected = len(table)
    return table[size] if size < corrected else 1.0


def _rate(of: Job, algorithm: str, protocol: str) -> float:
    """Return the bytes of the buffer for each nanosecond, once the first ones are there."""
    nodes, ranks, gpus = of.nodes, of.ranks, of.gpus
    place = min(nodes, 3) - 1
    most_ll = gpus.ll if nodes == 1 else LL_BETWEEN[place - 1]
    if algorithm == "ring":
        rate = _total(of.rings, nodes)
        if protocol == "LL":
            rate = min(most_ll, rate / 2)
        elif protocol == "LL128":
            rate = min(0.92 * rate, of.rings.number * gpus.ring_ll128[place])
        return rate * ranks / _steps(of)
    if algorithm == "tree":
        rate = min(0.92 * _total(of.trees, nodes), of.trees.number * gpus.tree[place])
        if protocol == "LL":
            rate = min(rate / 3.8, most_ll)
        elif protocol == "LL128":
            share = 7 / 9 if nodes == 1 else 120 / 128
            rate = min(share * rate, of.trees.number * gpus.tree_ll128[place])
        return gpus.chained * rate / 2
    if algorithm.startswith("nvls"):
        rate = _switch_rate(of, algorithm)
        return rate * ranks / _steps(of) if of.collective == "all_reduce" else rate
    if algorithm == "pat":
        return 0.75 * _total(of.trees, nodes)
    return _collnet_rate(of, algorithm)


def _total(channels: Channels, nodes: int) -> float:
    return channels.number * (channels.inside if nodes <= 2 else channels.network)


def _steps(of: Job) -> int:
    """Return the steps of a ring, by which its rate for the buffer is less than that of its links."""
    steps = {"all_reduce": 2 * (of.ranks - 1), "broadcast": of.ranks, "reduce": of.ranks}
    return steps.get(of.collective, of.ranks - 1)


def _switch_rate(of: Job, algorithm: str) -> float:
    """Return the rate of all channels through switches that add, each of which one GPU's port serves."""
    if of.switches is None:
        raise ValueError(
            f"{TITLES[algorithm]}: got GPUs or nodes without a switch that adds, "
            "expected nodes of Hopper or Blackwell"
        )
    count, inside, network = of.switches
    inside *= of.gpus.switch * (count - 1) / count
    if of.collective == "all_reduce":
        inside *= 2  # the switch adds and sends out at the same time
    else:
        inside *= (of.ranks_per_node - 1) / of.ranks_per_node
    if algorithm == "nvls":
        return count * min(inside, network)
    between = 2 * network if of.nodes == 2 else network
    return count * min(inside, between, of.gpus.nvls_tree[min(of.nodes, 3) - 1])


def _collnet_rate(of: Job, algorithm: str) -> float:
    count, inside, network = of.trees
    if of.collective != "all_reduce":
        return of.ranks_per_node * min(inside, 0.9 * network)
    rate = count * inside
    if algorithm == "collnet_direct":
        gpus_per_port = of.ranks_per_node / count
        rate /= gpus_per_port - (gpus_per_port - 1) / 2
        rate *= 0.85 if of.gpus.switch else 1.0
    return rate / 2


def _latency(of: Job, algorithm: str, protocol: str, nbytes: int) -> float:
    """Return the seconds that do not depend on the buffer's size."""
    base, inside, network = LATENCIES[algorithm, protocol]
    if of.ranks_per_node == 1 and ("tree", protocol) in LATENCIES:
        network = LATENCIES["tree", protocol].network  # nothing inside a node hides it
    network += of.latency * 1e6 * (2 if protocol == "Simple" else 1)
    near, doublings = of.ranks_per_node - 1, log2(of.nodes)
    microseconds = {
        "tree": base + 2 * (near * inside + doublings * network),
        "nvls": inside + (network if of.nodes > 1 else 0.0),
        "nvls_tree": base + inside + 2 * doublings * network,
        "collnet_direct": base + 2 * (min(1, near) * inside + 0.4 * near) + network,
        "collnet_chain": base + 2 * near * inside + network,
        "pat": base + doublings * network / 3.5 + 2.8 * of.ranks,
    }
    if algorithm == "ring":
        return _ring_latency(of, protocol, network, nbytes) / 1e6
    return microseconds[algorithm] / 1e6


def _ring_latency(of: Job, protocol: str, network: float, nbytes: int) -> float:
    base, inside, hop = LATENCIES["ring", protocol]
    nodes = of.nodes
    if of.collective in ("broadcast", "reduce"):
        return base + (inside if nodes == 1 else hop)  # all others follow in a pipeline
    if nodes > 1:
        inside = max(inside, POST * (3 if protocol == "Simple" else 1))
    steps = _steps(of)
    times_round = steps // (of.ranks - 1)
    between = times_round * (nodes - 1)
    latency = base + (steps - between) * inside + between * network
    part = nbytes // (2 * of.rings.number * of.ranks)
    if (
        protocol == "Simple"
        and nodes > 1
        and of.collective == "all_reduce"
        and part >= PLATEAU_BYTES
    ):
        latency *= of.gpus.plateau
    return latency


def log2(n: int) -> int:
    """Return the logarithm, rounded down, and 0 for 0, as NCCL counts.

    >>> log2(0), log2(1), log2(24)
    (0, 0, 4)
    """
    return max(0, n.bit_length() - 1)
