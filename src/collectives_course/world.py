"""Ranks of a submission and the messages between them: moved, timed and counted here, outside the students' processes.

Time is simulated, so that every run gives the same: a message of m bytes takes ``alpha + beta * m``
seconds, a rank's port carries one outgoing and one incoming message at a time, and computing takes
no time. With small buffers a send returns when its message has been received; otherwise at once.

A rank is charged for what it computes, for what the grader computes to read its bytes, and for what
it sleeps in its turn, however often it asks something in between. Its waits for a processor, for a
message or for the grader are free, so a busy machine gives the same verdict as an idle one. In a
criterion a rank may compute for ``limit`` seconds, less what all ranks have slept.
"""

import math
import random
import selectors
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives_course import wire
from collectives_course.verdict import (
    Blocked,
    Crashed,
    EndedError,
    Failed,
    TimedOut,
    Ungraded,
    printable,
)

MAX_QUESTIONS = 200_000  # of all ranks, a message's sender and receiver ask one each
# Bytes of a question's header; its arrays are payload, and cost far less to read.
MAX_QUESTION = 4 << 10
MAX_UNRECEIVED = 256 << 20  # bytes
MAX_WAIT = 100  # times the limit: longer than the slowest call on a busy machine
TICK = 0.1  # seconds between two looks

Array = NDArray[Any]


class Used(NamedTuple):
    """The use of a rank: seconds computed, whether it sleeps now, its own bytes, and seconds waited for a processor."""

    computed: float
    sleeps: bool
    memory: int = 0
    waited: float = 0.0


Usage = Callable[[], Used]


def by_clock() -> Used:
    """Return the usage of a rank that is a thread: all time that passes."""
    return Used(time.monotonic(), False)


class UsageMeter:
    """``usage`` tells what a rank uses, ``last`` is the last answer.

    ``spent``, ``slept``, ``waited``: seconds so far.

    What a rank has slept is part of what it has spent. What it has waited for a processor is not.
    """

    def __init__(self, usage: Usage = by_clock) -> None:
        self.usage = usage
        self.spent = self.slept = self.waited = 0.0
        self.last, self.at = usage(), time.monotonic()

    def look(self) -> None:
        """Count what the rank has computed since the last look."""
        self.count(self.usage())

    def count(self, used: Used, is_its_turn: bool = False) -> None:
        """Count the time since the last look, by the ``used`` of now.

        Sleep counts only in the rank's turn.

        A look that comes late, because the grader itself waited for a processor, counts no more
        sleep than one in time.
        """
        now, computed = time.monotonic(), used.computed - self.last.computed
        asleep = (
            max(0.0, min(now - self.at, 2 * TICK) - computed)
            if is_its_turn and used.sleeps
            else 0.0
        )
        self.slept += asleep
        self.spent += computed + asleep
        self.waited += used.waited - self.last.waited
        self.last, self.at = used, now


class Channel(wire.Connection):
    """The grader's end of the connection to one rank, which never blocks.

    ``ended`` says why the rank's process ended, ``stack`` the line at which it is. ``meter`` counts
    the time that the rank uses, by ``usage``.
    """

    def __init__(
        self,
        end: socket.socket,
        ended: Callable[[], str] = lambda: "its thread has ended",
        stack: Callable[[str], int] = lambda _file: 0,
        usage: Usage = by_clock,
    ) -> None:
        super().__init__(end, blocking=False)
        self.ended = ended  # type: ignore[method-assign]
        self.stack = stack
        self.meter = UsageMeter(usage)

    def receive(self) -> list[Any]:
        """Return the value that has arrived as a whole, or none.

        What it costs this thread to read, the rank spends.
        """
        start = time.thread_time()
        try:
            return super().receive()
        finally:
            self.meter.spent += time.thread_time() - start


class Sent(NamedTuple):
    """One message, as it went over the wire, with times in seconds of the simulated clock."""

    src: int
    dst: int
    bytes: int
    start: float
    end: float


@dataclass(frozen=True)
class Network:
    """The cost of a message, and whether a send waits for its receiver.

    ``late``: when each rank starts, in seconds.
    """

    alpha: float = 1e-6
    beta: float = 1e-9
    small_buffers: bool = False
    late: tuple[float, ...] = ()


@dataclass(frozen=True)
class RunResult:
    """The result of one call on all ranks."""

    values: list[Any]
    arguments: list[list[Any]]
    sent: list[Sent]
    seconds: float
    unreceived: list[tuple[int, int]]

    def bytes_sent(self, p: int) -> list[int]:
        """Return the bytes that each rank has sent."""
        counted: Counter[int] = Counter()
        for message in self.sent:
            counted[message.src] += message.bytes
        return [counted[rank] for rank in range(p)]

    def messages_sent(self, p: int) -> list[int]:
        """Return the number of messages that each rank has sent."""
        counted = Counter(message.src for message in self.sent)
        return [counted[rank] for rank in range(p)]


@dataclass
class Post:
    """A message that its sender has handed over."""

    src: int
    dst: int
    array: Array
    at: float


@dataclass
class Rank:
    """The grader's view of one rank: its clock, and what it waits for."""

    number: int
    channel: Channel
    clock: float = 0.0
    egress_free: float = 0.0
    ingress_free: float = 0.0
    sending: Post | None = None
    receiving: dict[str, Any] | None = None
    received: Array | None = None
    collective: int | None = None
    asks: str = ""
    line: int = 0
    returned: dict[str, Any] | None = None
    error: EndedError | None = None

    @property
    def has_ended(self) -> bool:
        """Return True if it has returned, or raised an error."""
        return self.returned is not None or self.error is not None

    @property
    def waits(self) -> bool:
        """Return True if it waits for another rank."""
        return self.sending is not None or self.receiving is not None or self.collective is not None

    @property
    def has_turn(self) -> bool:
        """Return True if it can go on by itself."""
        return not self.waits and not self.has_ended

    @property
    def peer(self) -> int:
        """Return the rank that it waits for."""
        return int(self.receiving["from"]) if self.receiving is not None else self.sending.dst  # type: ignore[union-attr]


# How a call ends: not a question, so the value that it returns may be large.
ENDINGS: dict[str, tuple[str, ...]] = {"raise": ("kind", "text"), "return": ("value", "arguments")}


@dataclass
class World:
    """One call on all ranks.

    ``run`` runs it. A subclass may have other ``ops``: its questions, with their keys.

    ``comm``: the class of a rank's end, which asks them. ``selector``: what tells which ranks have
    asked. ``memory``: what all ranks may use together.
    """

    comm: ClassVar[str] = "Comm"
    selector: ClassVar[type[Any]] = selectors.DefaultSelector
    ops: ClassVar[dict[str, tuple[str, ...]]] = {
        **ENDINGS,
        "time": (),
        "send": ("to", "array"),
        "recv": ("from", "dtype", "shape"),
        "sendrecv": ("to", "array", "from", "dtype", "shape"),
    }
    channels: Sequence[Channel]
    network: Network = field(default_factory=Network)
    limit: float = 5.0
    file: str = ""
    memory: float = math.inf

    def __post_init__(self) -> None:
        late = self.network.late or (0.0,) * len(self.channels)
        self.ranks = [Rank(r, channel, clock=late[r]) for r, channel in enumerate(self.channels)]
        self.mail: dict[tuple[int, int], deque[Post]] = {}
        self.unreceived = 0  # bytes
        self.asked = 0  # questions
        self.given: Sequence[list[Any]] = []
        self.sent: list[Sent] = []

    def run(self, call: str, arguments: Sequence[list[Any]], alone: bool = False) -> RunResult:
        """Call a function of the submission on every rank, with that rank's arguments.

        ``alone``: without a Comm.

        Raises an `EndedError` that says how it went wrong: a deadlock, an error, a rank that is
        silent.
        """
        self.given = arguments
        for rank, given in zip(self.ranks, arguments, strict=True):
            size = 0 if alone else len(self.ranks)
            task = {"file": self.file, "call": call, "arguments": given, "comm": self.comm}
            rank.channel.meter.look()
            rank.channel.send({**task, "rank": rank.number, "size": size})
        with self.selector() as selector:
            for rank in self.ranks:
                selector.register(rank.channel.end, selectors.EVENT_READ, rank)
            try:
                self._until_all_end(selector)
            except EndedError:
                self._check_no_error()  # others may wait for a rank that has raised one
                raise
        self._check_no_error()
        returned = [rank.returned or {} for rank in self.ranks]
        seconds = max([rank.clock for rank in self.ranks] + [message.end for message in self.sent])
        left = []
        for pair, posts in sorted(self.mail.items()):
            left += [pair] * len(posts)
        values, after = (
            [each.get("value") for each in returned],
            [list(each["arguments"]) for each in returned],
        )
        return RunResult(values, after, self.sent, seconds, left)

    def _check_no_error(self) -> None:
        """Raise the error of the first rank by number, whichever came first: the same in every run."""
        for rank in self.ranks:
            if rank.error is not None:
                raise rank.error

    def _until_all_end(self, selector: selectors.BaseSelector) -> None:
        start = time.monotonic()
        due = start + TICK * random.random()  # a rank cannot know when we look
        while not all(rank.has_ended for rank in self.ranks):
            waiting = stuck(self.ranks)
            if waiting:
                raise Failed(f"deadlock: {self.deadlock(waiting)}")
            self._exchange(selector, due - time.monotonic())
            if time.monotonic() >= due:
                self._look(selector)
                due = time.monotonic() + TICK * random.uniform(0.5, 1.5)
                self._check_patience(time.monotonic() - start)
        for rank in self.ranks:
            rank.channel.meter.look()
        self._check_limits()

    def _exchange(self, selector: selectors.BaseSelector, seconds: float) -> None:
        """Read what comes within these seconds, and send what did not fit into the sockets before."""
        for key, _ in selector.select(max(0.0, seconds)):
            self._read(key.data, selector)
        for rank in self.ranks:
            rank.channel.flush()

    def _look(self, selector: selectors.BaseSelector) -> None:
        """Count what the ranks use.

        One that sleeps although we owed it nothing does so in its turn.
        """
        seen = [(rank, rank.channel.meter.usage(), rank.channel.moved) for rank in self.ranks]
        self._exchange(selector, 0.0)
        for rank, used, moved in seen:
            rank.channel.meter.count(used, rank.has_turn and rank.channel.moved == moved)
        self._check_limits()

    def _check_limits(self) -> None:
        meters = [rank.channel.meter for rank in self.ranks]
        # Ranks that sleep in turn have one limit together.
        slept = sum(meter.slept for meter in meters)
        for rank in sorted(
            self.ranks, key=lambda rank: (not rank.has_turn, -rank.channel.meter.spent)
        ):
            if rank.channel.meter.spent - rank.channel.meter.slept + slept > self.limit:
                raise TimedOut(used_up(self.ranks, rank, self.file, self.limit))
        memory = sum(meter.last.memory for meter in meters)
        if memory > self.memory:
            raise Crashed(
                f"memory of all ranks: got {memory:,} bytes, expected at most {self.memory:,}"
            )

    def _check_patience(self, seconds: float) -> None:
        """End a call that has not used its time for very long: our fault only where ranks had no processor."""
        if seconds <= MAX_WAIT * self.limit:
            return
        raise out_of_patience(seconds, sum(rank.channel.meter.waited for rank in self.ranks))

    def deadlock(self, waiting: list[Rank]) -> str:
        """Say why none of these ranks goes on."""
        return cycle_from(self.ranks, waiting[0])

    def _read(self, rank: Rank, selector: selectors.BaseSelector) -> None:
        try:
            questions = rank.channel.receive()
        except wire.GoneError as gone:
            if not rank.has_ended:
                rank.error = Crashed(f"rank {rank.number}: {gone}")
            # Its answer counts; the next call finds that it has ended.
            selector.unregister(rank.channel.end)
            return
        except wire.WireError as error:
            raise Crashed(f"rank {rank.number}: {error}") from None
        for question in questions:
            self._take(rank, question)

    def _take(self, rank: Rank, question: Any) -> None:
        op = question.get("op") if isinstance(question, dict) else None
        if not isinstance(op, str) or op not in self.ops or rank.has_ended or rank.waits:
            raise Crashed(f"rank {rank.number}: a message that the grader cannot read")
        is_large = op not in ENDINGS and rank.channel.header > MAX_QUESTION
        if is_large or not question.keys() <= {"op", "line", *self.ops[op]}:
            raise Crashed(f"rank {rank.number}: a message that the grader cannot read")
        self.asked += 1
        if self.asked > MAX_QUESTIONS:
            raise Failed(
                f"too many messages and other questions: expected at most {MAX_QUESTIONS:,}"
            )
        line = question.get("line", 0)
        rank.asks, rank.line = op, line if isinstance(line, int) and 0 < line < 10**7 else 0
        try:
            getattr(self, f"on_{op}")(rank, question)
        except (KeyError, TypeError, AttributeError, IndexError, ValueError):
            raise Crashed(f"rank {rank.number}: a message that the grader cannot read") from None

    # What ranks ask.

    def on_return(self, rank: Rank, question: dict[str, Any]) -> None:
        """Note that the call has ended."""
        for place, (was, now) in enumerate(
            zip(self.given[rank.number], question["arguments"], strict=True)
        ):
            if _kind(now) != _kind(was):
                got, expected = _kind(now) or "none", _kind(was) or "none"
                raise Failed(
                    f"rank {rank.number}: argument {place}: got {got}, expected the array given: {expected}"
                )
        rank.returned = question

    def on_raise(self, rank: Rank, question: dict[str, Any]) -> None:
        """Note the error that the call has raised.

        Others go on: one with a lower number may raise one, too.
        """
        rank.error = self._error(rank, question["kind"], printable(str(question["text"]))[:2000])

    def _error(self, rank: Rank, kind: str, text: str) -> EndedError:
        where = f" ({self.file}, line {rank.line})" if rank.line else ""
        if kind == "blocked":
            return Blocked(f"rank {rank.number}{where}: {text}")
        if kind == "unfinished":
            return Failed(f"not written yet{where}: {text.removeprefix('NotImplementedError: ')}")
        if kind == "unsendable":
            return Failed(
                f"the value that the function returned{where}: {text.removeprefix('WireError: ')}"
            )
        return Crashed(f"rank {rank.number}{where}: {text}")

    def on_time(self, rank: Rank, question: dict[str, Any]) -> None:
        """Answer with the rank's clock."""
        del question
        rank.channel.send({"time": rank.clock})

    def on_send(self, rank: Rank, question: dict[str, Any]) -> None:
        """Hand over a message."""
        self._post(rank, question)
        self._match(rank)

    def on_recv(self, rank: Rank, question: dict[str, Any]) -> None:
        """Wait for a message."""
        self._want(rank, question)
        self._match(rank)

    def on_sendrecv(self, rank: Rank, question: dict[str, Any]) -> None:
        """Hand over a message and wait for another at the same time."""
        self._post(rank, question)
        self._want(rank, question)
        self._match(rank)

    def _post(self, rank: Rank, question: dict[str, Any]) -> None:
        dst, array = self._other(rank, question["to"]), question["array"]
        self.unreceived += array.nbytes
        if self.unreceived > MAX_UNRECEIVED:
            raise Failed(
                f"too many bytes sent that no rank has received: expected at most {MAX_UNRECEIVED:,}"
            )
        post = Post(rank.number, dst, array, rank.clock)
        if self.network.small_buffers:
            rank.sending = post
        else:
            post.at = max(rank.clock, rank.egress_free)
            rank.egress_free = post.at + self.cost(post.array.nbytes)
        self.mail.setdefault((rank.number, dst), deque()).append(post)

    def _want(self, rank: Rank, question: dict[str, Any]) -> None:
        dtype, shape = wire.array_type(question)
        src = self._other(rank, question["from"])
        rank.receiving = {"from": src, "dtype": dtype, "shape": shape, "at": rank.clock}

    def _other(self, rank: Rank, number: Any) -> int:
        if (
            not isinstance(number, int)
            or not 0 <= number < len(self.ranks)
            or number == rank.number
        ):
            raise ValueError
        return number

    def cost(self, size: int) -> float:
        """Return the seconds that a message of this many bytes takes."""
        return self.network.alpha + self.network.beta * size

    def _match(self, rank: Rank) -> None:
        """Deliver what can be delivered to and from this rank, and answer every rank that waits no longer."""
        for receiver in self.ranks:
            if receiver.receiving is None or rank.number not in (receiver.number, receiver.peer):
                continue
            src = self.ranks[receiver.peer]
            posts = self.mail.get((src.number, receiver.number))
            if posts:
                self._move(posts.popleft(), src, receiver)
                receiver.receiving = None
                self._answer(receiver)
        if rank.asks == "send":
            self._answer(rank)

    def _move(self, post: Post, src: Rank, receiver: Rank) -> None:
        wanted = receiver.receiving or {}
        self.unreceived -= post.array.nbytes
        if wanted["dtype"] != post.array.dtype or math.prod(wanted["shape"]) != post.array.size:
            got = f"{post.array.size} elements of {post.array.dtype}"
            expected = f"{math.prod(wanted['shape'])} of {wanted['dtype']}"
            raise Failed(
                f"rank {receiver.number} (line {receiver.line}) receives {expected}, rank {src.number} sent {got}"
            )
        cost = self.cost(post.array.nbytes)
        if post is src.sending:
            start = max(post.at, wanted["at"], src.egress_free, receiver.ingress_free)
            src.egress_free = start + cost
            src.clock = max(src.clock, start + cost)
            src.sending = None
            self._answer(src)
        else:
            start = max(post.at, receiver.ingress_free)
        receiver.ingress_free = start + cost
        receiver.clock = max(receiver.clock, start + cost)
        receiver.received = post.array.reshape(wanted["shape"])
        self.sent.append(Sent(post.src, post.dst, post.array.nbytes, start, start + cost))

    def _answer(self, rank: Rank) -> None:
        if rank.waits or not rank.asks:
            return
        rank.channel.send({} if rank.received is None else {"array": rank.received})
        rank.received = None
        rank.asks = ""


def _kind(value: Any) -> str:
    """Describe the shape and dtype of an array, empty for what is none."""
    return f"shape {value.shape} of {value.dtype}" if isinstance(value, np.ndarray) else ""


def out_of_patience(seconds: float, waited: float) -> EndedError:
    """Say why calls ended that took so many seconds, in which ranks waited ``waited`` seconds for a processor."""
    if waited < seconds / 2:
        return TimedOut(
            f"not done after {seconds:.0f} s, in which its ranks waited {waited:.0f} s for a processor"
        )
    return Ungraded(f"not graded: grader's fault: this machine was too busy for {seconds:.0f} s")


def stuck(ranks: Sequence[Rank]) -> list[Rank]:
    """Return all ranks that wait for another, if none of them can go on, else none."""
    return [] if any(rank.has_turn for rank in ranks) else [rank for rank in ranks if rank.waits]


def cycle_from(ranks: Sequence[Rank], rank: Rank) -> str:
    """Say who waits for whom, from this rank on: a cycle, or a rank that has returned."""
    path: list[Rank] = []
    while rank not in path and rank.waits:
        path.append(rank)
        rank = ranks[rank.peer]
    if not rank.waits:
        return f"{_doing(path[-1])}, which has returned"
    cycle = path[path.index(rank) :]
    names = [str(each.number) for each in cycle]
    whole = f"ranks {', '.join(names[:-1])} and {names[-1]} wait for each other"
    return (
        f"{whole}: {'; '.join(_doing(each) for each in cycle[:4])}{'; …' if len(cycle) > 4 else ''}"
    )


def _doing(rank: Rank) -> str:
    verb = "receive from" if rank.receiving is not None else "send to"
    return f"rank {rank.number} waits (line {rank.line}) to {verb} rank {rank.peer}"


def used_up(ranks: Sequence[Rank], first: Rank, file: str, limit: float) -> str:
    """Say that this rank has used its time, at which line it is, and which ranks waited."""
    line = first.channel.stack(file)
    where = f" ({file}, line {line})" if line else ""
    waiting = [str(rank.number) for rank in ranks if rank.waits]
    others = (
        f"; {'rank' if len(waiting) == 1 else 'ranks'} {', '.join(waiting)} waited"
        if waiting
        else ""
    )
    return (
        f"rank {first.number} has used the {limit:g} s that it has for a criterion{where}{others}"
    )
