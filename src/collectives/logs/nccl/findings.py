"""What a log of NCCL says about a job: findings, with what follows, what to try next, and the lines they rest on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from collectives.logs.finding import MOST_NAMED, Finding, Place, lines_of, named, ranks
from collectives.logs.nccl.channels import (
    MOST_CELLS,
    crossings,
    inside_both,
    node_of,
    orders,
    parents,
    ring_schedule,
    tree_schedule,
)
from collectives.logs.nccl.lines import Communicator, Log, Process, Setting, read
from collectives.schedule import Schedule, ScheduleError
from collectives.units import format_bytes, many
from collectives.verify import verify


def findings_of(paths: Sequence[Path]) -> Iterator[Finding]:
    """The findings in the log that these files are together. Raises OSError."""
    return findings(read(lines_of(paths)))


def findings(log: Log) -> Iterator[Finding]:
    """All findings: what the job is, then what is wrong or worth a look, the causes before the effects.

    >>> from collectives.logs.finding import numbered
    >>> log = ["n1:7:7 [0] NCCL INFO NCCL version 2.20.5", "n2:9:9 [0] NCCL INFO NCCL version 2.19.3"]
    >>> [one.kind for one in findings(read(numbered(log, "job.log")))]
    ['versions']
    """
    shown = [*log.communicators.values()][:MOST_NAMED]
    for of in shown:
        yield _job(of, log)
    if more := len(log.communicators) - len(shown):
        yield Finding("communicator", f"{many(more, 'more communicator')}; what is wrong with them follows, too")
    yield from _versions(log)
    yield from _environment(log)
    yield from _warnings(log)
    for of in log.communicators.values():
        yield from _absent(of)
        yield from (one for one in (*_rings(of), *_trees(of)) if one.kind != "proved" or of in shown)
        yield from _connections(of)
    yield from _networks(log)
    yield from _choices(log)
    yield from _calls(log)


def _job(of: Communicator, log: Log) -> Finding:
    hosts = len({process.host for process in of.processes.values()})
    version = f", NCCL {', '.join(log.versions)}" if log.versions else ""
    here = f"{len(of.processes)} of them in this log, on {many(hosts, 'host')}"
    said = f"communicator {of.name}: {many(of.size, 'rank')}, {here}"
    lines = [line for _, line in of.rings.values()][:1] or [*of.complete.values()][:1]
    return Finding("communicator", f"{said}; {many(len(of.rings), 'channel')}{version}", at=tuple(lines))


def _versions(log: Log) -> Iterator[Finding]:
    if len(log.versions) > 1:
        told = _by_value(log.versions)
        follows = "ranks with different versions of NCCL may fail or hang when they connect"
        yield Finding(
            "versions",
            f"NCCL versions differ: {told}",
            follows,
            "install one version on all hosts",
            _lines(log.versions),
        )


def _environment(log: Log) -> Iterator[Finding]:
    for name, values in sorted(log.environment.items()):
        if len(values) > 1:
            told = _by_value(values)
            follows = f"{name} differs between ranks, and they may choose different algorithms or links"
            yield Finding(
                "environment", f"{name} differs: {told}", follows, f"set {name} on every rank alike", _lines(values)
            )
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


def _warnings(log: Log) -> Iterator[Finding]:
    seen: dict[str, list[tuple[Place, Process]]] = {}
    for line, process, text in log.warnings:
        seen.setdefault(text, []).append((line, process))
    for text, places in list(seen.items())[:MOST_NAMED]:
        line, process = places[0]
        hosts = sorted({each.host for _, each in places})
        yield Finding(
            "warning",
            f"{process.host} warns: {text[:300]}",
            f"{many(len(places), 'such warning')}, on {named(hosts)}",
            "",
            (line,),
        )


def _absent(of: Communicator) -> Iterator[Finding]:
    begun, done = set(of.processes), set(of.complete)
    if done and begun - done:
        late = sorted(begun - done)
        hosts = sorted({of.processes[rank].host for rank in late})
        yield Finding(
            "incomplete",
            f"{many(len(late), 'rank')} of {of.name} began to initialise and did not complete: {ranks(late)}",
            f"the others wait for them; they are on {named(hosts)}",
            f"look at the last lines of rank {late[0]}, and at the network between its host and the others",
            (max(of.complete.values()),),
        )


def _rings(of: Communicator) -> Iterator[Finding]:
    rings = orders(of)
    broken = sorted(set(of.rings) - set(rings))
    if broken:
        channel = broken[0]
        order, line = of.rings[channel]
        lacking = sorted(set(range(of.size)) - set(order))
        what = f"lacks {ranks(lacking)}" if lacking else "names a rank twice"
        yield Finding(
            "ring", f"the ring of channel {channel} {what}", "the line is cut short, or lines are mixed", "", (line,)
        )
    if not rings:
        return
    line = min(line for _, line in of.rings.values())
    yield from _proved(of, f"the rings of {many(len(rings), 'channel')}", lambda: ring_schedule(rings), line)
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


def _trees(of: Communicator) -> Iterator[Finding]:
    trees = parents(of)
    if not trees:
        return
    line = min(line for places in of.trees.values() for _, line in places.values())
    yield from _proved(of, f"the trees of {many(len(trees), 'channel')}", lambda: tree_schedule(trees), line)
    node = node_of(of)
    if set(node) == set(range(of.size)) and (both := inside_both(trees, node)):
        yield Finding(
            "inside both",
            f"inside both trees, with more than four links to other nodes: {named(both)}",
            "such a node carries more than the others, and the others wait for it",
            "compare with the trees of this number of nodes: `collectives show all_reduce two_tree`",
            (line,),
        )


def _proved(of: Communicator, what: str, make: Callable[[], Schedule], line: Place) -> Iterator[Finding]:
    """Whether these channels do an all-reduce."""
    schedule = make()
    if schedule.p * schedule.k > MOST_CELLS:
        return
    try:
        verify(schedule)
    except ScheduleError as error:
        told = str(error).splitlines()[0]
        yield Finding("wrong", f"{what} of {of.name} are no all-reduce: {told}", at=(line,))
    else:
        yield Finding(
            "proved",
            f"{what} are an all-reduce on {many(of.size, 'rank')}: every contribution counted",
            "",
            "",
            (line,),
        )


def _connections(of: Communicator) -> Iterator[Finding]:
    node = node_of(of)
    ways: dict[str, list[tuple[int, int, Place]]] = {}
    for (_, a, b), (way, line) in of.connections.items():
        if a in node and b in node:
            ways.setdefault(_kind(way, node[a] == node[b]), []).append((a, b, line))
    for kind, (follows, advice) in POOR.items():
        if found := ways.get(kind):
            a, b, line = found[0]
            yield Finding(
                "connection",
                f"{many(len(found), 'connection')} by {kind}, such as rank {a} to {b}",
                follows,
                advice,
                (line,),
            )


# Ways of messages that are slower than others may be, what follows and what to try.
POOR = {
    "sockets between nodes": (
        "TCP copies all data through the hosts' memory and processors",
        "if there is InfiniBand or RoCE, see why NCCL does not use it: NCCL_IB_DISABLE, NCCL_IB_HCA, the libraries",
    ),
    "InfiniBand without GPU-direct": (
        "data pass through the hosts' memory on their way to the network",
        "load nvidia-peermem, or a kernel with DMA-BUF; see NCCL_NET_GDR_LEVEL",
    ),
    "shared memory inside a node": (
        "the GPUs reach each other through the host's memory, not by NVLink or PCIe peer-to-peer",
        "see `nvidia-smi topo -p2p r`, NCCL_P2P_DISABLE, NCCL_P2P_LEVEL and PCIe ACS",
    ),
    "the network inside a node": (
        "messages leave the host and come back",
        "see NCCL_P2P_DISABLE and NCCL_SHM_DISABLE, and whether containers of one host share /dev/shm",
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
    return "InfiniBand without GPU-direct" if way.startswith("NET/IB") and "GDRDMA" not in way else ""


def _networks(log: Log) -> Iterator[Finding]:
    if len(log.networks) > 1:
        yield Finding(
            "networks",
            f"ranks use different networks: {_by_value(log.networks)}",
            "two ranks that use different networks cannot connect",
            "install the same network plugin on all hosts",
            _lines(log.networks),
        )


def _choices(log: Log) -> Iterator[Finding]:
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


def _calls(log: Log) -> Iterator[Finding]:
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
                f"{many(len(behind), 'process')} of {len(calls)} in {name} {'has' if len(behind) == 1 else 'have'} not "
                f"reached call {most}: {process.host}:{process.pid} made call {number} last, {what}",
                "the others wait there, if the job hangs; if it does not, the log ends too early",
                f"see what process {process.pid} on {process.host} does: py-spy dump --pid {process.pid}",
                (line,),
            )


def _by_value(values: dict[str, Setting]) -> str:
    told = [
        f"{value} on {named(sorted({process.host for process in setting.processes}))}"
        for value, setting in values.items()
    ]
    return "; ".join(told[:MOST_NAMED])


def _lines(values: dict[str, Setting]) -> tuple[Place, ...]:
    return tuple(setting.at for setting in values.values())[:MOST_NAMED]
