"""What a communicator's rings, trees and connections say: proved or wrong, slower ways, ranks that did not arrive."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from collectives.logs.finding import Finding, Place, named, ranks
from collectives.logs.nccl import pictures
from collectives.logs.nccl.channels import (
    MOST_CELLS,
    crossings,
    loaded_nodes,
    node_of,
    orders,
    parents,
    ring_schedule,
    tree_schedule,
)
from collectives.logs.nccl.log import Communicator, Log
from collectives.schedule import Schedule, ScheduleError
from collectives.units import many
from collectives.verify import verify

if TYPE_CHECKING:
    from collectives.figures.style import Picture

    Draw = Callable[[], Picture | None]


def findings(of: Communicator, log: Log) -> Iterator[Finding]:
    """All that the lines about one communicator say, the causes before the effects."""
    yield from _absent(of, log.is_told)
    yield from _rings(of)
    yield from _trees(of)
    yield from _graph(of)
    yield from _connections(of, log.has_geforce)
    yield from _sockets(of, log)


def _absent(of: Communicator, is_told: bool) -> Iterator[Finding]:
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


def _graph(of: Communicator) -> Iterator[Finding]:
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


def _rings(of: Communicator) -> Iterator[Finding]:
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
    yield from _proved(
        of, f"the rings of {many(len(rings), 'channel')}", ring_schedule(rings), line, partial(pictures.rings, rings)
    )
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
    draw = partial(pictures.trees, trees, node_of(of))
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


def _proved(of: Communicator, what: str, schedule: Schedule, line: Place, draw: Draw) -> Iterator[Finding]:
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


def _connections(of: Communicator, has_geforce: bool) -> Iterator[Finding]:
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


def _sockets(of: Communicator, log: Log) -> Iterator[Finding]:
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
