"""The process group that torch's Python and C++ code calls: each method makes jobs of ours and returns a `Work`."""

# ruff: noqa: ARG002  torch gives every method options, of which most have nothing for us
# Of each of its methods' overloads torch calls one, that with lists and options, by position.
# mypy: disable-error-code="override, assignment"

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import distributed as dist

from collectives.engine.group import communicator, connect, perform
from collectives.engine.reduce import takes_wire
from collectives.engine.work import Work, end, put, start
from collectives.torch_backend import calls, flight
from collectives.torch_backend.base import bases, beside, forget
from collectives.torch_backend.calls import Job, Tensors
from collectives.torch_backend.flight import Call
from collectives.torch_backend.observed import need_no_tracing, recording
from collectives.torch_backend.options import Options, from_environment
from collectives.torch_backend.passed import Passed
from collectives.torch_backend.streams import StreamWork, on_stream, own_stream

NAME = "collectives"
Make = Callable[[], Job]


def make(given: Any, options: Options | None) -> Group:
    """The group that `init_process_group` and `new_group` ask for; all of its ranks call it alike."""
    if options is None:
        default = dist.group.WORLD
        options = default.algorithms if isinstance(default, Group) else from_environment()
    if not isinstance(options, Options):
        raise ValueError(f"pg_options: got {options!r}, expected Options of this back end")
    options.of("all_reduce", given.group_size)  # before ranks meet: a function of your own may fail
    return Group(given, options)


class Group(dist.ProcessGroup):
    """Our collectives under the names by which torch calls them: `torch.distributed` says what each of them does."""

    def __init__(self, given: Any, algorithms: Options) -> None:
        super().__init__(given.group_rank, given.group_size)  # type: ignore[call-arg]  # the stub has a store, too
        self.algorithms = algorithms
        self._bases = bases(given)
        for device, base in self._bases.items():
            self._register_backend(
                torch.device(device), dist.ProcessGroup.BackendType.CUSTOM, base._get_backend(torch.device(device))
            )
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._pass, self._bucket = -1, -1
        connect(self.base("cpu"))  # now, while all ranks are here
        self.members = flight.Members(given, self, algorithms.algorithm)

    def base(self, device: str) -> dist.ProcessGroup:
        """The plain group, of gloo or NCCL, that carries the messages of tensors on such a device."""
        if not self._bases:
            raise RuntimeError("this process group was destroyed")
        if device != "cpu" and (other := beside(self, device)) not in (None, NAME):
            raise ValueError(
                f"device: got {device}, for which this group names {other}, expected {NAME}: torch gives a group of "
                f"ours all devices, so make a group of its own for {other}"
            )
        if device not in self._bases:
            raise ValueError(f"device: got {device}, expected {' or '.join(self._bases)}")
        return self._bases[device]

    # What torch asks a group for, beside collectives.

    def getBackendName(self) -> str:  # noqa: N802, torch's name for it
        """The name to initialise by."""
        return NAME

    def _set_group_desc(self, group_desc: str) -> None:
        """Take the description that torch gives a group after it was made; its errors and dumps have it."""
        super()._set_group_desc(group_desc)
        self.members.description = group_desc
        for base in self._bases.values():
            base._set_group_desc(self.group_name if group_desc == "undefined" else group_desc)

    def shutdown(self) -> None:
        """End all connections and the thread; a call that is under way fails."""
        self._end(dist.ProcessGroup.shutdown)

    def abort(self) -> None:
        """End as `shutdown` does, and wait for no kernel of NCCL's."""
        self._end(dist.ProcessGroup.abort)

    def _end(self, how: Callable[[dist.ProcessGroup], None]) -> None:
        for base in self._bases.values():
            communicator(base).close()
            end(base)
            forget(base)
            how(base)
        self._bases.clear()

    # Collectives, in the forms that torch's functions call.

    def allreduce(self, tensors: Tensors, opts: Any = None) -> dist.Work:
        """Reduce in place."""
        first = _first("all_reduce", tensors)
        if first.layout != torch.strided:
            kept = flight.record(Call(self.members, "all_reduce", first.device.type), tensors, [])
            return self._passed("all_reduce", first, kept, lambda base: base.allreduce(list(tensors), opts))
        makes = [partial(calls.all_reduce, each, _op(opts)) for each in tensors]
        return self._run("all_reduce", tensors, [], makes, self._whose(first))

    allreduce_coalesced = allreduce

    def broadcast(self, tensors: Tensors, opts: Any) -> dist.Work:
        """Copy the root's."""
        return self._run("broadcast", tensors, [], [partial(calls.broadcast, each, opts.rootRank) for each in tensors])

    def reduce(self, tensors: Tensors, opts: Any) -> dist.Work:
        """Reduce into the root's."""
        makes = [partial(calls.reduce, each, _op(opts), opts.rootRank, self.rank()) for each in tensors]
        return self._run("reduce", tensors, [], makes)

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> dist.Work:
        """Gather into lists."""
        pairs = zip(outputs, inputs, strict=True)
        makes = [partial(calls.all_gather, room, each, self.size()) for room, each in pairs]
        return self._run("all_gather", [each for room in outputs for each in room], inputs, makes)

    def allgather_coalesced(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> dist.Work:
        """Gather several at once: a list for each rank, with each of its tensors."""
        return self.allgather([[room[i] for room in outputs] for i in range(len(inputs))], inputs)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> dist.Work:
        """Gather several at once, each into one tensor."""
        return self.allgather([[each] for each in outputs], inputs)

    def all_gather_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> dist.Work:
        """Gather into one tensor."""
        return self.allgather([[output]], [given])

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> dist.Work:
        """Gather into the root's list."""
        room = outputs[0] if outputs else []
        makes = [partial(calls.gather, room, inputs[0], opts.rootRank, self.size())]
        return self._run("gather", room, inputs, makes)

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> dist.Work:
        """Scatter the root's list."""
        parts = inputs[0] if inputs else []
        makes = [partial(calls.scatter, outputs[0], parts, opts.rootRank, self.size())]
        return self._run("scatter", outputs, parts, makes)

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> dist.Work:
        """Reduce lists, a part for each rank."""
        pairs = zip(outputs, inputs, strict=True)
        where = self.rank(), self.size()
        makes = [partial(calls.reduce_scatter, output, parts, _op(opts), *where) for output, parts in pairs]
        return self._run("reduce_scatter", outputs, [each for parts in inputs for each in parts], makes)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> dist.Work:
        """Reduce several tensors, a part of each for each rank."""
        return self.reduce_scatter(outputs, [[each] for each in inputs], opts)

    def reduce_scatter_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> dist.Work:
        """Reduce a tensor, a part for each rank."""
        return self.reduce_scatter([output], [[given]], opts)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> dist.Work:
        """Exchange lists."""
        return self._run("all_to_all", outputs, inputs, [partial(calls.all_to_all, outputs, inputs)])

    def all_to_all_single(
        self, output: torch.Tensor, given: torch.Tensor, out: Sequence[int], into: Sequence[int], opts: Any = None
    ) -> dist.Work:
        """Exchange parts of two tensors, equal ones, or with a number of rows for each rank."""
        makes = [partial(calls.all_to_all_single, output, given, (into, out), self.size())]
        return self._run("all_to_all", [output], [given], makes)

    def barrier(self, opts: Any = None) -> dist.Work:
        """Wait for all ranks: an all-reduce of no elements, which ends with an agreement of all."""
        nothing = torch.empty(0, dtype=torch.uint8)
        makes = [partial(calls.all_reduce, nothing, dist.ReduceOp.BOR)]
        return self._run("barrier", [nothing], [], makes, " (a barrier)")

    # The names that these had before torch 2.13.
    _allgather_base, _reduce_scatter_base, alltoall_base = all_gather_single, reduce_scatter_single, all_to_all_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # Messages from rank to rank.

    def send(self, tensors: list[torch.Tensor], to: int, tag: int) -> dist.Work:
        """Send to a rank."""
        kept = flight.record(Call(self.members, "send", tensors[0].device.type, to), [], tensors)
        return self._passed(
            f"send to rank {self.members.ranks[to]}", tensors[0], kept, lambda base: base.send(tensors, to, tag)
        )

    def recv(self, tensors: list[torch.Tensor], sender: int, tag: int) -> dist.Work:
        """Receive from a rank."""
        kept = flight.record(Call(self.members, "recv", tensors[0].device.type, sender), tensors, [])
        return self._passed(
            f"recv from rank {self.members.ranks[sender]}",
            tensors[0],
            kept,
            lambda base: base.recv(tensors, sender, tag),
        )

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int) -> dist.Work:
        """Receive from whichever rank sends first; torch's analyser knows no such call, so it is not recorded."""
        call = Call(self.members, "recv", tensors[0].device.type)
        return self._passed("recv from any rank", tensors[0], call, lambda base: base.recv_anysource(tensors, tag))

    def _passed(
        self, what: str, tensor: torch.Tensor, kept: Call, call: Callable[[dist.ProcessGroup], dist.Work]
    ) -> dist.Work:
        """Done by gloo or NCCL."""
        base = self.base(tensor.device.type)
        return Passed(partial(call, base), f"{what} over {base.name()} failed on rank {self.members.rank}", kept)

    def _run(self, collective: str, outputs: Tensors, inputs: Tensors, makes: Sequence[Make], whose: str = "") -> Work:
        """Run jobs, one after the other, behind all that were asked for before."""
        need_no_tracing(Group)
        used = [*outputs, *inputs]
        device = _first(collective, used).device
        base, record = self.base(device.type), recording(f"{NAME}:{collective}")
        kept = flight.record(Call(self.members, collective, device.type), outputs, inputs)

        def run() -> list[torch.Tensor]:
            with record, kept:
                for make_job in makes:
                    self._perform(make_job(), base, whose)
            return list(outputs)

        if device.type == "cpu":
            return start(run, base, collective)
        done = kept.event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        stream = self._streams.get(device) or self._streams.setdefault(device, own_stream(device))
        return StreamWork(put(on_stream(run, stream, done, used), base), collective, done, device)

    def _perform(self, job: Job, base: dist.ProcessGroup, whose: str) -> None:
        floats = takes_wire(job.call.op, job.call.any_tensor().dtype)
        algorithm = self.algorithms.of(job.call.collective, self.size(), job.call.splits is not None, floats)
        segments = self.algorithms.segments
        call = job.call._replace(group=base, algorithm=algorithm, segments=segments, background=True, barrier=True)
        try:
            perform(call)
        except RuntimeError as error:
            raise RuntimeError(f"{error}{whose}") from error
        job.hand_out()

    def _whose(self, gradients: torch.Tensor) -> str:
        """Which bucket of DistributedDataParallel an all-reduce is for: they go in order, in the backward pass."""
        this = torch._C._current_graph_task_id() if gradients.is_floating_point() else -1
        self._bucket = self._bucket + 1 if this == self._pass else 0
        self._pass = this
        if this < 0:
            return ""
        return (
            f" (all_reduce {self._bucket} of this backward pass: of bucket {self._bucket} in DistributedDataParallel)"
        )


def _op(opts: Any) -> calls.Op:
    """The op of torch's options; one that we have not is refused when it is used."""
    op: calls.Op = dist.ReduceOp.SUM if opts is None else opts.reduceOp.op
    return op


def _first(collective: str, tensors: Tensors) -> torch.Tensor:
    if not tensors:
        raise ValueError(f"{collective}: got an empty list, expected at least one tensor")
    return tensors[0]
