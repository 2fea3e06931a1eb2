"""Write files for other tools: a schedule in GOAL for LogGOPSim, and the file of NCCL's example tuner plugin.

**GOAL**, which LogGOPSim's ``txt2bin`` reads (spcl/LogGOPSim at 76451de), has sends and receives of
every rank, and what each needs. LogGOPSim starts an operation as soon as its CPU is free, even if
the data that it needs are still on their way to another CPU. So all operations of a rank on one
chunk share a CPU; chunks that never travel in one message have different ones, because their
messages may overlap. A rank's sends start in the order of the steps, as ports are granted in our
simulator.

Two things differ where messages compete for a port, and no dependency can change them. A message
takes LogGOPSim's receiving port when it arrives, even before its receive is posted, and nothing
holds a sender back. Our simulator grants the port in the order of the steps, and the sender's port
waits for it. Its ports also begin a later message in a gap.

A link of `collectives.machine` is L, o, g, G of LogGP with L = latency, o = overhead / 2, g =
overhead, G = 1 / rate: a message then occupies both ports for g + G m and arrives 2 o + L + G m
after its start, as in our simulator.

**The tuner plugin** (``plugins/tuner/example`` of NVIDIA/nccl, read at 5067397, version 2.30.7)
takes the first line that fits a call: its collective, its bytes, its nodes and ranks. That line's
algorithm then costs nothing, so no other is taken, not even NVLS, in which the switch adds and
which we do not simulate. Where no line fits, NCCL chooses as without a plugin; so there is no line
where NVLS may be faster, or where NCCL's own choice was.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from collectives.core.schedule import Ints, Schedule, Step, check_ranks_only

if TYPE_CHECKING:
    from collectives.machine import Link

# A CPU's number has eight bits, and a tag tells apart messages of one pair of ranks.
MAX_CPUS, MAX_MESSAGES = 256, 1 << 20

HEAD = "# collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff"

# How names are written in the file: ours and those of NCCL. Its tree is the double binary tree, a
# chain inside a node.
COLLECTIVES = {
    name: name.replace("_", "") for name in ("all_reduce", "all_gather", "reduce_scatter")
} | {name: name for name in ("broadcast", "reduce")}
ALGORITHMS = {
    "ring": "ring",
    "two_tree": "tree",
    "hierarchical_tree": "tree",
    "Ring": "ring",
    "Tree": "tree",
} | {
    "NVLS": "nvls",
    "NVLSTree": "nvls_tree",
    "PAT": "pat",
    "default": "",
}
PROTOCOLS = ("ll", "ll128", "simple")
ANY = -1

# Seconds of NVLS in a node, and of NVLSTree more for each doubling of the nodes: tuning.cc of NCCL
# 2.20.3.
NVLS, DOUBLING = 23e-6, 28e-6


class LogGP(NamedTuple):
    """LogGOPSim's parameters: whole numbers, here of picoseconds, and of picoseconds per byte."""

    L: int
    o: int
    g: int
    G: int


def loggp(link: "Link") -> LogGP:
    """Return LogGOPSim's parameters for a link.

    >>> from collectives.machine import Link
    >>> loggp(Link(latency="1us", overhead="4us", rate="25GB/s"))
    LogGP(L=1000000, o=2000000, g=4000000, G=40)
    """
    return LogGP(
        *(round(s * 1e12) for s in (link.latency, link.overhead / 2, link.overhead, link.beta))
    )


def goal(schedule: Schedule, n: int) -> str:
    """Return a schedule in GOAL, for a buffer of ``n`` bytes.

    Sums take no time; a message without bytes is not sent.

    Raises ValueError for more than a million messages, ScheduleError for a schedule with switches.
    Cost: about 20 microseconds a chunk that moves.

    >>> from collectives.algorithms import ALGORITHMS
    >>> print(goal(ALGORITHMS["reduce", "flat"](2), n=8), end="")
    num_ranks 2
    rank 0 {
    l1: recv 8b from 1 tag 0 cpu 0 nic 0
    }
    rank 1 {
    l1: send 8b to 0 tag 0 cpu 0 nic 0
    }
    """
    check_ranks_only(schedule, "GOAL, whose ranks do the adding")
    ranks = _Ranks(schedule, n)
    for t, step in enumerate(schedule.steps()):
        ranks.add(t, step)
    lines = [
        line for rank, own in enumerate(ranks.lines) for line in (f"rank {rank} {{", *own, "}")
    ]
    return "\n".join([f"num_ranks {schedule.p}", *lines, ""])


def cpus(schedule: Schedule) -> Ints:
    """Return the CPU of each chunk: the same for chunks that travel in one message.

    >>> from collectives.algorithms import ALGORITHMS
    >>> [cpus(ALGORITHMS["all_reduce", name](4)).tolist() for name in ("ring", "halving_doubling")]
    [[0, 1, 2, 3], [0, 0, 1, 1]]
    """
    group = np.arange(schedule.k)
    for step in schedule.steps():
        for _, _, chunks, _, _ in _messages(step, None):
            joined = group[chunks]
            group[np.isin(group, joined)] = joined.min()
    return np.unique(group, return_inverse=True)[1] % MAX_CPUS


def _messages(step: Step, edges: Ints | None) -> Iterator[tuple[int, int, Ints, int, list[bool]]]:
    """Yield sender, receiver, chunks and size of each message, and for each chunk whether it is added."""
    sent = step.messages(edges)
    for i in range(len(sent.src)):
        rows = sent.rows(i)
        runs = [
            np.arange(c, c + m)
            for c, m in zip(step.chunk[rows].tolist(), step.count[rows].tolist(), strict=True)
        ]
        adds = np.repeat(step.add[rows], step.count[rows]).tolist()
        yield int(sent.src[i]), int(sent.dst[i]), np.concatenate(runs), int(sent.size[i]), adds


class _Ranks:
    """The lines of every rank, and the last operations on each of its chunks."""

    def __init__(self, schedule: Schedule, n: int) -> None:
        self.edges, self.cpu = schedule.cut(n), cpus(schedule)
        self.lines: list[list[str]] = [[] for _ in range(schedule.p)]
        self.count = [0] * schedule.p
        self.last_send: dict[int, int] = {}
        self.received: dict[tuple[int, int], set[int]] = defaultdict(set)
        self.total = 0

    def add(self, t: int, step: Step) -> None:
        """Add a step. All its sends need what was received before it; then its receives count."""
        messages = list(_messages(step, self.edges))
        self.total += len(messages)
        if self.total > MAX_MESSAGES:
            raise ValueError(f"messages: got more than {MAX_MESSAGES:,}, expected at most that")
        for src, dst, chunks, size, _ in messages:
            needed = set().union(*(self.received[src, c] for c in chunks.tolist()))
            number = self._operation(src, f"send {size}b to {dst} tag {t}", chunks, needed)
            if src in self.last_send:
                self.lines[src].append(f"l{number} irequires l{self.last_send[src]}")
            self.last_send[src] = number
        later = [
            (
                dst,
                chunks,
                adds,
                self._operation(dst, f"recv {size}b from {src} tag {t}", chunks, set()),
            )
            for src, dst, chunks, size, adds in messages
        ]
        for dst, chunks, adds, number in later:
            for c, add in zip(chunks.tolist(), adds, strict=True):
                self.received[dst, c] = {number} | (self.received[dst, c] if add else set())

    def _operation(self, rank: int, what: str, chunks: Ints, needed: set[int]) -> int:
        self.count[rank] += 1
        number = self.count[rank]
        self.lines[rank].append(f"l{number}: {what} cpu {self.cpu[chunks[0]]} nic 0")
        self.lines[rank] += [f"l{number} requires l{other}" for other in sorted(needed)]
        return number


class Time(NamedTuple):
    """The seconds that an algorithm took; ``nodes`` of -1 stands for any number."""

    collective: str
    algorithm: str  # NCCL's; empty where NCCL chooses, for which there is no line
    protocol: str
    nodes: int
    ranks: int
    bytes: int
    seconds: float


def known(algorithm: str, protocol: str = "simple") -> tuple[str, str] | None:
    """Return NCCL's names for an algorithm of ours, or of a measured row.

    None if NCCL has no such algorithm.

    A protocol that NCCL lacks becomes ``simple``, because the file has no sign for "any".

    >>> known("two_tree"), known("ring", "LL"), known("NVLSTree/Simple"), known("halving_doubling")
    (('tree', 'simple'), ('ring', 'll'), ('nvls_tree', 'simple'), None)
    """
    name, _, named = algorithm.partition("/")
    chosen = (named or protocol).lower()
    return (
        (ALGORITHMS[name], chosen if chosen in PROTOCOLS else "simple")
        if name in ALGORITHMS
        else None
    )


def nvls(nodes: int, ranks: int, nbytes: int, inside: float, node: float) -> Time:
    """Return the seconds that an all-reduce by NVLS or NVLSTree takes at least, as a time for which NCCL chooses.

    ``inside`` is the rate of a rank's link to the switch, ``node`` that of all network ports of a
    node, in bytes/s.

    >>> [round(nvls(2, 16, nbytes, 337e9, 400e9).seconds * 1e6) for nbytes in (8, 1 << 20, 1 << 30)]
    [51, 54, 3237]
    """
    moved = max(nbytes / inside, 2 * (nodes - 1) / nodes * nbytes / node)
    return Time(
        "all_reduce",
        "",
        "",
        nodes,
        ranks,
        nbytes,
        NVLS + (nodes.bit_length() - 1) * DOUBLING + moved,
    )


def tuner(times: Iterable[Time], source: str) -> str:
    """Return the tuner's file: the fastest algorithm from each size that was tried up to the next.

    There is no line beyond the last size.

    ``source`` is a comment at its head. Raises ValueError if no algorithm of NCCL's is the fastest
    anywhere.

    >>> ring, tree = (Time("all_reduce", name, "simple", 2, 16, 1024, s) for name, s in (("ring", 2.0), ("tree", 1.0)))
    >>> print(tuner([ring, tree, ring._replace(bytes=4096)], "an example"), end="")
    # an example
    # collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff
    allreduce,1024,4095,tree,simple,-1,2,16,-1,-1
    allreduce,4096,4096,ring,simple,-1,2,16,-1,-1
    """
    lines = list(_tuner_lines(times))
    if not lines:
        raise ValueError(
            f"times: got none by ring or tree that beat NVLS, expected some of {', '.join(COLLECTIVES)}"
        )
    return "\n".join([f"# {source}"[:250], HEAD, *lines, ""])


def _tuner_lines(times: Iterable[Time]) -> Iterator[str]:
    groups: dict[tuple[str, int, int], dict[int, Time]] = defaultdict(dict)
    for each in times:
        fastest = groups[each.collective, each.nodes, each.ranks]
        if each.bytes not in fastest or each.seconds < fastest[each.bytes].seconds:
            fastest[each.bytes] = each
    for (collective, nodes, ranks), fastest in sorted(groups.items()):
        for low, high, best in _ranges([fastest[size] for size in sorted(fastest)]):
            names = f"{COLLECTIVES[collective]},{low},{high},{best.algorithm},{best.protocol}"
            yield f"{names},{ANY},{nodes},{ranks},{ANY},{ANY}"


def _ranges(best: list[Time]) -> Iterator[tuple[int, int, Time]]:
    """Yield runs of sizes with one winner: the first size, the last byte before the next run, and the winner.

    Where NCCL chooses there is no run, and the one before ends with the last size that was tried.
    """
    starts = [i for i in range(len(best)) if not i or best[i][1:3] != best[i - 1][1:3]]
    for start, after in zip(starts, [*starts[1:], len(best)], strict=True):
        is_followed = after < len(best) and best[after].algorithm
        if best[start].algorithm:
            yield (
                best[start].bytes,
                best[after].bytes - 1 if is_followed else best[after - 1].bytes,
                best[start],
            )
