"""The claims of the article that leads from the ring to two trees."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from collectives.algorithms import COSTS
from collectives_book.claims import checks
from collectives_book.claims.checks import ON_RANKS, RANKS, most, schedule, sent, steps, totals
from collectives_book.claims.lecture import shards
from collectives_book.claims.ledger import AT_LEAST, AT_MOST, EQUAL, Claim, Excluded, Given, Source, within
from collectives_book.claims.subonis_trees import TREES
from collectives_book.needs import H100, state_bytes

LARGE = (20, 64, 256)
UNEVEN = 1001


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
    *TREES,
)
# fmt: on

SOURCE = Source(
    "Subonis",
    "subonis",
    "paragraph",
    {
        "1": 2,
        "6": 1,
        "7": 1,
        "11": 2,
        "12": 4,
        "13": 1,
        "14": 1,
        "15": 1,
        "16": 1,
        "17": 1,
        "18": 1,
        "19": 2,
        "20": 2,
        "23": 2,
        "27": 2,
        "29": 1,
        "35": 1,
        "36": 1,
        "38": 1,
        "39": 2,
        "41": 3,
        "42": 4,
        "43": 1,
        "45": 1,
        "47": 1,
        "48": 2,
    },
    ENTRIES,
)
