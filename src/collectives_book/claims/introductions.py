"""The claims of two introductions to the ring: an issue of the Daily Dose of Data Science, and a page of ApX."""

from __future__ import annotations

import numpy as np

from collectives.interpret import apply, run
from collectives_book.claims import checks
from collectives_book.claims.checks import ON_RANKS, RANKS, most, schedule, sent, steps, totals
from collectives_book.claims.ledger import AT_MOST, EQUAL, LESS, Claim, Excluded, Given, Source, within

PHASES = "reduce_scatter", "all_gather"
LARGE = (20, 64, 256)


def sums_after(turns: int) -> tuple[str, ...]:
    """Whose parts are in chunks 1 to 4, on the rank that received each last; our ring calls the chunks 3, 0, 1, 2."""
    ring, held = schedule("ring", 4), np.array([[letter] * 4 for letter in "abcd"], dtype=object)
    for t in range(turns):
        apply(ring.step(t), held)
    return tuple("".join(sorted(held[(c + turns) % 4, (c - 1) % 4])) for c in range(4))


def through(rank: int, p: int) -> float:
    """Buffers that one rank of the single-root all-reduce receives."""
    return round(checks.received(schedule("root", p), rank), 9)


def busiest_share(algorithm: str, p: int) -> float:
    """The share of all transfers in which the busiest rank takes part."""
    transfers = schedule(algorithm, p)
    ends = [out + checks.received(transfers, rank) for rank, out in enumerate(sent(transfers))]
    return max(ends) / sum(sent(transfers))


def both_phases() -> tuple[int, ...]:
    """The steps of a reduce-scatter and of an all-gather together."""
    return tuple(a + b for a, b in zip(*(steps("ring", collective=each) for each in PHASES), strict=True))


def behind_bound(n: float) -> float:
    """A ring's time over the least possible, 64 ranks of the sample machine."""
    return checks.flat_seconds("ring", 64, n) / checks.bound_seconds(64, n)


def sums() -> tuple[int, ...]:
    """Element 0 of every rank after a ring on 8 ranks, where rank i starts with i squared."""
    held = np.repeat((np.arange(8) ** 2)[:, None], 8, axis=1)
    return tuple(int(each) for each in run(schedule("ring", 8), held)[:, 0])


def adds(half: int) -> tuple[bool, ...]:
    """Whether all messages of one half of a ring on four ranks are added where they arrive."""
    ring = schedule("ring", 4)
    return tuple(bool(step.add.all()) for step in list(ring.steps())[3 * half : 3 * half + 3])


def growth(algorithm: str) -> float:
    """By how much 100 MB take longer on 64 ranks than on 4, on the sample machine."""
    return checks.flat_seconds(algorithm, 64, 1e8) / checks.flat_seconds(algorithm, 4, 1e8)


# fmt: off
DAILY_DOSE_ENTRIES: tuple[Claim | Excluded, ...] = (
    Excluded(
        "2 4", "Two synchronization algorithms", "Two algorithms will be shown.", "announces the text",
    ),
    Claim(
        "15", "from one GPU device to", "Every GPU sends its gradients to all others, and averages for itself.", True,
        lambda: all(checks.is_proved(schedule("exchange", p)) for p in RANKS), EQUAL,
        f"`verify` proves `exchange`. {ON_RANKS}: {{}}.", "naive-all-reduce",
    ),
    Excluded(
        "18", "single matrix with", "Each GPU has N elements.", "defines a symbol",
    ),
    Claim(
        "19", "this results in a total", "That transfers G (G − 1) N elements. (The formula is a picture.)",
        tuple(p * (p - 1) for p in RANKS), lambda: totals("exchange"), EQUAL,
        f"{ON_RANKS} the schedules send {{}} times N in all.", "naive-all-reduce",
    ),
    Claim(
        "20", "all the elements to one", "One GPU gathers, averages and returns everything.", True,
        lambda: all(checks.is_proved(schedule("root", p)) for p in RANKS), EQUAL,
        f"`verify` proves `root`. {ON_RANKS}: {{}}.", "naive-all-reduce",
    ),
    Claim(
        "22", "to the 1st GPU", "First, G − 1 GPUs send N elements each to one GPU.", tuple(p - 1 for p in RANKS),
        lambda: tuple(through(0, p) for p in RANKS), EQUAL, f"{ON_RANKS} the root receives {{}} times N.",
        "naive-all-reduce",
    ),
    Claim(
        "23", "1st GPU transfers", "Then that GPU sends N elements to each of G − 1 GPUs.",
        tuple(p - 1 for p in RANKS), lambda: tuple(sent(schedule("root", p))[0] for p in RANKS), EQUAL,
        f"{ON_RANKS} the root sends {{}} times N.", "naive-all-reduce",
    ),
    Claim(
        "24", "total transfers are significantly lower", "Through one GPU, the transfers are fewer than G (G − 1) N.",
        tuple(p * (p - 1) for p in RANKS), lambda: totals("root"), LESS,
        f"{ON_RANKS} the root's schedules send {{}} times N in all.", "naive-all-reduce",
        Given("there are more than two GPUs", lambda: totals("root", RANKS[1:]), tuple(p * (p - 1) for p in RANKS[1:])),
        note="Two GPUs exchange 2 N either way.",
    ),
    Claim(
        "25", "Since a single GPU is", "A single GPU does not scale: its load grows with the number of GPUs.",
        tuple(2 * (p - 1) for p in RANKS), lambda: tuple(through(0, p) + sent(schedule("root", p))[0] for p in RANKS),
        EQUAL, f"{ON_RANKS}, {{}} times N pass the root: 2 (G − 1) N, in proportion.", "naive-all-reduce",
    ),
    Claim(
        "28", "There are two phases", "The ring has two phases, of equal length.", tuple(2 * (p - 1) for p in RANKS),
        both_phases,
        EQUAL, f"{ON_RANKS}, the steps of a reduce-scatter and of an all-gather add up to {{}}.", "ring-all-reduce",
    ),
    Claim(
        "33", "divided into G segment", "The gradients are cut into G segments.", RANKS,
        lambda: tuple(schedule("ring", p).k for p in RANKS), EQUAL, f"{ON_RANKS} the schedule has {{}} chunks.",
        "ring-all-reduce",
    ),
    Claim(
        "35 36 37 38", "GPU-0 sends a₁ to GPU-1",
        "In the first iteration a₁ meets b₁, b₂ meets c₂, c₃ meets d₃, d₄ meets a₄.", ("ab", "bc", "cd", "ad"),
        lambda: sums_after(1), EQUAL, "Step 0 of our ring, run on letters, leaves {}.", "ring-all-reduce",
        note="Its chunk 1 is our chunk 3: our rank r first sends chunk r − 1, and ends with chunk r.",
    ),
    Claim(
        "41 42 43 44", "GPU-0 sends (d₄+a₄) to GPU-1", "In the second one three parts of each segment are summed.",
        ("abc", "bcd", "acd", "abd"), lambda: sums_after(2), EQUAL, "Step 1 of our ring, run on letters, leaves {}.",
        "ring-all-reduce",
    ),
    Claim(
        "49", "every GPU has one entire", "After share-reduce every GPU has one complete segment.", (1, 1, 1, 1),
        lambda: checks.complete_chunks(schedule("ring", 4, collective="reduce_scatter")), EQUAL,
        "Complete chunks on the four ranks, by counts: {}.", "reduce-and-reduce-scatter",
    ),
    Claim(
        "53 54 55", "Finally, iteration 3 is shown", "Share-only takes three iterations on four GPUs.", 3,
        lambda: schedule("ring", 4, collective="all_gather").nsteps, EQUAL, "The ring's all-gather has {} steps.",
        "scatter-gather-all-gather",
    ),
    Claim(
        "58", "the same as we had", "In all, the ring transfers as many elements as the single GPU: 2 (G − 1) N.",
        totals("root"), lambda: totals("ring"), EQUAL, f"{ON_RANKS} the ring sends {{}} times N in all.",
        "ring-all-reduce",
    ),
    Claim(
        "59", "entire load on one GPU", "The ring does not put all of it on one GPU.", 1.0,
        lambda: busiest_share("ring", 8), LESS,
        "Of eight GPUs, the busiest takes part in {} of the ring's transfers. With a single root it takes part in all.",
        "ring-all-reduce", form=lambda share: f"{share:.0%}",
    ),
    Claim(
        "62", "small and intermediate models", "Ring-reduce suits small and intermediate models only.", 1.0,
        lambda: behind_bound(1e6) / behind_bound(1e10), AT_MOST,
        "On 64 ranks of the sample machine, a ring's time over the lower bound is {} times as high for "
        "1 MB as for 10 GB.",
        "ring-all-reduce",
        note="The ring gets better as the model grows. What ends is data parallelism: the model must fit into one GPU.",
    ),
    Excluded(
        "70 71", "84,000 data scientists", "How many readers there are.", "an advertisement",
    ),
)

DAILY_DOSE = Source(
    "Daily Dose", "dailydose", "paragraph",
    {
        "2": 1, "4": 1, "15": 1, "18": 1, "19": 1, "20": 1, "22": 1, "23": 1, "24": 1, "25": 1, "28": 1, "33": 1,
        "35": 1, "36": 1, "37": 1, "38": 1, "41": 1, "42": 1, "43": 1, "44": 1, "49": 1, "53": 1, "54": 1, "55": 1,
        "58": 1, "59": 1, "62": 1, "70": 1, "71": 1,
    },
    DAILY_DOSE_ENTRIES,
)

APX_ENTRIES: tuple[Claim | Excluded, ...] = (
    Claim(
        "1", "number of workers (N) increases", "A central server's load grows with the number N of workers.",
        tuple(p - 1 for p in RANKS), lambda: tuple(checks.received(schedule("root", p), 0) for p in RANKS), EQUAL,
        f"{ON_RANKS} the root receives {{}} buffers.", "parameter-server",
        note="One of the N is the server here, so the load is N − 1.",
    ),
    Claim(
        "2", "available to all N workers",
        "An all-reduce combines the data of N workers and gives all of them the result.", True,
        lambda: checks.all_proved((2, 3, 4, 8, 9)), EQUAL,
        "`verify` counts every contribution of all all-reduces of this book. On 2, 3, 4, 8 and 9 ranks: {}.", "trust",
    ),
    Claim(
        "3", "same final gradient", "Every worker ends with the sum of G_i for i from 0 to N − 1.",
        (sum(i**2 for i in range(8)),) * 8, sums, EQUAL,
        "On eight ranks that start with the squares of 0 to 7, a ring leaves {}.", "data-parallel-training",
    ),
    Claim(
        "4", "all data through one point", "An all-reduce does not send all data through one point.", 1.0,
        lambda: busiest_share("ring", 8), LESS, "Of eight workers, the busiest takes part in {} of a ring's transfers.",
        "ring-all-reduce", form=lambda share: f"{share:.0%}",
    ),
    Claim(
        "5.1", "worker 0 connects to 1", "Worker r is joined to worker r + 1, and the last one to worker 0.",
        tuple(sorted(f"{r}>{(r + 1) % 8}" for r in range(8))), lambda: checks.neighbours(schedule("ring", 8)), EQUAL,
        "Messages of the ring on eight ranks: {}.", "ring-all-reduce",
    ),
    Claim(
        "5.2 8.1", "in two main phases", "The ring has two phases.", (True, True, True, False, False, False),
        lambda: adds(0) + adds(1), EQUAL, "On four ranks (steps 0 to 5), a step's messages are added: {}.",
        "ring-all-reduce",
    ),
    Claim(
        "8.2", "Phase 1 involves sending", "Phase 1 accumulates sums.", (1, 1, 1, 1),
        lambda: checks.complete_chunks(schedule("ring", 4, collective="reduce_scatter")), EQUAL,
        "Complete chunks on each of the four ranks after it: {}.", "reduce-and-reduce-scatter",
    ),
    Claim(
        "8.3", "Phase 2 involves circulating", "Phase 2 circulates them until all workers have all.", (4, 4, 4, 4),
        lambda: checks.complete_chunks(schedule("ring", 4)), EQUAL,
        "Complete chunks on each of the four ranks after it: {}.", "scatter-gather-all-gather",
    ),
    Claim(
        "9.1", "less dependent on the number",
        "For large messages, a ring's time depends less on N than a naive server's.", 1.0,
        lambda: growth("ring") / growth("root"), LESS,
        "100 MB on 64 ranks of the sample machine instead of 4: the ring's time grows {} times as much as the root's.",
        "ring-all-reduce",
    ),
    Claim(
        "9.2", "only sends and receives roughly",
        "Each worker sends and receives roughly twice the data, whatever N is.", (2.0,) * len(RANKS),
        lambda: most("ring"), within(0.05), f"{ON_RANKS} each rank sends {{}} buffers.", "ring-all-reduce",
        Given("N is 20 or more", lambda: most("ring", LARGE), (2.0,) * len(LARGE)),
        note="It is 2 (N − 1)/N: one buffer for two workers, one and a half for four.",
    ),
    Claim(
        "9.2", "(split across 2(N−1) steps)", "The ring has 2 (N − 1) steps.", tuple(2 * (p - 1) for p in RANKS),
        lambda: steps("ring"), EQUAL, f"{ON_RANKS} the schedule has {{}} steps.", "ring-all-reduce",
    ),
    Claim(
        "9.3", "and the slowest link's bandwidth", "A ring's time depends on its slowest link.", (1.0, 1.0),
        lambda: (checks.slowed(1 << 20), checks.slowed(1 << 28)), within(0.05),
        "Simulated, 16 ranks, one of them with a quarter of the rate: the ring's time for 1 MiB and 256 MiB, over "
        "the time if all were so slow, is {}.",
        "cluster-in-slow-motion",
    ),
    Excluded(
        "12", "© 2025", "The year.", "a copyright line",
    ),
)

APX = Source(
    "ApX", "apx", "paragraph",
    {"1": 1, "2": 1, "3": 1, "4": 1, "5": 2, "8": 3, "9": 3, "12": 1},
    APX_ENTRIES,
)
# fmt: on
