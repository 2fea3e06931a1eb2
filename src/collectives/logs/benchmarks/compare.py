"""Tables of the same collective against each other: which has a low rate or a high latency, and whose hosts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from collectives.logs.benchmarks import curves
from collectives.logs.benchmarks.curves import Floats
from collectives.logs.benchmarks.expected import HALF
from collectives.logs.benchmarks.table import Table
from collectives.logs.benchmarks.words import again, percent, title
from collectives.logs.finding import Finding, named
from collectives.units import duration, format_bytes

# A rate below this share of the others' median, and a latency above this factor, are another one's.
LOW_RATE, HIGH_LATENCY = 0.7, 1.5

# How many of the smallest sizes say what the latency is, and up to which size.
SMALLEST, SMALL = 5, 1 << 14


def differences(tables: Sequence[Table]) -> Iterator[Finding]:
    """The outliers of each group of tables that are alike: collective, type, program, and in one node or in several."""
    groups: dict[tuple[str, str, str, bool], list[Table]] = {}
    for table in tables:
        if table.ranks != 1 and table.collective:
            key = (table.collective, table.label, table.head.program, len(table.hosts) > 1)
            groups.setdefault(key, []).append(table)
    for group in groups.values():
        nbytes = curves.common([table.nbytes for table in group])
        if len(group) > 1 and len(nbytes):
            at = [np.searchsorted(table.nbytes, nbytes) for table in group]
            yield from _low_rates(group, [table.busbw[i] for table, i in zip(group, at, strict=True)], nbytes)
            yield from _high_latencies(group, [table.seconds[i] for table, i in zip(group, at, strict=True)], nbytes)


def _low_rates(group: list[Table], rates: list[Floats], nbytes: Floats) -> Iterator[Finding]:
    peaks = np.array([rate.max() for rate in rates])
    shares = _against_others(group, peaks)
    low = [i for i in range(len(group)) if shares[i] < LOW_RATE]
    for i in low:
        is_half = HALF[0] <= shares[i] <= HALF[1]
        than = "of the other table's" if len(group) == 2 else "of the others' median"
        rate = f"peak busbw {peaks[i]:.3g} GB/s up to {format_bytes(nbytes[-1])}, {percent(shares[i])} {than}"
        follows = (HALVED if is_half else SLOWER) + _shared(group, low)
        kind = "half rate" if is_half else "outlier"
        yield Finding(kind, f"{title(group[i])}: {rate}", follows, _advice(group[i]), (group[i].head.at,))


HALVED = "half of the links, ports or lanes of these hosts are missing or slow"
SLOWER = "a link, a port or a host there is slow, or the settings differ"


def _high_latencies(group: list[Table], times: list[Floats], nbytes: Floats) -> Iterator[Finding]:
    small = np.flatnonzero(nbytes <= SMALL)[:SMALLEST]
    if not len(small) or len(group) < 3:
        return
    latencies = np.array([np.median(seconds[small]) for seconds in times])
    factors = _against_others(group, latencies)
    high = [i for i in range(len(group)) if factors[i] > HIGH_LATENCY]
    for i in high:
        time = f"{duration(latencies[i])} at the smallest sizes, {factors[i]:.2g} times the others' median"
        follows = f"a rank or host there answers late{_shared(group, high)}"
        yield Finding("straggler", f"{title(group[i])}: {time}", follows, _advice(group[i]), (group[i].head.at,))


def _against_others(group: list[Table], values: Floats) -> Floats:
    """Each value over the median of other tables with as many ranks or more, which have no reason to be better."""
    found = np.full(len(group), np.nan)
    for i, table in enumerate(group):
        others = [value for j, value in enumerate(values) if j != i and group[j].ranks >= table.ranks]
        found[i] = values[i] / np.median(others) if others else np.nan
    return found


def _shared(group: list[Table], odd: list[int]) -> str:
    """The hosts that all odd tables have and no other table has, as the end of a sentence."""
    good = {host for i, table in enumerate(group) if i not in odd for host in table.hosts}
    hosts = [host for host in group[odd[0]].hosts if all(host in group[i].hosts for i in odd) and host not in good]
    return f"; only {'these tables have' if len(odd) > 1 else 'this table has'} {named(hosts)}" if hosts else ""


def _advice(table: Table) -> str:
    command = again(table, table.nbytes[0], table.nbytes[-1])
    if len(table.hosts) > 1:
        return f"measure each of its hosts with one that is good: {command}"
    return f"measure it once more, then look at its links: {command}"
