"""What the entries of several sources are checked with: counts of schedules, times of models, recorded rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from collectives.algorithms import COSTS, build, names
from collectives.algorithms.binary_tree import NO_PARENT
from collectives.bench.results import read
from collectives.bounds import best_segments, lower_bound, pipelined_seconds
from collectives.interpret import run
from collectives.machine import Link, Machine
from collectives.schedule import Ints, Schedule, ScheduleError, Step
from collectives.simulator.simulation import simulate
from collectives.traffic import traffic
from collectives.verify import verify
from collectives_book.claims.ledger import Value
from collectives_book.figures.statements import span

RANKS = (2, 3, 4, 8, 9, 64)
ON_RANKS = "On 2, 3, 4, 8, 9 and 64 ranks"
# A node of the book's sample machine sends a message in 5 us and 25 GB/s.
ALPHA, RATE = 5e-6, 25e9
UNIT = 1000  # elements of a chunk, where bytes are counted

# The ledger belongs to the book's checkout: a wheel has neither the recorded rows nor the list of references.
CHECKOUT = Path(__file__).resolve().parents[3]


def in_checkout(*parts: str) -> Path:
    """A path of the checkout; raises FileNotFoundError where this package is installed without one."""
    if not (CHECKOUT / "chapters").is_dir() or not (CHECKOUT / "experiments").is_dir():
        raise FileNotFoundError(f"no checkout: got {CHECKOUT}, expected a folder with chapters/ and experiments/")
    return CHECKOUT.joinpath(*parts)


@cache
def rows(name: str) -> Any:
    """Recorded rows, such as ``reference/slow-motion/scaling``."""
    return read(in_checkout("experiments", "results", name))[0]


@cache
def schedule(algorithm: str, p: int, segments: int | None = None, collective: str = "all_reduce") -> Schedule:
    """One of the library's schedules."""
    return build(collective, algorithm, p, segments=segments)


def steps(algorithm: str, ranks: Sequence[int] = RANKS, collective: str = "all_reduce") -> tuple[int, ...]:
    """The number of steps on each number of ranks."""
    return tuple(schedule(algorithm, p, collective=collective).nsteps for p in ranks)


@cache
def sent(schedule: Schedule) -> tuple[float, ...]:
    """What each rank sends, in buffers."""
    n = schedule.k * UNIT
    return tuple(float(each) / n for each in traffic(schedule, n).sent)


def received(schedule: Schedule, rank: int) -> float:
    """What one rank receives, in buffers."""
    n = schedule.k * UNIT
    return float(traffic(schedule, n).received[rank]) / n


def totals(algorithm: str, ranks: Sequence[int] = RANKS) -> tuple[float, ...]:
    """What all ranks send together, in buffers, on each number of ranks."""
    return tuple(round(sum(sent(schedule(algorithm, p))), 9) for p in ranks)


def most(algorithm: str, ranks: Sequence[int] = RANKS) -> tuple[float, ...]:
    """What the busiest rank sends, in buffers, on each number of ranks."""
    return tuple(max(sent(schedule(algorithm, p))) for p in ranks)


def is_proved(schedule: Schedule) -> bool:
    """Whether `verify` accepts a schedule."""
    try:
        verify(schedule)
    except ScheduleError:
        return False
    return True


@cache
def all_proved(ranks: tuple[int, ...]) -> bool:
    """Whether `verify` accepts every all-reduce of the library on these numbers of ranks."""
    return all(is_proved(schedule(name, p)) for name in names("all_reduce") for p in ranks)


def complete_chunks(schedule: Schedule) -> tuple[int, ...]:
    """How many chunks each rank holds to which every rank has contributed exactly once."""
    held = np.zeros((schedule.p, schedule.k, schedule.p), dtype=np.int64)
    held[np.arange(schedule.p), :, np.arange(schedule.p)] = 1
    return tuple(int(each) for each in (run(schedule, held) == 1).all(axis=2).sum(axis=1))


def rotating(p: int, turns: Callable[[int], int]) -> Schedule:
    """Scatter-reduce as two sources number it: at turn i rank r sends chunk r - i to rank r + 1, ``turns(r)`` times."""
    wanted = np.array([turns(rank) for rank in range(p)])

    def make(t: int) -> Step:
        rank = np.flatnonzero(wanted > t)
        return Step(rank, (rank + 1) % p, (rank - t) % p, add=True)

    return Schedule("reduce_scatter", p, p, int(wanted.max()), make)


def neighbours(schedule: Schedule) -> tuple[str, ...]:
    """Every pair of ranks that exchanges a message, as ``0>1``."""
    pairs = {(int(a), int(b)) for step in schedule.steps() for a, b in zip(step.src, step.dst, strict=True)}
    return tuple(f"{a}>{b}" for a, b in sorted(pairs))


def inside(parent: Ints) -> set[int]:
    """The ranks of a tree that have children."""
    return set(parent[parent != NO_PARENT].tolist())


def children(parent: Ints) -> list[int]:
    """How many children each rank has."""
    return [int(count) for count in np.bincount(parent[parent != NO_PARENT], minlength=len(parent))]


def both_ways(schedule: Schedule) -> list[float]:
    """Of each step: the share of the ranks that send and receive in it."""
    return [len(np.intersect1d(step.src, step.dst)) / schedule.p for step in schedule.steps()]


def flat_seconds(algorithm: str, p: int, n: float) -> float:
    """The closed form on the sample machine."""
    return COSTS["all_reduce", algorithm](p).seconds(n, ALPHA, 1 / RATE)


def tree_seconds(p: int, n: float, trees: int) -> float:
    """One tree or two with the best number of segments, on the sample machine."""
    return pipelined_seconds(p, n, best_segments(p, n, ALPHA, 1 / RATE, trees), ALPHA, 1 / RATE, trees)


def bound_seconds(p: int, n: float) -> float:
    """No all-reduce is faster on the sample machine."""
    return lower_bound("all_reduce", p, n, ALPHA, 1 / RATE)


def endless(ranks: Sequence[int]) -> tuple[float, ...]:
    """A ring's time over the lower bound, for a buffer so large that its latency counts for nothing."""
    return tuple(round(flat_seconds("ring", p, 1e18) / bound_seconds(p, 1e18), 6) for p in ranks)


def hops(schedule: Schedule) -> float:
    """How many latencies pass one after the other: the time of a few bytes where nothing else takes time."""
    only = Machine(name="latency only", network=Link(latency=1.0, overhead=0.0, rate=1e30))
    return round(simulate(schedule, only, schedule.k * 4).seconds, 6)


def slowed(n: int, factor: float = 4.0) -> float:
    """The time of a ring with one slow node, over that with all links as slow: 16 ranks of the sample machine."""
    ring = schedule("ring", 16)
    one = Machine(name="one slow", network=Link(overhead=ALPHA, rate=RATE), slower={3: factor})
    every = Machine(name="all slow", network=Link(overhead=ALPHA, rate=RATE / factor))
    return round(simulate(ring, one, n).seconds / simulate(ring, every, n).seconds, 6)


def ends(value: Value) -> str:
    """Of many values the least and the most."""
    several = value if isinstance(value, tuple) else (value,)
    return span([float(each) for each in several], "{:.3g}".format)


def percentages(value: Value) -> str:
    """Shares as a list of per cents, the least and the most where they differ."""
    several = sorted(
        {f"{each:.1%}" for each in (value if isinstance(value, tuple) else (value,))}, key=lambda one: float(one[:-1])
    )
    return several[0] if len(several) == 1 else f"{several[0]} to {several[-1]}"


def reference(key: str, field: str) -> str:
    """A field of the book's list of references."""
    text = in_checkout("chapters", "references.bib").read_text(encoding="utf8")
    entry = text.partition(f"{{{key},")[2].partition("\n}")[0]
    return next(line.partition("{")[2].rstrip("},") for line in entry.splitlines() if line.strip().startswith(field))


def surnames(key: str) -> tuple[str, ...]:
    """The authors of a reference."""
    return tuple(name.partition(",")[0] for name in reference(key, "author").split(" and "))
