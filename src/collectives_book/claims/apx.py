"""The claims of ApX Machine Learning's page on all-reduce."""

from __future__ import annotations

import numpy as np

from collectives.interpret import run
from collectives_book.claims import checks
from collectives_book.claims.checks import ON_RANKS, RANKS, most, schedule, steps
from collectives_book.claims.dailydose import busiest_share
from collectives_book.claims.ledger import EQUAL, LESS, Claim, Excluded, Given, Source, within

LARGE = (20, 64, 256)


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
ENTRIES: tuple[Claim | Excluded, ...] = (
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
# fmt: on

SOURCE = Source(
    "ApX",
    "apx",
    "paragraph",
    {"1": 1, "2": 1, "3": 1, "4": 1, "5": 2, "8": 3, "9": 3, "12": 1},
    ENTRIES,
)
