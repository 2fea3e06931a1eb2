"""What traces of a training step say about its communication: findings, with what follows and what to try next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from collectives.bounds import algbw, busbw
from collectives.contracts import CONTRACTS
from collectives.logs import waiting
from collectives.logs.finding import MOST_NAMED, Finding, Place, named, places, ranks
from collectives.logs.kineto.events import Calls, Trace, read
from collectives.logs.kineto.intervals import Floats
from collectives.logs.waiting import FEWEST_CALLS, TOGETHER
from collectives.units import duration, format_bytes, many

# Shares of the time, calls of a step and bytes from which something is worth a try.
MUCH_EXPOSED, MANY_CALLS, SMALL = 0.05, 100, 1 << 16


class Kind(NamedTuple):
    """Calls that are alike."""

    collective: str
    size: int
    nbytes: int


def findings_of(paths: Sequence[Path]) -> Iterator[Finding]:
    """The findings in the traces of one job, a file for each rank. Raises OSError."""
    return findings([read(path, place) for place, path in enumerate(paths)])


def findings(traces: Sequence[Trace]) -> Iterator[Finding]:
    """What was traced, what the communication takes, who waits, and what else is worth a look."""
    yield _job(traces)
    yield from _cut(traces)
    yield from _twice(traces)
    if not any(trace.calls for trace in traces):
        yield Finding(
            "no communication",
            "no trace has a collective",
            "the job has one rank, or its GPUs were not traced",
            "profile with ProfilerActivity.CUDA and after the first steps; NCCL's kernels must be there",
            places(trace.file for trace in traces),
        )
        return
    yield from _collectives(traces)
    yield from _exposed(traces)
    first = {trace.rank: trace for trace in reversed(traces)}
    yield from _waiting([first[rank] for rank in sorted(first)])
    yield from _small(traces)
    yield from _kernels(traces)


def _job(traces: Sequence[Trace]) -> Finding:
    world, numbers = max(trace.world for trace in traces), {trace.rank for trace in traces}
    backends = named(sorted({trace.backend for trace in traces} - {""}))
    steps = np.concatenate([np.asarray(trace.steps) for trace in traces])
    told = f", {many(len(steps) // len(traces), 'step')} of {_time(np.median(steps))}" if len(steps) else ""
    whole = f" of {world}" if world else ""
    more = "give the traces of the other ranks, too: together they tell who waits for whom"
    found = f"{ranks(numbers)}{whole}{f', {backends}' if backends else ''}{told}"
    return Finding("trace", found, "", more if len(numbers) < world else "", places(trace.file for trace in traces))


def _cut(traces: Sequence[Trace]) -> Iterator[Finding]:
    for trace in traces:
        at = places([trace.file])
        if trace.broken:
            follows = "what comes behind it may be missing in all sums"
            yield Finding("cut", f"{many(trace.broken, 'place')} of the trace cannot be read", follows, "", at)
        if trace.left_out:
            yield Finding("left out", f"{many(trace.left_out, 'event')} beyond what is kept in memory", at=at)


def _twice(traces: Sequence[Trace]) -> Iterator[Finding]:
    for rank, times in Counter(trace.rank for trace in traces).items():
        if times > 1:
            here = [trace for trace in traces if trace.rank == rank]
            yield Finding(
                "twice",
                f"{many(times, 'trace')} are of rank {rank}",
                "the first of them is compared with the other ranks",
                "give the traces of one time of all ranks",
                places(trace.file for trace in here),
            )


def _collectives(traces: Sequence[Trace]) -> Iterator[Finding]:
    """Calls that are alike: how many, how long, how fast; those that take the longest first."""
    found: dict[Kind, list[Floats]] = {}
    for trace in traces:
        for kind, durations in _kinds(trace).items():
            found.setdefault(kind, []).append(durations)
    order = sorted(found, key=lambda kind: -sum(float(each.sum()) for each in found[kind]))
    for kind in order[:MOST_NAMED]:
        least = _least(kind) if kind == order[0] else ""
        yield Finding("collective", _collective(kind, found[kind], len(traces)) + least)
    if rest := order[MOST_NAMED:]:
        took = sum(float(each.sum()) for kind in rest for each in found[kind]) / len(traces)
        yield Finding("collective", f"{many(len(rest), 'more kind')} of calls: they take {_time(took)} a rank together")


def _kinds(trace: Trace) -> dict[Kind, Floats]:
    """The durations of calls that are alike."""
    kinds: dict[Kind, list[Floats]] = {}
    for (collective, _), calls in trace.calls.items():
        nbytes, durations = np.asarray(calls.nbytes), np.asarray(calls.durations)
        for size in np.unique(nbytes):
            kinds.setdefault(Kind(collective, calls.size, int(size)), []).append(durations[nbytes == size])
    return {kind: np.concatenate(durations) for kind, durations in kinds.items()}


def _collective(kind: Kind, durations: Sequence[Floats], files: int) -> str:
    """The rank whose median call is the shortest waits least for others, so that its median says how fast they are."""
    least = min(float(np.median(each)) for each in durations)
    calls, took = sum(each.size for each in durations) / files, sum(float(each.sum()) for each in durations) / files
    size = f" of {format_bytes(kind.nbytes)}" if kind.nbytes else ""
    on = f" on {many(kind.size, 'rank')}" if kind.size else ""
    each = " a rank" if files > 1 else ""
    said = f"{kind.collective}{size}{on}: {calls:.4g} calls{each}, {_time(took)} in all, median {_time(least)}"
    if not (kind.collective in CONTRACTS and kind.nbytes and kind.size > 1 and least):
        return said
    rate = f"algbw {algbw(kind.nbytes, least / 1e6):.3g} GB/s"
    if kind.collective in TOGETHER:
        rate += f", busbw {busbw(kind.collective, kind.size, kind.nbytes, least / 1e6):.3g} GB/s"
    return f"{said}: {rate}"


def _least(kind: Kind) -> str:
    """What any schedule of it must send."""
    if kind.collective not in TOGETHER or kind.collective not in CONTRACTS or not kind.nbytes or kind.size < 2:
        return ""
    least = round(kind.nbytes * CONTRACTS[kind.collective].factor(kind.size))
    return f"; each rank sends at least {format_bytes(least)}, if no switch adds, and busbw is that over time"


def _exposed(traces: Sequence[Trace]) -> Iterator[Finding]:
    """Communication beside which no compute kernel runs."""
    of = [trace for trace in traces if trace.communication and trace.computation]
    if not of:
        return
    share = np.array([[trace.communication / trace.span, trace.exposed / trace.span] for trace in of])
    hidden = [1 - trace.exposed / trace.communication for trace in of]
    worst = of[int(share[:, 1].argmax())]
    least = f"{share[:, 1].min():.0%} to {share[:, 1].max():.0%}" if len(of) > 1 else f"{share[0, 1]:.0%}"
    steps = len(worst.steps) or 1
    told = f"communication takes {np.median(share[:, 0]):.0%} of the time, and {np.median(hidden):.0%} of it is hidden"
    found = f"{told} behind computation; exposed: {least} of the time"
    if share[:, 1].max() < MUCH_EXPOSED:
        yield Finding("overlap", found, at=places([worst.file]))
        return
    saves = f"{_time(worst.exposed / steps)} a step" if worst.steps else f"{_time(worst.exposed)}"
    yield Finding(
        "exposed",
        found,
        f"if all communication ran beside computation, rank {worst.rank} would save up to {saves}",
        "start collectives earlier (smaller first buckets, prefetch), send fewer bytes, or compute more between them",
        places([worst.file]),
    )


def _waiting(traces: Sequence[Trace]) -> Iterator[Finding]:
    """Over several ranks: who begins last."""
    groups: dict[tuple[str, str], list[tuple[Trace, Calls]]] = {}
    for trace in traces:
        for key, calls in trace.calls.items():
            groups.setdefault(key, []).append((trace, calls))
    for (collective, _), members in groups.items():
        counts = {len(calls.durations) for _, calls in members}
        if collective not in TOGETHER or len(members) < 2 or max(counts) < FEWEST_CALLS:
            continue
        if len(counts) > 1:
            most, least = (pick(members, key=lambda one: len(one[1].durations))[0] for pick in (max, min))
            yield Finding(
                "calls",
                f"rank {least.rank} has {min(counts):,} calls of {collective}, rank {most.rank} {max(counts):,}",
                "these calls cannot be matched, and are not compared",
                "trace the same steps on all ranks",
                places([least.file, most.file]),
            )
            continue
        names = [(f"rank {trace.rank}", Place(trace.file)) for trace, _ in members]
        yield from waiting.findings(collective, names, np.array([calls.ordered() for _, calls in members]))


def _small(traces: Sequence[Trace]) -> Iterator[Finding]:
    """Many small messages, in the rank that has the most of them."""
    most: dict[str, tuple[float, float, Trace]] = {}
    for trace in traces:
        for (collective, _), calls in trace.calls.items():
            a_step, nbytes = len(calls.durations) / (len(trace.steps) or 1), float(np.median(np.asarray(calls.nbytes)))
            if a_step > MANY_CALLS and 0 < nbytes < SMALL and a_step > most.get(collective, (0.0,))[0]:
                most[collective] = a_step, nbytes, trace
    for collective, (a_step, nbytes, trace) in most.items():
        per = "a step" if trace.steps else "in the trace"
        yield Finding(
            "small messages",
            f"{a_step:,.0f} calls of {collective} {per}, median {format_bytes(nbytes)}",
            "latency sets their time, not the links' rate",
            "send them together: DDP's bucket_cap_mb, larger FSDP units, torch.distributed's coalescing",
            places([trace.file]),
        )


def _kernels(traces: Sequence[Trace]) -> Iterator[Finding]:
    """What NCCL's kernels are called, and what that does not tell."""
    counts: Counter[str] = Counter()
    for trace in traces:
        counts.update(trace.kernels)
    if counts:
        yield Finding(
            "kernels",
            f"{named([f'{name} ({count:,})' for name, count in counts.most_common()])}; TREE is a tree; RING and "
            "LL may run other algorithms and protocols, because NCCL does not compile a kernel for each",
            "",
            "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=TUNING prints the algorithm and protocol of each call",
            places(trace.file for trace in traces if trace.kernels),
        )


def _time(microseconds: float) -> str:
    return duration(float(microseconds) / 1e6)
