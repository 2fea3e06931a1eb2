"""NCCL's rules, enforced on the CPU: `World` stands in for p GPUs, and `Group` for a process group over NCCL.

A rank's code runs to its end and only enqueues work, as on a GPU. `World.run` then carries out all
streams. What NCCL does not promise is refused: an `NcclError` names the rank and the rule, or every
batch that waits for another.

* A batch is one ncclGroup: its sends and receives are begun together, and none is outside of a
  batch.
* Messages from one rank to another are matched in order; tags count for nothing. Sizes and dtypes
  must be equal.
* A batch moves data when all of its counterparts have been begun, not before. NCCL may be less
  strict, but the first time it has to connect the ranks, and then it moves nothing
  (https://github.com/NVIDIA/nccl/issues/2130).
* The first operation on a group is a collective, which all of its ranks call.
* NCCL works on a stream of its own. ``wait`` makes the current stream wait for it, not the host.
* Two accesses to the same memory, one of them a write, need an order: the same stream, or an event
  between streams.
* Memory that nobody has written holds poison, and nothing may make the host wait for a stream.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

DEVICE = torch.device("cuda:0")


class NcclError(AssertionError):
    """A rule of NCCL is broken, or every stream waits for another."""


class Tensor(torch.Tensor):
    """A tensor whose device is a GPU; ``memory`` holds its data on the CPU."""

    device = DEVICE
    memory: torch.Tensor

    @staticmethod
    def __new__(cls, memory: torch.Tensor) -> "Tensor":
        made = torch.Tensor._make_wrapper_subclass(
            cls, memory.size(), strides=memory.stride(), dtype=memory.dtype
        )
        made.memory = memory
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NcclError(f"{func} outside World.on")


class Event:
    """A point in a stream, and what that stream had seen by then.

    None as long as it has not happened.
    """

    seen: Counter["Stream"] | None = None


class Stream:
    """Commands that are carried out one after the other.

    ``seen`` has the accesses of each stream that are over.
    """

    def __init__(self, rank: int, name: str) -> None:
        self.rank, self.name = rank, name
        # Each returns whether it could be carried out.
        self.commands: deque[Callable[[], bool]] = deque()
        self.waits_for: Callable[[], str] = str  # names what the first command waits for
        self.seen: Counter[Stream] = Counter()

    def goes_on(self) -> bool:
        """Carry out the commands that can be, and return whether there were any."""
        moved = False
        while self.commands and self.commands[0]():
            self.commands.popleft()
            self.waits_for, moved = str, True
        return moved

    def record(self) -> Event:
        """Return an event that happens when all that was enqueued so far is done."""
        event = Event()

        def happens() -> bool:
            event.seen = Counter(self.seen)
            return True

        self.commands.append(happens)
        return event

    def wait_event(self, event: Event) -> None:
        """Let what is enqueued from now on wait for the event."""

        def waits() -> bool:
            if event.seen is not None:
                self.seen |= event.seen
            return event.seen is not None

        self.commands.append(waits)


class Access(NamedTuple):
    """Bytes that a stream read or wrote as its ``at``-th access."""

    start: int
    stop: int
    writes: bool
    stream: Stream
    at: int
    what: str


class Work:
    """What a call returns: ``wait`` makes the stream that is current then wait for it."""

    def __init__(self, world: "World", done: Event) -> None:
        self.world, self.done = world, done

    def wait(self) -> None:
        self.world.current.wait_event(self.done)


class Shared:
    """What the ranks of a group have begun: messages of a pair in order, collectives by number."""

    def __init__(self, ranks: list[int]) -> None:
        self.ranks = ranks
        # By sender, receiver, is_send.
        self.messages: dict[tuple[int, int, bool], list[Message]] = defaultdict(list)
        self.collectives: dict[int, set[int]] = defaultdict(set)  # which ranks are there
        # By each rank, in the order of its calls.
        self.said: list[list[bytes]] = [[] for _ in ranks]


class Group:
    """One rank's handle of a process group, and its own backend.

    ``shared`` is the same for all of its ranks.
    """

    supports_coalescing = True

    def __init__(self, world: "World", shared: Shared, rank: int) -> None:
        self.world, self.shared, self._rank = world, shared, rank
        self.stream = world.stream(shared.ranks[rank], "NCCL's stream")
        self.connected = False
        self.calls = self.batches = 0  # so far
        self.batch: Batch | None = None

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return len(self.shared.ranks)

    def name(self) -> str:
        return "nccl"

    def _get_backend(self, device: torch.device) -> "Group":
        return self

    def _start_coalescing(self, device: torch.device) -> None:
        if self.batch:
            raise NcclError(f"{self.batch} has no end")
        self.batch = Batch(self, self.batches)
        if not self.connected:
            raise NcclError(
                f"{self.batch} is the first operation on its group; a collective has to come first"
            )
        self.batches += 1

    def send(self, tensors: list[Tensor], peer: int, tag: int, is_send: bool = True) -> None:
        assert self.batch is not None, "a message outside of a batch"
        new = Message(self.batch, is_send, tensors[0].memory, peer)
        if not new.tensor.is_contiguous():
            raise NcclError(f"{new}: got a tensor with gaps, expected a contiguous one")
        if new.tensor.is_complex():
            raise TypeError(
                f"Input tensor data type is not supported for NCCL process group: {new.tensor.dtype}"
            )
        for old in self.batch.messages:
            if not (old.is_send and new.is_send) and _overlap(old.tensor, new.tensor):
                raise NcclError(f"race within {self.batch}: {old} and {new} use the same memory")
        self.batch.messages.append(new)

    def recv(self, tensors: list[Tensor], peer: int, tag: int) -> None:
        self.send(tensors, peer, tag, is_send=False)

    def _end_coalescing(self, device: torch.device) -> Work:
        assert self.batch is not None
        batch, self.batch = self.batch, None
        return self.world.call(self, batch)


class Message:
    """One end of a message, in a batch."""

    def __init__(self, batch: "Batch", is_send: bool, tensor: torch.Tensor, peer: int) -> None:
        self.batch, self.is_send, self.tensor, self.peer = batch, is_send, tensor, peer
        self.other: Message | None = None
        self.is_done = False

    def __str__(self) -> str:
        verb, ranks = ("send", "to") if self.is_send else ("receive", "from")
        peer = self.batch.group.shared.ranks[self.peer]
        return f"{verb} {self.tensor.numel()} {str(self.tensor.dtype).removeprefix('torch.')} {ranks} rank {peer}"


class Batch:
    """What one rank sends and receives in one call.

    The command of NCCL's stream that carries it out.
    """

    def __init__(self, group: Group, number: int) -> None:
        self.group, self.number, self.is_begun = group, number, False
        self.messages: list[Message] = []

    def __str__(self) -> str:
        return f"rank {self.group.shared.ranks[self.group.rank()]}, batch {self.number}"

    def __call__(self) -> bool:
        if not self.is_begun:
            self.begin()
        self.group.stream.waits_for = self.waits_for
        for message in self.messages if self.is_launched() else []:
            message.is_done = message.is_done or self.moves(message)
        return all(message.is_done for message in self.messages)

    def begin(self) -> None:
        """Offer all messages to their peers."""
        self.is_begun = True
        for message in self.messages:
            pair = (self.group.rank(), message.peer)[:: 1 if message.is_send else -1]
            mine, others = (
                self.group.shared.messages[*pair, end]
                for end in (message.is_send, not message.is_send)
            )
            mine.append(message)
            if len(others) >= len(mine):
                other = others[len(mine) - 1]
                if (message.tensor.dtype, message.tensor.numel()) != (
                    other.tensor.dtype,
                    other.tensor.numel(),
                ):
                    raise NcclError(
                        f"mismatch: {self} has {message}, but {other.batch} has {other}"
                    )
                message.other, other.other = other, message

    def is_launched(self) -> bool:
        """Return whether all counterparts are begun."""
        return self.is_begun and all(message.other for message in self.messages)

    def moves(self, message: Message) -> bool:
        """Move the data when both batches are launched; the first of the two does it for both."""
        if not message.other.batch.is_launched():
            return False
        send, receive = (message, message.other) if message.is_send else (message.other, message)
        for end in (send, receive):
            self.group.world.access(
                end.batch.group.stream, end.tensor, end is receive, f"a batch that has to {end}"
            )
        receive.tensor.copy_(send.tensor)
        message.other.is_done = True
        return True

    def waits_for(self) -> str:
        alone = [str(message) for message in self.messages if message.other is None]
        asked = {str(m.other.batch) for m in self.messages if m.other and not m.is_done}
        return (
            f"{self} has to " + ", ".join(alone)
            if alone
            else f"{self} waits for {', '.join(sorted(asked))}"
        )


class World:
    """So many ranks, each with a GPU of its own."""

    def __init__(self, p: int) -> None:
        self.p, self.streams = p, list[Stream]()
        self.log: dict[int, list[Access]] = defaultdict(list)
        self.kept: list[torch.Tensor] = []  # no address is used twice
        self.defaults = [self.stream(rank, "the default stream") for rank in range(p)]
        self.current = self.defaults[0]
        self.kernels: Counter[str] = Counter()

    def stream(self, rank: int, name: str) -> Stream:
        self.streams.append(Stream(rank, name))
        return self.streams[-1]

    def group(self, ranks: list[int] | None = None) -> list[Group]:
        """Return a new process group: the handles of its ranks."""
        shared = Shared(list(range(self.p)) if ranks is None else ranks)
        return [Group(self, shared, rank) for rank in range(len(shared.ranks))]

    @contextmanager
    def on(self, where: int | Stream) -> Iterator[None]:
        """Enqueue what follows on a rank's default stream, or on a stream."""
        before, self.current = (
            self.current,
            where if isinstance(where, Stream) else self.defaults[where],
        )
        try:
            with _Kernels(self):
                yield
        finally:
            self.current = before

    def enqueue(
        self,
        what: str,
        run: Callable[[], Any],
        reads: list[torch.Tensor],
        writes: list[torch.Tensor],
    ) -> None:
        """Enqueue a kernel on the current stream."""
        stream = self.current
        self.kernels[what] += 1

        def kernel() -> bool:
            for tensors, is_write in ((reads, False), (writes, True)):
                for tensor in tensors:
                    self.access(stream, tensor, is_write, what)
            run()
            return True

        stream.commands.append(kernel)

    def access(self, stream: Stream, tensor: torch.Tensor, writes: bool, what: str) -> None:
        """Note what a stream reads or writes.

        An error where an earlier access is not known to be over.
        """
        if not tensor.numel():
            return
        self.kept.append(tensor)
        stream.seen[stream] += 1
        start = tensor.data_ptr()
        now = Access(start, start + tensor.nbytes, writes, stream, stream.seen[stream], what)
        log, left = self.log[tensor.untyped_storage().data_ptr()], []
        for each in log:
            touches = each.start < now.stop and now.start < each.stop
            if touches and (each.writes or writes) and stream.seen[each.stream] < each.at:
                raise NcclError(
                    f"race on rank {stream.rank}: {what} on {stream.name} "
                    f"does not wait for {each.what} on {each.stream.name}"
                )
            if not (writes and start <= each.start and each.stop <= now.stop):
                left.append(each)
        log[:] = [*left, now]

    def call(self, group: Group, command: Callable[[], bool]) -> Work:
        """Enqueue on NCCL's stream, behind what the current stream holds so far."""
        group.stream.wait_event(self.current.record())
        group.stream.commands.append(command)
        return Work(self, group.stream.record())

    def all_reduce(
        self, tensor: Tensor, op: Any = None, group: Any = None, async_op: bool = False
    ) -> None:
        """Enqueue a collective, which moves nothing here: it ends when all ranks have called it."""
        shared, number, stream = group.shared, group.calls, group.stream
        group.calls += 1
        group.connected = True

        def collective() -> bool:
            shared.collectives[number].add(stream.rank)
            away = [rank for rank in shared.ranks if rank not in shared.collectives[number]]
            stream.waits_for = lambda: (
                f"rank {stream.rank}, collective {number} waits for ranks {away}"
            )
            if not away:
                self.access(stream, tensor.memory, True, "an all-reduce")
            return not away

        self.call(group, collective).wait()

    def all_gather_bytes(self, payload: bytes, group: Group, device: torch.device) -> list[bytes]:
        """Stand in for the one call that makes the host wait.

        Ranks that run later are taken to send the same.
        """
        self.all_reduce(Tensor(torch.zeros(1)), group=group)
        said, rank = group.shared.said, group.rank()
        said[rank].append(payload)
        nth = len(said[rank]) - 1
        return [payloads[nth] if nth < len(payloads) else payload for payloads in said]

    def run(self) -> None:
        """Carry out all streams, as the host does that waits for them.

        An error where every one waits for another.
        """
        while any(stream.goes_on() for stream in self.streams):
            pass
        stuck = [stream.waits_for() for stream in self.streams if stream.commands]
        if stuck:
            raise NcclError("deadlock: " + "; ".join(filter(None, stuck)))
        self.log.clear()  # all of this is over for whatever comes later


class _Kernels(TorchDispatchMode):
    """Make a kernel on the current stream of whatever computes on a `Tensor`."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        used = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        plain, named = tree_map_only(Tensor, lambda tensor: tensor.memory, (args, kwargs))
        if not used:
            return func(*plain, **named)
        if func.is_view:
            return tree_map_only(torch.Tensor, Tensor, func(*plain, **named))
        written = [
            args[i] if i < len(args) else kwargs[argument.name]
            for i, argument in enumerate(func._schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        reads = [tensor.memory for tensor in used if not any(tensor is one for one in written)]
        if written:
            run = partial(func, *plain, **named)
            if (
                "div_" in str(func)
                and not isinstance(plain[1], torch.Tensor)
                and plain[0].is_floating_point()
            ):
                run = partial(_times_one_over, plain[0], plain[1])
            self.world.enqueue(str(func), run, reads, [one.memory for one in written])
            return written[0]
        shaped = func(*plain, **named)
        if not isinstance(shaped, torch.Tensor):
            raise NcclError(f"{func} makes the host wait for the GPU")
        made = Tensor(_poisoned(shaped))
        if "new_empty" not in str(func):
            self.world.enqueue(
                str(func), lambda: made.memory.copy_(func(*plain, **named)), reads, [made.memory]
            )
        return made


def _on_the_gpu(factory: Callable[..., torch.Tensor], poison: bool) -> Callable[..., torch.Tensor]:
    """Return the function that makes tensors, and on a GPU a `Tensor`."""

    def make(*args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
        if device is None or torch.device(device).type != "cuda":
            return factory(*args, device=device, **kwargs)
        made = factory(*args, **kwargs)
        return Tensor(_poisoned(made) if poison else made)

    return make


def _poisoned(tensor: torch.Tensor) -> torch.Tensor:
    is_whole = not (tensor.is_floating_point() or tensor.is_complex())
    return tensor.fill_(torch.iinfo(tensor.dtype).min // 3 if is_whole else float("nan"))


def _times_one_over(tensor: torch.Tensor, number: float) -> None:
    """Divide by a number as CUDA does: it multiplies by the inverse, rounded to float32 or float64."""
    wide = torch.promote_types(tensor.dtype, torch.float32)
    tensor.copy_(tensor.to(wide) * (torch.ones((), dtype=wide) / number))


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (
        one.data_ptr() < other.data_ptr() + other.nbytes
        and other.data_ptr() < one.data_ptr() + one.nbytes
    )


class P2POp(NamedTuple):
    """A message as torch's own batches take it."""

    op: Any
    tensor: Tensor
    group: Group
    group_peer: int


def batch_isend_irecv(operations: list[P2POp]) -> list[Work]:
    """Stand in for torch's own batches, which go to a wrapper that does not offer batches itself."""
    group = operations[0].group
    group._start_coalescing(DEVICE)
    for each in operations:
        (group.send if each.op is dist.isend else group.recv)([each.tensor], each.group_peer, 0)
    return [group._end_coalescing(DEVICE)]


def install(patch: pytest.MonkeyPatch, world: World) -> None:
    """Put the world in the place of `torch.distributed` over NCCL, and of CUDA's streams."""

    @contextmanager
    def stream(one: Stream) -> Iterator[None]:
        before, world.current = world.current, one
        yield
        world.current = before

    for name, stand_in in {
        "P2POp": P2POp,
        "batch_isend_irecv": batch_isend_irecv,
        "all_reduce": world.all_reduce,
        "get_rank": lambda group: group.rank(),
        "get_world_size": lambda group=None: group.size() if group else world.p,
        "get_group_rank": lambda group, rank: group.shared.ranks.index(rank),
    }.items():
        patch.setattr(dist, name, stand_in)
    for module in ("group", "nccl"):
        patch.setattr(f"collectives.engine.{module}.all_gather_bytes", world.all_gather_bytes)
    for name in ("empty", "zeros", "tensor"):
        patch.setattr(torch, name, _on_the_gpu(getattr(torch, name), poison=name == "empty"))
    patch.setattr(
        torch.cuda, "Stream", lambda device=None: world.stream(world.current.rank, "another stream")
    )
    patch.setattr(torch.cuda, "stream", stream)
    patch.setattr(torch.cuda, "synchronize", lambda device=None: world.run())
