"""Findings in a log of NCCL: settings, failures, and what its rings and trees are, proved as schedules."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from collectives.algorithms import ALGORITHMS
from collectives.algorithms.binary_tree import NO_PARENT, depths
from collectives.schedule import Ints, Schedule, ScheduleError, Step, on, parallel, reverse, then
from collectives.units import format_bytes, many
from collectives.verify import verify
from collectives_logs import report
from collectives_logs.finding import MAX_NAMED, Finding, Place, finding, lines_of, named, ranks
from collectives_logs.nccl import (
    CAUSE,
    CONSEQUENCE,
    IN_NCCL,
    RESULT,
    Form,
    LoggedCommunicator,
    LogMessage,
    NcclLog,
    Process,
    Setting,
    form_of,
    read,
)
from collectives_logs.watchdog import timeouts

if TYPE_CHECKING:
    from collectives_logs.finding import Draw

# Variables that all ranks of a job need alike; names of devices may differ from host to host.
ALIKE = re.compile(
    r"_(?:ALGO|PROTO|\w*NCHANNELS|NTHREADS|BUFFSIZE|NET|NET_PLUGIN|COLLNET_ENABLE|NVLS_ENABLE|CROSS_NIC)$"
)

# More (rank, chunk) cells than these are not proved: a second or so.
MAX_CELLS = 1 << 20


def findings_of(paths: Sequence[Path]) -> Iterator[Finding]:
    """Yield the findings in the log that these files are together. Raises OSError."""
    return findings(read(lines_of(paths)))


def findings(log: NcclLog) -> Iterator[Finding]:
    """Yield what the job is, then what is wrong or worth a look, the causes before the effects.

    >>> from collectives_logs.finding import numbered
    >>> log = ["n1:7:7 [0] NCCL INFO NCCL version 2.20.5", "n2:9:9 [0] NCCL INFO NCCL version 2.19.3"]
    >>> [one.kind for one in findings(read(numbered(log, "job.log")))]
    ['log', 'versions']
    """
    yield Finding("log", f"{many(log.lines, 'line')}, {log.own:,} of them NCCL's")
    shown = [*log.communicators.values()][:MAX_NAMED]
    for of in shown:
        yield _job(of, log)
    if more := len(log.communicators) - len(shown):
        yield finding("all.more communicators", count=many(more, "more communicator"))
    yield from _messages(log, CAUSE)
    several = [of for of in log.communicators.values() if of.size > 1]
    yield from timeouts(log.torch, several[0].size if len(several) == 1 and not several[0].is_several else 0)
    yield from _settings(log)
    yield from _unknown(log)
    yield from _messages(log, CONSEQUENCE)
    yield from _messages(log, RESULT)
    for of in log.communicators.values():
        if not of.is_several:
            yield from (one for one in _communicator(of, log) if one.kind != "proved" or of in shown)
    yield from _nics(log)
    yield from _choices(log)
    yield from _calls(log)


def _job(of: LoggedCommunicator, log: NcclLog) -> Finding:
    hosts = len({process.host for process in of.processes.values()})
    version = f", NCCL {', '.join(log.versions)}" if log.versions else ""
    name = "several of " if of.is_several else f"{of.name} of " if of.is_named else ""
    here = "all" if len(of.processes) == of.size else f"{len(of.processes)}"
    found = f"{name}{many(of.size, 'rank')}, {here} in the log, on {many(hosts, 'host')}"
    lines = [line for _, line in of.rings.values()][:1] or [*of.complete.values()][:1]
    return Finding("communicator", f"{found}; {many(len(of.rings), 'channel')}{version}", at=tuple(lines))


def _settings(log: NcclLog) -> Iterator[Finding]:
    """Yield versions, networks and variables in which processes differ, and an algorithm that was asked for in vain."""
    yield from _differ(log, "nccl.versions", log.versions)
    yield from _differ(log, "nccl.networks", log.networks)
    for name, values in sorted(log.environment.items()):
        key = "nccl.environment" if ALIKE.search(name) else "nccl.other environment"
        yield from _differ(log, key, values, name)
    ran = Counter(algorithm for _, _, algorithm, _ in log.choices)
    for value, setting in log.environment.get("NCCL_ALGO", {}).items():
        allowed = {name.lower() for name in value.replace("^", "").replace(":", ",").split(",")}
        other = sorted(name for name in ran if name.lower() not in allowed)
        if other and not value.startswith("^") and ":" not in value:
            line = next(line for (_, _, algorithm, _), (_, line) in log.choices.items() if algorithm in other)
            yield finding("nccl.NCCL_ALGO", setting.at, line, value=value, ran=", ".join(other))


def _differ(log: NcclLog, key: str, values: dict[str, Setting], name: str = "") -> Iterator[Finding]:
    """Yield a finding if processes have different values; something follows if two are of one communicator."""
    if len(values) < 2:
        return
    found = "; ".join([f"{value}{_on(setting.processes)}" for value, setting in values.items()][:MAX_NAMED])
    one = finding(key, *(setting.at for setting in values.values()), values=found, name=name)
    members = ({*of.processes.values()} for of in log.communicators.values() if not of.is_several)
    if not any(sum(not those.isdisjoint(each.processes) for each in values.values()) > 1 for those in members):
        one = one._replace(follows="", next="")
    yield one


def _messages(log: NcclLog, weight: str) -> Iterator[Finding]:
    """Yield what lines of known forms say, of one weight; what only names a result says nothing beside causes."""
    forms: dict[Form, list[LogMessage]] = {}
    for message in log.messages:
        if message.form and message.form.next and message.form.weight == weight:
            forms.setdefault(message.form, []).append(message)
    is_explained = any(each.form and each.form.weight != RESULT and each.form.next for each in log.messages)
    if weight == RESULT and is_explained:
        return
    for form, those in [*forms.items()][:MAX_NAMED]:
        yield _shown(form.kind, those, form.follows, form.next)


def _unknown(log: NcclLog) -> Iterator[Finding]:
    """Yield warnings and errors of no known form, as they are: they may be the cause, or nothing."""
    alike: dict[str, list[LogMessage]] = {}
    for message in log.messages:
        if message.form is None or not message.form.next:
            alike.setdefault(re.sub(r"0x[0-9a-f]+|\d+", "0", message.text), []).append(message)
    for those in [*alike.values()][:MAX_NAMED]:
        yield _shown("warning" if those[0].form is None else "error", those)


def _shown(kind: str, those: Sequence[LogMessage], follows: str = "", advice: str = "") -> Finding:
    """Return a finding that shows the first of these lines, and where some of them are."""
    first = those[0]
    text = f"{first.process.host}: {first.text}" if first.process.host else first.text
    found = f"{text} ({many(len(those), 'line')}{_on(each.process for each in those)})"
    return Finding(kind, found, follows, advice, tuple(dict.fromkeys(each.at for each in those))[:3])


def _nics(log: NcclLog) -> Iterator[Finding]:
    """Yield what NCCL sends over; Docker's bridge is a fault where the job has several nodes."""
    for value, (processes, at) in [*log.nics.items()][:MAX_NAMED]:
        yield Finding("nics", f"{value}{_on(processes)}", at=(at,))
    for value, (processes, at) in log.bridges.items():
        if any(of.nodes > 1 for of in log.communicators.values()):
            found = f"{value} uses Docker's bridge (docker0, 172.17.x.x){_on(processes)}, and the job has several nodes"
            of_bridge = form_of("Connect to docker0", IN_NCCL) or Form(re.compile(""))
            yield Finding("network", found, of_bridge.follows, of_bridge.next, (at,))


def _choices(log: NcclLog) -> Iterator[Finding]:
    """Yield the algorithm and protocol of each size, as a range of sizes."""
    alike: dict[tuple[str, str, str], list[tuple[int, Place]]] = {}
    for (collective, nbytes, algorithm, protocol), (_, line) in log.choices.items():
        alike.setdefault((collective, algorithm, protocol), []).append((nbytes, line))
    for (collective, algorithm, protocol), found in sorted(alike.items(), key=lambda item: item[0]):
        sizes = [nbytes for nbytes, _ in found]
        span = " to ".join(dict.fromkeys(format_bytes(size) for size in (min(sizes), max(sizes))))
        first = min(line for _, line in found)
        yield Finding("choice", f"{collective or 'calls'} of {span}: {algorithm}, {protocol}", at=(first,))


def _calls(log: NcclLog) -> Iterator[Finding]:
    """Yield ranks whose last call is another one than the others'."""
    groups: dict[str, dict[Process, tuple[int, str, Place]]] = {}
    for (name, process), last in log.calls.items():
        groups.setdefault(name, {})[process] = last
    for name, calls in groups.items():
        most = max(number for number, _, _ in calls.values())
        behind = {process: call for process, call in calls.items() if call[0] < most}
        ahead = {call[1]: call[2] for call in calls.values() if call[0] == most}
        if len(ahead) > 1:
            yield finding("nccl.calls", *ahead.values(), most=most, name=name, calls="; ".join(ahead))
        if behind:
            process, (number, what, line) = min(behind.items(), key=lambda item: item[1][0])
            found = {"count": len(behind), "all": len(calls), "name": name, "most": most, "number": number}
            one = finding("nccl.behind", line, **found, host=process.host, pid=process.pid, call=what)
            yield one._replace(follows="") if log.is_explained else one


def _on(processes: Iterable[Process]) -> str:
    """Return the hosts, as far as lines name them."""
    hosts = sorted({process.host for process in processes} - {""})
    return f" on {named(hosts)}" if hosts else ""


def _communicator(of: LoggedCommunicator, log: NcclLog) -> Iterator[Finding]:
    """Yield all that the lines about one communicator say, the causes before the effects."""
    yield from _absent(of, log.is_explained)
    yield from _rings(of)
    yield from _trees(of)
    if of.graph and of.is_one_node:
        (channels, rate, most), at = of.graph
        if 2 * (used := channels * rate) < most:
            yield finding("nccl.graph", at, used=used, most=most, channels=many(channels, "channel"), rate=rate)
    yield from _connections(of, log.has_geforce)
    is_shown = any(way.startswith("NET") for way, _ in of.connections.values())
    if of.nodes > 1 and [*log.networks] == ["Socket"] and not is_shown:
        found = f"the network of {many(of.size, 'rank')} on {of.nodes} nodes is sockets"
        yield finding("nccl.sockets between nodes", log.networks["Socket"].at, found=found)


def _absent(of: LoggedCommunicator, is_explained: bool) -> Iterator[Finding]:
    """Yield ranks without their last line; a process that fails may lose lines, so nothing follows beside a failure."""
    begun, done = set(of.processes), set(of.complete)
    if done and begun - done:
        late = sorted(begun - done)
        hosts = named(sorted({of.processes[rank].host for rank in late}))
        last = max(of.complete.values())
        one = finding("nccl.incomplete", last, ranks=ranks(late), name=of.name, hosts=hosts, rank=late[0])
        yield one._replace(follows="") if is_explained else one


def _rings(of: LoggedCommunicator) -> Iterator[Finding]:
    rings = orders(of)
    if broken := sorted(set(of.rings) - set(rings)):
        order, line = of.rings[broken[0]]
        lacking = ranks(set(range(of.size)) - set(order))
        key = "nccl.twice in a ring" if len(set(order)) < len(order) else "nccl.ring in part"
        yield finding(key, line, channel=broken[0], ranks=lacking)
    if not rings:
        return
    line = min(line for _, line in of.rings.values())
    different = dict(enumerate(dict.fromkeys(rings.values())))
    draw = partial(report.first_step, ring_schedule(different))
    yield from _proved(of, f"the rings of {many(len(rings), 'channel')}", ring_schedule(rings), line, draw)
    node = node_of(of)
    least = len(set(node.values()))
    if set(node) != set(range(of.size)) or least < 2:
        return
    for channel, order in rings.items():
        if (times := crossings(order, node)) > least:
            yield finding("nccl.crossings", of.rings[channel][1], channel=channel, times=times, least=least)
            return


def _trees(of: LoggedCommunicator) -> Iterator[Finding]:
    if not (trees := parents(of)):
        return
    node = node_of(of)
    draw = partial(report.trees, trees, node)
    line = min(line for places in of.trees.values() for _, line in places.values())
    yield from _proved(of, f"the trees of {many(len(trees), 'channel')}", tree_schedule(trees), line, draw)
    if set(node) == set(range(of.size)) and (both := loaded_nodes(trees, node)):
        yield finding("nccl.interior in both", line, nodes=named(both))


def _proved(of: LoggedCommunicator, what: str, schedule: Schedule, line: Place, draw: Draw) -> Iterator[Finding]:
    """Yield that these channels do an all-reduce, or why they do not."""
    if schedule.p * schedule.k > MAX_CELLS:
        return
    try:
        verify(schedule)
    except ScheduleError as error:
        why = str(error).splitlines()[0]
        yield Finding("wrong", f"{what} of {of.name} are no all-reduce: {why}", at=(line,), draw=draw)
    else:
        found = f"{what} are an all-reduce on {many(of.size, 'rank')}: every contribution counted"
        yield Finding("proved", found, at=(line,), draw=draw)


# Ways of messages that are slower than others may be, as `advice.toml` calls them.
WITHOUT_GPU_DIRECT = "InfiniBand without GPU-direct"
INSIDE = {"SHM": "shared memory inside a node", "NET": "the network inside a node"}
POOR = ("sockets between nodes", WITHOUT_GPU_DIRECT, *INSIDE.values())


def _connections(of: LoggedCommunicator, has_geforce: bool) -> Iterator[Finding]:
    node = node_of(of)
    ways: dict[str, list[tuple[int, int, Place]]] = {}
    for (_, a, b), (way, line) in of.connections.items():
        is_known = a in node and b in node  # a log of one rank knows one node, but only the network leaves it
        is_inside = node[a] == node[b] if is_known else not way.startswith("NET")
        ways.setdefault(_slower_way(way, is_inside), []).append((a, b, line))
    for kind in POOR:
        if those := ways.get(kind):
            a, b, line = those[0]
            found = f"{many(len(those), 'connection')} by {kind}, such as rank {a} to {b}"
            if has_geforce and kind == WITHOUT_GPU_DIRECT:
                yield Finding("connection", f"{found}; GeForce and TITAN GPUs do not support it", at=(line,))
            else:
                yield finding(f"nccl.{kind}", line, found=found)


def _slower_way(way: str, is_inside: bool) -> str:
    """Return which of POOR a way is; "" for one that is good.

    >>> _slower_way("NET/Socket/0", False), _slower_way("NET/IB/0/GDRDMA", False), _slower_way("SHM/direct", True)
    ('sockets between nodes', '', 'shared memory inside a node')
    """
    if is_inside:
        return INSIDE.get(way.partition("/")[0], "")
    if way.startswith("NET/Socket"):
        return "sockets between nodes"
    return WITHOUT_GPU_DIRECT if way.startswith("NET/IB") and "GDRDMA" not in way else ""


def orders(of: LoggedCommunicator) -> dict[int, tuple[int, ...]]:
    """Return the rings of all ranks, by channel. NCCL prints a ring's first 20 ranks; the connections continue it."""
    found = {channel: _continued(of, channel, order) for channel, (order, _) in sorted(of.rings.items())}
    everyone = list(range(of.size))
    return {channel: order for channel, order in found.items() if sorted(order) == everyone}


def _continued(of: LoggedCommunicator, channel: int, order: tuple[int, ...]) -> tuple[int, ...]:
    """Return a ring's printed beginning and how the first connections continue it; if they differ, what was printed."""
    whole = [*order]
    while len(whole) < of.size and (following := of.successors.get((channel, whole[-1]))) is not None:
        whole.append(following)
    agrees = all(of.successors.get((channel, a), b) == b for a, b in zip(whole, whole[1:] + whole[:1], strict=True))
    return tuple(whole) if agrees else order


def parents(of: LoggedCommunicator) -> dict[int, Ints]:
    """Return the trees of which every rank's line is there and fits its neighbours', by channel; -1 for a root."""
    found = {}
    for channel, places in sorted(of.trees.items()):
        if sorted(places) != list(range(of.size)):
            continue
        above = [places[rank][0].parent for rank in range(of.size)]
        below = {child: rank for rank in range(of.size) for child in places[rank][0].children}
        whole = all(below.get(rank) == parent for rank, parent in enumerate(above))
        parent = np.array([NO_PARENT if up is None else up for up in above])
        if whole and (parent == NO_PARENT).sum() == 1 and (depths(parent) >= 0).all():
            found[channel] = parent
    return found


def ring_schedule(rings: dict[int, tuple[int, ...]]) -> Schedule:
    """Return an all-reduce in which every channel's ring carries its share of the buffer.

    >>> ring_schedule({0: (0, 2, 1), 1: (0, 1, 2)}).step(0)
    Step(1->0:+1, 0->2:+2, 2->1:+0, 2->0:+4, 0->1:+5, 1->2:+3)
    """
    p = len(next(iter(rings.values())))
    ring, k = ALGORITHMS["all_reduce", "ring"](p), p * len(rings)
    placed = [on(ring, p, k, order, np.arange(p) + p * i) for i, order in enumerate(rings.values())]
    return replace(reduce(lambda one, other: parallel(one, other, "all_reduce"), placed), one_port=False)


def tree_schedule(trees: dict[int, Ints]) -> Schedule:
    """Return an all-reduce in which every channel's tree carries its share: up to the root by levels, then down.

    >>> list(tree_schedule({0: np.array([-1, 0, 0])}).steps())
    [Step(1->0:+0, 2->0:+0), Step(0->1:=0, 0->2:=0)]
    """
    table = np.stack(list(trees.values()))
    depth = np.stack([depths(parent) for parent in table])

    def make(t: int) -> Step:
        chunk, child = np.nonzero(depth == t + 1)
        return Step(table[chunk, child], child, chunk)

    down = Schedule("broadcast", table.shape[1], len(table), int(depth.max()), make, root=0, one_port=False)
    return replace(then(reverse(down, "reduce", add=True), down, "all_reduce"), root=None)


def node_of(of: LoggedCommunicator) -> dict[int, str]:
    """Return the host of every rank that has named itself; none of communicators that the log does not tell apart."""
    return {} if of.is_several else {rank: process.host for rank, process in of.processes.items()}


def crossings(order: tuple[int, ...], node: dict[int, str]) -> int:
    """Return how often a ring leaves a node."""
    return sum(node[a] != node[b] for a, b in zip(order, order[1:] + order[:1], strict=True))


def loaded_nodes(trees: dict[int, Ints], node: dict[int, str]) -> list[str]:
    """Return the nodes with more than four links to other nodes in two different trees.

    An interior node of one tree has a parent and two children, as a leaf of the other a parent. One with more is
    interior in both, and sends more than the whole buffer in one direction. Channels repeat two trees; of other
    numbers nothing is said.
    """
    distinct = {parent.tobytes(): parent.tolist() for parent in trees.values()}
    if len(distinct) != 2:
        return []
    links: Counter[str] = Counter()
    for parent in distinct.values():
        ends = [(node[up], node[rank]) for rank, up in enumerate(parent) if up != NO_PARENT]
        links.update(host for a, b in ends if a != b for host in (a, b))
    return sorted(host for host, number in links.items() if number > 4)
