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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from collectives.logs.json_stream import Object, array_in, as_count, as_number, as_object
from collectives.logs.kineto.intervals import Floats, shared, union
from collectives.logs.names import collective_of
from collectives.units import MOST_RANKS

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
    reader = _Reader(Trace(str(path), int(named[1]) if named else place))
    reader.job(head.get("distributedInfo"))
    for event in events:
        if event is None:
            reader.trace.broken += 1
        else:
            reader.event(event)
    return reader.measured()


class _Reader:
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
        trace.world = world if world <= MOST_RANKS else 0
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
        size = min(as_count(args.get("Group size")), MOST_RANKS)
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
