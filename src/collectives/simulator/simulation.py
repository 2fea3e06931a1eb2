"""How long a schedule takes on a machine: clocks of ranks, ports and wires, step by step, for any schedule.

A message of m bytes by a link of (latency, overhead, rate), sent in step t:

* It begins when its data are there (every message of an earlier step that wrote one of its chunks on the sender has
  arrived) and when the sender's port, the receiver's port and the wires on its way are free. Each rank has one port to
  send and one to receive by for links inside its node, and one of each for the network.
* It occupies both ports for overhead + m / rate, at the rate of the slower one. Messages of one step that need the same
  port share it: each of them takes as long as all together. It arrives ``latency`` after it has left; nothing is
  occupied meanwhile, so that latencies of messages in flight overlap and ports do not.
* A wire is what several ranks share: a node's network port, a group's uplink. The bytes of a step's messages share it,
  and occupy it from the first beginning among them. A message takes at least its overhead and its wires' time.
* Where it is added, the receiver's port stays occupied for another gamma m, and only then the sum is there.
* Steps are played in order, and what is played first has a port first. But a port that stands idle before a message it
  expects serves a later one meanwhile; what the gap is too short for goes on after that message.

Ranks do not wait for each other between steps: each has its own clock and waits for data only. Several rows for one
pair of ranks in a step are one message; an empty one is neither sent nor charged.

Left out: packets and routes, so there is congestion only where a wire is shared; hand-shakes and buffers that are full,
so that a sender never waits until its receiver is ready; copies on one rank; the operating system, and all that is
random. Of several gaps a port remembers the last only.

On a machine without latency, one rank to a node, this is the alpha-beta model, with the overhead for alpha.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from collectives.machine import Machine, Protocol
from collectives.schedule import Ints, Schedule, ScheduleError, Step
from collectives.schedule import Messages as Sent
from collectives.simulator import clocks as inner
from collectives.simulator.clocks import Clocks, Floats, Links, Relay, Scratch

# A clock for every (rank, chunk) is kept for so many of them at most: 2 GiB.
MOST_CELLS = 1 << 28


class Messages(NamedTuple):
    """The messages of one step, as arrays: who to whom, bytes, chunks (first, end), and seconds."""

    src: Ints
    dst: Ints
    first: Ints
    end: Ints
    bytes: Floats
    start: Floats
    left: Floats
    arrival: Floats


OnStep = Callable[[int, Messages], None]


@dataclass(frozen=True, eq=False)
class Simulation:
    """What a schedule did on a machine.

    ``seconds`` is when the last rank is done, start-up included; ``finish`` each rank's last message, without it.
    ``bytes`` are by class of link, ``busiest`` names the port or wire that worked longest, and for how many
    seconds.
    """

    seconds: float
    finish: Floats
    messages: int
    bytes: dict[str, int]
    busiest: tuple[str, float]


def simulate(
    schedule: Schedule, machine: Machine, n: int, algorithm: str | None = None, on_step: OnStep | None = None
) -> Simulation:
    """The time that a schedule takes for a buffer of ``n`` bytes; the module's docstring says what is modelled.

    The plain program it equals: for every step, for every message, ``start = max(data, ports, wires)``, as above.
    ``algorithm`` is its name, where the machine has protocols for some algorithms only. ``on_step`` sees the
    messages of every step. Raises ValueError where n is negative, ranks do not fill the nodes, or more is asked than
    memory allows, and ScheduleError where a step is not what the schedule declares in ``repeats``. Cost: some 5 ns a
    message where steps repeat, as a ring's do, and 150 ns elsewhere, as in trees.

    >>> from collectives.algorithms import ALGORITHMS
    >>> from collectives.machine import machine
    >>> ring = ALGORITHMS["all_reduce", "ring"](4)
    >>> round(simulate(ring, machine("textbook"), n=100_000_000).seconds, 6)  # 6 steps of 5 us + 25 MB at 25 GB/s
    0.00603
    """
    if n < 0:
        raise ValueError(f"a buffer has 0 bytes or more, not {n}")
    if schedule.p % machine.ranks_per_node:
        raise ValueError(
            f"{schedule.p} ranks do not fill the nodes of {machine.name}: take a multiple of {machine.ranks_per_node}"
        )
    if unknown := [node for node in machine.slower if node >= schedule.p // machine.ranks_per_node]:
        raise ValueError(f"node {unknown[0]} of {machine.name} is slower, but {schedule.p} ranks do not reach there")
    stage = _stage(schedule, machine, n, algorithm)
    try:
        if on_step is None:
            return _result(stage, *_play(stage, None, by_cell=False))
    except _UnsureError:
        pass
    return _result(stage, *_play(stage, on_step, by_cell=True))


class _UnsureError(Exception):
    """One clock for a rank does not tell when the data are there; a clock for every chunk that it holds must."""


class _Stage(NamedTuple):
    """What stays the same throughout one simulation."""

    schedule: Schedule
    machine: Machine
    protocols: tuple[Protocol, ...]
    edges: Ints
    node: Ints
    links: Links


def _stage(schedule: Schedule, machine: Machine, n: int, algorithm: str | None) -> _Stage:
    node = np.arange(schedule.p) // machine.ranks_per_node
    protocols = machine.protocols_for(algorithm)
    return _Stage(schedule, machine, protocols, schedule.cut(n), node, _links(machine, node, protocols))


def _links(machine: Machine, node: Ints, protocols: tuple[Protocol, ...]) -> Links:
    inside = machine.inside or machine.network
    share = np.array([protocol.share for protocol in protocols])
    rank, g = np.arange(len(node)), machine.ranks_per_node
    port = node * machine.ports + rank % g * machine.ports // g
    group = np.stack([port, *(node // level.nodes for level in machine.levels)])
    groups = group.max(axis=1) + 1
    outward = np.cumsum(2 * groups) - 2 * groups
    slowest = [1 / level.rate if level.rate else 0.0 for level in machine.levels]
    uplinks = [1 / level.uplink if level.uplink else 0.0 for level in machine.levels]
    return Links(
        limit=np.array([np.inf if protocol.up_to is None else protocol.up_to for protocol in protocols], dtype=float),
        latency=np.array([[protocol.inside.latency, protocol.network.latency] for protocol in protocols]),
        overhead=np.array([[protocol.inside.overhead, protocol.network.overhead] for protocol in protocols]),
        beta=np.array([inside.beta, *np.maximum.accumulate([machine.network.beta, *slowest])]) / share[:, None],
        stretch=1 / share,
        lowest=int(machine.ports == g),
        group=group,
        wire_beta=np.array([machine.network.beta, *uplinks]),
        slower=np.array([machine.slower.get(each, 1.0) for each in node.tolist()]),
        level_latency=np.array([0.0, *(level.latency for level in machine.levels)]),
        outward=outward,
        inward=outward + groups,
        gamma=machine.gamma,
    )


def _wires(links: Links) -> int:
    return int(2 * links.inward[-1] - links.outward[-1])


def _clocks(p: int, links: Links) -> Clocks:
    wires, kinds = _wires(links), 1 + len(links.group)
    return Clocks(
        arrived=np.zeros(p),
        first=np.zeros(p, dtype=np.int64),
        end=np.zeros(p, dtype=np.int64),
        finish=np.zeros(p),
        out=np.zeros((2 * p, 3)),
        into=np.zeros((2 * p, 3)),
        wire=np.zeros((wires, 3)),
        busy=np.zeros((2, 2 * p)),
        wire_busy=np.zeros(wires),
        bytes=np.zeros(kinds, dtype=np.int64),
        messages=np.zeros(1, dtype=np.int64),
    )


def _scratch(p: int, links: Links, rows: int) -> Scratch:
    def whole() -> Ints:
        return np.zeros(rows, dtype=np.int64)

    def real(length: int = rows) -> Floats:
        return np.zeros(length)

    wires = _wires(links)
    loads = real(2 * p), real(2 * p), real(2 * p), real(wires), np.full(wires, np.inf)
    return Scratch(
        *loads,
        *(whole(), whole()),
        *(real(), real()),
        np.zeros(rows, dtype=np.int8),
        np.zeros(rows, dtype=np.int8),
        *(real(), real(), real()),
    )


def _play(stage: _Stage, on_step: OnStep | None, by_cell: bool) -> tuple[Clocks, float]:
    """All steps; returns the clocks and the size of the largest message."""
    schedule, links = stage.schedule, stage.links
    clocks, cells = _clocks(schedule.p, links), _cells(schedule, by_cell)
    scratch, largest, before = _scratch(schedule.p, links, rows=0), 0.0, Step([], [], [])
    relay = None if by_cell or stage.machine.slower else _Relaying(stage, clocks)
    for t, step in enumerate(schedule.steps()):
        repeated = schedule.repeated(t)
        if repeated:
            _need_repeated(t, step, before)
        before = step
        if relay is not None and relay.hands_on(step, repeated):
            continue
        step = step if schedule.one_port else _sorted(step)
        if len(step) > len(scratch.first):
            scratch = _scratch(schedule.p, links, rows=2 * len(step))
        sent, rows = step.messages(stage.edges), (step.chunk, step.count, step.add)
        if inner.play(sent, *rows, stage.edges, stage.node, links, clocks, cells, scratch) == inner.UNSURE:
            raise _UnsureError
        largest = max(largest, float(sent.size.max(initial=0)))
        if on_step is not None:
            on_step(t, _messages(sent, scratch))
    if relay is not None:
        relay.end()
    return clocks, largest


def _sorted(step: Step) -> Step:
    """By sender and receiver: where messages share a port, the order of their sums shows in the last bits."""
    order = np.lexsort((step.dst, step.src))
    return Step(*(getattr(step, name)[order] for name in Step.__slots__))


def _need_repeated(t: int, step: Step, before: Step) -> None:
    """A declaration is checked before it saves time; columns cannot change, so the same one needs no look inside."""
    for name in ("src", "dst", "count", "add"):
        now, then = getattr(step, name), getattr(before, name)
        if now is not then and not np.array_equal(now, then):
            raise ScheduleError(f"step {t} differs from step {t - 1} in {name}, but is declared to repeat it")


def _cells(schedule: Schedule, by_cell: bool) -> Floats:
    """A clock for every (chunk, rank), or none where a clock for every rank is enough."""
    cells = schedule.p * schedule.k if by_cell else 0
    if cells > MOST_CELLS:
        raise ValueError(
            f"{schedule.p} ranks with {schedule.k} chunks each need {8 * cells / 2**30:.0f} GiB for their clocks; "
            f"at most {8 * MOST_CELLS / 2**30:.0f} GiB are taken"
        )
    return np.zeros((schedule.k, schedule.p) if by_cell else (0, 0))


def _messages(sent: Sent, now: Scratch) -> Messages:
    times = (column[: len(sent.src)].copy() for column in (now.start, now.left, now.arrival))
    first, end = (column[: len(sent.src)].copy() for column in (now.first, now.end))
    return Messages(sent.src, sent.dst, first, end, sent.size.astype(float), *times)


class _Relaying:
    """Plays steps that repeat the one before with other chunks, as a ring's do, several times as fast as `play`.

    It does the same to the clocks, which are in order only after ``end``.
    """

    def __init__(self, stage: _Stage, clocks: Clocks) -> None:
        self.stage, self.clocks = stage, clocks
        self.size = np.diff(stage.edges)
        self.protocol = self._the_protocol()
        self.before: Step | None = None
        self.relay: Relay | None = None
        self.refused = False  # the steps that repeat now are not of a kind that it can play
        self.steps = 0
        self.all = bool(self.size.all())
        self.arrived, self.last = np.empty(0), np.empty(0, dtype=np.int32)  # what the next step writes

    def _the_protocol(self) -> int:
        """The one that all chunks go by, or -1 if there are several."""
        sizes = np.unique(self.size[self.size > 0])
        found = {int(inner.protocol_of(float(size), self.stage.links.limit)) for size in sizes}
        return found.pop() if len(found) == 1 else -1

    def hands_on(self, step: Step, repeated: bool) -> bool:
        """Play the step if it repeats the one before; otherwise leave it, with the clocks in order."""
        if not repeated:
            self.end()
            self.refused = False
        elif self.relay is None and not self.refused:
            self._begin(step)
        self.before = step
        if self.relay is None:
            return False
        if self._hand_on(step, self.relay) == inner.UNSURE:
            raise _UnsureError
        return True

    def _hand_on(self, step: Step, relay: Relay) -> int:
        if not self.all:
            return int(inner.hand_on_some(step.chunk, self.size, relay, self.last, self.arrived))
        done = inner.hand_on_all(step.chunk, self.size, relay, self.arrived, self.last)
        self.relay = relay._replace(before=relay.free, free=relay.before, arrived=self.arrived, last=self.last)
        self.arrived, self.last = relay.arrived, relay.last
        self.steps += 1
        return int(done)

    def _is_plain(self, step: Step) -> bool:
        """One chunk a row, all adding or none."""
        return bool(len(step) and (step.count == 1).all() and (step.add == step.add[0]).all())

    def _begin(self, step: Step) -> None:
        stage = self.stage
        self.refused = self.protocol < 0 or not self._is_plain(step)
        if self.refused:
            return
        given = step.src, step.dst, bool(step.add[0]), self.protocol
        fits, relay = inner.relay_from(*given, stage.node, stage.links, self.clocks)
        if fits:
            self.relay, self.steps, self.arrived, self.last = relay, 0, relay.arrived.copy(), relay.last.copy()
        self.refused = not fits

    def end(self) -> None:
        """Bring the clocks in order."""
        if self.relay is not None and self.before is not None:
            step, adds, stage = self.before, bool(self.before.add[0]), self.stage
            self.relay.sent[:] += self.steps  # those of `hand_on_all`, in which everyone sends
            given = step.src, step.dst, self.size, adds, self.protocol, self.relay
            inner.relay_to(*given, stage.schedule.p, stage.links, self.clocks)
            self.relay = None


def _result(stage: _Stage, clocks: Clocks, largest: float) -> Simulation:
    machine, p = stage.machine, stage.schedule.p
    startup = stage.protocols[inner.protocol_of(largest, stage.links.limit)].startup if largest else 0.0
    names = ["inside", "network", *(level.name for level in machine.levels)]
    return Simulation(
        seconds=float(clocks.finish.max(initial=0.0)) + startup,
        finish=clocks.finish,
        messages=int(clocks.messages[0]),
        bytes={
            name: int(n) for name, n in zip(names, clocks.bytes, strict=True) if n or name != "inside" or machine.inside
        },
        busiest=_busiest(stage, clocks, p),
    )


def _busiest(stage: _Stage, clocks: Clocks, p: int) -> tuple[str, float]:
    """The port or wire that was occupied longest, by name."""
    way, port = divmod(int(clocks.busy.argmax()), 2 * p)
    busy = float(clocks.busy[way, port])
    wire = int(clocks.wire_busy.argmax())
    if clocks.wire_busy[wire] <= busy:
        where = "network" if port >= p else "inside"
        return f"{where} port of rank {port % p}, {('sending', 'receiving')[way]}", busy
    outward, inward = stage.links.outward, stage.links.inward
    level = int(np.searchsorted(outward, wire, side="right")) - 1
    way, group = divmod(wire - int(outward[level]), int(inward[level] - outward[level]))
    what = "network port" if level == 0 else f"uplink of {stage.machine.levels[level - 1].name}"
    return f"{what} {group}, {('outward', 'inward')[way]}", float(clocks.wire_busy[wire])
