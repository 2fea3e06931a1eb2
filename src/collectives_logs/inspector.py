"""Files of NCCL Inspector (`NCCL_INSPECTOR_ENABLE=1`, JSON): findings on bandwidths, sizes, and who begins last.

An object for each call of a rank: formats v4.0 to v4.2, where each has a header, and v4.3 on, where
a marker with the header precedes the calls of a communicator.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
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
        header: Object = {}
        dropped: dict[str, int] = {}
        for record in objects(texts(path)):
            if record is None:
                log.broken[path] = log.broken.get(path, 0) + 1
                continue
            header = {
                **as_object(record.get("header")),
                **as_object(record.get("metadata")),
            } or header
            stats = as_object(record.get("dump_stats"))
            name = str(header.get("id"))[:80]
            dropped[name] = max(dropped.get(name, 0), as_count(stats.get("coll_dropped_total")))
            for kind in ("coll", "p2p"):
                _call(log, header, kind, as_object(record.get(f"{kind}_perf")), Place(str(path)))
        log.dropped += sum(dropped.values())
    return log


def _call(log: InspectorLog, header: Object, kind: str, perf: Object, place: Place) -> None:
    size, rank, time = (
        as_count(header.get("n_ranks")),
        as_count(header.get("rank")),
        perf.get(f"{kind}_exec_time_us"),
    )
    if (
        not perf
        or not 0 <= rank < size <= MAX_RANKS
        or not isinstance(time, (int, float))
        or not 0 <= time < 1e15
    ):
        return
    name, collective = str(header.get("id"))[:80], collective_of(str(perf.get(kind)))
    key = SeriesKey(name, collective, rank)
    log.kept += 1
    if log.kept > MAX_CALLS or (len(log.calls) >= MAX_GROUPS and key not in log.calls):
        log.left_out += 1
        return
    parts = size if collective in ("all_gather", "reduce_scatter") else 1
    nbytes = as_count(perf.get(f"{kind}_msg_size_bytes")) * parts
    log.calls.setdefault(key, CallSeries(size, place)).add(
        as_count(perf.get(f"{kind}_sn")), float(time), nbytes
    )
    log.hosts.setdefault((name, rank), str(header.get("hostname", ""))[:80])
    log.by_cpu += str(perf.get(f"{kind}_timing_source", "kernel_gpu")) != "kernel_gpu"
    if chosen := [
        str(perf[f"{kind}_{what}"])[:20] for what in ("algo", "proto") if perf.get(f"{kind}_{what}")
    ]:
        choice = " ".join([collective, *chosen])
        log.choices[
            choice if choice in log.choices or len(log.choices) < MAX_CHOICES else "others"
        ] += 1


def _job(log: InspectorLog) -> Iterator[Finding]:
    """Yield the communicators, and what is missing."""
    members: dict[str, dict[int, CallSeries]] = {}
    for key, calls in log.calls.items():
        members.setdefault(key.communicator, {}).setdefault(key.rank, calls)
    for name, by_rank in [*members.items()][:MAX_NAMED]:
        size, hosts = (
            max(calls.size for calls in by_rank.values()),
            {log.hosts[name, rank] for rank in by_rank},
        )
        found = f"communicator {name}: {ranks(by_rank)} of {size}, on {many(len(hosts), 'host')}"
        is_part = "communicator in part" if len(by_rank) < size else "communicator"
        yield finding(
            f"inspector.{is_part}", *(calls.place for calls in by_rank.values()), found=found
        )
    if (more_of := len(members) - MAX_NAMED) > 0:
        yield finding("all.more communicators", count=many(more_of, "more communicator"))
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
    found: dict[CallKind, list[tuple[Floats, Place]]] = {}
    for key, calls in log.calls.items():
        for kind, times in by_kind([(key.collective, calls)]).items():
            found.setdefault(kind, []).append((times, calls.place))
    rates = {}
    for kind, of in found.items():
        times, place = min(of, key=lambda one: float(np.median(one[0])))
        median, tenth = (
            kind.busbw(float(each)) for each in (np.median(times), np.quantile(times, 0.9))
        )
        total = sum(float(each.sum()) for each, _ in of) / len(of)
        rates[kind] = Rates(sum(each.size for each, _ in of), total, median, tenth, place)
    return rates


def _collectives(log: InspectorLog, rates: dict[CallKind, Rates]) -> Iterator[Finding]:
    for kind, rate in sorted(rates.items(), key=lambda one: -one[1].microseconds)[:MAX_NAMED]:
        found = f"{kind.collective} of {format_bytes(kind.nbytes)} on {many(kind.size, 'rank')}"
        found += f": {many(rate.calls, 'call')}, {duration(rate.microseconds / 1e6)} a rank"
        if rate.median:
            found += (
                f", busbw {rate.median:.3g} GB/s (median), {rate.tenth:.3g} GB/s (slowest tenth)"
            )
        yield Finding("collective", found, at=(rate.at,))
    if len(rates) > MAX_NAMED:
        yield Finding(
            "collective", f"{many(len(rates) - MAX_NAMED, 'more kind')} of calls, with less time"
        )
    if log.choices:
        yield Finding(
            "choice", named([f"{name} ({count:,})" for name, count in log.choices.most_common()])
        )


def _slow_sizes(rates: dict[CallKind, Rates]) -> Iterator[Finding]:
    """Yield sizes that a smaller one beats: the larger a message, the nearer it comes to the links' rate."""
    best: dict[tuple[str, int], tuple[float, int]] = {}
    for (collective, p, nbytes), rate in sorted(rates.items(), key=lambda one: one[0]):
        fastest, small = best.get((collective, p), (0.0, 0))
        if nbytes >= LARGE and 0 < rate.median * SLOW < fastest:
            sizes = {"size": format_bytes(nbytes), "small": format_bytes(small)}
            busbw = {"rate": rate.median, "fastest": fastest}
            yield finding(
                "inspector.slow size", rate.at, collective=collective, p=p, **sizes, **busbw
            )
        best[collective, p] = max((fastest, small), (rate.median, nbytes))


def _waiting(log: InspectorLog) -> Iterator[Finding]:
    """Yield who begins last in calls that all ranks of the files have, matched by number."""
    groups: dict[tuple[str, str], dict[int, CallSeries]] = {}
    for key, calls in log.calls.items():
        groups.setdefault((key.communicator, key.collective), {})[key.rank] = calls
    for (name, collective), members in groups.items():
        order = sorted(members)
        names = [
            (f"rank {rank} of {name} on {log.hosts[name, rank]}", members[rank].place)
            for rank in order
        ]
        yield from waiting_findings(collective, names, _matched([members[rank] for rank in order]))


def _matched(members: Sequence[CallSeries]) -> Floats:
    """Return microseconds by rank and call, of the calls that all have."""
    firsts = [np.unique(np.asarray(calls.order), return_index=True) for calls in members]
    common = firsts[0][0]
    for numbers, _ in firsts[1:]:
        common = np.intersect1d(common, numbers, assume_unique=True)
    return np.array(
        [
            np.asarray(calls.durations)[index[np.searchsorted(numbers, common)]]
            for calls, (numbers, index) in zip(members, firsts, strict=True)
        ]
    )
