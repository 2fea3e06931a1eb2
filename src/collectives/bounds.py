"""Closed forms: what an algorithm must cost by the alpha-beta model, and nccl-tests' bus-bandwidth factors.

A message of m bytes takes ``alpha + beta * m`` seconds, plus ``gamma`` seconds for each byte that is added up.
These formulas are what schedules are tested against; none of them moves data. p ranks, n bytes, all times in
seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, log2, sqrt
from typing import NamedTuple


class Cost(NamedTuple):
    """How many alphas, how many n-fold betas and how many n-fold gammas: ``alpha*steps + n*(beta*sent + gamma*added)``.

    >>> round(Cost(steps=6, sent=1.5, added=0.75).seconds(n=8e6, alpha=5e-6, beta=1e-9), 5)
    0.01203
    """

    steps: float
    sent: float
    added: float

    def seconds(self, n: float, alpha: float, beta: float, gamma: float = 0.0) -> float:
        """The time for n bytes."""
        return alpha * self.steps + n * (beta * self.sent + gamma * self.added)


def _doubling(p: int) -> Cost:
    steps = (p - 1).bit_length() if p & (p - 1) == 0 else p.bit_length() + 1
    return Cost(steps, steps, steps if p & (p - 1) == 0 else steps - 1)


# What the busiest rank pays, where its port is the bottleneck (Chan et al. 2007; Thakur, Rabenseifner and Gropp 2005).
COSTS: dict[tuple[str, str], Callable[[int], Cost]] = {
    ("broadcast", "flat"): lambda p: Cost(p - 1, p - 1, 0),
    ("broadcast", "binomial"): lambda p: Cost((p - 1).bit_length(), (p - 1).bit_length(), 0),
    ("reduce", "flat"): lambda p: Cost(p - 1, p - 1, p - 1),
    ("reduce", "binomial"): lambda p: Cost((p - 1).bit_length(), (p - 1).bit_length(), (p - 1).bit_length()),
    ("all_gather", "ring"): lambda p: Cost(p - 1, (p - 1) / p, 0),
    ("reduce_scatter", "ring"): lambda p: Cost(p - 1, (p - 1) / p, (p - 1) / p),
    ("all_reduce", "exchange"): lambda p: Cost(p - 1, p - 1, p - 1),
    ("all_reduce", "root"): lambda p: Cost(2 * (p - 1), 2 * (p - 1), p - 1),
    ("all_reduce", "ring"): lambda p: Cost(2 * (p - 1), 2 * (p - 1) / p, (p - 1) / p),
    ("all_reduce", "recursive_doubling"): _doubling,
}


def height(p: int) -> int:
    """Height of a binary tree on p ranks, NCCL's: ceil(log2 p).

    >>> [height(p) for p in (1, 2, 3, 8, 9, 4096)]
    [0, 1, 2, 3, 4, 12]
    """
    return (p - 1).bit_length()


def pipelined_seconds(p: int, n: float, segments: int, alpha: float, beta: float, trees: int = 2) -> float:
    """All-reduce through one or two pipelined binary trees, each tree with its share of n bytes in ``segments`` pieces.

    At most 2 (2h + 2s - 2) steps of one segment, h = `height`. Segments of a step have equal size.

    >>> round(pipelined_seconds(8, 8e6, segments=40, alpha=5e-6, beta=1e-9) * 1e3, 3)
    17.64
    """
    if p == 1:
        return 0.0
    steps = 2 * (2 * height(p) + 2 * segments - 2)
    return steps * (alpha + beta * n / (trees * segments))


def best_segments(p: int, n: float, alpha: float, beta: float, trees: int = 2) -> int:
    """The number of segments that makes `pipelined_seconds` least: sqrt((h - 1) beta n / (trees alpha)), at least 1.

    Sanders, Speck and Träff 2009 balance the same two terms: more segments fill the pipeline better, but each costs
    its own alpha.

    >>> best_segments(8, 8e6, alpha=5e-6, beta=1e-9)
    40
    """
    return max(1, round(sqrt(max(0, height(p) - 1) * beta * n / (trees * alpha))))


def all_reduce_bound(p: int, n: float, alpha: float, beta: float, gamma: float = 0.0) -> float:
    """No all-reduce is faster: the largest of ceil(log2 p) alpha, 2 (p-1)/p n beta and (p-1)/p n gamma.

    Latency and work: Chan, Heimlich, Purkayastha and van de Geijn 2007; bytes: Patarasuk and Yuan 2009.

    >>> all_reduce_bound(4, 8e6, alpha=5e-6, beta=1e-9)
    0.012
    """
    share = (p - 1) / p
    return max(ceil(log2(p)) * alpha, 2 * share * n * beta, share * n * gamma)


# busbw = algbw * factor: by how much a collective's bytes exceed its buffer on the busiest link, at least.
_FACTORS: dict[str, Callable[[int], float]] = {
    "broadcast": lambda _: 1.0,
    "reduce": lambda _: 1.0,
    "scatter": lambda p: (p - 1) / p,
    "gather": lambda p: (p - 1) / p,
    "all_gather": lambda p: (p - 1) / p,
    "reduce_scatter": lambda p: (p - 1) / p,
    "all_to_all": lambda p: (p - 1) / p,
    "all_reduce": lambda p: 2 * (p - 1) / p,
}


def algbw(nbytes: int, seconds: float) -> float:
    """Algorithm bandwidth in GB/s (1e9): the buffer's bytes over the time, nccl-tests' ``algbw``.

    >>> algbw(8_000_000, 0.004)
    2.0
    """
    return nbytes / seconds / 1e9 if seconds > 0 else 0.0


def busbw(collective: str, p: int, nbytes: int, seconds: float) -> float:
    """Bus bandwidth in GB/s: ``algbw`` times the factor that makes it comparable with a link's rate, whatever p is.

    >>> busbw("all_reduce", 4, 8_000_000, 0.004)
    3.0
    """
    return algbw(nbytes, seconds) * _FACTORS[collective](p)
