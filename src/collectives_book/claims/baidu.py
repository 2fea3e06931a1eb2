"""The claims of Baidu's post on the ring all-reduce: an excerpt of two sections, and what is known of the rest."""

from __future__ import annotations

from typing import Any

from collectives.simulator import overlap
from collectives_book.claims import checks
from collectives_book.claims.checks import received, schedule, sent
from collectives_book.claims.ledger import AT_LEAST, EQUAL, LESS, Claim, Excluded, Given, Source, within
from collectives_book.overlap.layers import BACKWARD
from collectives_book.weak_scaling.published import (
    COMPUTING,
    GRADIENTS,
    RANKS_PER_NODE,
    SAMPLES,
    SAVED,
    ring_seconds,
)

PARAMETERS = 300e6
FROM_20 = tuple(range(20, 41))
RING = "hiding-communication"


def measured(buckets: int, ranks: int) -> Any:
    """The recorded row of that many buckets on that many workers."""
    found = checks.rows("reference/slow-motion/weak-scaling")
    return next(found[(found.buckets == buckets) & (found.ranks == ranks)].itertuples())


def gigabytes(ranks: tuple[int, ...]) -> tuple[float, ...]:
    """What a rank of the ring sends of Baidu's gradients."""
    return tuple(max(sent(schedule("ring", p))) * GRADIENTS / 1e9 for p in ranks)


def seconds(row: Any) -> float:
    """The exposed time of a row, in the time of the original."""
    return float(row.median_us / row.slower / 1e6)


def faster(ranks: int, than: int) -> float:
    """Samples per second, measured without overlap."""
    return float(measured(1, ranks).per_second / measured(1, than).per_second)


def through_root(back: bool) -> tuple[float, ...]:
    """Seconds for the gradients of 2 and of 10 ranks to pass a root's port at 1 GB/s, and perhaps back again."""
    roots = [schedule("root", p) for p in (2, 10)]
    return tuple(round((received(each, 0) + back * sent(each)[0]) * GRADIENTS / 1e9, 9) for each in roots)


def overlapped(buckets: int = 4) -> float:
    """Exposed seconds of 40 GPUs by the model of two lanes."""
    each = ring_seconds(40) / buckets
    return overlap.exposed(overlap.ready_times(buckets, BACKWARD * COMPUTING), [each] * buckets)


# fmt: off
ENTRIES: tuple[Claim | Excluded, ...] = (
    Claim(
        "1", "to dozens of GPUs", "Data-parallel training scales to dozens of GPUs.", 1.0, lambda: faster(40, 32),
        AT_LEAST, "Measured on emulated hosts: 40 workers have {} times the throughput of 32, so it still grows.",
        RING,
        note=f"By Baidu's plot, each of the 40 has {SAMPLES[40] / 40 / SAMPLES[1]:.0%} of the speed of one alone.",
    ),
    Claim(
        "3.1", "total gradient size of 1.2", "300 million parameters make gradients of 1.2 GB.", 1.2,
        lambda: PARAMETERS * 4 / 1e9, EQUAL, "Four bytes each are {} GB.", RING,
    ),
    Claim(
        "3.2", "about 2.4 gigabytes of data", "Each GPU sends and receives about 2.4 GB.",
        tuple(2.4 for _ in range(2, 41)), lambda: gigabytes(tuple(range(2, 41))), within(0.05),
        "On 2 to 40 ranks, the busiest rank of the ring sends {} GB.", RING,
        Given("there are 20 GPUs or more", lambda: gigabytes(FROM_20), tuple(2.4 for _ in FROM_20)),
        note="It is 2 (N − 1)/N times 1.2 GB: half as much on two GPUs, and never quite 2.4 GB.", form=checks.ends,
    ),
    Excluded(
        "3.3", "roughly 10 gigabytes per second", "GPUDirect carries 10 GB/s, InfiniBand 6 GB/s.",
        "a measurement of hardware that cannot be had here; our emulated links take both values",
    ),
    Claim(
        "3.4 4", "a single iteration requires about", "So an all-reduce takes 2.4 GB / (6 GB/s) ≈ 400 ms.", 0.4,
        lambda: seconds(measured(1, 40)), within(0.05),
        "Measured with 40 workers on scaled links: {} s. The formula without rounding has 0.39 s.", RING,
    ),
    Claim(
        "5", "may be less than 400", "With overlap, the overhead may be less than 400 ms.", (0.4, 0.4),
        lambda: (overlapped(), seconds(measured(4, 40))), LESS,
        "In four buckets, by the model of two lanes and measured on 40 workers: {} s.", RING,
    ),
    Claim(
        "6.1", "no communication overhead", "A single GPU has no communication.", (0.0,),
        lambda: sent(schedule("ring", 1)), EQUAL, "The ring of one rank sends {} buffers.", RING,
    ),
    Claim(
        "6.2", "5 nodes with 8 GPUs", "Five nodes of eight GPUs are 40 GPUs.", 40, lambda: 5 * RANKS_PER_NODE, EQUAL,
        "The experiment here has {} workers in such groups.", RING,
    ),
    Excluded(
        "6.3", "for 300 iterations with a", "300 iterations with a batch of 32.",
        "describes an experiment; its results are not in the excerpt",
    ),
    Claim(
        "post.1", "outside the excerpt",
        "With one root and 1 GB/s, ten GPUs need 10.8 s for the gradients (two GPUs: 1.2 s).", (1.2, 10.8),
        lambda: through_root(back=True),
        EQUAL, "Into the root and out of it again: {} s.", "naive-all-reduce",
        Given("only the way to the root counts", lambda: through_root(back=False)),
    ),
    Claim(
        "post.2", "outside the excerpt", "The ring transfers 2 (N − 1) N/K per GPU, of K bytes on N GPUs.",
        2 * 39 * 40 / GRADIENTS, lambda: gigabytes((40,))[0] * 1e9, EQUAL,
        "For N = 40 and K = 1.2 GB the schedule sends {}.", "ring-all-reduce",
        note="A misprint: with K/N, the fraction turned over, it is right.",
        form=lambda each: f"{float(str(each)) / 1e9:.2f} GB",
    ),
    Claim(
        "post.3", "outside the excerpt", "The throughput grows linearly with the GPUs.", (40.0),
        lambda: (faster(40, 1)), within(0.05), "Measured, 40 workers over one: {} times.", RING,
        Given("all of them span several nodes", lambda: (faster(40, 16)), (40 / 16)),
        note=("From 16 to 40 workers it is a straight line; what is lost is lost on the way from one worker "
              "to several nodes."),
    ),
    Claim(
        "post.4", "outside the excerpt", "On 40 GPUs, overlap saves 70 ms or more of a step.", SAVED[0],
        lambda: seconds(measured(1, 40)) - seconds(measured(4, 40)), AT_LEAST,
        "Measured with equal buckets: {} s saved.", RING,
        note="A real model's buckets are not equal, so it saves less.",
    ),
)

SOURCE = Source(
    "Baidu", "gibiansky2017", "paragraph",
    {"1": 1, "3": 4, "4": 1, "5": 1, "6": 3, "post": 4},
    ENTRIES,
)
# fmt: on
