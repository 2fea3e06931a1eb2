"""What a log of NCCL says about a job: findings, with what follows, what to try next, and the lines they rest on."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from functools import reduce as fold
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from collectives.algorithms import ALGORITHMS
from collectives.algorithms.binary_tree import NO_PARENT, depths
from collectives.schedule import Ints, Schedule, ScheduleError, Step, on, parallel, reverse, then
from collectives.units import format_bytes, many
from collectives.verify import verify
from collectives_logs import report
from collectives_logs.finding import MOST_NAMED, Finding, Place, lines_of, named, ranks
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
    from collectives.figures.style import Picture

    Draw = Callable[[], Picture | None]

# Variables that all ranks of a job need alike; names of devices may differ from host to host.
ALIKE = re.compile(
    r"_(?:ALGO|PROTO|\w*NCHANNELS|NTHREADS|BUFFSIZE|NET|NET_PLUGIN|COLLNET_ENABLE|NVLS_ENABLE|CROSS_NIC)$"
)

WORDS = {"versions": "NCCL versions differ", "networks": "ranks use different networks"}


def findings_of(paths: Sequence[Path]) -> Iterator[Finding]:
    """The findings in the log that these files are together. Raises OSError."""
    return findings(read(lines_of(paths)))


def findings(log: NcclLog) -> Iterator[Finding]:
    """All findings: what the job is, then what is wrong or worth a look, the causes before the effects.

    >>> from collectives_logs.finding import numbered
    >>> log = ["n1:7:7 [0] NCCL INFO NCCL version 2.20.5", "n2:9:9 [0] NCCL INFO NCCL version 2.19.3"]
    >>> [one.kind for one in findings(read(numbered(log, "job.log")))]
    ['log', 'versions']
    """
    yield Finding("log", f"{many(log.lines, 'line')}, {log.own:,} of them NCCL's")
    shown = [*log.communicators.values()][:MOST_NAMED]
    for of in shown:
        yield _job(of, log)
    if more := len(log.communicators) - len(shown):
        yield Finding("communicator", f"{many(more, 'more communicator')}; what is wrong with them follows, too")
    yield from _said(log, CAUSE)
    several = [of for of in log.communicators.values() if of.size > 1]
    yield from timeouts(log.torch, several[0].size if len(several) == 1 and not several[0].is_several else 0)
    yield from _settings(log)
    yield from _unknown(log)
    yield from _said(log, CONSEQUENCE)
    yield from _said(log, RESULT)
    for of in log.communicators.values():
        if not of.is_several:
            yield from (one for one in _of_communicator(of, log) if one.kind != "proved" or of in shown)
    yield from _nics(log)
    yield from _choices(log)
    yield from _calls(log)


def _job(of: LoggedCommunicator, log: NcclLog) -> Finding:
    hosts = len({process.host for process in of.processes.values()})
    version = f", NCCL {', '.join(log.versions)}" if log.versions else ""
    name = "several of " if of.is_several else f"{of.name} of " if of.is_named else ""
    here = "all" if len(of.processes) == of.size else f"{len(of.processes)}"
    said = f"{name}{many(of.size, 'rank')}, {here} in the log, on {many(hosts, 'host')}"
    lines = [line for _, line in of.rings.values()][:1] or [*of.complete.values()][:1]
    return Finding("communicator", f"{said}; {many(len(of.rings), 'channel')}{version}", at=tuple(lines))


def _settings(log: NcclLog) -> Iterator[Finding]:
    """Versions, networks and variables in which processes differ, and an algorithm that was asked for in vain."""
    follows = "ranks with different versions of NCCL may fail or hang when they connect"
    yield from _differ(log, "versions", log.versions, follows, "install one version on all hosts")
    follows = "two ranks that use different networks cannot connect"
    yield from _differ(log, "networks", log.networks, follows, "install one network plugin on all hosts")
    for name, values in sorted(log.environment.items()):
        follows = "the ranks may choose different algorithms or links" if ALIKE.search(name) else ""
        yield from _differ(log, "environment", values, follows, f"set {name} on every rank alike", name)
    asked = log.environment.get("NCCL_ALGO", {})
    ran = Counter(algorithm for _, _, algorithm, _ in log.choices)
    for value, setting in asked.items():
        allowed = {name.lower() for name in value.replace("^", "").replace(":", ",").split(",")}
        other = sorted(name for name in ran if name.lower() not in allowed)
        if other and not value.startswith("^") and ":" not in value:
            line = next(line for (_, _, algorithm, _), (_, line) in log.choices.items() if algorithm in other)
            yield Finding(
                "NCCL_ALGO",
                f"NCCL_ALGO is {value}, and calls ran {', '.join(other)}",
                "NCCL does not have that algorithm for these calls or this network, and took another one",
                "compare with the support matrix that NCCL prints under NCCL_DEBUG_SUBSYS=TUNING",
                (setting.at, line),
            )


def _said(log: NcclLog, weight: str) -> Iterator[Finding]:
    """Yield what lines of known forms say, of one weight; what only names a result says nothing beside causes."""
    forms: dict[Form, list[LogMessage]] = {}
    for said in log.said:
        if said.form and said.form.next and said.form.weight == weight:
            forms.setdefault(said.form, []).append(said)
    if weight == RESULT and any(said.form and said.form.weight != RESULT and said.form.next for said in log.said):
        return
    for form, those in [*forms.items()][:MOST_NAMED]:
        yield _shown(form.kind, those, form.follows, form.next)


def _unknown(log: NcclLog) -> Iterator[Finding]:
    """Warnings and errors of no known form, as they are: they may be the cause, or nothing."""
    alike: dict[str, list[LogMessage]] = {}
    for said in log.said:
        if said.form is None or not said.form.next:
            alike.setdefault(re.sub(r"0x[0-9a-f]+|\d+", "0", said.text), []).append(said)
    for those in [*alike.values()][:MOST_NAMED]:
        yield _shown("warning" if those[0].form is None else "error", those)


def _shown(kind: str, those: Sequence[LogMessage], follows: str = "", advice: str = "") -> Finding:
    """A finding that shows the first of these lines, and where some of them are."""
    first = those[0]
    said = f"{first.process.host}: {first.text}" if first.process.host else first.text
    found = f"{said} ({many(len(those), 'line')}{_on(each.process for each in those)})"
    return Finding(kind, found, follows, advice, tuple(dict.fromkeys(each.at for each in those))[:3])


def _nics(log: NcclLog) -> Iterator[Finding]:
    """Yield what NCCL sends over; Docker's bridge is a fault where the job has several nodes."""
    for value, (processes, at) in [*log.nics.items()][:MOST_NAMED]:
        yield Finding("nics", f"{value}{_on(processes)}", at=(at,))
    for value, (processes, at) in log.bridges.items():
        if any(of.nodes > 1 for of in log.communicators.values()):
            found = f"{value} uses Docker's bridge (docker0, 172.17.x.x){_on(processes)}, and the job has several nodes"
            of_bridge = form_of("Connect to docker0", IN_NCCL) or Form(re.compile(""))
            yield Finding("network", found, of_bridge.follows, of_bridge.next, (at,))


def _choices(log: NcclLog) -> Iterator[Finding]:
    """The algorithm and protocol of each size, as a range of sizes."""
    sizes: dict[tuple[str, str, str], list[int]] = {}
    for collective, nbytes, algorithm, protocol in log.choices:
        sizes.setdefault((collective, algorithm, protocol), []).append(nbytes)
    for (collective, algorithm, protocol), found in sorted(sizes.items()):
        span = " to ".join(dict.fromkeys(format_bytes(size) for size in (min(found), max(found))))
        line = min(
            line for (of, _, a, b), (_, line) in log.choices.items() if (of, a, b) == (collective, algorithm, protocol)
        )
        yield Finding("choice", f"{collective or 'calls'} of {span}: {algorithm}, {protocol}", at=(line,))


def _calls(log: NcclLog) -> Iterator[Finding]:
    """Ranks whose last call is another one than the others'."""
    groups: dict[str, dict[Process, tuple[int, str, Place]]] = {}
    for (name, process), last in log.calls.items():
        groups.setdefault(name, {})[process] = last
    for name, calls in groups.items():
        most = max(number for number, _, _ in calls.values())
        behind = {process: call for process, call in calls.items() if call[0] < most}
        ahead = {call[1]: call[2] for call in calls.values() if call[0] == most}
        if len(ahead) > 1:
            yield Finding(
                "calls",
                f"call {most} of {name} differs between ranks: {'; '.join(ahead)}",
                "a collective whose arguments differ hangs or gives wrong results",
                "find where the ranks' programs part",
                tuple(ahead.values())[:MOST_NAMED],
            )
        if behind:
            process, (number, what, line) = min(behind.items(), key=lambda item: item[1][0])
            yield Finding(
                "behind",
                f"{len(behind)} of {len(calls)} processes in {name} did not reach call {most} in this log: "
                f"{process.host}:{process.pid} made call {number} last, {what}",
                ""
                if log.is_told
                else "the others wait there, if the job hangs; if it does not, the log ends too early",
                f"see what process {process.pid} on {process.host} does: py-spy dump --pid {process.pid}",
                (line,),
            )


def _differ(
    log: NcclLog, kind: str, values: dict[str, Setting], follows: str, advice: str, name: str = ""
) -> Iterator[Finding]:
    """A finding if processes have different values; something follows if two of them are of one communicator."""
    if len(values) > 1:
        told = [f"{value}{_on(setting.processes)}" for value, setting in values.items()][:MOST_NAMED]
        at = tuple(setting.at for setting in values.values())[:MOST_NAMED]
        members = ({*of.processes.values()} for of in log.communicators.values() if not of.is_several)
        if not any(sum(not those.isdisjoint(each.processes) for each in values.values()) > 1 for those in members):
            follows = ""
        what = f"{name} differs" if name else WORDS[kind]
        yield Finding(kind, f"{what}: {'; '.join(told)}", follows, advice if follows else "", at)


def _on(processes: Iterable[Process]) -> str:
    """The hosts, as far as lines name them."""
    hosts = sorted({process.host for process in processes} - {""})
    return f" on {named(hosts)}" if hosts else ""


def _of_communicator(of: LoggedCommunicator, log: NcclLog) -> Iterator[Finding]:
    """All that the lines about one communicator say, the causes before the effects."""
    yield from _absent(of, log.is_told)
    yield from _rings(of)
    yield from _trees(of)
    yield from _graph(of)
    yield from _connections(of, log.has_geforce)
    yield from _sockets(of, log)


def _absent(of: LoggedCommunicator, is_told: bool) -> Iterator[Finding]:
    """Ranks without their last line; a process that fails may lose lines, so nothing follows beside a failure."""
    begun, done = set(of.processes), set(of.complete)
    if done and begun - done:
        late = sorted(begun - done)
        hosts = sorted({of.processes[rank].host for rank in late})
        yield Finding(
            "incomplete",
            f"no line says that {ranks(late)} of {of.name} completed the initialisation",
            "" if is_told else f"the others wait for them, if no line is lost; they are on {named(hosts)}",
            f"look at the last lines of rank {late[0]}, and at the network between its host and the others",
            (max(of.complete.values()),),
        )


def _graph(of: LoggedCommunicator) -> Iterator[Finding]:
    """Rings inside one node that use less than half of what a GPU's links carry."""
    if of.graph is None or not of.is_one_node:
        return
    (channels, rate, most), at = of.graph
    if 2 * (used := channels * rate) < most:
        yield Finding(
            "graph",
            f"NCCL's rings use {used:g} of the {most:g} GB/s of a GPU's links, "
            f"{many(channels, 'channel')} of {rate:g} GB/s",
            "a link is missing, or NCCL_MAX_NCHANNELS or NCCL_TOPO_FILE restricts the search",
            "see `nvidia-smi nvlink --status` and `nvidia-smi topo -m`, and what NCCL_TOPO_DUMP_FILE writes",
            (at,),
        )


def _rings(of: LoggedCommunicator) -> Iterator[Finding]:
    rings = orders(of)
    broken = sorted(set(of.rings) - set(rings))
    if broken:
        channel = broken[0]
        order, line = of.rings[channel]
        lacking = sorted(set(range(of.size)) - set(order))
        is_twice = len(set(order)) < len(order)
        what = (
            "names a rank twice"
            if is_twice
            else f"is not shown whole: {ranks(lacking)} may be in lines that are absent"
        )
        follows = "NCCL makes no such ring, so lines of two jobs may be mixed" if is_twice else ""
        yield Finding("ring", f"the ring of channel {channel} {what}", follows, at=(line,))
    if not rings:
        return
    line = min(line for _, line in of.rings.values())
    different = dict(enumerate(dict.fromkeys(rings.values())))
    draw = partial(report.first_step, ring_schedule(different))
    yield from _proved(of, f"the rings of {many(len(rings), 'channel')}", ring_schedule(rings), line, draw)
    node = node_of(of)
    if set(node) != set(range(of.size)) or len(set(node.values())) < 2:
        return
    least = len(set(node.values()))
    for channel, order in rings.items():
        if (times := crossings(order, node)) > least:
            yield Finding(
                "crossings",
                f"the ring of channel {channel} leaves a node {times} times, and {least} would do",
                "its messages share the network's ports",
                "check the ranks' order on the hosts, and the topology that NCCL found (NCCL_TOPO_DUMP_FILE)",
                (of.rings[channel][1],),
            )
            return


def _trees(of: LoggedCommunicator) -> Iterator[Finding]:
    trees = parents(of)
    if not trees:
        return
    draw = partial(report.trees, trees, node_of(of))
    line = min(line for places in of.trees.values() for _, line in places.values())
    yield from _proved(of, f"the trees of {many(len(trees), 'channel')}", tree_schedule(trees), line, draw)
    node = node_of(of)
    if set(node) == set(range(of.size)) and (both := loaded_nodes(trees, node)):
        yield Finding(
            "interior in both",
            f"interior in both trees, with more than four links to other nodes: {named(both)}",
            "such a node carries more than the others, and the others wait for it",
            "compare with the trees of this number of nodes: `collectives show all_reduce two_tree`",
            (line,),
        )


def _proved(of: LoggedCommunicator, what: str, schedule: Schedule, line: Place, draw: Draw) -> Iterator[Finding]:
    """Whether these channels do an all-reduce."""
    if schedule.p * schedule.k > MOST_CELLS:
        return
    try:
        verify(schedule)
    except ScheduleError as error:
        told = str(error).splitlines()[0]
        yield Finding("wrong", f"{what} of {of.name} are no all-reduce: {told}", at=(line,), draw=draw)
    else:
        said = f"{what} are an all-reduce on {many(of.size, 'rank')}: every contribution counted"
        yield Finding("proved", said, at=(line,), draw=draw)


def _connections(of: LoggedCommunicator, has_geforce: bool) -> Iterator[Finding]:
    node = node_of(of)
    ways: dict[str, list[tuple[int, int, Place]]] = {}
    for (_, a, b), (way, line) in of.connections.items():
        is_known = a in node and b in node  # a log of one rank knows one node, but only the network leaves it
        is_inside = node[a] == node[b] if is_known else not way.startswith("NET")
        ways.setdefault(_kind(way, is_inside), []).append((a, b, line))
    for kind, (follows, advice) in POOR.items():
        if found := ways.get(kind):
            a, b, line = found[0]
            told = f"{many(len(found), 'connection')} by {kind}, such as rank {a} to {b}"
            if has_geforce and kind == WITHOUT_GPU_DIRECT:
                yield Finding("connection", f"{told}; GeForce and TITAN GPUs do not support it", at=(line,))
            else:
                yield Finding("connection", told, follows, advice, (line,))


def _sockets(of: LoggedCommunicator, log: NcclLog) -> Iterator[Finding]:
    """Nodes that sockets join, where the log has no connection between them."""
    is_shown = any(way.startswith("NET") for way, _ in of.connections.values())
    if of.nodes > 1 and [*log.networks] == ["Socket"] and not is_shown:
        found = f"the network of {many(of.size, 'rank')} on {of.nodes} nodes is sockets"
        yield Finding("connection", found, *POOR["sockets between nodes"], (log.networks["Socket"].at,))


WITHOUT_GPU_DIRECT = "InfiniBand without GPU-direct"

# Ways of messages that are slower than others may be, what follows and what to try.
POOR = {
    "sockets between nodes": (
        "TCP copies all data through the hosts' memory and processors",
        "if there is InfiniBand or RoCE, see why NCCL does not use it: NCCL_IB_DISABLE, NCCL_IB_HCA, the libraries",
    ),
    WITHOUT_GPU_DIRECT: (
        "data pass through the hosts' memory on their way to the network",
        "load nvidia-peermem, or a kernel with DMA-BUF; see NCCL_NET_GDR_LEVEL",
    ),
    "shared memory inside a node": (
        "the GPUs reach each other through the host's memory, not by NVLink or PCIe peer-to-peer",
        "see `nvidia-smi topo -p2p r`, NCCL_P2P_DISABLE, NCCL_P2P_LEVEL and PCIe ACS",
    ),
    "the network inside a node": (
        "messages between GPUs of one host go through its network stack",
        "see NCCL_P2P_DISABLE, NCCL_SHM_DISABLE and NCCL_HOSTID, and whether containers of one host share /dev/shm",
    ),
}


def _kind(way: str, is_inside: bool) -> str:
    """What POOR calls a way; "" for one that is good.

    >>> _kind("NET/Socket/0", False), _kind("NET/IB/0/GDRDMA", False), _kind("SHM/direct/direct", True)
    ('sockets between nodes', '', 'shared memory inside a node')
    """
    if is_inside:
        return {"SHM": "shared memory inside a node", "NET": "the network inside a node"}.get(way.partition("/")[0], "")
    if way.startswith("NET/Socket"):
        return "sockets between nodes"
    return WITHOUT_GPU_DIRECT if way.startswith("NET/IB") and "GDRDMA" not in way else ""


# More (rank, chunk) cells than these are not proved: a second or so.
MOST_CELLS = 1 << 20


def orders(of: LoggedCommunicator) -> dict[int, tuple[int, ...]]:
    """The rings of all ranks, by channel. NCCL prints the first 20 ranks of a ring; the connections continue it."""
    found = {channel: _continued(of, channel, order) for channel, (order, _) in sorted(of.rings.items())}
    everyone = list(range(of.size))
    return {channel: order for channel, order in found.items() if sorted(order) == everyone}


def _continued(of: LoggedCommunicator, channel: int, order: tuple[int, ...]) -> tuple[int, ...]:
    """The printed beginning of a ring, and how the first connections continue it; if they differ, what was printed."""
    whole = [*order]
    while len(whole) < of.size and (following := of.successors.get((channel, whole[-1]))) is not None:
        whole.append(following)
    agrees = all(of.successors.get((channel, a), b) == b for a, b in zip(whole, whole[1:] + whole[:1], strict=True))
    return tuple(whole) if agrees else order


def parents(of: LoggedCommunicator) -> dict[int, Ints]:
    """The trees of which every rank's line is there and says the same as its neighbours', by channel; -1 for a root."""
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
    """An all-reduce in which every channel's ring carries its share of the buffer.

    >>> ring_schedule({0: (0, 2, 1), 1: (0, 1, 2)}).step(0)
    Step(1->0:+1, 0->2:+2, 2->1:+0, 2->0:+4, 0->1:+5, 1->2:+3)
    """
    p = len(next(iter(rings.values())))
    ring, k = ALGORITHMS["all_reduce", "ring"](p), p * len(rings)
    placed = [on(ring, p, k, order, np.arange(p) + p * i) for i, order in enumerate(rings.values())]
    return replace(fold(lambda one, other: parallel(one, other, "all_reduce"), placed), one_port=False)


def tree_schedule(trees: dict[int, Ints]) -> Schedule:
    """An all-reduce in which every channel's tree carries its share: up to the root level by level, then down.

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
    """The host of every rank that has named itself; none of several communicators that the log does not tell apart."""
    if of.is_several:
        return {}
    return {rank: process.host for rank, process in of.processes.items()}


def crossings(order: tuple[int, ...], node: dict[int, str]) -> int:
    """How often a ring leaves a node."""
    return sum(node[a] != node[b] for a, b in zip(order, order[1:] + order[:1], strict=True))


def loaded_nodes(trees: dict[int, Ints], node: dict[int, str]) -> list[str]:
    """The nodes with more than four links to other nodes in two different trees.

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
