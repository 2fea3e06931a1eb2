"""A trace of torch.profiler, one rank's: its collectives, how long they take, and whether compute kernels run beside.

The file is read as a stream; kept are two or three numbers for each call and kernel. Where a trace
has GPU kernels, communication is NCCL's or RCCL's kernels, and computation all others; on a CPU,
what Gloo, MPI, UCC or this library's back end annotate, and operators of ATen.
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

from collectives.core.bounds import algbw
from collectives.core.contracts import CONTRACTS
from collectives.units import MAX_RANKS, duration, format_bytes, many
from collectives_logs.calls import (
    MIN_CALLS,
    TOGETHER,
    CallKind,
    CallSeries,
    Floats,
    by_kind,
    waiting_findings,
)
from collectives_logs.finding import (
    MAX_NAMED,
    Finding,
    collective_of,
    finding,
    named,
    places,
    ranks,
)
from collectives_logs.json_stream import Object, array_in, as_count, as_number, as_object
from collectives_logs.sources import Place

# Of one file: calls of all collectives, other kernels, groups of calls, and kernels' names.
MAX_CALLS, MAX_KERNELS, MAX_GROUPS, MAX_NAMES = 1 << 20, 1 << 22, 1 << 12, 64

EVENTS = re.compile(r'"traceEvents"\s*:\s*\[')
STEP = re.compile(r"ProfilerStep#\d+$")
HOST = re.compile(r"(gloo|mpi|ucc|collectives):(\w+)$")
KERNEL = re.compile(
    r"(?:nccl|msccl)\w{0,12}Kernel_?(\w*)|(cross_device_reduce|(?:one|two)_shot_all_reduce|multimem_\w+)"
)
ALGORITHM = re.compile(
    r"_(RING|NVLS_TREE|NVLS|TREE|COLLNET_DIRECT|COLLNET_CHAIN|COLLNET|PAT)_(LL128|LL|SIMPLE)(?:_|$)"
)
RANK = re.compile(r"rank[-_]?(\d{1,7})", re.IGNORECASE)

# Up to 2.18, NCCL runs all that has no kernel of its own in the one for sends and receives.
GENERIC = re.compile(r"SendRecv_RING|Generic")

# Bytes of an element, by the profiler's names of GPU and CPU tensors' types.
ITEM_BYTES = {
    **dict.fromkeys(("Byte", "Char", "Bool", "unsigned char", "signed char", "bool"), 1),
    **dict.fromkeys(("Float8_e4m3fn", "Float8_e5m2", "Float8_e4m3fnuz", "Float8_e5m2fnuz"), 1),
    **dict.fromkeys(("Short", "Half", "BFloat16", "short int", "c10::Half", "c10::BFloat16"), 2),
    **dict.fromkeys(("Int", "Float", "int", "float"), 4),
    **dict.fromkeys(
        ("Long", "Double", "ComplexFloat", "long int", "long", "double", "c10::complex<float>"), 8
    ),
    **dict.fromkeys(("ComplexDouble", "c10::complex<double>"), 16),
}


@dataclass
class Trace:
    """A file's content, in microseconds."""

    file: str
    rank: int
    world: int = 0
    backend: str = ""
    # By collective and group.
    calls: dict[tuple[str, str], CallSeries] = field(default_factory=dict)
    # How often each algorithm and protocol is in a name.
    kernels: Counter[str] = field(default_factory=Counter)
    steps: array[float] = field(default_factory=lambda: array("d"))
    broken: int = 0  # places that could not be read
    left_out: int = 0  # events beyond what is kept
    span: float = 0.0  # of the steps, or from the first kernel to the last if that is longer
    computation: float = 0.0  # when any compute kernel is under way
    communication: float = 0.0  # when any collective is under way
    exposed: float = 0.0  # that, while no compute kernel is


def begins(start: bytes) -> bool:
    """Return True if a file that begins so is a trace."""
    return EVENTS.search(start.decode("utf8", "replace")) is not None


def read(path: Path, place: int = 0) -> Trace:
    """Return the trace of a file; its rank is the file's, or that of its name, or else `place`.

    Raises OSError.
    """
    head, events = array_in(path, EVENTS)
    number = RANK.search(path.name)
    reader = _Events(Trace(str(path), int(number[1]) if number else place))
    reader.job(head.get("distributedInfo"))
    for event in events:
        if event is None:
            reader.trace.broken += 1
        else:
            reader.add(event)
    return reader.measured()


class _Events:
    """The trace so far, and the compute kernels and host operators that only its measures need."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.host: dict[tuple[str, str], CallSeries] = {}
        # Starts and durations.
        self.compute = {cat: (array("d"), array("d")) for cat in ("kernel", "cpu_op")}
        self.often = 0
        self.ranks_of_only_group = 0  # 0 if there are several groups

    def job(self, given: Any) -> None:
        """Read what comes before the events."""
        if not isinstance(given, dict):
            return
        trace = self.trace
        rank, world = as_count(given.get("rank")), as_count(given.get("world_size"))
        if world <= MAX_RANKS:
            trace.world = world
        if rank < world:
            trace.rank = rank
        trace.backend = str(given.get("backend", ""))[:40]
        if given.get("pg_count", 1) == 1:
            self.ranks_of_only_group = trace.world

    def add(self, event: Object) -> None:
        """Keep an event, if it is a kernel, an operator or a step."""
        category, name = event.get("cat"), str(event.get("name"))[:400]
        args = as_object(event.get("args"))
        start, lasts = as_number(event.get("ts")), as_number(event.get("dur"))
        is_timed = event.get("ph") == "X" and not math.isnan(start) and lasts >= 0
        if not is_timed or args.get("finished") is False:
            return  # what has not finished lasts to the end of the profile there
        if category == "kernel":
            kernel = KERNEL.search(name)
            if kernel:
                self._kernel(kernel, args, start, lasts)
            else:
                self._compute(category, start, lasts)
        elif category == "cpu_op" and name.startswith("aten::"):
            self._compute(category, start, lasts)
        elif category == "user_annotation":
            self._annotation(name, args, start, lasts)

    def _compute(self, category: str, start: float, lasts: float) -> None:
        starts, durations = self.compute[category]
        if len(starts) < MAX_KERNELS:
            starts.append(start)
            durations.append(lasts)
        else:
            self.trace.left_out += 1

    def _annotation(self, name: str, args: Object, start: float, lasts: float) -> None:
        """Keep a step, or a collective that a back end on the CPU annotates."""
        if STEP.match(name):
            self.trace.steps.append(lasts)
            return
        on_host = HOST.match(name)
        if on_host is None:
            return
        collective, nbytes = collective_of(on_host[2]), _host_bytes(args)
        if collective in ("all_gather", "gather"):
            nbytes *= self.ranks_of_only_group  # the event has what one rank puts in
        # An annotation names no kernel and no group: it is taken for one of the only group.
        kind = (collective, "")
        self._call(self.host, kind, self.ranks_of_only_group, (start, lasts, nbytes))

    def _kernel(self, found: re.Match[str], args: Object, start: float, lasts: float) -> None:
        """Keep a kernel that communicates."""
        kind, name = found[1] or found[2] or "Generic", args.get("Collective name")
        is_generic = GENERIC.match(kind) is not None
        collective = "generic kernel"
        if name or not is_generic:
            collective = collective_of(str(name or kind))
        choice = ALGORITHM.search(kind)
        if choice and not is_generic:
            self._count(f"{collective} {choice[1]}_{choice[2]}")
        elements = max(as_count(args.get("In msg nelems")), as_count(args.get("Out msg nelems")))
        nbytes = elements * ITEM_BYTES.get(str(args.get("dtype")), 0)
        group = args.get("Process Group Ranks") or args.get("Process Group Name")
        group = group or f"stream {args.get('stream')}"
        size = min(as_count(args.get("Group size")), MAX_RANKS)
        self._call(self.trace.calls, (collective, str(group)[:1000]), size, (start, lasts, nbytes))

    def _count(self, kernel: str) -> None:
        kernels = self.trace.kernels
        if kernel in kernels or len(kernels) < MAX_NAMES:
            kernels[kernel] += 1

    def _call(
        self,
        to: dict[tuple[str, str], CallSeries],
        key: tuple[str, str],
        size: int,
        call: tuple[float, float, int],
    ) -> None:
        self.often += 1
        if self.often > MAX_CALLS or (key not in to and len(to) >= MAX_GROUPS):
            self.trace.left_out += 1
            return
        series = to.setdefault(key, CallSeries(size, Place(self.trace.file)))
        start, lasts, nbytes = call
        series.add(start, lasts, nbytes)

    def measured(self) -> Trace:
        """Return the trace with what its times add up to."""
        trace = self.trace
        category = "kernel"
        if not trace.calls and not self.compute["kernel"][0]:  # there is no GPU
            trace.calls, category = self.host, "cpu_op"
        begun, lasting = (np.asarray(times) for times in self.compute[category])
        starts, durations = np.empty(0), np.empty(0)
        if trace.calls:
            series = trace.calls.values()
            starts = np.concatenate([np.asarray(calls.order) for calls in series])
            durations = np.concatenate([np.asarray(calls.durations) for calls in series])
        communication, compute = union(starts, durations), union(begun, lasting)
        trace.communication = communication.length
        trace.exposed = communication.length - shared(communication, compute)
        trace.computation = compute.length
        everything = union(np.concatenate([starts, begun]), np.concatenate([durations, lasting]))
        trace.span = sum(trace.steps)
        if everything.ends.size:
            extent = float(everything.ends[-1] - everything.starts[0])
            trace.span = max(trace.span, extent)
        return trace


def _host_bytes(args: Object) -> int:
    """Return the bytes of the first tensor of a CPU event, 0 if it names none."""
    dims, kinds = args.get("Input Dims"), args.get("Input type")
    if not isinstance(dims, list) or not isinstance(kinds, list):
        return 0
    if not dims or not kinds or not isinstance(dims[0], list):
        return 0
    elements = 1
    for length in dims[0][:16]:
        elements = min(elements * as_count(length), 1 << 50)
    return elements * ITEM_BYTES.get(str(kinds[0]), 0)


# Shares of the time, calls of a step and bytes from which something is worth a try.
MUCH_EXPOSED, MANY_CALLS, SMALL = 0.05, 100, 1 << 16


def findings_of(paths: Sequence[Path]) -> Iterator[Finding]:
    """Yield the findings in the traces of one job, a file for each rank. Raises OSError."""
    return findings([read(path, place) for place, path in enumerate(paths)])


def findings(traces: Sequence[Trace]) -> Iterator[Finding]:
    """Yield what was traced, what the communication takes, who waits, and what else is worth a look."""
    yield _job(traces)
    yield from _cut(traces)
    if not any(trace.calls for trace in traces):
        yield finding("kineto.no communication", *places(trace.file for trace in traces))
        return
    yield from _collectives(traces)
    yield from _exposed(traces)
    first = {trace.rank: trace for trace in reversed(traces)}
    yield from _waiting([first[rank] for rank in sorted(first)])
    yield from _small(traces)
    counts: Counter[str] = Counter()
    for trace in traces:
        counts.update(trace.kernels)
    if counts:
        names = named([f"{name} ({count:,})" for name, count in counts.most_common()])
        at = places(trace.file for trace in traces if trace.kernels)
        yield finding("kineto.kernels", *at, names=names)


def _job(traces: Sequence[Trace]) -> Finding:
    """Return whose traces these are, and their steps."""
    world, numbers = max(trace.world for trace in traces), {trace.rank for trace in traces}
    found = ranks(numbers)
    if world:
        found += f" of {world}"
    backends = sorted({trace.backend for trace in traces if trace.backend})
    if backends:
        found += f", {named(backends)}"
    steps = np.concatenate([np.asarray(trace.steps) for trace in traces])
    if len(steps):
        a_rank = len(steps) // len(traces)
        found += f", {many(a_rank, 'step')} of {_time(np.median(steps))}"
    key = "kineto.trace in part" if len(numbers) < world else "kineto.trace"
    return finding(key, *places(trace.file for trace in traces), found=found)


def _cut(traces: Sequence[Trace]) -> Iterator[Finding]:
    """Yield places that cannot be read, events that are not kept, and traces of one rank."""
    for trace in traces:
        if trace.broken:
            yield finding("kineto.cut", Place(trace.file), places=many(trace.broken, "place"))
        if trace.left_out:
            yield finding(
                "kineto.left out", Place(trace.file), events=many(trace.left_out, "event")
            )
    for rank, times in Counter(trace.rank for trace in traces).items():
        if times > 1:
            here = places(trace.file for trace in traces if trace.rank == rank)
            yield finding("kineto.twice", *here, traces=many(times, "trace"), rank=rank)


def _collectives(traces: Sequence[Trace]) -> Iterator[Finding]:
    """Yield calls that are alike: how many, how long, how fast.

    Those that take the longest first.
    """
    durations: dict[CallKind, list[Floats]] = {}
    for trace in traces:
        series = [(name, calls) for (name, _), calls in trace.calls.items()]
        for kind, microseconds in by_kind(series).items():
            durations.setdefault(kind, []).append(microseconds)
    totals = {kind: _sum(of_kind) for kind, of_kind in durations.items()}
    longest_first = sorted(durations, key=lambda kind: -totals[kind])
    for kind in longest_first[:MAX_NAMED]:
        least = _least(kind) if kind == longest_first[0] else ""
        yield Finding("collective", _collective(kind, durations[kind], len(traces)) + least)
    rest = longest_first[MAX_NAMED:]
    if rest:
        took = _time(sum(totals[kind] for kind in rest) / len(traces))
        kinds = many(len(rest), "more kind")
        yield Finding("collective", f"{kinds} of calls: they take {took} a rank together")


def _sum(durations: Sequence[Floats]) -> float:
    """Return the time of all calls on all ranks, in microseconds."""
    return sum(float(microseconds.sum()) for microseconds in durations)


def _collective(kind: CallKind, durations: Sequence[Floats], files: int) -> str:
    """Return how long calls take.

    The rank of the shortest median waits least, so that it says how fast they are.
    """
    least = min(float(np.median(microseconds)) for microseconds in durations)
    calls = sum(microseconds.size for microseconds in durations) / files
    found = kind.collective
    if kind.nbytes:
        found += f" of {format_bytes(kind.nbytes)}"
    if kind.size:
        found += f" on {many(kind.size, 'rank')}"
    found += f": {calls:.4g} calls"
    if files > 1:
        found += " a rank"
    found += f", {_time(_sum(durations) / files)} in all, median {_time(least)}"
    busbw = kind.busbw(least)
    if busbw:
        found += f": algbw {algbw(kind.nbytes, least / 1e6):.3g} GB/s"
        if kind.collective in TOGETHER:
            found += f", busbw {busbw:.3g} GB/s"
    return found


def _least(kind: CallKind) -> str:
    """Return what any schedule of it must send."""
    is_known = kind.collective in TOGETHER and kind.collective in CONTRACTS
    if not is_known or not kind.nbytes or kind.size < 2:
        return ""
    least = format_bytes(round(kind.nbytes * CONTRACTS[kind.collective].factor(kind.size)))
    return f"; each rank sends at least {least}, if no switch adds, and busbw is that over time"


def _exposed(traces: Sequence[Trace]) -> Iterator[Finding]:
    """Yield communication beside which no compute kernel runs."""
    both = [trace for trace in traces if trace.communication and trace.computation]
    if not both:
        return
    exposed = [trace.exposed / trace.span for trace in both]
    least, most = min(exposed), max(exposed)
    worst = both[exposed.index(most)]
    time = _time(worst.exposed / max(len(worst.steps), 1))
    yield finding(
        "kineto.overlap" if most < MUCH_EXPOSED else "kineto.exposed",
        Place(worst.file),
        share=np.median([trace.communication / trace.span for trace in both]),
        hidden=np.median([1 - trace.exposed / trace.communication for trace in both]),
        exposed=f"{least:.0%} to {most:.0%}" if len(both) > 1 else f"{most:.0%}",
        rank=worst.rank,
        time=f"{time} a step" if worst.steps else time,
    )


def _waiting(traces: Sequence[Trace]) -> Iterator[Finding]:
    """Yield who begins last, over several ranks."""
    groups: dict[tuple[str, str], list[tuple[Trace, CallSeries]]] = {}
    for trace in traces:
        for key, calls in trace.calls.items():
            groups.setdefault(key, []).append((trace, calls))
    for (collective, _), members in groups.items():
        counts = [len(calls.durations) for _, calls in members]
        few, many_calls = min(counts), max(counts)
        if collective not in TOGETHER or len(members) < 2 or many_calls < MIN_CALLS:
            continue
        if few < many_calls:
            least, _ = members[counts.index(few)]
            most, _ = members[counts.index(many_calls)]
            yield finding(
                "kineto.calls",
                *places([least.file, most.file]),
                collective=collective,
                least=least.rank,
                most=most.rank,
                few=few,
                many=many_calls,
            )
            continue
        names, rows = [], []
        for trace, calls in members:
            names.append((f"rank {trace.rank}", calls.place))
            rows.append(np.asarray(calls.durations)[np.argsort(calls.order, kind="stable")])
        yield from waiting_findings(collective, names, np.array(rows))


def _small(traces: Sequence[Trace]) -> Iterator[Finding]:
    """Yield many small messages, in the rank that has the most of them."""
    most: dict[str, tuple[float, float, Trace]] = {}
    for trace in traces:
        for (collective, _), calls in trace.calls.items():
            a_step = len(calls.durations) / max(len(trace.steps), 1)
            nbytes = float(np.median(np.asarray(calls.nbytes)))
            known, _, _ = most.get(collective, (0.0, 0.0, trace))
            if 0 < nbytes < SMALL and a_step > max(known, MANY_CALLS):
                most[collective] = a_step, nbytes, trace
    for collective, (a_step, nbytes, trace) in most.items():
        yield finding(
            "kineto.small messages",
            Place(trace.file),
            calls=a_step,
            collective=collective,
            per="a step" if trace.steps else "in the trace",
            size=format_bytes(nbytes),
        )


def _time(microseconds: float) -> str:
    return duration(float(microseconds) / 1e6)


class Spans(NamedTuple):
    """Disjoint intervals in ascending order."""

    starts: Floats
    ends: Floats

    @property
    def length(self) -> float:
        """Return the length of all together."""
        return float((self.ends - self.starts).sum())


def union(starts: Floats, durations: Floats) -> Spans:
    """Return when at least one of these intervals is under way.

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
    """Return for how long both are under way.

    >>> shared(Spans(np.array([0.0, 10.0]), np.array([4.0, 12.0])), Spans(np.array([3.0]), np.array([11.0])))
    2.0
    """
    before = np.concatenate([[0.0], np.cumsum(b.ends - b.starts)])
    ends = np.concatenate([[-np.inf], b.ends])

    def until(times: Floats) -> Floats:
        begun = np.searchsorted(b.starts, times, side="right")
        return before[begun] - np.maximum(ends[begun] - times, 0.0)

    return float((until(a.ends) - until(a.starts)).sum())
