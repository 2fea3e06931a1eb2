"""Ranks of a submission and the messages between them: moved, timed and counted here, outside the students' processes.

Time is simulated, so that every run gives the same: a message of m bytes takes ``alpha + beta * m`` seconds, a rank's
port carries one outgoing and one incoming message at a time, and computing takes no time. With small buffers a send
returns when its message has been received; otherwise at once.
"""

import math
import random
import selectors
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from collectives_course import wire
from collectives_course.channel import TICK, Channel, GoneError
from collectives_course.messages import Network, Post, Rank, RunResult, Sent, cycle_from, stuck, used_up
from collectives_course.verdict import Blocked, Crashed, EndedError, Failed, TimedOut, Ungraded, printable

Handler = Callable[[Rank, dict[str, Any]], None]
MOST_QUESTIONS = 200_000  # of all ranks, a message's sender and receiver ask one each
MOST_UNRECEIVED = 256 << 20  # bytes
MOST_WAIT = 100  # times the limit: longer than the slowest call on a busy machine


def _kind(value: Any) -> str:
    """Shape and dtype of an array; empty for what is none."""
    return f"shape {value.shape} of {value.dtype}" if isinstance(value, np.ndarray) else ""


@dataclass
class World:
    """One call on all ranks. ``run`` runs it; subclasses may have other ``handlers`` of questions.

    ``comm``: the class of a rank's end, which asks them. ``memory``: what all ranks may use together.
    """

    comm: ClassVar[str] = "Comm"
    channels: Sequence[Channel]
    network: Network = field(default_factory=Network)
    limit: float = 5.0
    file: str = ""
    memory: float = math.inf

    def __post_init__(self) -> None:
        late = self.network.late or (0.0,) * len(self.channels)
        self.ranks = [Rank(r, channel, clock=late[r]) for r, channel in enumerate(self.channels)]
        self.handlers: dict[str, Handler] = {
            "raise": self.on_raise,
            "recv": self.on_recv,
            "return": self.on_return,
            "send": self.on_send,
            "sendrecv": self.on_sendrecv,
            "time": self.on_time,
        }
        self.mail: dict[tuple[int, int], deque[Post]] = {}
        self.unreceived = 0  # bytes
        self.asked = 0  # questions
        self.given: Sequence[list[Any]] = []
        self.sent: list[Sent] = []

    def run(self, call: str, arguments: Sequence[list[Any]], alone: bool = False) -> RunResult:
        """Call a function of the submission on every rank, with that rank's arguments; ``alone``: without a Comm.

        Raises an `EndedError` that says how it went wrong: a deadlock, an error, a rank that is silent.
        """
        self.given = arguments
        for rank, given in zip(self.ranks, arguments, strict=True):
            size = 0 if alone else len(self.ranks)
            task = {"file": self.file, "call": call, "arguments": given, "comm": self.comm}
            rank.channel.meter.look()
            rank.channel.send({**task, "rank": rank.number, "size": size})
        with selectors.DefaultSelector() as selector:
            for rank in self.ranks:
                selector.register(rank.channel.connection, selectors.EVENT_READ, rank)
            try:
                self._until_all_end(selector)
            except EndedError:
                self._need_no_error()  # others may wait for a rank that has raised one
                raise
        self._need_no_error()
        returned = [rank.returned or {} for rank in self.ranks]
        seconds = max([rank.clock for rank in self.ranks] + [message.end for message in self.sent])
        left = [pair for pair, posts in sorted(self.mail.items()) for _ in posts]
        values, after = [each.get("value") for each in returned], [list(each["arguments"]) for each in returned]
        return RunResult(values, after, self.sent, seconds, left)

    def _need_no_error(self) -> None:
        """Raise the error of the first rank by number, whichever came first: the same in every run."""
        for rank in self.ranks:
            if rank.error is not None:
                raise rank.error

    def _until_all_end(self, selector: selectors.BaseSelector) -> None:
        start = time.monotonic()
        due = start + TICK * random.random()  # a rank cannot know when we look
        while not all(rank.has_ended for rank in self.ranks):
            if waiting := stuck(self.ranks):
                raise Failed(f"deadlock: {self.deadlock(waiting)}")
            self._exchange(selector, due - time.monotonic())
            if time.monotonic() >= due:
                self._look(selector)
                due = time.monotonic() + TICK * random.uniform(0.5, 1.5)
                self._need_patience(time.monotonic() - start)
        for rank in self.ranks:
            rank.channel.meter.look()
        self._need_limits()

    def _exchange(self, selector: selectors.BaseSelector, seconds: float) -> None:
        """Read what comes within these seconds, and send what did not fit into the sockets before."""
        for key, _ in selector.select(max(0.0, seconds)):
            self._read(key.data, selector)
        for rank in self.ranks:
            rank.channel.flush()

    def _look(self, selector: selectors.BaseSelector) -> None:
        """Count what the ranks use. One that sleeps although we owed it nothing does so in its turn."""
        seen = [(rank, rank.channel.meter.usage(), rank.channel.moved) for rank in self.ranks]
        self._exchange(selector, 0.0)
        for rank, used, moved in seen:
            rank.channel.meter.count(used, rank.has_turn and rank.channel.moved == moved)
        self._need_limits()

    def _need_limits(self) -> None:
        meters = [rank.channel.meter for rank in self.ranks]
        slept = sum(meter.slept for meter in meters)  # ranks that sleep in turn have one limit together
        for rank in sorted(self.ranks, key=lambda rank: (not rank.has_turn, -rank.channel.meter.spent)):
            if rank.channel.meter.spent - rank.channel.meter.slept + slept > self.limit:
                raise TimedOut(used_up(self.ranks, rank, self.file, self.limit))
        memory = sum(meter.last.memory for meter in meters)
        if memory > self.memory:
            raise Crashed(f"memory of all ranks: got {memory:,} bytes, expected at most {self.memory:,}")

    def _need_patience(self, seconds: float) -> None:
        """End a call that has not used its time for very long: our fault only where ranks had no processor."""
        if seconds <= MOST_WAIT * self.limit:
            return
        waited = sum(rank.channel.meter.waited for rank in self.ranks)
        if waited < seconds / 2:
            raise TimedOut(f"not done after {seconds:.0f} s, in which its ranks waited {waited:.0f} s for a processor")
        raise Ungraded(f"not graded: grader's fault: this machine was too busy for {seconds:.0f} s")

    def deadlock(self, waiting: list[Rank]) -> str:
        """Why none of these ranks goes on."""
        return cycle_from(self.ranks, waiting[0])

    def _read(self, rank: Rank, selector: selectors.BaseSelector) -> None:
        try:
            questions = rank.channel.receive()
        except GoneError as gone:
            if not rank.has_ended:
                rank.error = Crashed(f"rank {rank.number}: {gone}")
            selector.unregister(rank.channel.connection)  # its answer counts; the next call finds that it has ended
            return
        except wire.WireError as error:
            raise Crashed(f"rank {rank.number}: {error}") from None
        for question in questions:
            self._take(rank, question)

    def _take(self, rank: Rank, question: Any) -> None:
        op = question.get("op") if isinstance(question, dict) else None
        if not isinstance(op, str) or op not in self.handlers or rank.has_ended or rank.waits:
            raise Crashed(f"rank {rank.number}: a message that the grader cannot read")
        self.asked += 1
        if self.asked > MOST_QUESTIONS:
            raise Failed(f"too many messages and other questions: expected at most {MOST_QUESTIONS:,}")
        line = question.get("line", 0)
        rank.asks, rank.line = op, line if isinstance(line, int) and 0 < line < 10**7 else 0
        try:
            self.handlers[op](rank, question)
        except (KeyError, TypeError, AttributeError, IndexError, ValueError):
            raise Crashed(f"rank {rank.number}: a message that the grader cannot read") from None

    # What ranks ask.

    def on_return(self, rank: Rank, question: dict[str, Any]) -> None:
        """The call has ended."""
        for place, (was, now) in enumerate(zip(self.given[rank.number], question["arguments"], strict=True)):
            if _kind(now) != _kind(was):
                got, expected = _kind(now) or "none", _kind(was) or "none"
                raise Failed(f"rank {rank.number}: argument {place}: got {got}, expected the array given: {expected}")
        rank.returned = question

    def on_raise(self, rank: Rank, question: dict[str, Any]) -> None:
        """The call has raised an error. Others go on: one with a lower number may raise one, too."""
        rank.error = self._error(rank, question["kind"], printable(str(question["text"]))[:2000])

    def _error(self, rank: Rank, kind: str, text: str) -> EndedError:
        where = f" ({self.file}, line {rank.line})" if rank.line else ""
        if kind == "blocked":
            return Blocked(f"rank {rank.number}{where}: {text}")
        if kind == "unfinished":
            return Failed(f"not written yet{where}: {text.removeprefix('NotImplementedError: ')}")
        if kind == "unsendable":
            return Failed(f"the value that the function returned{where}: {text.removeprefix('WireError: ')}")
        return Crashed(f"rank {rank.number}{where}: {text}")

    def on_time(self, rank: Rank, question: dict[str, Any]) -> None:
        """The rank's clock."""
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
        """Both at the same time."""
        self._post(rank, question)
        self._want(rank, question)
        self._match(rank)

    def _post(self, rank: Rank, question: dict[str, Any]) -> None:
        dst, array = self._other(rank, question["to"]), question["array"]
        self.unreceived += array.nbytes
        if self.unreceived > MOST_UNRECEIVED:
            raise Failed(f"too many bytes sent that no rank has received: expected at most {MOST_UNRECEIVED:,}")
        post = Post(rank.number, dst, array, rank.clock)
        if self.network.small_buffers:
            rank.sending = post
        else:
            post.at = max(rank.clock, rank.egress_free)
            rank.egress_free = post.at + self.cost(post.array.nbytes)
            self.mail.setdefault((rank.number, dst), deque()).append(post)

    def _want(self, rank: Rank, question: dict[str, Any]) -> None:
        dtype, shape = wire.place(question)
        src = self._other(rank, question["from"])
        rank.receiving = {"from": src, "dtype": dtype, "shape": shape, "at": rank.clock}

    def _other(self, rank: Rank, number: Any) -> int:
        if not isinstance(number, int) or not 0 <= number < len(self.ranks) or number == rank.number:
            raise ValueError
        return number

    def cost(self, size: int) -> float:
        """Seconds that a message of this many bytes takes."""
        return self.network.alpha + self.network.beta * size

    def _match(self, rank: Rank) -> None:
        """Deliver what can be delivered to and from this rank, and answer every rank that waits no longer."""
        receivers = [rank] if rank.sending is None else [rank, self.ranks[rank.sending.dst]]
        if not self.network.small_buffers and rank.asks != "recv":
            receivers += [each for each in self.ranks if each.receiving and each.peer == rank.number]
        for receiver in receivers:
            self._deliver(receiver)
        if rank.asks == "send" and rank.sending is None:
            self._answer(rank)

    def _deliver(self, receiver: Rank) -> None:
        if receiver.receiving is None:
            return
        src = self.ranks[int(receiver.receiving["from"])]
        box = self.mail.get((src.number, receiver.number))
        direct = src.sending if src.sending is not None and src.sending.dst == receiver.number else None
        post = box.popleft() if box else direct
        if post is None:
            return
        self._move(post, src, receiver)
        if post is direct:
            src.sending = None
            self._answer(src)
        receiver.receiving = None
        self._answer(receiver)

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
        else:
            start = max(post.at, receiver.ingress_free)
        receiver.ingress_free = start + cost
        receiver.clock = max(receiver.clock, start + cost)
        receiver.received = post.array.reshape(wanted["shape"])
        self.sent.append(Sent(post.src, post.dst, post.array.nbytes, start, start + cost))

    def _answer(self, rank: Rank) -> None:
        if rank.waits:
            return
        rank.channel.send({} if rank.received is None else {"array": rank.received})
        rank.received = None
        rank.asks = ""
