"""The simulator's benchmark: messages per second and peak memory, each goal in its own process."""

import resource
import sys
import time
from collections.abc import Callable, Sequence
from itertools import product
from typing import NamedTuple

from collectives.machine import machine
from collectives.processes import workers
from collectives.simulator.scaling import Case, Row, row, rows

FIGURE_RANKS = tuple(96 << i for i in range(9))
FIGURE_ALGORITHMS = ("ring", "hierarchical_ring", "hierarchical_tree")
SMALL, LARGE = 8, 64 << 20


class Goal(NamedTuple):
    """Cases to simulate, and the seconds that two cores may take."""

    what: str
    cases: list[Case]
    seconds: float


def goals() -> list[Goal]:
    """Return the goals: a ring of 1.2 billion messages, two trees up to a million ranks, and a whole figure set.

    >>> [goal.what for goal in goals()][:2]
    ['ring, 64 MiB', 'two_tree, 8 B']
    """
    summit, plain = machine("summit"), machine("textbook")
    figures = [
        Case("all_reduce", algorithm, ranks, nbytes, summit, 128 if nbytes == LARGE else 1)
        for ranks, algorithm, nbytes in product(FIGURE_RANKS, FIGURE_ALGORITHMS, (SMALL, LARGE))
    ]
    return [
        Goal("ring, 64 MiB", [Case("all_reduce", "ring", 24_576, LARGE, summit, 1)], 1),
        Goal("two_tree, 8 B", [Case("all_reduce", "two_tree", 24_576, SMALL, summit, 1)], 1),
        Goal("two_tree, 64 MiB in 64 segments", [Case("all_reduce", "two_tree", 24_576, LARGE, plain, 64)], 1),
        Goal("two_tree, 8 B, a million ranks", [Case("all_reduce", "two_tree", 1 << 20, SMALL, plain, 1)], 60),
        Goal("two_tree, 1 MiB, a million ranks", [Case("all_reduce", "two_tree", 1 << 20, 1 << 20, plain, 16)], 60),
        Goal("9 counts x 3 algorithms x 2 sizes", figures, 60),
    ]


def benchmark(on_row: Callable[[Row], None], wanted: Sequence[Goal] | None = None) -> None:
    """Measure these goals, or all; report a row for each, with the wanted and the measured seconds."""
    for goal in goals() if wanted is None else wanted:
        on_row(_measured_apart(goal))


def _measured_apart(goal: Goal) -> Row:
    """Measure a goal in a fresh process, so that its peak memory is that of the goal alone."""
    with workers(1, fresh=True) as pool:
        return pool.submit(_measured, goal).result()


def _measured(goal: Goal) -> Row:
    for algorithm, nbytes in product(("ring", "two_tree"), (SMALL, 64)):  # compiled, or read from the cache
        row(Case("all_reduce", algorithm, 16, nbytes, machine("textbook"), 1))
    start = time.perf_counter()
    simulated = rows(goal.cases)
    seconds = time.perf_counter() - start
    messages = sum(one["messages"] for one in simulated)
    return {
        "what": goal.what,
        "ranks": max(case.ranks for case in goal.cases),
        "messages": messages,
        "seconds": round(seconds, 3),
        "wanted_seconds": goal.seconds,
        "messages_per_second": round(messages / seconds),
        "peak_mib": round(max(map(_peak_mib, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))),
    }


def _peak_mib(who: int) -> float:
    """Return the peak memory in MiB; Linux counts KiB, macOS bytes."""
    return resource.getrusage(who).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def lines(measured: Row) -> str:
    """Describe a row in one line."""
    return (
        f"{measured['what']:<36}{measured['ranks']:>10,}{measured['messages']:>15,}{measured['seconds']:>9.2f} s"
        f"{measured['wanted_seconds']:>7g} s{measured['messages_per_second'] / 1e6:>10.1f} M/s"
        f"{measured['peak_mib']:>8,} MiB"
    )


HEADING = f"{'what':<36}{'ranks':>10}{'messages':>15}{'took':>11}{'wanted':>9}{'messages':>14}{'memory':>12}"
