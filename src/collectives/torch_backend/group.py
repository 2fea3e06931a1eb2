"""The process group that torch's Python and C++ code calls: each method flattens calls and returns a `Work`.

It has a plain group of gloo's for the CPU and, if there are GPUs, one of NCCL's. Calls on CUDA
tensors run on a stream of the group's own, between the caller's kernels and those that follow. On
one H200 that two ranks shared, DistributedDataParallel left the same bits as over NCCL's group
(`make gpu-check`). Several GPUs have not been tried.
"""

# ruff: noqa: ARG002  torch gives every method options, of which most have nothing for us
# Of each of its methods' overloads torch calls one, that with lists and options, by position.
# mypy: disable-error-code="override, assignment"

from __future__ import annotations

import inspect
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import timedelta
from functools import cache, partial
from typing import Any
from weakref import ref

import torch
from torch import distributed as dist
from torch.distributed import distributed_c10d as c10d

from collectives import calls
from collectives.calls import CallInto, Op, Tensors
from collectives.engine.call import Call
from collectives.engine.group import communicator, connect, perform
from collectives.engine.work import DESTROYED, Job, Work, end, start
from collectives.torch_backend import flight
from collectives.torch_backend.options import Options, from_environment

NAME = "collectives"
PAUSE = 0.01  # seconds between two looks into a store
LOOK = timedelta(milliseconds=1)  # of a wait that does not wait: 0 has another meaning
NO_LIMIT = timedelta(0)  # of a wait, by torch's convention: that of the group

# A call over this plain group, flattened when its turn comes.
Flatten = Callable[[dist.ProcessGroup], CallInto]


def make(given: Any, options: Options | None) -> Group:
    """Make the group for `init_process_group` or `new_group`; all of its ranks call it."""
    if options is None:
        default = dist.group.WORLD
        options = default.algorithms if isinstance(default, Group) else from_environment()
    if not isinstance(options, Options):
        raise ValueError(f"pg_options: got {options!r}, expected Options of this back end")
    options.of("all_reduce", given.group_size)  # before ranks meet: a function of your own may fail
    return Group(given, options)


class CallError(ValueError, RuntimeError):
    """A call that a group refuses for its arguments: ValueError as everywhere here, and RuntimeError as over gloo."""


class Group(dist.ProcessGroup):
    """Our collectives under the names by which torch calls them: `torch.distributed` says what each of them does."""

    def __init__(self, given: Any, algorithms: Options) -> None:
        super().__init__(given.group_rank, given.group_size)  # type: ignore[call-arg]  # the stub has a store, too
        self.algorithms = algorithms
        self.attempt = _attempt(given)
        self._bases = _make_bases(given, self.attempt)
        for device, base in self._bases.items():
            self._register_backend(
                torch.device(device),
                dist.ProcessGroup.BackendType.CUSTOM,
                base._get_backend(torch.device(device)),
            )
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._pass, self._bucket = -1, -1
        connect(self.base("cpu"))  # now, while all ranks are here
        self.members = flight.Members(given, self, algorithms.algorithm)

    def base(self, device: str) -> dist.ProcessGroup:
        """Return the plain group, of gloo or NCCL, that carries the messages of tensors on such a device."""
        if not self.is_open:
            raise RuntimeError(DESTROYED)
        if device != "cpu" and (other := _named_for(self, device)) not in (None, NAME):
            raise CallError(
                f"device: got {device}, for which this group names {other}, expected {NAME}: torch gives a group of "
                f"ours all devices, so make a group of its own for {other}"
            )
        if device not in self._bases:
            raise CallError(f"device: got {device}, expected {' or '.join(self._bases)}")
        return self._bases[device]

    @property
    def is_open(self) -> bool:
        """False once the group was destroyed."""
        return bool(self._bases)

    # What torch asks a group for, beside collectives.

    def getBackendName(self) -> str:  # noqa: N802, torch's name for it
        """Return the name to initialise by."""
        return NAME

    def _set_group_desc(self, group_desc: str) -> None:
        """Take the description that torch gives a group after it was made.

        Its errors and dumps have it.
        """
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
            c10d._world.pg_group_ranks.pop(base, None)  # torch's book would keep it for ever
            how(base)
        self._bases.clear()

    # Collectives, in the forms that torch's functions call.

    def allreduce(self, tensors: Tensors, opts: Any = None) -> dist.Work:
        """Reduce in place."""
        first = _first("all_reduce", tensors)
        if first.layout != torch.strided:
            kept = flight.record(
                flight.Entry(self.members, "all_reduce", first.device.type), tensors, []
            )
            return self._passed(
                "all_reduce", first, kept, lambda base: base.allreduce(list(tensors), opts)
            )
        flattens = [partial(calls.all_reduce, each, _op(opts)) for each in tensors]
        return self._run("all_reduce", tensors, [], flattens, self._whose(first))

    allreduce_coalesced = allreduce

    def broadcast(self, tensors: Tensors, opts: Any) -> dist.Work:
        """Copy the root's."""
        return self._run(
            "broadcast",
            tensors,
            [],
            [partial(calls.broadcast, each, opts.rootRank) for each in tensors],
        )

    def reduce(self, tensors: Tensors, opts: Any) -> dist.Work:
        """Reduce into the root's."""
        flattens = [partial(calls.reduce, each, _op(opts), opts.rootRank) for each in tensors]
        return self._run("reduce", tensors, [], flattens)

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> dist.Work:
        """Gather into lists."""
        pairs = zip(outputs, inputs, strict=True)
        flattens = [partial(calls.all_gather, room, each) for room, each in pairs]
        return self._run(
            "all_gather", [each for room in outputs for each in room], inputs, flattens
        )

    def allgather_coalesced(
        self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None
    ) -> dist.Work:
        """Gather several at once: a list for each rank, with each of its tensors."""
        return self.allgather([[room[i] for room in outputs] for i in range(len(inputs))], inputs)

    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> dist.Work:
        """Gather several at once, each into one tensor."""
        return self.allgather([[each] for each in outputs], inputs)

    def all_gather_single(
        self, output: torch.Tensor, given: torch.Tensor, opts: Any = None
    ) -> dist.Work:
        """Gather into one tensor."""
        return self.allgather([[output]], [given])

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> dist.Work:
        """Gather into the root's list."""
        flattens = [
            partial(calls.gather, outputs[0] if outputs else None, inputs[0], opts.rootRank)
        ]
        return self._run("gather", outputs[0] if outputs else [], inputs, flattens)

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> dist.Work:
        """Scatter the root's list."""
        flattens = [
            partial(calls.scatter, outputs[0], inputs[0] if inputs else None, opts.rootRank)
        ]
        return self._run("scatter", outputs, inputs[0] if inputs else [], flattens)

    def reduce_scatter(
        self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None
    ) -> dist.Work:
        """Reduce lists, a part for each rank."""
        pairs = zip(outputs, inputs, strict=True)
        flattens = [
            partial(calls.reduce_scatter, output, parts, _op(opts)) for output, parts in pairs
        ]
        return self._run(
            "reduce_scatter", outputs, [each for parts in inputs for each in parts], flattens
        )

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> dist.Work:
        """Reduce several tensors, a part of each for each rank."""
        return self.reduce_scatter(outputs, [[each] for each in inputs], opts)

    def reduce_scatter_single(
        self, output: torch.Tensor, given: torch.Tensor, opts: Any = None
    ) -> dist.Work:
        """Reduce a tensor, a part for each rank."""
        return self.reduce_scatter([output], [[given]], opts)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> dist.Work:
        """Exchange lists."""
        return self._run(
            "all_to_all", outputs, inputs, [partial(calls.all_to_all, outputs, inputs)]
        )

    def all_to_all_single(
        self,
        output: torch.Tensor,
        given: torch.Tensor,
        out: Sequence[int],
        into: Sequence[int],
        opts: Any = None,
    ) -> dist.Work:
        """Exchange parts of two tensors, equal ones, or with a number of rows for each rank."""
        flattens = [partial(calls.all_to_all_single, output, given, out or None, into or None)]
        return self._run("all_to_all", [output], [given], flattens)

    def barrier(self, opts: Any = None) -> dist.Work:
        """Wait for all ranks: an all-reduce of no elements, which ends with an agreement of all."""
        nothing = torch.empty(0, dtype=torch.uint8)
        flattens = [partial(calls.all_reduce, nothing, dist.ReduceOp.BOR)]
        return self._run("barrier", [nothing], [], flattens, " (a barrier)")

    # The names that these had before torch 2.13.
    _allgather_base, _reduce_scatter_base, alltoall_base = (
        all_gather_single,
        reduce_scatter_single,
        all_to_all_single,
    )
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # Messages from rank to rank.

    def send(self, tensors: list[torch.Tensor], to: int, tag: int) -> dist.Work:
        """Send to a rank."""
        kept = flight.record(
            flight.Entry(self.members, "send", tensors[0].device.type, to), [], tensors
        )
        return self._passed(
            f"send to rank {self.members.ranks[to]}",
            tensors[0],
            kept,
            lambda base: base.send(tensors, to, tag),
        )

    def recv(self, tensors: list[torch.Tensor], sender: int, tag: int) -> dist.Work:
        """Receive from a rank."""
        kept = flight.record(
            flight.Entry(self.members, "recv", tensors[0].device.type, sender), tensors, []
        )
        return self._passed(
            f"recv from rank {self.members.ranks[sender]}",
            tensors[0],
            kept,
            lambda base: base.recv(tensors, sender, tag),
        )

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int) -> dist.Work:
        """Receive from whichever rank sends first.

        Torch's analyser knows no such call, so it is not recorded.
        """
        entry = flight.Entry(self.members, "recv", tensors[0].device.type)
        return self._passed(
            "recv from any rank", tensors[0], entry, lambda base: base.recv_anysource(tensors, tag)
        )

    def _passed(
        self,
        what: str,
        tensor: torch.Tensor,
        entry: flight.Entry,
        call: Callable[[dist.ProcessGroup], dist.Work],
    ) -> dist.Work:
        """Have gloo or NCCL do it."""
        base = self.base(tensor.device.type)
        failed = f"{what} over {base.name()} failed on rank {self.members.rank}"
        return PassedWork(partial(call, base), failed, entry, self)

    def _run(
        self,
        collective: str,
        outputs: Tensors,
        inputs: Tensors,
        flattens: Sequence[Flatten],
        whose: str = "",
    ) -> Work:
        """Perform calls, one after the other, after all that were made before."""
        if "torch._dynamo" in sys.modules:  # to load it takes seconds, so nothing here does
            _forbid_tracing()
        used = [*outputs, *inputs]
        device = _first(collective, used).device
        if len(flattens) > 1:
            _check_memory(outputs)
        base, event = self.base(device.type), _profiler_event(f"{NAME}:{collective}")
        entry = flight.record(flight.Entry(self.members, collective, device.type), outputs, inputs)

        def run() -> list[torch.Tensor]:
            with event, entry:
                for flatten in flattens:
                    self._perform(flatten, base, whose)
            return list(outputs)

        if device.type == "cpu":
            return start(run, base, collective)
        kernels = entry.event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        stream = self._streams.get(device) or self._streams.setdefault(device, _new_stream(device))
        return start(_on_stream(run, stream, kernels, used), base, collective, kernels, device)

    def _perform(self, flatten: Flatten, base: dist.ProcessGroup, whose: str) -> None:
        try:
            call, into = flatten(base)
            perform(self._with_options(call))
        except ValueError as error:
            raise CallError(f"{error}{whose}") from error
        except RuntimeError as error:
            raise RuntimeError(f"{error}{whose}") from error
        if into:
            calls.hand_out(call.flat_output(), into)

    def _with_options(self, call: Call) -> Call:
        return call._replace(
            algorithm=self.algorithms.of(call.collective, self.size(), call.splits is not None),
            segments=self.algorithms.segments,
            background=True,
            barrier=True,
        )

    def _whose(self, gradients: torch.Tensor) -> str:
        """Return the bucket of DistributedDataParallel that is reduced: the backward pass takes them in order."""
        this = torch._C._current_graph_task_id() if gradients.is_floating_point() else -1
        self._bucket = self._bucket + 1 if this == self._pass else 0
        self._pass = this
        if this < 0:
            return ""
        of_ddp = f"of bucket {self._bucket} in DistributedDataParallel"
        return f" (all_reduce {self._bucket} of this backward pass: {of_ddp})"


def _op(opts: Any) -> Op:
    """Return the op of torch's options; one that we have not is refused when it is used."""
    op: Op = dist.ReduceOp.SUM if opts is None else opts.reduceOp.op
    return op


def _first(collective: str, tensors: Tensors) -> torch.Tensor:
    if not tensors:
        raise CallError(f"{collective}: got an empty list, expected at least one tensor")
    return tensors[0]


def _check_memory(outputs: Tensors) -> None:
    """Raise CallError if calls that are made together write into the same memory."""
    try:
        calls.check_memory(outputs)
    except ValueError as error:
        raise CallError(str(error)) from error


def _new_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _on_stream(
    run: Job, stream: torch.cuda.Stream, kernels: torch.cuda.Event, used: Tensors
) -> Job:
    """Return the job on this stream, after what the current stream holds.

    ``used`` is the tensors of its kernels.
    """
    ready = torch.cuda.current_stream(stream.device).record_event()

    def later() -> list[torch.Tensor]:
        with torch.cuda.stream(stream):
            stream.wait_event(ready)
            try:
                return run()
            finally:
                for tensor in used:
                    tensor.record_stream(stream)
                kernels.record(stream)

    return later


def _make_bases(given: Any, attempt: str) -> dict[str, dist.ProcessGroup]:
    """Make a plain group for each kind of device that this machine has; all ranks call it."""
    rank, size, timeout = given.group_rank, given.group_size, given.timeout
    store = c10d.PrefixStore(attempt, given.store) if attempt else given.store
    found = {
        "cpu": _plain(
            given,
            "cpu",
            c10d.ProcessGroupGloo(c10d.PrefixStore("gloo", store), rank, size, timeout),
        )
    }
    if torch.cuda.is_available() and dist.is_nccl_available():
        options = c10d.ProcessGroupNCCL.Options()
        options._timeout = timeout
        found["cuda"] = _plain(
            given,
            "cuda",
            c10d.ProcessGroupNCCL(c10d.PrefixStore("nccl", store), rank, size, options),
        )
    ranks = given.global_ranks_in_group or range(size)
    for base in found.values():  # `P2POp` and errors look up ranks in torch's book
        c10d._world.pg_group_ranks[base] = {each: i for i, each in enumerate(ranks)}
    return found


def _attempt(given: Any) -> str:
    """Return the name of this attempt of torchrun's to run all ranks, which they share.

    Empty if it runs none.

    A later group has that of the default group, so its ranks agree on none.
    """
    default = dist.group.WORLD
    if isinstance(default, Group):
        return default.attempt
    if not dist.is_torchelastic_launched():
        return ""
    return _agree_on_attempt(given.store, given.group_rank, given.group_size, given.timeout)


def _agree_on_attempt(store: Any, rank: int, size: int, timeout: timedelta) -> str:
    """Return a name that the group's ranks share, and no earlier attempt: torchrun's store outlives ranks that restart.

    A key may be of a rank that died, and each node's agent counts its own restarts. So each rank
    writes a word of its own, and rank 0 publishes those that it reads, until every rank has found
    its word among them.
    """
    word, seen, until = secrets.token_hex(8), "", time.monotonic() + timeout.total_seconds()
    store.set(f"word/{rank}", word)
    while time.monotonic() < until:
        if rank == 0:
            store.set("words", " ".join(store.get(f"word/{each}").decode() for each in range(size)))
        words = store.get("words").decode()
        if words != seen and word in words.split():
            seen = words
            store.add(words, 1)
        if words == seen and store.add(words, 0) == size:
            return str(words.split()[0])
        time.sleep(PAUSE)
    raise RuntimeError(
        f"ranks that torchrun has started do not meet within {timeout.total_seconds():g} s"
    )


def _named_for(group: dist.ProcessGroup, device: str) -> str | None:
    """Return the back end that a group names for a device: nccl for cuda in ``cpu:collectives,cuda:nccl``."""
    named = c10d._world.pg_backend_config[group].split(",")
    return dict(each.split(":") for each in named).get(device)


def _plain(given: Any, device: str, backend: Any) -> dist.ProcessGroup:
    group = dist.ProcessGroup(given.store, given.group_rank, given.group_size)
    kind = getattr(dist.ProcessGroup.BackendType, backend.name().upper())
    group._set_default_backend(kind)
    group._register_backend(torch.device(device), kind, backend)
    group._set_group_name(f"{given.group_id}/{backend.name()}")  # type: ignore[arg-type]  # a str under another name
    return group


class PassedWork(dist.Work):
    """A call that gloo or NCCL does for us: torch's own `Work`, whose errors begin with ``failed``."""

    def __init__(
        self, call: Callable[[], dist.Work], failed: str, entry: flight.Entry, group: Group
    ) -> None:
        super().__init__()
        self._failed, self._entry, self._group = failed, entry, ref(group)
        entry.__enter__()
        try:
            with self._named():
                self._work = call()
        except RuntimeError as error:
            entry.__exit__(type(error))
            raise

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise RuntimeError(f"{self._failed}: {error}") from error

    def wait(self, timeout: timedelta = NO_LIMIT) -> bool:
        """Wait until it is done.

        In a group that was destroyed only a message that has come already is.
        """
        with self._entry, self._named():
            group = self._group()
            if group is not None and group.is_open:
                return self._work.wait(timeout)
            return self._look()

    def _look(self) -> bool:
        """Return True if it is done.

        Gloo's receive would wait on, although its group was shut down.
        """
        try:
            return self._work.wait(LOOK)
        except RuntimeError as error:
            raise RuntimeError(DESTROYED) from error

    def synchronize(self) -> None:
        """Wait until it is done."""
        self.wait()

    def is_completed(self) -> bool:
        """Return whether it is done, well or not."""
        return self._work.is_completed()

    def is_success(self) -> bool:
        """Return whether it is done, and well."""
        return self._work.is_success()

    def exception(self) -> BaseException | None:
        """Return what went wrong."""
        error: BaseException | None = self._work.exception()
        return error

    def result(self) -> list[torch.Tensor]:
        """Return the tensors."""
        return self._work.result()

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Return a future of the tensors, if the library has one."""
        return self._work.get_future()

    def _source_rank(self) -> int:
        """Return the rank that sent it."""
        return self._work._source_rank()

    source_rank = _source_rank


def _profiler_event(name: str) -> AbstractContextManager[object]:
    """Return an event that begins now and ends with its ``with``, on whichever thread.

    Nothing if no profiler runs.
    """
    until = ExitStack()
    if torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
        event, end = torch.profiler.record_function(name), torch.futures.Future[None]()
        event.__enter__()  # type: ignore[no-untyped-call]
        # It ends the event for the profiler of this thread.
        event._call_end_callbacks_on_future(end)
        until.callback(end.set_result, None)
    return until


@cache
def _forbid_tracing() -> None:
    """Have `torch.compile` trace no method that returns a `Work`: torch's C++ code calls them in a compiled region."""
    for name, each in list(vars(Group).items()):
        if inspect.isfunction(each) and each.__annotations__.get("return") == "dist.Work":
            setattr(Group, name, torch.compiler.disable(each))  # type: ignore[no-untyped-call]
