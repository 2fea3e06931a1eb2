"""Runs of steps that repeat the one before with other chunks, simulated several times as fast by `steady_state`."""

import numpy as np

from collectives.schedule import Ints, Step
from collectives.simulator import steady_state
from collectives.simulator.clocks import UNSURE, Clocks, UnsureError
from collectives.simulator.links import Links, protocol_of
from collectives.simulator.steady_state import SteadyState


class RepeatedSteps:
    """The steady state of such a run, if there is one; ``clocks`` are up to date only after `leave`.

    A run has one when every row moves one chunk, all rows add or none does, all chunks take one protocol, and no two
    rows share a port or a link.
    """

    def __init__(self, edges: Ints, node: Ints, links: Links, clocks: Clocks) -> None:
        self.node, self.links, self.clocks = node, links, clocks
        self.size = np.diff(edges)
        self.protocol = self._only_protocol()
        self.before: Step | None = None
        self.state: SteadyState | None = None
        self.refused = False  # the current run has no steady state
        self.steps = 0
        self.all = bool(self.size.all())
        self.arrived, self.last = np.empty(0), np.empty(0, dtype=np.int32)  # what the next step writes

    def _only_protocol(self) -> int:
        """The protocol of every chunk, or -1 if there are several."""
        sizes = np.unique(self.size[self.size > 0])
        found = {int(protocol_of(float(size), self.links.limit)) for size in sizes}
        return found.pop() if len(found) == 1 else -1

    def simulate(self, step: Step, repeated: bool) -> bool:
        """Simulate the step if it repeats the one before; False if not, and then the clocks are up to date.

        Raises UnsureError where one clock for each rank does not tell when its data have arrived.
        """
        if not repeated:
            self.leave()
            self.refused = False
        elif self.state is None and not self.refused:
            self._enter(step)
        self.before = step
        if self.state is None:
            return False
        if self._repeat(step, self.state) == UNSURE:
            raise UnsureError
        return True

    def _repeat(self, step: Step, state: SteadyState) -> int:
        if not self.all:
            return int(steady_state.repeat_some(step.chunk, self.size, state, self.last, self.arrived))
        done = steady_state.repeat_all(step.chunk, self.size, state, self.arrived, self.last)
        self.state = state._replace(before=state.free, free=state.before, arrived=self.arrived, last=self.last)
        self.arrived, self.last = state.arrived, state.last
        self.steps += 1
        return int(done)

    def _enter(self, step: Step) -> None:
        single = bool(len(step) and (step.count == 1).all() and (step.add == step.add[0]).all())
        self.refused = self.protocol < 0 or not single
        if self.refused:
            return
        rows = step.src, step.dst, bool(step.add[0]), self.protocol
        fits, state = steady_state.enter(*rows, self.node, self.links, self.clocks)
        if fits:
            self.state, self.steps, self.arrived, self.last = state, 0, state.arrived.copy(), state.last.copy()
        self.refused = not fits

    def leave(self) -> None:
        """Bring the clocks up to date."""
        if self.state is not None and self.before is not None:
            step, adds = self.before, bool(self.before.add[0])
            self.state.messages[:] += self.steps  # those of `repeat_all`, in which every row sends
            rows = step.src, step.dst, self.size, adds, self.protocol
            steady_state.leave(*rows, self.state, len(self.node), self.links, self.clocks)
            self.state = None
