"""The bus bandwidth that our presets allow inside a node, to compare a table with."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from collectives.bounds import busbw, lower_bound
from collectives.contracts import CONTRACTS
from collectives.logs.benchmarks.table import Table
from collectives.logs.benchmarks.words import percent
from collectives.logs.finding import Finding
from collectives.machine import Machine, machine
from collectives.units import format_bytes

# Devices and the preset of a node with them. PCIe cards have other links.
PRESETS = (
    (re.compile(r"H100(?!.*(PCIe|NVL))"), "dgx-h100"),
    (re.compile(r"A100(?!.*PCI)"), "dgx-a100"),
    (re.compile(r"V100-SXM3"), "dgx2"),
    (re.compile(r"V100-SXM2"), "dgx1"),
    (re.compile(r"MI250"), "mi250"),
)

# From this size on, a peak is one of bytes and not of latencies.
LARGE = 1 << 26

# A link at half rate gives such a share of what is possible, or of what others reach.
HALF = (0.45, 0.6)


class Expected(NamedTuple):
    """A preset's name and its largest busbw in GB/s; 0 for none."""

    preset: str
    busbw: float


def expected(table: Table) -> Expected:
    """What the preset of these devices allows on one node at the table's largest size; no preset: ("", 0).

    A link-by-link preset needs all ranks of its node.
    """
    nothing = Expected("", 0.0)
    if len(table.hosts) != 1 or len(table.devices) != 1 or table.ranks < 2 or table.collective not in CONTRACTS:
        return nothing
    name = next((preset for pattern, preset in PRESETS if pattern.search(table.devices[0])), "")
    if not name:
        return nothing
    on, n = machine(name), int(table.nbytes[-1])
    if table.ranks > on.ranks_per_node or (on.links and table.ranks != on.ranks_per_node):
        return nothing
    seconds = _seconds(table.collective, on, table.ranks, n)
    return Expected(name, busbw(table.collective, table.ranks, n, seconds)) if seconds > 0 else nothing


def _seconds(collective: str, on: Machine, p: int, n: int) -> float:
    """The least time of a collective inside a node, in seconds; 0 if there is no such bound."""
    if on.links:
        from collectives.topology.bound import seconds

        return seconds(collective, on, p, n)
    link = on.inside or on.network
    return lower_bound(collective, p, n, link.alpha, link.beta, latency=link.latency)


def below_preset(table: Table) -> Iterator[Finding]:
    """A peak that is about half of what the preset allows, or less."""
    if table.nbytes[-1] < LARGE:
        return
    preset, most = expected(table)
    if not most:
        return
    top = int(table.busbw.argmax())
    share = table.busbw[top] / most
    peak = f"peak busbw {table.busbw[top]:.3g} GB/s at {format_bytes(table.nbytes[top])}"
    against = f"{peak}, {percent(share)} of the {most:.3g} GB/s that the preset {preset} allows at most (simulated)"
    where = (table.places[top],)
    if share > HALF[1]:
        yield Finding("preset", against, at=where)
        return
    kind = "half rate" if share >= HALF[0] else "low rate"
    follows = "half of the links between these devices are missing or slow" if kind == "half rate" else LOW
    yield Finding(
        kind, against, follows, f"see `nvidia-smi topo -m` and `nvidia-smi nvlink -s` on {table.hosts[0]}", where
    )


LOW = "data take another way than the fast links, such as PCIe or the hosts' memory, or few links work"
