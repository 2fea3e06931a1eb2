"""A table's rate and latency against tables of the same collective, and against the preset of its node."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import reduce

import numpy as np

from collectives.bounds import busbw, lower_bound
from collectives.contracts import CONTRACTS
from collectives.logs.benchmarks.table import Floats, Table
from collectives.logs.finding import Finding, named
from collectives.units import duration, format_bytes

# A rate below this share of the others' median, and a latency above this factor, are another one's.
LOW_RATE, HIGH_LATENCY = 0.7, 1.5

# A link at half rate gives such a share of what is possible, or of what others reach.
HALF = (0.45, 0.6)

# How many of the smallest sizes say what the latency is, and up to which size.
SMALLEST, SMALL = 5, 1 << 14

# From this size on, a peak is one of bytes and not of latencies.
LARGE = 1 << 26

# Devices and the preset of a node with them. PCIe cards have other links.
PRESETS = (
    (re.compile(r"H100(?!.*(PCIe|NVL))"), "dgx-h100"),
    (re.compile(r"A100(?!.*PCI)"), "dgx-a100"),
    (re.compile(r"V100-SXM3"), "dgx2"),
    (re.compile(r"V100-SXM2"), "dgx1"),
    (re.compile(r"MI250"), "mi250"),
)


def differences(tables: Sequence[Table]) -> Iterator[Finding]:
    """The outliers of each group of tables that are alike: collective, label, and in one node or in several."""
    groups: dict[tuple[str, str, bool], list[Table]] = {}
    for table in tables:
        if len(table.nbytes) and table.ranks != 1 and table.collective:
            groups.setdefault((table.collective, table.label, len(table.hosts) > 1), []).append(table)
    for group in groups.values():
        nbytes = reduce(np.intersect1d, [table.nbytes for table in group])
        if len(group) > 1 and len(nbytes):
            yield from _low_rates(group, nbytes)
            yield from _high_latencies(group, nbytes[nbytes <= SMALL][:SMALLEST])


def _low_rates(group: list[Table], nbytes: Floats) -> Iterator[Finding]:
    peaks = np.array([table.busbw[np.isin(table.nbytes, nbytes)].max() for table in group])
    shares = _against_others(group, peaks)
    low = np.flatnonzero(shares < LOW_RATE).tolist()
    than = "the other table's" if len(group) == 2 else "the others' median"
    for i in low:
        peak = f"peak busbw {peaks[i]:.3g} GB/s up to {format_bytes(nbytes[-1])}"
        follows = "a link, a port or a host there is slow, or the settings differ"
        if HALF[0] <= shares[i] <= HALF[1]:
            follows = "half of the links, ports or lanes of these hosts are missing or slow"
        yield _outlier("low rate", f"{peak}, {shares[i]:.0%} of {than}", follows, group, low, i)


def _high_latencies(group: list[Table], small: Floats) -> Iterator[Finding]:
    if not len(small) or len(group) < 3:
        return
    latencies = np.array([np.median(table.times[0, np.isin(table.nbytes, small)]) for table in group])
    factors = _against_others(group, latencies)
    high = np.flatnonzero(factors > HIGH_LATENCY).tolist()
    for i in high:
        found = f"{duration(latencies[i])} at the smallest sizes, {factors[i]:.2g} times the others' median"
        yield _outlier("straggler", found, "a rank or host there answers late", group, high, i)


def _against_others(group: list[Table], values: Floats) -> Floats:
    """Each value over the median of other tables with as many ranks or more, which have no reason to be better."""
    ranks = np.array([table.ranks for table in group])
    found = np.full(len(group), np.nan)
    for i, value in enumerate(values):
        others = np.delete(values, i)[np.delete(ranks, i) >= ranks[i]]
        found[i] = value / np.median(others) if len(others) else np.nan
    return found


def _outlier(kind: str, found: str, follows: str, group: list[Table], odd: list[int], i: int) -> Finding:
    """The finding on one of a group's odd tables, with the hosts that all odd tables have and no other table has."""
    table = group[i]
    good = {host for j, other in enumerate(group) if j not in odd for host in other.hosts}
    hosts = [host for host in table.hosts if all(host in group[j].hosts for j in odd) and host not in good]
    if hosts:
        follows += f"; only {'these tables have' if len(odd) > 1 else 'this table has'} {named(hosts)}"
    how = "each of its hosts with one that is good" if len(table.hosts) > 1 else "it once more, then look at its links"
    advice = f"measure {how}: {table.again(table.nbytes[0], table.nbytes[-1])}"
    return Finding(kind, f"{table.title}: {found}", follows, advice, (table.head.at,))


def against_preset(table: Table) -> Iterator[Finding]:
    """The peak as a share of what the preset allows; about half of it or less is a fault."""
    preset = next((preset for pattern, preset in PRESETS if pattern.search(" ".join(table.devices))), "")
    is_one_node = len(table.hosts) == len(table.devices) == 1 < table.ranks
    can_tell = preset and is_one_node and table.collective in CONTRACTS and table.nbytes[-1] >= LARGE
    most = 0.0
    with suppress(ModuleNotFoundError):  # reading a log needs no extra, whereas presets are YAML
        most = _most(table, preset) if can_tell else 0.0
    if not most:
        return
    top = int(table.busbw.argmax())
    share = table.busbw[top] / most
    peak = f"peak busbw {table.busbw[top]:.3g} GB/s at {format_bytes(table.nbytes[top])}"
    found = f"{peak}, {share:.0%} of the {most:.3g} GB/s of the preset {preset}, if no switch adds (simulated)"
    places = (table.places[top],)
    if share > HALF[1]:
        yield Finding("preset", found, at=places)
        return
    follows = "half of the links between these devices are missing or slow"
    if share < HALF[0]:
        follows = "data take another way than the fast links, such as PCIe or the hosts' memory, or few links work"
    advice = f"see `nvidia-smi topo -m` and `nvidia-smi nvlink -s` on {table.hosts[0]}"
    yield Finding("low rate", found, follows, advice, places)


def _most(table: Table, preset: str) -> float:
    """The busbw in GB/s that a preset allows inside a node at the largest size; 0 if nothing says so.

    A link-by-link preset needs all ranks of its node.
    """
    from collectives.machine import machine

    on, n = machine(preset), int(table.nbytes[-1])
    if table.ranks > on.ranks_per_node or (on.links and table.ranks != on.ranks_per_node):
        return 0.0
    if on.links:
        from collectives.topology.bound import seconds

        least = seconds(table.collective, on, table.ranks, n)
    else:
        link = on.inside or on.network
        least = lower_bound(table.collective, table.ranks, n, link.alpha, link.beta, latency=link.latency)
    return busbw(table.collective, table.ranks, n, least) if least > 0 else 0.0
