"""A trace of torch.profiler, one rank's: its collectives, how long they take, and whether compute kernels run beside.

The file is read as a stream; kept are two or three numbers for each call and kernel. Where a trace has GPU kernels,
communication is NCCL's or RCCL's kernels, and computation all others; on a CPU, what Gloo, MPI, UCC or this library's
back end annotate, and operators of ATen.
"""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.bounds import algbw, busbw
from collectives.contracts import CONTRACTS
from collectives.units import MAX_RANKS, duration, format_bytes, many
from collectives_logs.calls import FEWEST_CALLS, TOGETHER, waiting_findings
from collectives_logs.finding import MOST_NAMED, Finding, Place, collective_of, named, places, ranks
from collectives_logs.json_stream import Object, array_in, as_count, as_number, as_object

# Of one file: calls of all collectives, other kernels, groups of calls, and kernels' names.
MOST_CALLS, MOST_KERNELS, MOST_GROUPS, MOST_NAMES = 1 << 20, 1 << 22, 1 << 12, 64

EVENTS = re.compile(r'"traceEvents"\s*:\s*\[')
STEP = re.compile(r"ProfilerStep#\d+$")
HOST = re.compile(r"(gloo|mpi|ucc|collectives):(\w+)$")
KERNEL = re.compile(
    r"(?:nccl|msccl)\w{0,12}Kernel_?(\w*)|(cross_device_reduce|(?:one|two)_shot_all_reduce|multimem_\w+)"
)
ALGORITHM = re.compile(r"_(RING|NVLS_TREE|NVLS|TREE|COLLNET_DIRECT|COLLNET_CHAIN|COLLNET|PAT)_(LL128|LL|SIMPLE)(?:_|$)")
RANK = re.compile(r"rank[-_]?(\d{1,7})", re.IGNORECASE)

# Up to 2.18, NCCL runs all that has no kernel of its own in the one for sends and receives.
GENERIC = re.compile(r"SendRecv_RING|Generic")

# Bytes of an element, by the profiler's names of GPU and CPU tensors' types.
ITEM_BYTES = {
    **dict.fromkeys(("Byte", "Char", "Bool", "unsigned char", "signed char", "bool"), 1),
    **dict.fromkeys(("Float8_e4m3fn", "Float8_e5m2", "Float8_e4m3fnuz", "Float8_e5m2fnuz"), 1),
    **dict.fromkeys(("Short", "Half", "BFloat16", "short int", "c10::Half", "c10::BFloat16"), 2),
    **dict.fromkeys(("Int", "Float", "int", "float"), 4),
    **dict.fromkeys(("Long", "Double", "ComplexFloat", "long int", "long", "double", "c10::complex<float>"), 8),
    **dict.fromkeys(("ComplexDouble", "c10::complex<double>"), 16),
}


@dataclass
class Calls:
    """Calls of one collective in one group of ranks: microseconds and bytes; 0 bytes or ranks if the trace has none."""

    size: int
    starts: array[float] = field(default_factory=lambda: array("d"))
    durations: array[float] = field(default_factory=lambda: array("d"))
    nbytes: array[int] = field(default_factory=lambda: array("q"))

    def ordered(self) -> Floats:
        """The durations by time of start."""
        return np.asarray(self.durations)[np.argsort(np.asarray(self.starts), kind="stable")]


@dataclass
class Trace:
    """What one file says, in microseconds."""

    file: str
    rank: int
    world: int = 0
    backend: str = ""
    calls: dict[tuple[str, str], Calls] = field(default_factory=dict)  # by collective and group
    kernels: Counter[str] = field(default_factory=Counter)  # how often each algorithm and protocol is in a name
    steps: array[float] = field(default_factory=lambda: array("d"))
    broken: int = 0  # places that could not be read
    left_out: int = 0  # events beyond what is kept
    span: float = 0.0  # of the steps, or from the first kernel to the last if that is longer
    computation: float = 0.0  # when any compute kernel is under way
    communication: float = 0.0  # when any collective is under way
    exposed: float = 0.0  # that, while no compute kernel is


def begins(start: bytes) -> bool:
    """Whether a file that begins so is a trace."""
    return EVENTS.search(start.decode("utf8", "replace")) is not None


def read(path: Path, place: int = 0) -> Trace:
    """The trace of a file; its rank is what it says, or what the file's name says, or else `place`. Raises OSError."""
    head, events = array_in(path, EVENTS)
    named = RANK.search(path.name)
    reader = _TraceReader(Trace(str(path), int(named[1]) if named else place))
    reader.job(head.get("distributedInfo"))
    for event in events:
        if event is None:
            reader.trace.broken += 1
        else:
            reader.event(event)
    return reader.measured()


class _TraceReader:
    """The trace so far, and the compute kernels and host operators that only its measures need."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.host: dict[tuple[str, str], Calls] = {}
        self.compute: dict[str, tuple[array[float], array[float]]] = {
            cat: (array("d"), array("d")) for cat in ("kernel", "cpu_op")
        }
        self.often = 0
        self.whole = 0  # ranks of the only group, if there is one

    def job(self, given: Any) -> None:
        """What comes before the events."""
        if not isinstance(given, dict):
            return
        trace, rank, world = self.trace, as_count(given.get("rank")), as_count(given.get("world_size"))
        trace.world = world if world <= MAX_RANKS else 0
        trace.rank = rank if rank < world else trace.rank
        trace.backend = str(given.get("backend", ""))[:40]
        self.whole = trace.world if given.get("pg_count", 1) == 1 else 0

    def event(self, event: Object) -> None:
        cat, name, args = event.get("cat"), str(event.get("name"))[:400], as_object(event.get("args"))
        start, duration = as_number(event.get("ts")), as_number(event.get("dur"))
        if event.get("ph") != "X" or math.isnan(start) or not duration >= 0 or args.get("finished") is False:
            return  # what has not finished lasts to the end of the profile there
        if cat == "kernel" and (found := KERNEL.search(name)):
            self.kernel(found, args, start, duration)
        elif cat == "kernel" or (cat == "cpu_op" and name.startswith("aten::")):
            starts, durations = self.compute[cat]
            if len(starts) < MOST_KERNELS:
                starts.append(start)
                durations.append(duration)
            else:
                self.trace.left_out += 1
        elif cat == "user_annotation" and STEP.match(name):
            self.trace.steps.append(duration)
        elif cat == "user_annotation" and (found := HOST.match(name)):
            collective = collective_of(found[2])
            nbytes = _host_bytes(args) * (self.whole if collective in ("all_gather", "gather") else 1)
            self.call(self.host, (collective, ""), self.whole, nbytes, start, duration)

    def kernel(self, found: re.Match[str], args: Object, start: float, duration: float) -> None:
        kind, said = found[1] or found[2] or "Generic", args.get("Collective name")
        is_generic = GENERIC.match(kind) is not None
        collective = "generic kernel" if is_generic and not said else collective_of(str(said or kind))
        if (told := ALGORITHM.search(kind)) and not is_generic:
            name = f"{collective} {told[1]}_{told[2]}"
            if name in self.trace.kernels or len(self.trace.kernels) < MOST_NAMES:
                self.trace.kernels[name] += 1
        elements = max(as_count(args.get("In msg nelems")), as_count(args.get("Out msg nelems")))
        nbytes = elements * ITEM_BYTES.get(str(args.get("dtype")), 0)
        group = args.get("Process Group Ranks") or args.get("Process Group Name") or f"stream {args.get('stream')}"
        size = min(as_count(args.get("Group size")), MAX_RANKS)
        self.call(self.trace.calls, (collective, str(group)[:1000]), size, nbytes, start, duration)

    def call(
        self, to: dict[tuple[str, str], Calls], key: tuple[str, str], size: int, nbytes: int, start: float, dur: float
    ) -> None:
        self.often += 1
        if self.often > MOST_CALLS or (key not in to and len(to) >= MOST_GROUPS):
            self.trace.left_out += 1
            return
        calls = to.setdefault(key, Calls(size))
        calls.starts.append(start)
        calls.durations.append(dur)
        calls.nbytes.append(nbytes)

    def measured(self) -> Trace:
        """The trace with what its times add up to."""
        trace, on_gpu = self.trace, bool(self.trace.calls or self.compute["kernel"][0])
        if not on_gpu:
            trace.calls = self.host
        begun, lasting = (np.asarray(each) for each in self.compute["kernel" if on_gpu else "cpu_op"])
        starts = np.concatenate([np.empty(0), *(np.asarray(each.starts) for each in trace.calls.values())])
        durations = np.concatenate([np.empty(0), *(np.asarray(each.durations) for each in trace.calls.values())])
        communication, compute = union(starts, durations), union(begun, lasting)
        everything = union(np.concatenate([starts, begun]), np.concatenate([durations, lasting]))
        trace.communication = communication.length
        trace.exposed = communication.length - shared(communication, compute)
        extent = float(everything.ends[-1] - everything.starts[0]) if everything.ends.size else 0.0
        trace.span, trace.computation = max(sum(trace.steps), extent), compute.length
        return trace


def _host_bytes(args: Object) -> int:
    """Bytes of the first tensor of a CPU event."""
    dims, kinds = args.get("Input Dims"), args.get("Input type")
    if not (isinstance(dims, list) and isinstance(kinds, list) and dims and kinds and isinstance(dims[0], list)):
        return 0
    elements = 1
    for length in dims[0][:16]:
        elements = min(elements * as_count(length), 1 << 50)
    return elements * ITEM_BYTES.get(str(kinds[0]), 0)


# Shares of the time, calls of a step and bytes from which something is worth a try.
MUCH_EXPOSED, MANY_CALLS, SMALL = 0.05, 100, 1 << 16


class CallKind(NamedTuple):
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
    found: dict[CallKind, list[Floats]] = {}
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


def _kinds(trace: Trace) -> dict[CallKind, Floats]:
    """The durations of calls that are alike."""
    kinds: dict[CallKind, list[Floats]] = {}
    for (collective, _), calls in trace.calls.items():
        nbytes, durations = np.asarray(calls.nbytes), np.asarray(calls.durations)
        for size in np.unique(nbytes):
            kinds.setdefault(CallKind(collective, calls.size, int(size)), []).append(durations[nbytes == size])
    return {kind: np.concatenate(durations) for kind, durations in kinds.items()}


def _collective(kind: CallKind, durations: Sequence[Floats], files: int) -> str:
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


def _least(kind: CallKind) -> str:
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
        yield from waiting_findings(collective, names, np.array([calls.ordered() for _, calls in members]))


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


Floats = NDArray[np.float64]


class Spans(NamedTuple):
    """Disjoint intervals in ascending order."""

    starts: Floats
    ends: Floats

    @property
    def length(self) -> float:
        """Of all together."""
        return float((self.ends - self.starts).sum())


def union(starts: Floats, durations: Floats) -> Spans:
    """When at least one of these intervals is under way.

    >>> union(np.array([5.0, 0.0, 1.0]), np.array([1.0, 2.0, 3.0]))
    Spans(starts=array([0., 5.]), ends=array([4., 6.]))
    """
    order = np.argsort(starts, kind="stable")
    begin, latest = starts[order], np.maximum.accumulate((starts + durations)[order])
    is_new = np.ones(begin.size, bool)
    is_new[1:] = begin[1:] > latest[:-1]
    is_last = np.roll(is_new, -1)
    return Spans(begin[is_new], latest[is_last])


def shared(a: Spans, b: Spans) -> float:
    """For how long both are under way.

    >>> shared(Spans(np.array([0.0, 10.0]), np.array([4.0, 12.0])), Spans(np.array([3.0]), np.array([11.0])))
    2.0
    """
    before = np.concatenate([[0.0], np.cumsum(b.ends - b.starts)])
    ends = np.concatenate([[-np.inf], b.ends])

    def until(times: Floats) -> Floats:
        begun = np.searchsorted(b.starts, times, side="right")
        return before[begun] - np.maximum(ends[begun] - times, 0.0)

    return float((until(a.ends) - until(a.starts)).sum())
