"""The claims of the article that leads from the ring to two trees, and its conclusions."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from collectives.algorithms import COSTS
from collectives.algorithms.binary_tree import NO_PARENT, binary_tree, second_tree
from collectives.bounds import height
from collectives.schedule import Ints
from collectives_book.claims import checks
from collectives_book.claims.checks import ON_RANKS, RANKS, children, inside, most, schedule, sent, steps, totals
from collectives_book.claims.lecture import shards
from collectives_book.claims.ledger import AT_LEAST, AT_MOST, EQUAL, Claim, Excluded, Given, Source, Value, within
from collectives_book.figures.statements import listed
from collectives_book.massive_scale import published
from collectives_book.needs import H100, state_bytes

LARGE = (20, 64, 256)
UNEVEN = 1001

TREE, TWO = "tree-all-reduce", "two-tree-all-reduce"
EVEN, ODD = (8, 16, 32, 64, 1024), (9, 17, 33, 65, 1025)
DOUBLED = 16, 64, 256, 1024
COUNTS = tuple(sorted((*EVEN, *ODD)))
ON_COUNTS = f"On {listed([f'{p:,}' for p in COUNTS])} ranks"


def growth(algorithm: str) -> float:
    """The power of p by which the steps' latencies grow, from 64 to 512 ranks."""
    low, high = (COSTS["all_reduce", algorithm](p).steps for p in (64, 512))
    return math.log(high / low) / math.log(512 / 64)


def overhead(p: int) -> float:
    """What passes the busiest port of a single root, in buffers."""
    return sent(schedule("root", p))[0]


def into_master() -> tuple[float, ...]:
    """What a master beside N devices receives."""
    return tuple(checks.received(schedule("flat", p + 1, collective="reduce"), 0) for p in RANKS)


def after_turns(turns: Callable[[int], int]) -> tuple[int, ...]:
    """Complete chunks of eight ranks after so many turns of each."""
    return checks.complete_chunks(checks.rotating(8, turns))


def chunk_spread(n: int) -> int:
    """By how many elements the chunks of a ring on eight ranks differ."""
    return int(np.ptp(np.diff(schedule("ring", 8).cut(n))))


def cross_node(adjacent: bool) -> int:
    """Messages of one turn of a ring on 4 nodes of 4 that cross the network; otherwise neighbours alternate nodes."""
    place = np.arange(16) // 4 if adjacent else np.arange(16) % 4
    step = schedule("ring", 16).step(0)
    return int((place[step.src] != place[step.dst]).sum())


def heap(p: int) -> Ints:
    """The complete tree of a textbook: the children of r are 2r + 1 and 2r + 2."""
    return np.where(np.arange(p) == 0, NO_PARENT, (np.arange(p) - 1) // 2)


def with_two_children(p: int) -> float:
    """Of a complete tree's inner ranks, the share that has two children."""
    counts = [count for count in children(heap(p)) if count]
    return counts.count(2) / len(counts)


def mirrored(p: int) -> Ints:
    """The tree in which rank r plays p - 1 - r, also where that is no good second tree."""
    other_way = binary_tree(p)[::-1]
    return np.where(other_way == NO_PARENT, NO_PARENT, p - 1 - other_way)


def interior_in_both(p: int, how: str) -> int:
    """How many ranks have children in the first tree and in the second."""
    second = mirrored(p) if how == "mirror" else second_tree(p, how)
    return len(inside(binary_tree(p)) & inside(second))


def either_way(counts: tuple[int, ...]) -> tuple[int, ...]:
    """The same, first of all shifted trees, then of all mirrored ones."""
    return tuple(interior_in_both(p, how) for how in ("shift", "mirror") for p in counts)


def by_parity(found: Value) -> str:
    """The different values on `COUNTS`, of even numbers and of odd ones; twice as many are of both second trees.

    >>> by_parity((0, 1, 0, 1, 0, 1, 0, 1, 0, 1)), by_parity((0, 0))
    ('0 on even numbers, 1 on odd ones', '0')
    """
    values = found if isinstance(found, tuple) else (found,)
    if len(set(values)) == 1:
        return str(values[0])
    if len(values) > len(COUNTS):
        return f"shifted {by_parity(values[: len(COUNTS)])}; mirrored {by_parity(values[len(COUNTS) :])}"
    even, odd = (listed([str(each) for each in dict.fromkeys(part)]) for part in (values[::2], values[1::2]))
    return f"{even} on even numbers, {odd} on odd ones"


def serving_both() -> tuple[float, ...]:
    """The hops of a tree where a port serves any number of children at once."""
    return tuple(checks.hops(schedule("tree", p)) for p in (8, 16, 1024))


def twice(n: int) -> tuple[float, ...]:
    """The time of one tree over that of two, on 16, 64 and 1,024 ranks."""
    return tuple(checks.tree_seconds(p, n, 1) / checks.tree_seconds(p, n, 2) for p in (16, 64, 1024))


def over_bound(n: int) -> float:
    """The time of two trees on 64 ranks over the lower bound."""
    return checks.tree_seconds(64, n, 2) / checks.bound_seconds(64, n)


def leaves_both_ways(algorithm: str) -> tuple[int, ...]:
    """In how many steps a leaf of one tree on 32 ranks both sends and receives, with one segment and with eight."""
    leaves = set(range(32)) - inside(binary_tree(32))
    trees = (schedule(algorithm, 32, segments).steps() for segments in (1, 8))
    return tuple(sum(bool(leaves & {*step.src.tolist()} & {*step.dst.tolist()}) for step in steps) for steps in trees)


def duplex() -> float:
    """The share of the steps of two trees on 32 ranks, 32 segments, in which nine ranks in ten send and receive."""
    return float(np.mean(np.array(checks.both_ways(schedule("two_tree", 32, 32))) >= 0.9))


def half_of_bytes() -> float:
    """The share of the bytes that flow through the first of the two trees, 32 ranks."""
    trees = schedule("two_tree", 32, 4)
    rows = np.concatenate([step.chunk for step in trees.steps()])
    return float(np.mean(rows < trees.k // 2))


def steps_of_trees() -> tuple[int, ...]:
    """The steps of two trees in one segment."""
    return tuple(schedule("two_tree", p).nsteps for p in DOUBLED)


# fmt: off
ENTRIES: tuple[Claim | Excluded, ...] = (
    Claim(
        "1.1", "to hundreds of billions", "With hundreds of billions of parameters, one device is not enough.", 1.0,
        lambda: state_bytes(100e9) / H100.memory, AT_LEAST, "The state of 100 billion parameters fills {} H100.",
        "why-many-gpus",
    ),
    Excluded(
        "1.2", "estimated 1.8 trillion parameters", "GPT-4 has 1.8 trillion parameters.",
        "an estimate that nobody can check",
    ),
    Claim(
        "1.2", "would take several millennia", "One GPU would need several thousand years for GPT-4.", 2000,
        lambda: 20_000 * 3 / 12, AT_LEAST, "By the article's own estimate of GPUs and months: {} years at least.",
        "why-many-gpus", note="Arithmetic on an estimate.",
    ),
    Claim(
        "6", "under a few billion parameters", "Data parallelism suits models of a few billion parameters at most.",
        10e9, lambda: H100.memory / state_bytes(1), AT_MOST,
        "The largest state that fits into one H100 is that of {} parameters.", "why-many-gpus",
        form=lambda count: f"{float(str(count)):,.0f}",
    ),
    Claim(
        "7", "effective batch size increases with", "The effective batch grows in proportion to the number of GPUs.",
        (1.0, 2.0, 8.0), lambda: tuple(sum(shards(128, p)) / 128 for p in (1, 2, 8)), EQUAL,
        "Where a batch of 128 is divided among 1, 2 and 8 ranks, it grows by a factor of {}.", "data-parallel-training",
        Given("each GPU keeps its number of samples", lambda: tuple(sum(shards(16 * p, p)) / 16 for p in (1, 2, 8))),
    ),
    Claim(
        "11.1", "grows linearly with the number",
        "With a single master, the overhead grows linearly with the processors.", tuple(p - 1 for p in RANKS),
        lambda: tuple(overhead(p) for p in RANKS), EQUAL, f"{ON_RANKS} the root sends {{}} buffers.",
        "naive-all-reduce",
    ),
    Claim(
        "11.2", "must receive and process N×D", "With N devices, the master receives N × D bytes in N messages.",
        RANKS, lambda: tuple(checks.received(schedule("root", p), 0) for p in RANKS), EQUAL,
        f"{ON_RANKS} the root receives {{}} × D.", "parameter-server",
        Given("the master is not one of the N devices", into_master),
    ),
    Claim(
        "12.1", "only communicates with its immediate",
        "Every processor sends to one neighbour and receives from the other.",
        tuple(sorted(f"{r}>{(r + 1) % 8}" for r in range(8))), lambda: checks.neighbours(schedule("ring", 8)), EQUAL,
        "Messages of the ring on eight ranks: {}.", "ring-all-reduce",
    ),
    Claim(
        "12.2", "occurs in two phases", "Two phases: scatter-reduce and all-gather.", steps("ring"),
        lambda: tuple(2 * each for each in steps("ring", collective="all_gather")), EQUAL,
        f"{ON_RANKS}, twice an all-gather is {{}} steps, as many as the ring has.", "ring-all-reduce",
    ),
    Claim(
        "12.3", "equal chunks (one per processor)", "The data is cut into equal chunks, one for each processor.", 0,
        lambda: chunk_spread(UNEVEN), EQUAL, f"{UNEVEN:,} elements on eight ranks: the chunks differ by {{}} element.",
        "ring-all-reduce", Given("the number of processors divides the buffer", lambda: chunk_spread(1000)),
    ),
    Claim(
        "12.4 13 14", "Send chunk p - i",
        "At turn i, processor p sends chunk p − i to processor p + 1, and adds chunk p − i − 1.", (1,) * 8,
        lambda: after_turns(lambda _: 7), EQUAL,
        "Built so, for N − 1 turns on eight ranks, complete chunks on each at the end: {}.", "ring-all-reduce",
    ),
    Claim(
        "15", "repeat while i < p", "Repeat while i < p − 1, where p is the processor.", (1,) * 8,
        lambda: after_turns(lambda rank: max(1, rank - 1)), EQUAL,
        "Built so on eight ranks, complete chunks on each at the end: {}.", "ring-all-reduce",
        Given("the limit is N − 1, the number of processors less one", lambda: after_turns(lambda _: 7)),
        note=("One letter has two meanings here: the processor in the lines above, the number of processors "
              "in this one."),
    ),
    Claim(
        "16", "holds a fully reduced chunk", "Then each processor has one completely reduced chunk.", (1,) * 8,
        lambda: checks.complete_chunks(schedule("ring", 8, collective="reduce_scatter")), EQUAL, "By counts: {}.",
        "reduce-and-reduce-scatter",
    ),
    Claim(
        "17", "After N-1 steps (where N", "The all-gather takes N − 1 steps.", tuple(p - 1 for p in RANKS),
        lambda: steps("ring", collective="all_gather"), EQUAL, f"{ON_RANKS}: {{}} steps.", "scatter-gather-all-gather",
    ),
    Claim(
        "18 19.1", "The total data transferred in", "The total data transferred is 2 (N − 1) K/N.",
        tuple(2 * (p - 1) / p for p in RANKS), lambda: totals("ring"), EQUAL,
        f"{ON_RANKS} all ranks together send {{}} × K.", "ring-all-reduce",
        Given("it is what one processor sends", lambda: most("ring")), note="In all it is N times as much.",
    ),
    Claim(
        "19.2", "communicate chunks of size K/N", "In each step a chunk of K/N moves.", tuple(1 / p for p in RANKS),
        lambda: tuple(most("ring", (p,))[0] / schedule("ring", p).nsteps for p in RANKS), EQUAL,
        f"{ON_RANKS} a rank sends {{}} × K in a step.", "ring-all-reduce",
    ),
    Claim(
        "20.1", "This formula simplifies to 2K", "That simplifies to 2 K, whatever the number of processors.",
        (2.0,) * len(RANKS), lambda: most("ring"), within(0.05), f"{ON_RANKS} a rank sends {{}} × K.",
        "ring-all-reduce", Given("there are 20 processors or more", lambda: most("ring", LARGE), (2.0,) * len(LARGE)),
        note="For two processors it is K. The limit is 2 K; the formula is not.",
    ),
    Claim(
        "20.2", "the algorithm achieves bandwidth optimality", "Without latency, the ring is optimal in bandwidth.",
        (1.0,) * len(RANKS),
        lambda: checks.endless(RANKS),
        EQUAL, f"{ON_RANKS}, for a buffer so large that latency is nothing, its time over the lower bound is {{}}.",
        "ring-all-reduce",
    ),
    Claim(
        "23.1", "within the same node are", "A ring is best when GPUs of the same node are neighbours.", 4,
        lambda: cross_node(True), EQUAL,
        "On four nodes of four, {} of 16 messages of a step cross the network; where neighbours "
        "alternate nodes, all 16.",
        "hierarchical-all-reduce",
    ),
    Claim(
        "23.2", "limited by the slowest connection", "The slowest connection limits the ring's speed.", (1.0, 1.0),
        lambda: (checks.slowed(1 << 20), checks.slowed(1 << 28)), within(0.05),
        "Simulated, 16 ranks, one with a quarter of the rate: the ring's time for 1 MiB and 256 MiB, over the "
        "time if all were so slow, is {}.",
        "cluster-in-slow-motion",
    ),
    Claim(
        "27.1", "must perform 2(N-1) sequential", "Every round has 2 (N − 1) sequential steps.",
        tuple(2 * (p - 1) for p in RANKS), lambda: tuple(checks.hops(schedule("ring", p)) for p in RANKS), EQUAL,
        f"{ON_RANKS}, simulated with nothing but latency, {{}} latencies pass.", "ring-all-reduce",
    ),
    Claim(
        "27.2", "linear relationship between latency", "Latency grows linearly with the processors.", 1.0,
        lambda: growth("ring"), within(0.05),
        "From 64 to 512 ranks the steps of the closed form grow with the power {} of their number.", "ring-all-reduce",
    ),
    Claim(
        "29", "in just 10 communication steps", "With 1,024 nodes, a tree all-reduce takes log2 N = 10 steps.", 10.0,
        lambda: checks.hops(schedule("tree", 1024)), EQUAL,
        "Simulated with nothing but latency, {} hops pass on 1,024 ranks.", TREE,
        Given("it is the reduction alone", lambda: checks.hops(schedule("tree", 1024)) / 2),
        note="The result has to come down again: 20 hops, as the article says further down.",
    ),
    Claim(
        "29", "versus ring reduce's 1024 steps", "A ring takes 1,024 steps there.", 1024,
        lambda: COSTS["all_reduce", "ring"](1024).steps, within(0.05),
        "By the closed form, which the ring's schedules obey, it has {} steps.", "ring-all-reduce",
        Given("it is the reduction alone", lambda: COSTS["reduce_scatter", "ring"](1024).steps),
        note="Both numbers lack the second phase, so their ratio of about a hundred is right.",
    ),
    Claim(
        "35 36", "received value to its two", "The root and every parent send to two children.", (1.0, 1.0),
        lambda: (with_two_children(1000), with_two_children(1024)), EQUAL,
        "In complete trees of 1,000 and 1,024 ranks, {} of the inner ranks have two children.", TREE,
        Given("N is odd", lambda: (with_two_children(999), with_two_children(1023))),
        note="NCCL's tree, which this book uses, gives the root a single child.",
        form=lambda shares: checks.percentages(shares),
    ),
    Claim(
        "38", "Total latency is 2*log2(N)", "The latency is 2 log2 N steps: half up, half down.", (6.0, 8.0, 20.0),
        lambda: tuple(float(schedule("tree", p).nsteps) for p in (8, 16, 1024)), EQUAL,
        "On 8, 16 and 1,024 ranks, our schedule has {} steps: a parent's port serves one child after the other.", TREE,
        Given("a parent serves both children at once", serving_both),
    ),
    Claim(
        "39.1", "which constitute half of all", "Half of all nodes are leaves.", (0.5,) * len(COUNTS),
        lambda: tuple(1 - len(inside(binary_tree(p))) / p for p in COUNTS), EQUAL, f"{ON_COUNTS}, {{}} are leaves.",
        TREE, Given("N is even", lambda: tuple(1 - len(inside(binary_tree(p))) / p for p in EVEN), (0.5,) * len(EVEN)),
        form=lambda shares: checks.percentages(shares),
    ),
    Claim(
        "39.1 39.2", "in a half-duplex manner",
        "A leaf never sends and receives at once, and pipelining does not change that.", (0, 0),
        lambda: leaves_both_ways("overlapped_tree"), EQUAL,
        "On 32 ranks, leaves send and receive at once in {} steps, with one segment and with eight, if some segments "
        "go up while others go down.",
        TREE, Given("the broadcast waits for the end of the reduce", lambda: leaves_both_ways("tree")),
    ),
    Claim(
        "41.1", "Sanders, Traff, and Larsson", "Two trees are due to Sanders, Traff and Larsson, 2009.",
        ("Sanders", "Traff", "Larsson", "2009"),
        lambda: (*checks.surnames("sanders2009"), checks.reference("sanders2009", "year")), EQUAL,
        "The paper names {}.", TWO,
        note="Larsson is the middle name of Jesper Larsson Träff; the third author is Jochen Speck. The year is right.",
    ),
    Claim(
        "41.2", "In one tree, a node", "A node is a leaf of one tree and internal in the other.", (0,) * len(COUNTS),
        lambda: tuple(interior_in_both(p, "shift") for p in COUNTS), EQUAL,
        "Ranks that are internal in both: {}.", TWO,
        Given("N is even", lambda: tuple(interior_in_both(p, "shift") for p in EVEN), (0,) * len(EVEN)), form=by_parity,
    ),
    Claim(
        "41.3", "numbering from the original complete", "The second tree may be shifted or mirrored.",
        (0,) * 2 * len(COUNTS), lambda: either_way(COUNTS),
        EQUAL, "Ranks that are internal in both trees: {}.", TWO,
        Given("N is even", lambda: either_way(EVEN), (0,) * 2 * len(EVEN)), form=by_parity,
        note="Mirroring an odd number keeps half of the ranks internal in both. NCCL did that for a while.",
    ),
    Claim(
        "42.1", "split into two halves", "Each tree carries half of the data.", 0.5, half_of_bytes, EQUAL,
        "Counted on 32 ranks, the first tree carries {} of what is sent.", TWO, form=lambda share: f"{share:.0%}",
    ),
    Claim(
        "42.2", "nearly doubling the effective bandwidth", "Two trees nearly double the bandwidth of one.", (2.0,) * 3,
        lambda: twice(1 << 20),
        within(0.1), "1 MiB on 16, 64 and 1,024 ranks of the sample machine: {} times as fast.", TWO,
        Given("the buffer is large, such as 64 MiB", lambda: twice(64 << 20)),
        note="The one tree broadcasts after it has reduced. Two trees gain at most 1.5 over one that overlaps the two.",
    ),
    Claim(
        "42.3", "vast majority of steps achieve", "In most steps, almost all ranks send and receive at once.", 0.8,
        duplex, AT_LEAST, "32 ranks, 32 segments: nine ranks in ten do so in {} of the steps.", TWO,
        form=lambda share: f"{share:.0%}",
    ),
    Claim(
        "42.4 43", "logarithmic number of steps", "Two trees take O(log N) steps.",
        tuple(4 * height(p) for p in DOUBLED), steps_of_trees, AT_MOST,
        "On 16, 64, 256 and 1,024 ranks the schedules have {} steps, less than 4 log2 N.", TWO,
    ),
    Claim(
        "45", "In 2019, NVIDIA published", "The article of 2019 compares ring, hierarchical ring and two trees.", 3,
        lambda: len(published.IMAGES[256]), EQUAL, "Its last figure shows {} series.", "massive-scale",
        note="Its figures of latency and bandwidth show two: no hierarchical ring.",
    ),
    Claim(
        "47", "with near-full bandwidth utilization", "Two trees use nearly the full bandwidth.", 1.0,
        lambda: over_bound(1 << 20), within(0.1),
        "1 MiB on 64 ranks of the sample machine takes {} times the lower bound.", TWO,
        Given("the buffer is large, such as 1 GiB", lambda: over_bound(1 << 30)),
    ),
    Excluded(
        "48.1", "20,000-25,000 NVIDIA A100", "GPT-4 took 20,000 to 25,000 A100 for 3 to 4 months.",
        "an estimate that nobody can check",
    ),
    Claim(
        "48.2", "between 5,000 to 8,300", "One A100 would take 5,000 to 8,300 years.", (5000.0, 8300.0),
        lambda: (20_000 * 3 / 12, 25_000 * 4 / 12), within(0.01), "The least of its numbers, and the most: {} years.",
        "why-many-gpus",
    ),
)

SOURCE = Source(
    "Subonis", "subonis", "paragraph",
    {
        "1": 2, "6": 1, "7": 1, "11": 2, "12": 4, "13": 1, "14": 1, "15": 1, "16": 1, "17": 1, "18": 1, "19": 2,
        "20": 2, "23": 2, "27": 2, "29": 1, "35": 1, "36": 1, "38": 1, "39": 2, "41": 3, "42": 4, "43": 1, "45": 1,
        "47": 1, "48": 2,
    },
    ENTRIES,
)
# fmt: on
