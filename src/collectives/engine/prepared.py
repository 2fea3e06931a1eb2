"""What a call needs that is worked out once and kept: the algorithm, one rank's plan, chunk edges and a signature."""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import distributed as dist

from collectives.algorithms import build
from collectives.autotune import MEASURED, STRAIGHT, choose, decode_machine, full_node
from collectives.contracts import COMPACT
from collectives.engine.cache import BoundedCache
from collectives.engine.call import Call, Performed
from collectives.engine.communicator import Membership
from collectives.engine.compile import plan
from collectives.engine.handshake import signature
from collectives.engine.probe import choose_by_reads
from collectives.engine.program import Plan, compact, completed, is_straight, stages
from collectives.engine.reduce import refusal, takes_wire
from collectives.engine.slots import SlotPlan, slot_plan
from collectives.engine.transport import shared_memory_or_none
from collectives.machine import Machine
from collectives.schedule import Ints, Schedule, check_ranks_only
from collectives.units import MAX_SEGMENTS_STARTED
from collectives.wire import bytes_on_wire, split

# What each kind of process group moves.
DEVICES = {"gloo": "cpu", "nccl": "cuda"}


# Elements of an all-to-all that go to each rank, and that come from each.
Splits = tuple[tuple[int, ...], tuple[int, ...]]


class TensorKind(NamedTuple):
    """What of a tensor decides whether we can take it."""

    device: torch.device
    dtype: torch.dtype
    contiguous: bool


def kind_of(tensor: torch.Tensor) -> TensorKind:
    """The kind of a tensor."""
    return TensorKind(tensor.device, tensor.dtype, tensor.is_contiguous())


class CallKey(NamedTuple):
    """What a call asks for, without its data; ``n`` is the elements of the whole buffer."""

    collective: str
    algorithm: str
    segments: int | None
    root: int | None
    op: dist.ReduceOp.RedOpType | None
    splits: Splits | None
    n: int
    kind: TensorKind
    other: TensorKind | None  # the input's, where it is another tensor than the output


def call_key(call: Call, p: int) -> CallKey:
    """What a call on p ranks asks for."""
    some = call.any_tensor()
    other = None if call.input is None or call.input is some else kind_of(call.input)
    return CallKey(
        call.collective,
        call.algorithm,
        call.segments,
        call.root,
        call.op,
        call.splits,
        _length(call, p),
        kind_of(some),
        other,
    )


def _length(call: Call, p: int) -> int:
    """Elements of the whole buffer, the same number on every rank (but in an all-to-all with splits of its own)."""
    by_output = call.collective in ("scatter", "reduce_scatter")
    tensor = call.output if by_output else call.input
    if tensor is None:
        raise ValueError(f"{call.collective} needs an {'output' if by_output else 'input'} on this rank")
    return tensor.numel() * (p if by_output or call.collective in ("gather", "all_gather") else 1)


class Prepared(NamedTuple):
    """One rank's plan, where the chunks begin and end in its buffer, what goes with its messages, and the choice.

    ``stages`` is what the rank does in its place if ranks share memory: a `published.Ready` on its host, or a plan of
    messages between hosts. With a ``wire`` the buffer is float32, in whole blocks.
    """

    plan: Plan
    edges: Ints
    signature: bytes
    performed: Performed
    stages: tuple[Any, ...] = ()
    wire: str | None = None


def _is_published(us: Membership, wanted: CallKey, machine: Machine) -> bool:
    """Whether "auto" chooses by what the ranks have measured on published buffers, on which the call is executed."""
    return bool(
        us.ranks_per_host == us.p > 1
        and wanted.algorithm == "auto"
        and wanted.segments is None
        and wanted.splits is None
        and machine.name == MEASURED
    )


class Compiled(NamedTuple):
    """What calls of all dtypes and ops share."""

    plan: Plan
    edges: Ints
    longest: int


def prepare(us: Membership, wanted: CallKey) -> Prepared:
    """Choose, build, check and compile what one rank does. Raises ValueError for what cannot be executed."""
    return _prepared.get((us, wanted), partial(_prepare, us, wanted))


def _prepare(us: Membership, wanted: CallKey) -> Prepared:
    check(us.over, wanted)
    collective, rank, p, n, splits = wanted.collective, us.rank, us.p, wanted.n, wanted.splits
    algorithm, wire = split(wanted.algorithm)
    machine = decode_machine(us.machine)
    nbytes = bytes_on_wire(n, n * wanted.kind.dtype.itemsize, wanted.algorithm)
    if machine and _is_published(us, wanted, machine):
        link = machine.network
        name, segments = choose_by_reads(collective, p, nbytes, link.alpha, link.beta), 1
    else:
        name, segments, _ = choose(
            collective, p, nbytes, algorithm, wanted.segments, machine, splits=splits is not None
        )
    name = f"{name}/{wire}" if wire else name
    averages = wanted.op == dist.ReduceOp.AVG
    key = ScheduleKey(collective, name, p, wanted.root, segments, full_node(machine, p), rank, averages)
    compiled = _plans.get((key, n, splits), partial(_compile, key, n, splits))
    same = signature(
        collective, name, wanted.op, wanted.kind.dtype, None if splits is not None else n, wanted.root, segments
    )
    by, shared = machine if algorithm == "auto" else None, tuple[Any, ...]()
    if us.ranks_per_host > 1 and not wire and (n or us.ranks_per_host == p):  # else nothing says that all have called
        parts = _parts.get((key, us.ranks_per_host), partial(_publish, key, us.ranks_per_host))
        shared = _stages(parts, compiled, wanted, key, same)
    return Prepared(compiled.plan, compiled.edges, same, Performed(name, segments, by), shared, wire)


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

    def schedule(self) -> Schedule:
        """Build it."""
        nodes = {"ranks_per_node": self.ranks_per_node}
        return build(self.collective, self.name, self.p, root=self.root, segments=self.segments, **nodes)

    def finished(self, schedule: Schedule) -> dict[int, list[int]]:
        """The chunks by step that an average divides on this rank."""
        return completed(schedule, self.rank) if self.averages else {}


def _compile(key: ScheduleKey, n: int, splits: Splits | None) -> Compiled:
    """The plan and the chunk edges, which calls of every dtype share, and of every op but AVG."""
    schedule, rank = key.schedule(), key.rank
    check_ranks_only(schedule, "a back end, which runs on ranks")
    edges = schedule.cut(n)
    longest = int(np.diff(edges).max(initial=0))
    if key.collective in COMPACT:
        edges = compact(schedule, rank, np.diff(edges) if splits is None else _sizes(splits, schedule, rank, key.name))
    return Compiled(plan(schedule, rank, edges, key.finished(schedule)), edges, longest)


Parts = tuple[SlotPlan | Schedule, ...]


def _publish(key: ScheduleKey, ranks_per_host: int) -> Parts:
    """What the rank does in each stage on buffers of any size: on its host, or the stage's schedule between hosts."""
    schedule, parts = key.schedule(), list[SlotPlan | Schedule]()
    first, finished = key.rank - key.rank % ranks_per_host, key.finished(schedule)
    for stage in stages(schedule, ranks_per_host):
        if not stage.is_on_hosts:
            parts.append(stage.schedule)
            continue
        ranks = range(first, first + ranks_per_host)
        published = slot_plan(stage.on_host(ranks), key.rank - first, finished)
        if published is None:
            return ()
        parts.append(published)
    return tuple(parts)


def _stages(parts: Parts, compiled: Compiled, wanted: CallKey, key: ScheduleKey, same: bytes) -> tuple[Any, ...]:
    """The stages for tensors of one size, op and dtype; none if published buffers do not take them."""
    found = list[Any]()
    for part in parts:
        if isinstance(part, Schedule):
            found.append(plan(part, key.rank, compiled.edges, key.finished(key.schedule())))
            continue
        kind = wanted.op, wanted.kind.dtype
        ready = shared_memory_or_none().ready(part, *compiled[1:], *kind, same, key.p, wanted.splits or ())
        if ready is None:
            return ()
        found.append(ready)
    return tuple(found)


def _nbytes(made: Plan, edges: Ints) -> int:
    """About how much memory a plan takes: Python's objects four times as much as the arrays that say the same."""
    arrays = made.flat.tasks, made.flat.after, made.flat.instructions, made.flat.spans
    return 4096 + 5 * sum(each.nbytes for each in arrays) + edges.nbytes


# Calls of different ops and dtypes share plans, so what both keep is mostly the same.
_prepared: BoundedCache[Prepared] = BoundedCache(
    lambda made: sum(_nbytes(each, made.edges) for each in (made.plan, *made.stages) if isinstance(each, Plan))
)
_plans: BoundedCache[Compiled] = BoundedCache(lambda made: _nbytes(made.plan, made.edges))
_parts: BoundedCache[Parts] = BoundedCache(
    lambda made: 1024 + sum(each.nbytes for each in made if isinstance(each, SlotPlan))
)


def check(over: str, wanted: CallKey) -> None:
    """Raise ValueError for tensors or an op that cannot be executed over such a group."""
    kinds = [wanted.kind, *([wanted.other] if wanted.other else [])]
    devices, dtypes = {kind.device.type for kind in kinds}, {kind.dtype for kind in kinds}
    if devices != {DEVICES.get(over)}:
        raise ValueError(
            f"p2p runs over gloo on CPU tensors, or over nccl on CUDA tensors, not over {over} on "
            f"{' and '.join(sorted(devices))}"
        )
    if len(dtypes) > 1:
        raise ValueError(f"tensors are alike in dtype, not {' and '.join(sorted(map(str, dtypes)))}")
    if why := refusal(wanted.op, wanted.kind.dtype):
        raise ValueError(why)
    if wire := split(wanted.algorithm)[1]:
        _check_wire(wire, over, wanted)
    if (wanted.segments or 0) > MAX_SEGMENTS_STARTED:
        raise ValueError(f"segments: got {wanted.segments}, expected at most {MAX_SEGMENTS_STARTED}")
    if not all(kind.contiguous for kind in kinds):
        raise ValueError("tensors must be contiguous")


def _check_wire(wire: str, over: str, wanted: CallKey) -> None:
    if over != "gloo":
        raise ValueError(f"process group of a call with the wire {wire}: got {over}, expected gloo")
    if wanted.collective == "all_reduce" and not takes_wire(wanted.op, wanted.kind.dtype):
        op, dtypes = str(wanted.op).rpartition(".")[2], "float32, float16 or bfloat16"
        raise ValueError(f"call with the wire {wire}: got {op} of {wanted.kind.dtype}, expected SUM or AVG of {dtypes}")


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
