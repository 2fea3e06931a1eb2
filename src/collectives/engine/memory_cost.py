"""Predict a call in shared memory, by steps and by the bytes that a rank reads, and choose an algorithm for it.

Messages cost nothing by themselves there, because a step that reads from all peers is one wait. So
the closed forms of `collectives.autotune`, which count messages, do not hold. `probe` measures what
a step and a byte take.
"""

from functools import cache

from collectives.algorithms import build, candidates
from collectives.core.contracts import ROOTED
from collectives.core.traffic import traffic


def choose_by_reads(collective: str, p: int, nbytes: int, alpha: float, beta: float) -> str:
    """Return the algorithm with the least ``alpha * steps + beta * bytes``, those that the busiest rank reads.

    >>> [choose_by_reads("all_reduce", 4, nbytes, alpha=1e-5, beta=1e-9) for nbytes in (4, 1 << 20)]
    ['one_shot', 'two_shot']
    """

    def seconds(name: str) -> float:
        steps, share = steps_and_reads(collective, name, p)
        return steps * alpha + share * nbytes * beta

    return min(candidates(collective), key=seconds)


@cache
def steps_and_reads(collective: str, name: str, p: int) -> tuple[int, float]:
    """Count the steps, and what the busiest rank reads as a share of the buffer.

    Pipelines have one segment.

    >>> steps_and_reads("all_reduce", "ring", 4)
    (6, 1.5)
    """
    schedule = build(collective, name, p, root=0 if collective in ROOTED else None, segments=1)
    return schedule.nsteps, max(traffic(schedule, schedule.k).received.tolist()) / schedule.k
