"""All-gathers along the NVLinks of a DGX-1: one ring, and six rings at the same time, as NCCL has them there.

    collectives verify all_gather examples/dgx1_rings.py:six_rings -p 8
    collectives simulate all_gather examples/dgx1_rings.py:six_rings --machine dgx1 --bytes 1G

The first cycle passes pairs of GPUs with two links each, so two rings take it in either direction;
the second takes the links that are left. Together they use all 48 links, one each.
"""

from dataclasses import replace
from functools import reduce

from collectives import ALGORITHMS, Schedule
from collectives.core.schedule import on, parallel

TWICE = (0, 1, 3, 2, 6, 7, 5, 4)
ONCE = (0, 2, 1, 5, 6, 4, 7, 3)
CYCLES = (TWICE, TWICE, ONCE)


def one_ring(p: int) -> Schedule:
    """Every rank passes on whole shards, always to the same neighbour."""
    return on(ALGORITHMS["all_gather", "ring"](p), p, p, TWICE, TWICE)


def six_rings(p: int) -> Schedule:
    """Each shard is cut into six pieces, and each piece goes round another ring."""
    ring, k = ALGORITHMS["all_gather", "ring"](p), 6 * p
    orders = [*CYCLES, *(cycle[::-1] for cycle in CYCLES)]
    placed = [
        on(ring, p, k, order, [6 * rank + i for rank in order]) for i, order in enumerate(orders)
    ]
    together = reduce(lambda one, other: parallel(one, other, "all_gather"), placed)
    return replace(together, one_port=False)  # a GPU has six links
