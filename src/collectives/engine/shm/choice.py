"""What "auto" chooses on published buffers: the algorithm whose steps and bytes take the shortest time here.

Messages cost nothing by themselves there: a step that reads from all peers is one wait. So the closed forms of
`collectives.autotune`, which count messages, do not hold.
"""

from __future__ import annotations

import time
from functools import cache
from statistics import median

import numpy as np
import torch
from torch import distributed as dist

from collectives.algorithms import build, candidates
from collectives.contracts import ROOTED
from collectives.engine.mesh import Mesh
from collectives.engine.shm.executor import execute, ready
from collectives.engine.signature import NO_CALL
from collectives.engine.slots import slot_plan
from collectives.traffic import traffic

SMALL, LARGE = 8, 1 << 20  # bytes of the calls that show a step's time, and a byte's
ONE_STEP, TWO_STEPS = "one_shot", "two_shot"
REPEATS = 25


def choose(collective: str, p: int, nbytes: int, alpha: float, beta: float) -> str:
    """The algorithm with the least ``alpha * steps + beta * bytes``, the bytes that the busiest rank reads.

    >>> [choose("all_reduce", 4, nbytes, alpha=1e-5, beta=1e-9) for nbytes in (4, 1 << 20)]
    ['one_shot', 'two_shot']
    """

    def seconds(name: str) -> float:
        steps, share = work(collective, name, p)
        return steps * alpha + share * nbytes * beta

    return min(candidates(collective), key=seconds)


@cache
def work(collective: str, name: str, p: int) -> tuple[int, float]:
    """Steps, and what the busiest rank reads as a share of the buffer; a pipelined algorithm in one segment.

    >>> work("all_reduce", "ring", 4)
    (6, 1.5)
    """
    schedule = build(collective, name, p, root=0 if collective in ROOTED else None, segments=1)
    return schedule.nsteps, max(traffic(schedule, schedule.k).received.tolist()) / schedule.k


def measure(mesh: Mesh) -> tuple[float, float]:
    """Seconds of a step, and of a byte that is read: from all-reduces in one and in two steps. All ranks call it.

    The ranks of each host measure by themselves.
    """
    alpha = _seconds(mesh, ONE_STEP, SMALL)
    share = work("all_reduce", TWO_STEPS, mesh.ranks_per_host)[1]
    seconds = _seconds(mesh, TWO_STEPS, LARGE)
    return alpha, max(seconds - 2 * alpha, seconds / 10) / (share * LARGE)


def _seconds(mesh: Mesh, name: str, nbytes: int) -> float:
    p = mesh.ranks_per_host
    schedule, tensor = build("all_reduce", name, p), torch.zeros(nbytes // 4)
    plan, edges, times = slot_plan(schedule, mesh.rank % p, {}), schedule.cut(tensor.numel()), list[float]()
    longest = int(np.diff(edges).max())
    made = plan and ready(plan, edges, longest, dist.ReduceOp.SUM, tensor.dtype, NO_CALL, p)
    if made is None:
        raise RuntimeError(f"{name} is not for published buffers")
    for _ in range(REPEATS):
        begin = time.perf_counter()
        with mesh.begin():
            execute(made, (tensor, tensor, tensor), mesh, agreed=False)
        times.append(time.perf_counter() - begin)
    return median(times)
