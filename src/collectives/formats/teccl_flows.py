"""TE-CCL's flows between nodes as a schedule, and the first chunk that is missing."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from collectives.contracts import where
from collectives.schedule import Schedule, ScheduleError, Step, owner

# Volumes are rounded to six digits, and the solver itself is exact to four.
ROUNDED = 1e-4


class Flow(NamedTuple):
    """One line of the file: a chunk of ``origin``, from node to node; ``volume`` is a share of it, None for all."""

    chunk: int
    origin: int
    src: int
    dst: int
    volume: float | None
    epoch: int
    via: tuple[int, ...]

    @property
    def nodes(self) -> tuple[int, ...]:
        """All nodes on the way, in order."""
        return self.src, *self.via, self.dst


class Hop(NamedTuple):
    """A flow with the ``width`` chunks of the schedule, from ``first`` on, that it moves."""

    flow: Flow
    first: int
    width: int = 1


class Flows(NamedTuple):
    """What a file says: nodes by their numbers in the file, seconds of an epoch, GB/s of algorithm bandwidth."""

    collective: str
    gpus: tuple[int, ...]
    switches: tuple[int, ...]
    k: int
    hops: tuple[Hop, ...]
    epoch_seconds: float
    stated: float

    @property
    def epochs(self) -> int:
        """Epochs up to the last that anything is sent in."""
        return 1 + max((hop.flow.epoch for hop in self.hops), default=-1)

    def name(self, node: int) -> str:
        """How a message names a node."""
        return f"{'switch' if node in self.switches else 'GPU'} {node}"

    def chunk(self, cell: int) -> str:
        """How the file names a chunk of the schedule."""
        p, origin = len(self.gpus), int(owner(cell, len(self.gpus), self.k))
        number = cell % (self.k // p) if self.collective == "all_gather" else cell * p * p // self.k % p
        return f"chunk {number} from {self.gpus[origin]}"


def schedule(flows: Flows) -> Schedule:
    """The flows as a schedule: an epoch is a step, or several if switches are on the way, one for each link.

    GPUs are the ranks, in the order of their numbers, and switches follow them. A switch that sends one chunk to many
    receives it once. What takes longer than an epoch is not seen here, because links have no rates; pieces of a chunk
    have names, but no sizes.

    >>> one, other = (Hop(Flow(0, a, a, b, None, 0, (9,)), rank) for rank, (a, b) in enumerate([(4, 7), (7, 4)]))
    >>> swap = Flows("all_gather", gpus=(4, 7), switches=(9,), k=2, hops=(one, other), epoch_seconds=1, stated=1)
    >>> list(schedule(swap).steps())
    [Step(0->2:=0, 1->2:=1), Step(2->0:=1, 2->1:=0)]
    """
    place = {node: number for number, node in enumerate([*flows.gpus, *flows.switches])}
    legs = _legs(flows)
    rows = {
        (flow.epoch * legs + leg, place[a], place[b], first, width)
        for flow, first, width in flows.hops
        for leg, (a, b) in enumerate(pairwise(flow.nodes))
    }
    table = np.array(sorted(rows), dtype=np.int64).reshape(-1, 5)
    nsteps = flows.epochs * legs
    begin = np.searchsorted(table[:, 0], np.arange(nsteps + 1))

    def make(t: int) -> Step:
        return Step(*table[begin[t] : begin[t + 1], 1:].T)

    p, switches = len(flows.gpus), len(flows.switches)
    return Schedule(flows.collective, p, flows.k, nsteps, make, one_port=False, switches=switches)


def _legs(flows: Flows) -> int:
    """The links that the longest flow uses."""
    return max((len(hop.flow.nodes) - 1 for hop in flows.hops), default=1)


def need_complete(flows: Flows) -> None:
    """Raise a ScheduleError, one line in the file's own numbers, if a node sends what it lacks or misses a chunk.

    Cost: participants * k bytes. `verify` proves the same schedule and more; it numbers nodes as ranks.
    """
    made, nodes = schedule(flows), [*flows.gpus, *flows.switches]
    held = np.zeros((made.participants, made.k), dtype=np.bool_)
    held[owner(np.arange(made.k), made.p, made.k), np.arange(made.k)] = True
    for t, step in enumerate(made.steps()):
        row, chunk = step.cells()
        early = np.flatnonzero(~held[step.src[row], chunk])
        if early.size:
            sender, what = flows.name(nodes[step.src[row[early[0]]]]), flows.chunk(int(chunk[early[0]]))
            epoch = t // _legs(flows)
            raise ScheduleError(f"epoch {epoch}: {sender} sends {what}: got none there, expected it before that epoch")
        held[step.dst[row], chunk] = True
    missing = np.argwhere(where(made) & ~held)
    if missing.size:
        rank, cell = map(int, missing[0])
        pieces = 1 if flows.collective == "all_gather" else made.k // made.p**2
        others = len(np.unique(missing[:, 0] * made.k + missing[:, 1] // pieces)) - 1
        more = f" ({others:,} more are missing)" if others else ""
        raise ScheduleError(f"GPU {flows.gpus[rank]}: got no {flows.chunk(cell)}, expected it at the end{more}")
