"""Simulate the time that any schedule takes on a machine, step by step, with clocks for ranks, ports and shared links.

A message of m bytes by a link of (latency, overhead, rate), sent in step t:

* It begins when its data are there (every message of an earlier step that wrote one of its chunks
  on the sender has arrived) and when the sender's port, the receiver's port and the shared links on
  its way are free. Each rank has two ports for links inside its node, to send and to receive, and
  two for the network.
* It occupies both ports for overhead + m / rate, at the rate of the slower one. Messages of one
  step that need the same port share it: each of them takes as long as all together. It arrives
  ``latency`` after it has left; nothing is occupied meanwhile, so that latencies of messages in
  flight overlap and ports do not.
* Several ranks share a link: a node's network port, a group's uplink. The bytes of a step's
  messages share it, and occupy it from the first beginning among them. A message takes at least its
  overhead and its shared links' time.
* Where it is added, the receiver's port stays occupied for another gamma m, and only then the sum
  is there.
* Ports are granted in step order; later messages may fill gaps. A message too long for its gap goes
  on after the message behind the gap.

A switch (`Schedule.switches`) is inside the node if its ranks fill one. On several nodes there is one
in each node, in order, if the schedule is for these nodes and has as many switches; otherwise they
are in the network above all levels. It has a port for each rank, adds at the rate of its links, and shares no
link of its own; so only ranks' ports and the uplinks of their groups make its messages wait.

Ranks do not wait for each other between steps: each has its own clock and waits for data only.
Several rows for one pair of ranks in a step are one message; an empty one is neither sent nor
charged.

Left out: packets and routes, so there is congestion only where a link is shared; hand-shakes and
buffers that are full, so that a sender never waits until its receiver is ready; copies on one rank;
the operating system, and all that is random. Of several gaps a port remembers the last only.

On a machine without latency, one rank to a node, this is the alpha-beta model, with the overhead
for alpha.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from collectives.core.schedule import (
    Ints,
    Messages,
    Schedule,
    ScheduleError,
    Step,
    check_ranks_only,
)
from collectives.machine import Machine, Protocol
from collectives.simulator import kernel, routed
from collectives.simulator.kernel import (
    Clocks,
    Floats,
    Links,
    Scratch,
    UnsureError,
    links_of,
    new_clocks,
    new_scratch,
    protocol_of,
)
from collectives.simulator.repeated import RepeatedSteps
from collectives.simulator.routed import routed_clocks, routed_links

# Clocks by (rank, chunk) need 8 bytes each: 2 GiB.
MAX_CELLS = 1 << 28

# Rows of a schedule that are kept while it is simulated with one protocol after the other.
MAX_KEPT_ROWS = 1 << 20


class TimedMessages(NamedTuple):
    """The messages of one step as arrays: ranks, chunks from ``first`` to before ``end``, bytes, times in seconds."""

    src: Ints
    dst: Ints
    first: Ints
    end: Ints
    bytes: Floats
    start: Floats
    left: Floats
    arrival: Floats


OnStep = Callable[[int, TimedMessages], None]


@dataclass(frozen=True, eq=False)
class Simulation:
    """The result of a simulation.

    ``seconds`` is when the last rank is done, call and start-up included; ``finish`` (float64, by
    rank) is when its last message has left or arrived, without both. ``bytes`` are by class of link.
    ``busiest`` is the name of the port or shared link that was occupied longest, and its occupied
    seconds. ``protocol`` is that of the largest message.
    """

    seconds: float
    finish: Floats
    messages: int
    bytes: dict[str, int]
    busiest: tuple[str, float]
    protocol: str = ""


def simulate(
    schedule: Schedule,
    machine: Machine,
    n: int,
    algorithm: str | None = None,
    on_step: OnStep | None = None,
) -> Simulation:
    """Simulate a schedule for a buffer of ``n`` bytes on a machine.

    The module's docstring describes the model.

    The result equals that of a plain loop over all messages with ``start = max(data, ports, shared
    links)``. ``algorithm`` selects the machine's protocols for that name, by default the
    schedule's own. ``on_step`` sees the messages of every step.

    Raises ValueError if n is negative, if the ranks neither fill the machine's nodes nor are a part
    of one, and if the clocks need more than 2 GiB; ScheduleError if a step differs from the one
    that ``repeats`` declares it to repeat. Cost: about 1 ns a message if steps repeat, as a ring's
    do, and half of it where clocks advance evenly; 10 ns if rows of several rings share a link, and
    80 ns otherwise.

    >>> from collectives.algorithms import ALGORITHMS
    >>> from collectives.machine import machine
    >>> ring = ALGORITHMS["all_reduce", "ring"](4)
    >>> round(simulate(ring, machine("textbook"), n=100_000_000).seconds, 6)  # 6 steps of 5 us + 25 MB at 25 GB/s
    0.00603
    """
    if n < 0:
        raise ValueError(f"invalid buffer: got {n:,} bytes, expected 0 or more")
    if schedule.p > machine.ranks_per_node and schedule.p % machine.ranks_per_node:
        raise ValueError(
            f"ranks do not fill the nodes of {machine.name}: got {schedule.p:,}, "
            f"expected a multiple of {machine.ranks_per_node}, or a part of one node"
        )
    if unknown := [node for node in machine.slower if node * machine.ranks_per_node >= schedule.p]:
        least = unknown[0] * machine.ranks_per_node + 1
        raise ValueError(
            f"no rank on node {unknown[0]}, which {machine.name} slows: "
            f"got {schedule.p} ranks, expected at least {least}"
        )
    if machine.links:
        return _routed(schedule, machine, n, on_step)
    choices = machine.choices(algorithm or schedule.name, n)
    if len(choices) > 1 and not schedule.repeats:
        schedule = _with_kept_steps(schedule)
    settings = [_setting(schedule, machine, n, protocols) for protocols in choices]
    if on_step is None:
        return min(map(_silent, settings), key=lambda result: result.seconds)
    setting = (
        min(settings, key=lambda each: _silent(each).seconds) if len(settings) > 1 else settings[0]
    )
    return _result(setting, *_run(setting, on_step, by_cell=True))


def _with_kept_steps(schedule: Schedule) -> Schedule:
    """Return the schedule with its steps made once, as long as they have few rows."""
    kept: dict[int, Step] = {}
    rows = 0

    def make(t: int) -> Step:
        nonlocal rows
        if t in kept:
            return kept[t]
        step = _in_order(schedule, schedule.step(t))
        rows += len(step)
        if rows <= MAX_KEPT_ROWS:
            kept[t] = step
        return step

    return replace(schedule, make=make)


def _silent(setting: _Setting) -> Simulation:
    try:
        return _result(setting, *_run(setting, None, by_cell=False))
    except UnsureError:
        return _result(setting, *_run(setting, None, by_cell=True))


def _routed(schedule: Schedule, machine: Machine, n: int, on_step: OnStep | None) -> Simulation:
    """Simulate a schedule on a machine with links; `routed` describes what differs."""
    check_ranks_only(schedule, f"a machine with links, as {machine.name}")
    of, links = routed_links(machine, schedule.p)
    now, edges, count = routed_clocks(of, _cells(schedule.k, of.p)), schedule.cut(n), 0
    for t, step in enumerate(schedule.steps()):
        sent = step.messages(edges)
        count += len(sent.src)
        routed.simulate_step(sent, step.chunk, step.count, step.add, edges, of.vertices, links, now)
        if on_step is not None:
            begin = sent.row[sent.first[:-1]]
            times = (
                column[: len(sent.src)].copy() for column in (now.start, now.left, now.arrival)
            )
            end = step.chunk[begin] + step.count[begin]
            on_step(
                t,
                TimedMessages(
                    sent.src, sent.dst, step.chunk[begin], end, sent.size.astype(float), *times
                ),
            )
    a, b = divmod(_first_of_the_largest(now.busy), of.vertices)
    names = zip(("inside", "network"), now.bytes, strict=True)
    by_class = {name: int(nbytes) for name, nbytes in names if nbytes or name == "inside"}
    busiest = f"link from {_vertex(a, of.p)} to {_vertex(b, of.p)}", float(now.busy.max())
    seconds = float(now.finish.max(initial=0.0)) + (machine.call if count else 0.0)
    return Simulation(seconds, now.finish, count, by_class, busiest)


def _vertex(a: int, p: int) -> str:
    return f"rank {a}" if a < p else f"switch {a}"


class _Setting(NamedTuple):
    """All that the steps of one simulation share."""

    schedule: Schedule
    machine: Machine
    protocols: tuple[Protocol, ...]
    edges: Ints
    node: Ints
    links: Links


def _setting(
    schedule: Schedule, machine: Machine, n: int, protocols: tuple[Protocol, ...]
) -> _Setting:
    node = np.arange(schedule.p) // machine.ranks_per_node
    if schedule.switches:
        node = np.append(node, _nodes_of_switches(machine, schedule))
    links = links_of(machine, node, protocols, schedule.switches)
    return _Setting(schedule, machine, protocols, schedule.cut(n), node, links)


def _nodes_of_switches(machine: Machine, schedule: Schedule) -> Ints:
    """Return the node of every switch.

    The ranks' own if they fill one, one node each if they are for these nodes, otherwise a node in
    groups of its own.
    """
    nodes = -(-schedule.p // machine.ranks_per_node)
    if machine.inside and nodes == 1:
        return np.zeros(schedule.switches, dtype=np.int64)
    is_for_nodes = schedule.ranks_per_node == machine.ranks_per_node
    if machine.inside and is_for_nodes and schedule.switches == nodes:
        return np.arange(nodes)
    group = max((level.nodes for level in machine.levels), default=1)
    return np.full(schedule.switches, -(-nodes // group) * group)


def _run(setting: _Setting, on_step: OnStep | None, by_cell: bool) -> tuple[Clocks, float]:
    """Simulate all steps; return the clocks and the bytes of the largest message."""
    schedule, links = setting.schedule, setting.links
    clocks, cells = (
        new_clocks(schedule.participants, links),
        _cells(schedule.k if by_cell else 0, schedule.participants),
    )
    scratch, largest, before = (
        new_scratch(schedule.participants, links, rows=0),
        0.0,
        Step([], [], []),
    )

    def play(step: Step) -> Messages:
        nonlocal scratch, largest
        step = _in_order(schedule, step)
        if len(step) > len(scratch.first):
            scratch = new_scratch(schedule.participants, links, rows=2 * len(step))
        sent, rows = step.messages(setting.edges), (step.chunk, step.count, step.add)
        if (
            kernel.simulate_step(
                sent, *rows, setting.edges, setting.node, links, clocks, cells, scratch
            )
            == kernel.UNSURE
        ):
            raise UnsureError
        largest = max(largest, float(sent.size.max(initial=0)))
        return sent

    may_repeat = not by_cell and not setting.machine.slower and not schedule.switches
    repeats = (
        RepeatedSteps(setting.edges, setting.node, links, clocks, play) if may_repeat else None
    )
    for t, step in enumerate(schedule.steps()):
        repeated = schedule.repeated(t)
        if repeated:
            _need_repeated(t, step, before)
        before = step
        if repeats is not None and repeats.wait(step, repeated):
            continue
        sent = play(step)
        if on_step is not None:
            on_step(t, _messages(sent, scratch))
    if repeats is not None:
        repeats.finish()
    return clocks, largest


def _in_order(schedule: Schedule, step: Step) -> Step:
    """Sort rows by sender and receiver where they may share a port: the order of its sums shows in the last bits."""
    if schedule.one_port or (np.diff(step.src * schedule.participants + step.dst) >= 0).all():
        return step
    order = np.lexsort((step.dst, step.src))
    return Step(*(getattr(step, name)[order] for name in Step.__slots__))


def _need_repeated(t: int, step: Step, before: Step) -> None:
    """Check a declared repetition.

    Columns are read-only, so the same array has the same content.
    """
    for name in ("src", "dst", "count", "add"):
        now, then = getattr(step, name), getattr(before, name)
        if now is not then and not np.array_equal(now, then):
            raise ScheduleError(
                f"step {t} differs from step {t - 1} in {name}, but is declared to repeat it"
            )


def _cells(k: int, p: int) -> Floats:
    """Return a clock for every (chunk, rank). Raises ValueError if they need more than 2 GiB."""
    if p * k > MAX_CELLS:
        raise ValueError(
            f"too many clocks: got {p:,} ranks x {k:,} chunks, {8 * p * k / 2**30:.0f} GiB, "
            f"expected at most {8 * MAX_CELLS / 2**30:.0f} GiB"
        )
    return np.zeros((k, p))


def _messages(sent: Messages, now: Scratch) -> TimedMessages:
    times = (column[: len(sent.src)].copy() for column in (now.start, now.left, now.arrival))
    first, end = (column[: len(sent.src)].copy() for column in (now.first, now.end))
    return TimedMessages(sent.src, sent.dst, first, end, sent.size.astype(float), *times)


def _result(setting: _Setting, clocks: Clocks, largest: float) -> Simulation:
    machine, p = setting.machine, setting.schedule.participants
    protocol = setting.protocols[protocol_of(largest, setting.links.limit)]
    names = ["inside", "network", *(level.name for level in machine.levels)]
    start_up = machine.call + protocol.startup if largest else 0.0
    return Simulation(
        seconds=float(clocks.finish.max(initial=0.0)) + start_up,
        finish=clocks.finish[: setting.schedule.p],
        messages=int(clocks.messages[0]),
        bytes={
            name: int(n)
            for name, n in zip(names, clocks.bytes, strict=True)
            if n or name != "inside" or machine.inside
        },
        busiest=_busiest(setting, clocks, p),
        protocol=protocol.name,
    )


def _busiest(setting: _Setting, clocks: Clocks, p: int) -> tuple[str, float]:
    """Return the port or shared link that was occupied longest, by name, and its occupied seconds."""
    way, port = divmod(_first_of_the_largest(clocks.busy.ravel()), 2 * p)
    busy = float(clocks.busy[way, port])
    link = _first_of_the_largest(clocks.shared_busy)
    if clocks.shared_busy[link] <= busy:
        where = "network" if port >= p else "inside"
        return f"{where} port of rank {port % p}, {('sending', 'receiving')[way]}", busy
    egress, ingress = setting.links.egress, setting.links.ingress
    level = int(np.searchsorted(egress, link, side="right")) - 1
    way, group = divmod(link - int(egress[level]), int(ingress[level] - egress[level]))
    what = "network port" if level == 0 else f"uplink of {setting.machine.levels[level - 1].name}"
    return f"{what} {group}, {('outward', 'inward')[way]}", float(clocks.shared_busy[link])


def _first_of_the_largest(seconds: Floats) -> int:
    """Return the index of the first value that is the largest but for rounding."""
    return int((seconds >= seconds.max() * (1 - 1e-12)).argmax())
