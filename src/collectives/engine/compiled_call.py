"""Compile a call: choose its algorithm, compile what this rank does for each size, op and dtype, and keep it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import lru_cache, partial
from threading import Lock
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import distributed as dist

from collectives.algorithms import build
from collectives.autotune import MEASURED, STRAIGHT, choose_for_call, decode_machine, full_node
from collectives.core.contracts import CONTRACTS
from collectives.core.schedule import Ints, Schedule, check_ranks_only, digest
from collectives.engine.call import Call, CompiledCall, Performed
from collectives.engine.compile import plan
from collectives.engine.handshake import signature
from collectives.engine.memory_cost import choose_by_reads
from collectives.engine.program import (
    COMPILED,
    PYTHON,
    Plan,
    compact,
    completed,
    is_straight,
    spans_of,
    stages,
)
from collectives.engine.reduce import refusal
from collectives.engine.slots import SlotPlan, slot_plan
from collectives.engine.transport import MIXED, SHARED_MEMORY, TCP, shared_memory
from collectives.errors import unknown
from collectives.machine import Machine
from collectives.units import MAX_SEGMENTS_STARTED

# What each kind of process group moves.
DEVICES = {"gloo": "cpu", "nccl": "cuda"}
INSTRUCTION_BYTES, SPAN_BYTES = 350, 180  # about, of a plan
# Bytes of each cache. A plan of eight ranks takes 30 KB, one of a ring of 512 takes 2 MB.
MOST = 128 << 20
MOST_SCHEDULES = 256
Value = TypeVar("Value")


# Elements of an all-to-all that go to each rank, and that come from each.
Splits = tuple[tuple[int, ...], tuple[int, ...]]


class Membership(NamedTuple):
    """One rank's place in a group: what carries its messages ("gloo", "nccl"), and the machine as JSON.

    ``ranks_per_host`` ranks in a row share memory.
    """

    rank: int
    p: int
    over: str
    machine: bytes
    ranks_per_host: int = 1


class TensorKind(NamedTuple):
    """The properties of a tensor by which a rank takes or refuses it, and compiles the call."""

    dtype: torch.dtype
    numel: int
    device: torch.device
    contiguous: bool


class CallKey(NamedTuple):
    """A call without its data.

    ``in_place`` says that one tensor is input and output; then there is no ``source``. `call_key`
    makes the fields as plain tuples, which are equal to these records.
    """

    collective: str
    algorithm: str
    segments: int | None
    root: int | None
    op: dist.ReduceOp.RedOpType | None
    splits: Splits | None
    barrier: bool
    in_place: bool
    target: TensorKind | None
    source: TensorKind | None

    @property
    def kind(self) -> TensorKind:
        """Return the kind of the output, or else of the input: they share dtype and device."""
        found = self.target or self.source
        if found is None:
            raise ValueError(f"{self.collective} without any tensor")
        return found

    def elements(self, p: int) -> int:
        """Return the elements of the whole buffer, the same on every rank (but with an all-to-all's own splits)."""
        form = CONTRACTS[self.collective]
        kind = self.target if form.output_is_part or self.in_place else self.source
        if kind is None:
            missing = "output" if form.output_is_part else "input"
            raise ValueError(f"{self.collective} needs an {missing} on this rank")
        return kind.numel * p if form.input_is_part or form.output_is_part else kind.numel


def call_key(call: Call) -> tuple[Any, ...]:
    """Return the key by which a call is kept: the fields of a `CallKey`, as plain tuples.

    It is made at each call, and a record would cost a microsecond more. `named` gives the fields
    their names where a call is compiled.
    """
    collective, output, given, op, root, _, algorithm, segments, splits, _, barrier = call
    source = target = None
    if output is not None:
        target = output.dtype, output.numel(), output.device, output.is_contiguous()
    if given is not output and given is not None:
        source = given.dtype, given.numel(), given.device, given.is_contiguous()
    in_place = given is output
    return collective, algorithm, segments, root, op, splits, barrier, in_place, target, source


def named(key: tuple[Any, ...]) -> CallKey:
    """Return the fields of a key from `call_key` with their names.

    >>> tensor = torch.zeros(3)
    >>> wanted = named(call_key(Call("broadcast", tensor, tensor, root=0)))
    >>> wanted.collective, wanted.kind.numel, wanted.source
    ('broadcast', 3, None)
    """
    *options, target, source = key
    kinds = [TensorKind._make(kind) if kind else None for kind in (target, source)]
    return CallKey._make([*options, *kinds])


class Layout(NamedTuple):
    """Where the chunks of a buffer lie on this rank, and the elements of the longest on any rank."""

    edges: Ints
    longest: int


def compile_call(me: Membership, wanted: CallKey, shares_memory: bool) -> CompiledCall:
    """Choose, build, check and compile what one rank does.

    Raises ValueError for what cannot be executed.
    """
    check(me.over, wanted)
    collective, rank, p, n, splits = (
        wanted.collective,
        me.rank,
        me.p,
        wanted.elements(me.p),
        wanted.splits,
    )
    machine, dtype = decode_machine(me.machine), wanted.kind.dtype
    nbytes = n * dtype.itemsize
    if machine and _goes_by_memory(me, wanted, machine):
        link = machine.network
        name, segments = choose_by_reads(collective, p, nbytes, link.alpha, link.beta), 1
    else:
        name, segments, _ = choose_for_call(
            collective, p, nbytes, wanted.algorithm, wanted.segments, me.machine, splits is not None
        )
    averages = wanted.op == dist.ReduceOp.AVG
    key = ScheduleKey(
        collective, name, p, wanted.root, segments, full_node(machine, p), rank, averages
    )
    layout = _layouts.get((key, n, splits), partial(_layout, key, n, splits))
    common = None if splits is not None else n
    same = signature(
        collective, name, wanted.op, dtype, common, wanted.root, segments, _built(key).digest
    )
    found = tuple[Any, ...]()
    # Else nothing says that all have called.
    if shares_memory and (n or me.ranks_per_host == p):
        parts = _parts.get((key, me.ranks_per_host), partial(_in_stages, key, me.ranks_per_host))
        found = _stages(parts, layout, wanted, key, same)
    is_shared = (
        len(found) == 1 and wanted.in_place and not (collective == "reduce" and rank != wanted.root)
    )
    by = machine if wanted.algorithm == "auto" else None
    performed = Performed(name, segments, by, *_executor(me, found))
    waits = wanted.barrier and (splits is not None or wanted.root is not None or n == 0)
    messages = None
    if not found:  # what shared memory carries needs no program of messages
        messages = _plans.get((key, n, splits), partial(_plan, key, layout.edges))
    return CompiledCall(messages, layout.edges, n, same, performed, found, is_shared, waits)


def _goes_by_memory(me: Membership, wanted: CallKey, machine: Machine) -> bool:
    """Return True if "auto" chooses by what the ranks have measured in shared memory, where the call is executed."""
    return bool(
        me.ranks_per_host == me.p > 1
        and wanted.algorithm == "auto"
        and wanted.segments is None
        and wanted.splits is None
        and machine.name == MEASURED
    )


def _executor(me: Membership, stages: tuple[Any, ...]) -> tuple[str, str | None]:
    """Return what follows the program, and what carries the call: memory that ranks share, TCP, or both."""
    if DEVICES[me.over] != "cpu":
        return PYTHON, None
    if not stages:
        return COMPILED, TCP if me.p > 1 else None
    return COMPILED, MIXED if any(isinstance(stage, Plan) for stage in stages) else SHARED_MEMORY


class ScheduleKey(NamedTuple):
    """A schedule by its name and options, and the rank that executes it."""

    collective: str
    name: str
    p: int
    root: int | None
    segments: int
    ranks_per_node: int | None
    rank: int
    averages: bool

    def finished(self, schedule: Schedule) -> dict[int, list[int]]:
        """Return the chunks by step that an average divides on this rank."""
        return completed(schedule, self.rank) if self.averages else {}


class Built(NamedTuple):
    """A schedule, and the digest that ranks compare before they execute it."""

    schedule: Schedule
    digest: bytes


@lru_cache(maxsize=MOST_SCHEDULES)
def _built(key: ScheduleKey) -> Built:
    """Build a schedule once, so that what is executed is what the digest says, even if its file changes meanwhile."""
    nodes = {"ranks_per_node": key.ranks_per_node}
    schedule = build(key.collective, key.name, key.p, root=key.root, segments=key.segments, **nodes)
    return Built(schedule, digest(schedule))


def _layout(key: ScheduleKey, n: int, splits: Splits | None) -> Layout:
    """Return where chunks lie, for calls of every op and dtype."""
    schedule, rank = _built(key).schedule, key.rank
    check_ranks_only(schedule, "a back end, which runs on ranks")
    edges = schedule.cut(n)
    longest = int(np.diff(edges).max(initial=0))
    if CONTRACTS[key.collective].compact:
        sizes = np.diff(edges) if splits is None else _sizes(splits, schedule, rank, key.name)
        edges = compact(schedule, rank, sizes)
    return Layout(edges, longest)


def _plan(key: ScheduleKey, edges: Ints) -> Plan:
    """Return the program of messages, which calls of every dtype share, and of every op but AVG."""
    schedule = _built(key).schedule
    return plan(schedule, key.rank, edges, key.finished(schedule))


Parts = tuple[SlotPlan | Schedule, ...]


def _in_stages(key: ScheduleKey, ranks_per_host: int) -> Parts:
    """Return what the rank does on its host in each stage, whatever the size.

    Between hosts, the stage's schedule.
    """
    schedule, parts = _built(key).schedule, list[SlotPlan | Schedule]()
    first, finished = key.rank - key.rank % ranks_per_host, key.finished(schedule)
    for stage in stages(schedule, ranks_per_host):
        if not stage.is_on_hosts:
            parts.append(stage.schedule)
            continue
        ranks = range(first, first + ranks_per_host)
        shared = slot_plan(stage.on_host(ranks), key.rank - first, finished)
        if shared is None:
            return ()
        parts.append(shared)
    return tuple(parts)


def _stages(
    parts: Parts, layout: Layout, wanted: CallKey, key: ScheduleKey, same: bytes
) -> tuple[Any, ...]:
    """Return the stages for tensors of one size, op and dtype.

    None if shared memory does not take them.
    """
    found, kind = list[Any](), (wanted.op, wanted.kind.dtype)
    for part in parts:
        if isinstance(part, Schedule):
            finished = key.finished(_built(key).schedule)
            found.append(plan(part, key.rank, layout.edges, finished))
            continue
        splits = wanted.splits or ()
        each = shared_memory().shared_call(part, *layout, *kind, same, key.p, splits)
        if each is None:
            return ()
        found.append(each)
    return tuple(found)


class BoundedCache(Generic[Value]):
    """Keep values by key, up to a limit of bytes; the least recently used is evicted first.

    Threads may share it.

    It is bounded by bytes, not by entries: a program of small calls in turn keeps them all.
    """

    def __init__(self, nbytes: Callable[[Value], int], most: int = MOST) -> None:
        self._nbytes, self._most, self._used = nbytes, most, 0
        self._values: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()
        self._lock = Lock()

    def find(self, key: Hashable) -> Value | None:
        """Return the value of a key if it is there, for a thread that alone uses the cache."""
        found = self._values.get(key)
        if found is None:
            return None
        if self._used > self._most // 2:  # else nothing is evicted soon, and it would cost 0.4 us
            self._values.move_to_end(key)
        return found[0]

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return the value of the key; made, and kept, if it is not there."""
        with self._lock:
            found = self._values.get(key)
            if found:
                self._values.move_to_end(key)
                return found[0]
        value = make()
        with self._lock:
            self._keep(key, value)
        return value

    def _keep(self, key: Hashable, value: Value) -> None:
        if key not in self._values:  # another thread may have been faster
            self._values[key] = value, self._nbytes(value)
            self._used += self._values[key][1]
        while self._used > self._most and len(self._values) > 1:
            self._used -= self._values.popitem(last=False)[1][1]


def nbytes_of(made: CompiledCall) -> int:
    """Return about how much memory a compiled call takes."""
    plans = [each for each in (made.messages, *made.stages) if isinstance(each, Plan)]
    return made.edges.nbytes + sum(map(_nbytes, plans))


def _nbytes(made: Plan) -> int:
    """Estimate the bytes of a plan, with the arrays that a transport makes of it."""
    spans = [len(spans_of(do)) for do in made.instructions()]
    return 4096 + INSTRUCTION_BYTES * len(spans) + SPAN_BYTES * sum(spans)


# Calls of different ops and dtypes share plans and layouts.
_plans: BoundedCache[Plan] = BoundedCache(_nbytes)
_layouts: BoundedCache[Layout] = BoundedCache(lambda layout: 512 + layout.edges.nbytes)
_parts: BoundedCache[Parts] = BoundedCache(
    lambda made: 1024 + sum(each.nbytes for each in made if isinstance(each, SlotPlan))
)


def check(over: str, wanted: CallKey) -> None:
    """Raise ValueError for a collective, tensors or an op that cannot be executed over such a group."""
    if wanted.collective not in CONTRACTS:
        raise ValueError(unknown("collective", wanted.collective, CONTRACTS))
    kinds = [kind for kind in (wanted.target, wanted.source) if kind] or [wanted.kind]
    devices, dtypes = {kind.device.type for kind in kinds}, {kind.dtype for kind in kinds}
    if devices != {DEVICES.get(over)}:
        raise ValueError(
            f"p2p runs over gloo on CPU tensors, or over nccl on CUDA tensors, not over {over} on "
            f"{' and '.join(sorted(devices))}"
        )
    if len(dtypes) > 1:
        raise ValueError(
            f"tensors are alike in dtype, not {' and '.join(sorted(map(str, dtypes)))}"
        )
    why = refusal(wanted.op, wanted.kind.dtype)
    if why:
        raise ValueError(why)
    if (wanted.segments or 0) > MAX_SEGMENTS_STARTED:
        raise ValueError(
            f"segments: got {wanted.segments}, expected at most {MAX_SEGMENTS_STARTED}"
        )
    if not all(kind.contiguous for kind in kinds):
        raise ValueError("tensors must be contiguous")


def _sizes(splits: Splits, schedule: Schedule, rank: int, algorithm: str) -> Ints:
    """Chunk sizes of an all-to-all with splits: known of what we send and of what we receive, not of the rest."""
    if not is_straight(schedule):
        raise ValueError(
            f"algorithm: got {algorithm}, which passes on others' pieces, whose sizes a rank does not know; "
            f"expected {' or '.join(STRAIGHT)} with split sizes or lists of tensors"
        )
    sizes = np.zeros((schedule.p, schedule.p), dtype=np.int64)
    sizes[rank], sizes[:, rank] = splits
    return sizes.ravel()
