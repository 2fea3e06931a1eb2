"""Files of NCCL Inspector (`NCCL_INSPECTOR_ENABLE=1`, JSON): findings on bandwidths, sizes, and who begins last.

An object for each call of a rank: formats v4.0 to v4.2, where each has a header, and v4.3 on, where
a marker with the header precedes the calls of a communicator.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from collectives.units import MAX_RANKS, duration, format_bytes, many
from collectives_logs.calls import CallKind, CallSeries, Floats, by_kind, waiting_findings
from collectives_logs.finding import MAX_NAMED, Finding, collective_of, finding, named, ranks
from collectives_logs.json_stream import Object, as_count, as_object, objects
from collectives_logs.sources import Place, texts

# What is kept of all files: calls, groups of calls, and algorithms.
MAX_CALLS, MAX_GROUPS, MAX_CHOICES = 1 << 23, 1 << 16, 64

# A size of at least so many bytes is slow if a smaller one is so many times as fast.
LARGE, SLOW = 1 << 16, 2.0

BEGINS = re.compile(r'"(?:coll_perf|p2p_perf|dump_stats)"\s*:\s*\{')


class SeriesKey(NamedTuple):
    """Calls of one rank that have the same series of numbers."""

    communicator: str
    collective: str
    rank: int


@dataclass
class InspectorLog:
    """All calls of the files, and what is missing in them."""

    calls: dict[SeriesKey, CallSeries] = field(default_factory=dict)
    hosts: dict[tuple[str, int], str] = field(default_factory=dict)  # by communicator and rank
    choices: Counter[str] = field(default_factory=Counter)
    by_cpu: int = 0  # calls whose time is the CPU's
    dropped: int = 0
    kept: int = 0
    left_out: int = 0
    broken: dict[Path, int] = field(default_factory=dict)


def begins(start: bytes) -> bool:
    """Return True if a file that begins so is the Inspector's."""
    return BEGINS.search(start.decode("utf8", "replace")) is not None


def findings_of(paths: Sequence[Path]) -> Iterator[Finding]:
    """Yield the findings in the files of one job, one or more for each process. Raises OSError."""
    log = read(paths)
    yield from _job(log)
    rates = _rates(log)
    yield from _collectives(log, rates)
    yield from _slow_sizes(rates)
    yield from _waiting(log)


def read(paths: Sequence[Path]) -> InspectorLog:
    """Return the calls in these files. Raises OSError."""
    log = InspectorLog()
    for path in paths:
        _read(log, path)
    return log


def _read(log: InspectorLog, path: Path) -> None:
    header: Object = {}
    dropped: dict[str, int] = {}
    place = Place(str(path))
    for record in objects(texts(path)):
        if record is None:
            log.broken[path] = log.broken.get(path, 0) + 1
            continue
        own_header = as_object(record.get("header")) | as_object(record.get("metadata"))
        header = own_header or header  # one that stands before the calls is theirs, too
        name = str(header.get("id"))[:80]
        stats = as_object(record.get("dump_stats"))
        total = as_count(stats.get("coll_dropped_total"))
        dropped[name] = max(dropped.get(name, 0), total)
        for kind in ("coll", "p2p"):
            _call(log, header, kind, as_object(record.get(f"{kind}_perf")), place)
    log.dropped += sum(dropped.values())


def _call(log: InspectorLog, header: Object, kind: str, perf: Object, place: Place) -> None:
    """Keep a call, if it has a rank and a time."""
    size, rank = as_count(header.get("n_ranks")), as_count(header.get("rank"))
    microseconds = perf.get(f"{kind}_exec_time_us")
    if not 0 <= rank < size <= MAX_RANKS:
        return
    if not isinstance(microseconds, (int, float)) or not 0 <= microseconds < 1e15:
        return
    name = str(header.get("id"))[:80]
    collective = collective_of(str(perf.get(kind)))
    key = SeriesKey(name, collective, rank)
    log.kept += 1
    if log.kept > MAX_CALLS or (len(log.calls) >= MAX_GROUPS and key not in log.calls):
        log.left_out += 1
        return
    nbytes = as_count(perf.get(f"{kind}_msg_size_bytes"))
    if collective in ("all_gather", "reduce_scatter"):
        nbytes *= size
    number = as_count(perf.get(f"{kind}_sn"))
    series = log.calls.setdefault(key, CallSeries(size, place))
    series.add(number, float(microseconds), nbytes)
    log.hosts.setdefault((name, rank), str(header.get("hostname", ""))[:80])
    if str(perf.get(f"{kind}_timing_source", "kernel_gpu")) != "kernel_gpu":
        log.by_cpu += 1
    _choice(log, collective, [perf.get(f"{kind}_algo"), perf.get(f"{kind}_proto")])


def _choice(log: InspectorLog, collective: str, given: Sequence[object]) -> None:
    """Count an algorithm and a protocol, where a call has any."""
    chosen = [str(name)[:20] for name in given if name]
    if not chosen:
        return
    choice = " ".join([collective, *chosen])
    if choice not in log.choices and len(log.choices) >= MAX_CHOICES:
        choice = "others"
    log.choices[choice] += 1


def _job(log: InspectorLog) -> Iterator[Finding]:
    """Yield the communicators, and what is missing."""
    members: dict[str, dict[int, CallSeries]] = {}
    for key, calls in log.calls.items():
        members.setdefault(key.communicator, {}).setdefault(key.rank, calls)
    for name, by_rank in islice(members.items(), MAX_NAMED):
        size = max(calls.size for calls in by_rank.values())
        hosts = {log.hosts[name, rank] for rank in by_rank}
        places = [calls.place for calls in by_rank.values()]
        found = f"communicator {name}: {ranks(by_rank)} of {size}, on {many(len(hosts), 'host')}"
        kind = "communicator in part" if len(by_rank) < size else "communicator"
        yield finding(f"inspector.{kind}", *places, found=found)
    unnamed = len(members) - MAX_NAMED
    if unnamed > 0:
        yield finding("all.more communicators", count=many(unnamed, "more communicator"))
    if not members:
        yield finding("inspector.no calls")
    for path, times in log.broken.items():
        yield finding("inspector.cut", Place(str(path)), places=many(times, "place"))
    if log.dropped or log.left_out:
        yield finding("inspector.dropped", dropped=log.dropped, left_out=log.left_out)
    if log.by_cpu:
        yield finding("inspector.CPU times", calls=many(log.by_cpu, "call"))


class Rates(NamedTuple):
    """The calls of one kind: how many, microseconds a rank, the median and the slowest tenth's rate in GB/s."""

    calls: int
    microseconds: float
    median: float  # on the rank that waits least
    tenth: float
    at: Place


def _rates(log: InspectorLog) -> dict[CallKind, Rates]:
    by_rank: dict[CallKind, list[tuple[Floats, Place]]] = {}
    for key, calls in log.calls.items():
        for kind, microseconds in by_kind([(key.collective, calls)]).items():
            by_rank.setdefault(kind, []).append((microseconds, calls.place))
    return {kind: _rates_of(kind, on_ranks) for kind, on_ranks in by_rank.items()}


def _rates_of(kind: CallKind, on_ranks: Sequence[tuple[Floats, Place]]) -> Rates:
    """Return the rates on the rank that waits least, which has the shortest median."""
    microseconds, place = min(on_ranks, key=lambda one: float(np.median(one[0])))
    calls = sum(times.size for times, _ in on_ranks)
    total = sum(float(times.sum()) for times, _ in on_ranks)
    return Rates(
        calls,
        total / len(on_ranks),
        kind.busbw(float(np.median(microseconds))),
        kind.busbw(float(np.quantile(microseconds, 0.9))),
        place,
    )


def _collectives(log: InspectorLog, rates: dict[CallKind, Rates]) -> Iterator[Finding]:
    longest_first = sorted(rates.items(), key=lambda item: -item[1].microseconds)
    for kind, rate in longest_first[:MAX_NAMED]:
        found = f"{kind.collective} of {format_bytes(kind.nbytes)} on {many(kind.size, 'rank')}"
        found += f": {many(rate.calls, 'call')}, {duration(rate.microseconds / 1e6)} a rank"
        if rate.median:
            found += f", busbw {rate.median:.3g} GB/s (median)"
            found += f", {rate.tenth:.3g} GB/s (slowest tenth)"
        yield Finding("collective", found, at=(rate.at,))
    unnamed = len(rates) - MAX_NAMED
    if unnamed > 0:
        yield Finding("collective", f"{many(unnamed, 'more kind')} of calls, with less time")
    if log.choices:
        counted = [f"{name} ({count:,})" for name, count in log.choices.most_common()]
        yield Finding("choice", named(counted))


def _slow_sizes(rates: dict[CallKind, Rates]) -> Iterator[Finding]:
    """Yield sizes that a smaller one beats: the larger a message, the nearer it comes to the links' rate."""
    best: dict[tuple[str, int], tuple[float, int]] = {}
    for kind in sorted(rates):
        rate, group = rates[kind], (kind.collective, kind.size)
        fastest, small = best.get(group, (0.0, 0))
        if kind.nbytes >= LARGE and 0 < rate.median * SLOW < fastest:
            yield finding(
                "inspector.slow size",
                rate.at,
                collective=kind.collective,
                p=kind.size,
                size=format_bytes(kind.nbytes),
                small=format_bytes(small),
                rate=rate.median,
                fastest=fastest,
            )
        best[group] = max((fastest, small), (rate.median, kind.nbytes))


def _waiting(log: InspectorLog) -> Iterator[Finding]:
    """Yield who begins last in calls that all ranks of the files have, matched by number."""
    groups: dict[tuple[str, str], dict[int, CallSeries]] = {}
    for key, calls in log.calls.items():
        groups.setdefault((key.communicator, key.collective), {})[key.rank] = calls
    for (name, collective), members in groups.items():
        names, series = [], []
        for rank, calls in sorted(members.items()):
            host = log.hosts[name, rank]
            names.append((f"rank {rank} of {name} on {host}", calls.place))
            series.append(calls)
        yield from waiting_findings(collective, names, _matched(series))


def _matched(members: Sequence[CallSeries]) -> Floats:
    """Return microseconds by rank and call, of the calls that all have."""
    common = np.unique(np.asarray(members[0].order))
    for calls in members[1:]:
        common = np.intersect1d(common, np.asarray(calls.order))
    rows = []
    for calls in members:
        numbers, first = np.unique(np.asarray(calls.order), return_index=True)
        rows.append(np.asarray(calls.durations)[first[np.searchsorted(numbers, common)]])
    return np.array(rows)
