"""What NCCL Inspector wrote (`NCCL_INSPECTOR_ENABLE=1`, JSON): findings on bandwidths, sizes, and who begins last.

An object for each call of a rank: formats v4.0 to v4.2, where each has a header, and v4.3 on, where a marker with the
header precedes the calls of a communicator.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.bounds import busbw
from collectives.contracts import CONTRACTS
from collectives.units import MAX_RANKS, duration, format_bytes, many
from collectives_logs.calls import waiting_findings
from collectives_logs.finding import MOST_NAMED, Finding, Place, collective_of, named, ranks
from collectives_logs.json_stream import Object, as_count, as_object, objects, texts

# What is kept of all files: calls, groups of calls, and algorithms.
MOST_CALLS, MOST_GROUPS, MOST_CHOICES = 1 << 23, 1 << 16, 64

# A size of at least so many bytes is slow if a smaller one is so many times as fast.
LARGE, SLOW = 1 << 16, 2.0

BEGINS = re.compile(r'"(?:coll_perf|p2p_perf|dump_stats)"\s*:\s*\{')


class SeriesKey(NamedTuple):
    """Calls of one rank that have the same series of numbers."""

    communicator: str
    collective: str
    rank: int


@dataclass
class CallSeries:
    """Their numbers, microseconds, and bytes of the whole buffer."""

    size: int
    place: Place
    numbers: array[int] = field(default_factory=lambda: array("q"))
    times: array[float] = field(default_factory=lambda: array("d"))
    nbytes: array[int] = field(default_factory=lambda: array("q"))


@dataclass
class InspectorLog:
    """All that the files say."""

    calls: dict[SeriesKey, CallSeries] = field(default_factory=dict)
    hosts: dict[tuple[str, int], str] = field(default_factory=dict)  # by communicator and rank
    choices: Counter[str] = field(default_factory=Counter)
    by_cpu: int = 0  # calls whose time is the CPU's
    dropped: int = 0
    kept: int = 0
    left_out: int = 0
    broken: dict[Path, int] = field(default_factory=dict)


def begins(start: bytes) -> bool:
    """Whether a file that begins so is the Inspector's."""
    return BEGINS.search(start.decode("utf8", "replace")) is not None


def findings_of(paths: Sequence[Path]) -> Iterator[Finding]:
    """The findings in the files of one job, one or more for each process. Raises OSError."""
    log = read(paths)
    yield from _job(log)
    yield from _collectives(log)
    yield from _slow_sizes(log)
    yield from _waiting(log)


def read(paths: Sequence[Path]) -> InspectorLog:
    """The calls in these files. Raises OSError."""
    log = InspectorLog()
    for path in paths:
        header: Object = {}
        dropped: dict[str, int] = {}
        for record in objects(texts(path)):
            if record is None:
                log.broken[path] = log.broken.get(path, 0) + 1
                continue
            header = {**as_object(record.get("header")), **as_object(record.get("metadata"))} or header
            stats = as_object(record.get("dump_stats"))
            name = str(header.get("id"))[:80]
            dropped[name] = max(dropped.get(name, 0), as_count(stats.get("coll_dropped_total")))
            for kind in ("coll", "p2p"):
                _call(log, header, kind, as_object(record.get(f"{kind}_perf")), Place(str(path)))
        log.dropped += sum(dropped.values())
    return log


def _call(log: InspectorLog, header: Object, kind: str, perf: Object, place: Place) -> None:
    size, rank, time = as_count(header.get("n_ranks")), as_count(header.get("rank")), perf.get(f"{kind}_exec_time_us")
    if not perf or not 0 <= rank < size <= MAX_RANKS or not isinstance(time, (int, float)) or not 0 <= time < 1e15:
        return
    name, collective = str(header.get("id"))[:80], collective_of(str(perf.get(kind)))
    key = SeriesKey(name, collective, rank)
    log.kept += 1
    if log.kept > MOST_CALLS or (len(log.calls) >= MOST_GROUPS and key not in log.calls):
        log.left_out += 1
        return
    calls = log.calls.setdefault(key, CallSeries(size, place))
    calls.numbers.append(as_count(perf.get(f"{kind}_sn")))
    calls.times.append(float(time))
    parts = size if collective in ("all_gather", "reduce_scatter") else 1
    calls.nbytes.append(as_count(perf.get(f"{kind}_msg_size_bytes")) * parts)
    log.hosts.setdefault((name, rank), str(header.get("hostname", ""))[:80])
    log.by_cpu += str(perf.get(f"{kind}_timing_source", "kernel_gpu")) != "kernel_gpu"
    if told := [str(perf[f"{kind}_{what}"])[:20] for what in ("algo", "proto") if perf.get(f"{kind}_{what}")]:
        choice = " ".join([collective, *told])
        log.choices[choice if choice in log.choices or len(log.choices) < MOST_CHOICES else "others"] += 1


def _job(log: InspectorLog) -> Iterator[Finding]:
    """The communicators, and what is missing."""
    members: dict[str, dict[int, CallSeries]] = {}
    for key, calls in log.calls.items():
        members.setdefault(key.communicator, {}).setdefault(key.rank, calls)
    for name, by_rank in [*members.items()][:MOST_NAMED]:
        size, hosts = max(calls.size for calls in by_rank.values()), {log.hosts[name, rank] for rank in by_rank}
        found = f"communicator {name}: {ranks(by_rank)} of {size}, on {many(len(hosts), 'host')}"
        more = "give the files of the other ranks, too: together they tell who waits for whom"
        at = tuple(calls.place for calls in by_rank.values())[:MOST_NAMED]
        yield Finding("communicator", found, "", more if len(by_rank) < size else "", at)
    if (more_of := len(members) - MOST_NAMED) > 0:
        yield Finding("communicator", f"{many(more_of, 'more communicator')}; what is wrong with them follows, too")
    if not members:
        yield Finding("no calls", "no file has a call", "", "lower NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES (8192)")
    for path, times in log.broken.items():
        yield Finding("cut", f"{many(times, 'place')} cannot be read", "calls may be missing", "", (Place(str(path)),))
    if log.dropped or log.left_out:
        told = f"{log.dropped:,} calls were overwritten before they were written, and {log.left_out:,} are not kept"
        advice = "raise NCCL_INSPECTOR_DUMP_COLL_RING_SIZE, or dump more often"
        yield Finding("dropped", told, "they are missing in all that follows", advice)
    if log.by_cpu:
        yield Finding("CPU times", f"{many(log.by_cpu, 'call')} have the CPU's time, not the GPU's", "", "")


class Rates(NamedTuple):
    """Of the calls of one size: how many, their time, the median and how slow the slowest tenth is, in GB/s."""

    calls: int
    seconds: float
    median: float  # on the rank that waits least
    tenth: float
    at: Place


def _rates(log: InspectorLog) -> dict[tuple[str, int, int], Rates]:
    """By collective, ranks and bytes."""
    found: dict[tuple[str, int, int], list[tuple[NDArray[np.float64], Place]]] = {}
    for key, calls in log.calls.items():
        nbytes, times = np.asarray(calls.nbytes), np.asarray(calls.times)
        for size in np.unique(nbytes).tolist():
            some = times[nbytes == size]
            found.setdefault((key.collective, calls.size, size), []).append((some / 1e6, calls.place))
    rates = {}
    for (collective, p, whole), of in found.items():
        times, place = min(of, key=lambda one: float(np.median(one[0])))
        slow = (float(np.median(times)), float(np.quantile(times, 0.9)))
        is_known = collective in CONTRACTS and p > 1
        median, tenth = (busbw(collective, p, whole, each) if is_known else 0.0 for each in slow)
        total = sum(float(each.sum()) for each, _ in of) / len(of)
        rates[collective, p, whole] = Rates(sum(each.size for each, _ in of), total, median, tenth, place)
    return rates


def _collectives(log: InspectorLog) -> Iterator[Finding]:
    rates = _rates(log)
    for (collective, p, nbytes), rate in sorted(rates.items(), key=lambda one: -one[1].seconds)[:MOST_NAMED]:
        found = f"{collective} of {format_bytes(nbytes)} on {many(p, 'rank')}: {many(rate.calls, 'call')}"
        found += f", {duration(rate.seconds)} a rank"
        if rate.median:
            found += f", busbw {rate.median:.3g} GB/s (median), {rate.tenth:.3g} GB/s (slowest tenth)"
        yield Finding("collective", found, at=(rate.at,))
    if len(rates) > MOST_NAMED:
        yield Finding("collective", f"{many(len(rates) - MOST_NAMED, 'more kind')} of calls, with less time")
    if log.choices:
        yield Finding("choice", named([f"{name} ({count:,})" for name, count in log.choices.most_common()]))


def _slow_sizes(log: InspectorLog) -> Iterator[Finding]:
    """Sizes that a smaller one beats: the larger a message, the nearer it comes to the links' rate."""
    best: dict[tuple[str, int], tuple[float, int]] = {}
    for (collective, p, nbytes), rate in sorted(_rates(log).items(), key=lambda one: one[0]):
        fastest, size = best.get((collective, p), (0.0, 0))
        if nbytes >= LARGE and 0 < rate.median * SLOW < fastest:
            yield Finding(
                "slow size",
                f"{collective} of {format_bytes(nbytes)} on {p} ranks has busbw {rate.median:.3g} GB/s, and of "
                f"{format_bytes(size)} {fastest:.3g} GB/s",
                "a larger message should be at least as fast: NCCL chose badly, or ranks wait in these calls",
                "compare algorithms and protocols at this size with nccl-tests (NCCL_ALGO, NCCL_PROTO)",
                (rate.at,),
            )
        best[collective, p] = max((fastest, size), (rate.median, nbytes))


def _waiting(log: InspectorLog) -> Iterator[Finding]:
    """Calls that all ranks of the files have, matched by number."""
    groups: dict[tuple[str, str], dict[int, CallSeries]] = {}
    for key, calls in log.calls.items():
        groups.setdefault((key.communicator, key.collective), {})[key.rank] = calls
    for (name, collective), members in groups.items():
        order = sorted(members)
        names = [(f"rank {rank} of {name} on {log.hosts[name, rank]}", members[rank].place) for rank in order]
        yield from waiting_findings(collective, names, _matched([members[rank] for rank in order]))


def _matched(members: Sequence[CallSeries]) -> NDArray[np.float64]:
    """Microseconds by rank and call, of the calls that all have."""
    firsts = [np.unique(np.asarray(calls.numbers), return_index=True) for calls in members]
    common = firsts[0][0]
    for numbers, _ in firsts[1:]:
        common = np.intersect1d(common, numbers, assume_unique=True)
    return np.array(
        [
            np.asarray(calls.times)[index[np.searchsorted(numbers, common)]]
            for calls, (numbers, index) in zip(members, firsts, strict=True)
        ]
    )
