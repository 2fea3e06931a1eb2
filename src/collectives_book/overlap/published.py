"""What Baidu published of data-parallel training with a ring all-reduce.

Gibiansky, "Bringing HPC Techniques to Deep Learning", February 2017. Samples per second were read
off the post's plot; the rest is in its text.
"""

from __future__ import annotations

BATCH = 32  # samples of a GPU in a step
COMPUTING = 0.37  # seconds of a step on one GPU
GRADIENTS = 1_200_000_000  # bytes: 300 million parameters
NETWORK = 6e9  # bytes per second: InfiniBand between nodes
INSIDE = 10e9  # GPUDirect inside

# Samples per second by the number of GPUs.
SAMPLES = {
    1: 88,
    2: 151,
    4: 251,
    8: 464,
    10: 541,
    16: 819,
    20: 997,
    24: 1156,
    30: 1399,
    32: 1456,
    38: 1706,
    40: 1776,
}


def ring_seconds(p: int, nbytes: float = GRADIENTS, rate: float = NETWORK) -> float:
    """Seconds of a ring all-reduce whose latency does not count.

    The post rounds 2(p - 1)/p to 2, which makes 390 ms on 40 GPUs the "about 400 ms" of its text.

    >>> ring_seconds(40), round(2 * GRADIENTS / NETWORK, 3)
    (0.39, 0.4)
    """
    return 2 * (p - 1) / p * nbytes / rate


def step_seconds(p: int) -> float:
    """Seconds of a step, from the samples per second.

    >>> round(step_seconds(40), 2)
    0.72
    """
    return p * BATCH / SAMPLES[p]
