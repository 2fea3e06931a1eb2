"""A schedule on hosts of several ranks, in stages: steps on the hosts, or steps between them.

Ranks of a host read each other's published buffers; ranks of different hosts send messages. In a hierarchical ring, or
in recursive doubling where the ranks of a host are a power of 2, each step does only one of both.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

import numpy as np

from collectives.schedule import Schedule, Step

NO_STEP = Step([], [], [])


class Stage(NamedTuple):
    """Consecutive steps of a schedule, which keep their numbers: all others are empty."""

    is_on_hosts: bool
    schedule: Schedule

    def on_host(self, ranks: range) -> Schedule:
        """What these ranks of one host do, numbered from 0."""
        whole = self.schedule

        def make(t: int) -> Step:
            step = whole.step(t)
            rows = np.isin(step.src, ranks)
            src, dst = step.src[rows] - ranks.start, step.dst[rows] - ranks.start
            return Step(src, dst, step.chunk[rows], step.count[rows], step.add[rows])

        return replace(whole, p=len(ranks), make=make, ranks_per_node=1)


def stages(schedule: Schedule, ranks_per_host: int) -> list[Stage]:
    """The schedule in stages; none where ranks share no memory, or a step is on hosts and between them.

    On several hosts only an all-reduce has stages: each stage changes the whole buffer in its place.

    >>> from collectives.algorithms import build
    >>> ring = build("all_reduce", "hierarchical_ring", 6, ranks_per_node=2)
    >>> [(each.is_on_hosts, sum(len(step.src) > 0 for step in each.schedule.steps())) for each in stages(ring, 2)]
    [(True, 1), (False, 4), (True, 1)]
    >>> stages(build("all_reduce", "ring", 6), 2)
    []
    """
    if ranks_per_host == schedule.p:
        return [Stage(True, schedule)]
    if ranks_per_host == 1 or schedule.collective != "all_reduce":
        return []
    kinds = []
    for step in schedule.steps():
        on_host = step.src // ranks_per_host == step.dst // ranks_per_host
        if on_host.any() != on_host.all():
            return []
        kinds.append(bool(on_host.all()))
    runs = [(kind, list(steps)) for kind, steps in groupby(range(schedule.nsteps), kinds.__getitem__)]
    return [Stage(kind, _part(schedule, steps)) for kind, steps in runs] if any(kinds) else []


def _part(schedule: Schedule, steps: list[int]) -> Schedule:
    first, last = steps[0], steps[-1]
    return replace(schedule, make=lambda t: schedule.step(t) if first <= t <= last else NO_STEP)
