"""Runs of steps that repeat the one before with other chunks, simulated many times as fast by `steady_state`.

Where every rank passes on what it received in the step before, the steps of a run wait, and `passing_on` plays them
together, or `sharing` where rows share a link.
"""

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from collectives.schedule import Ints, Step
from collectives.simulator import passing_on, sharing, steady_state
from collectives.simulator.clocks import UNSURE, Clocks, UnsureError
from collectives.simulator.links import Links, protocol_of
from collectives.simulator.steady_state import SteadyState


class RepeatedSteps:
    """The steady state of such a run, if there is one; ``clocks`` are up to date only after `leave`.

    A run has one when every row moves one chunk, all rows add or none does, all chunks take one protocol, and no two
    rows share a port. Where rows share a link, every rank must pass on what it received, and no chunk may be empty.
    ``play`` simulates a step as any other.
    """

    def __init__(self, edges: Ints, node: Ints, links: Links, clocks: Clocks, play: Callable[[Step], object]) -> None:
        self.node, self.links, self.clocks, self.play_any = node, links, clocks, play
        self.alone = True  # no two rows share a link
        self.size = np.diff(edges)
        self.protocol = self._only_protocol()
        self.before: Step | None = None
        self.state: SteadyState | None = None
        self.played: Step | None = None  # the last step that `state` contains …
        self.waiting = 0  # … and how many have come since then, in which every row passes on what its source sent
        self.refused = False  # the current run has no steady state
        self.steps = 0
        self.all = bool(self.size.all())
        self.arrived, self.last = np.empty(0), np.empty(0, dtype=np.int32)  # what the next step writes
        self.order = self.begin = np.zeros(0, dtype=np.int64)  # the rings of its rows, as in `passing_on.rings`
        self.in_order = False  # row i passes on what row i - 1 has sent

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
        if self.state is not None and not self._can_wait(step, self.state):
            if self.alone:
                self._catch_up(self.state)
                self._play(step, self.state)
            else:
                self.leave()
                self.refused = True
        self.before = step
        return self.state is not None

    def _can_wait(self, step: Step, state: SteadyState) -> bool:
        """Whether the step's chunks follow from those of the last that was played; it waits, if so."""
        if self.played is None or self.before is None or not len(self.order):
            return False
        waits = passing_on.passes_on(step.chunk, self.before.chunk, state.source, self.in_order)
        self.waiting += waits
        return waits

    def _catch_up(self, state: SteadyState) -> None:
        """Play the steps that wait: the last by itself, because what it was before is remembered, too."""
        if self.waiting and self.played is not None and self.before is not None:
            rows = self.played.chunk, self.size, state, self.order, self.begin
            if self.all:
                passing_on.advance(self.waiting - 1, *rows)
                self.steps += self.waiting - 1
            else:
                passing_on.advance_some(self.waiting - 1, *rows)
            self._play(self.before, state)
        self.waiting = 0

    def _play(self, step: Step, state: SteadyState) -> None:
        self.played = step
        if not self.all:
            done = steady_state.repeat_some(step.chunk, self.size, state, self.last, self.arrived)
        else:
            done = steady_state.repeat_all(step.chunk, self.size, state, self.arrived, self.last)
            self.state = state._replace(before=state.free, free=state.before, arrived=self.arrived, last=self.last)
            self.arrived, self.last = state.arrived, state.last
            self.steps += 1
        if done == UNSURE:
            raise UnsureError

    def _enter(self, step: Step) -> None:
        single = bool(len(step) and (step.count == 1).all() and (step.add == step.add[0]).all())
        self.refused = self.protocol < 0 or not single
        if self.refused:
            return
        rows = step.src, step.dst, bool(step.add[0]), self.protocol
        fits, self.alone, state = steady_state.enter(*rows, self.node, self.links, self.clocks)
        self.refused = not fits
        if self.refused:
            return
        self.steps, self.arrived, self.last = 0, state.arrived.copy(), state.last.copy()
        self.played, (self.order, self.begin) = None, passing_on.rings(state.source)
        self.in_order = bool((state.source == np.roll(np.arange(len(step)), 1)).all())
        if not self.alone:
            self.played, self.refused = self.before, not self._may_share(step, state)
        self.state = None if self.refused else state

    def _may_share(self, step: Step, state: SteadyState) -> bool:
        """Whether rows that share links can be played by `sharing`: every rank passes on what came last."""
        if not (self.all and len(self.order) and (state.last[state.source] == step.chunk).all()):
            return False
        return bool(sharing.fits(step.src, step.dst, len(self.node), self.links, self.clocks, state))

    def leave(self) -> None:
        """Bring the clocks up to date."""
        if self.state is not None and self.alone:
            self._catch_up(self.state)
            self.state.messages[:] += self.steps  # those of `repeat_all`, in which every row sends
            self._leave(self.state)
        elif self.state is not None and self.waiting:
            self._share(self.waiting - 1, self.state)
        self.state = None

    def _leave(self, state: SteadyState) -> None:
        if self.before is not None:
            rows = self.before.src, self.before.dst, self.size, bool(self.before.add[0]), self.protocol, self.alone
            steady_state.leave(*rows, state, len(self.node), self.links, self.clocks)

    def _share(self, steps: int, state: SteadyState) -> None:
        """Play so many steps by `sharing`, and the one after them as any other: it tells how links are occupied."""
        if self.played is None or self.before is None:
            return
        if steps:
            step, q = self.played, self.protocol
            link, beta = sharing.shared_by(step.src, step.dst, q, self.links, state)
            rows = step.chunk, self.size, bool(step.add[0]), q, link, beta
            sharing.advance(steps, *rows, state, self.links, self.clocks)
            for begin, end in pairwise(self.begin):
                passing_on.settle(steps, step.chunk, self.size, state, self.order[begin:end])
            state.messages[:] = steps
            self._leave(state)
        self.waiting = 0
        self.play_any(self.before)
