"""Ranks of a training run and their collectives: carried out, timed and counted here, outside the students' processes.

A rank's clock goes on when it computes a layer and when it waits for a collective. The network carries one collective
after another, each when all ranks have started it: alpha + beta * bytes. Which layers a rank computes, in which order,
is known before; the factor of a layer's gradient is told when its computing has ended.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np

from collectives.simulator.overlap import BACKWARD, FORWARD, REDUCE, Activity
from collectives_course.messages import Array, Rank, RunResult
from collectives_course.verdict import Failed
from collectives_course.world import World

MOST_COLLECTIVES, MOST_BYTES = 10_000, 256 << 20  # of all ranks together, in one call
KINDS = ("all_reduce", "broadcast")


class Computation(NamedTuple):
    """One layer of one step, "forward" or "backward": its seconds, and the factor of its gradient."""

    step: int
    layer: int
    phase: str
    seconds: float
    factor: float = 1.0


@dataclass
class Collective:
    """One collective: what it is, in which step rank 0 or a faster one started it, and when it went over the network.

    ``step`` is -1 before the first. ``started`` has each rank's time, ``line`` the line that started it first.
    """

    kind: str
    size: int
    dtype: str
    src: int
    step: int
    line: int = 0
    arrays: dict[int, Array] = field(default_factory=dict)
    started: dict[int, float] = field(default_factory=dict)
    begin: float = 0.0
    end: float = 0.0
    result: Array | None = None

    @property
    def bytes(self) -> int:
        """Size of the buffer."""
        return self.size * np.dtype(self.dtype).itemsize

    def __str__(self) -> str:
        root = f" of rank {self.src}" if self.kind == "broadcast" else ""
        return f"{self.kind}{root}, {self.bytes:,} bytes"


@dataclass(frozen=True)
class TrainingResult(RunResult):
    """The result of a training run: also all collectives, in their order, and when each rank computed what."""

    collectives: list[Collective]
    computed: list[Activity]

    @property
    def reduced(self) -> list[Collective]:
        """The all_reduces."""
        return [each for each in self.collectives if each.kind == "all_reduce"]

    @property
    def spans(self) -> list[Activity]:
        """What the ranks computed, and what the network carried for each."""
        sums = [(nth, each) for nth, each in enumerate(self.reduced) if each.result is not None]
        carried = [Activity(r, REDUCE, nth, one.begin, one.end, one.bytes) for nth, one in sums for r in one.started]
        return self.computed + carried


@dataclass
class TrainingWorld(World):
    """``computations`` has, for each rank, the layers that it computes, in the order of a training run."""

    comm: ClassVar[str] = "TrainingComm"
    computations: Sequence[Sequence[Computation]] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for op in ("recv", "send", "sendrecv"):
            del self.handlers[op]  # nothing goes past the collectives
        self.handlers |= {"compute": self.on_compute, "start": self.on_start, "wait": self.on_wait}
        self.collectives: list[Collective] = []
        self.bytes = 0
        self.started: Counter[int] = Counter()
        self.computed: Counter[int] = Counter()
        self.spans: list[Activity] = []

    def run(self, call: str, arguments: Sequence[list[Any]], alone: bool = False) -> TrainingResult:
        """As `World.run`. Raises Failed, too, if a rank has not computed everything."""
        result = super().run(call, arguments, alone)
        for rank, expected in enumerate(self.computations):
            if self.computed[rank] < len(expected):
                missing = expected[self.computed[rank]]
                raise Failed(
                    f"rank {rank} returned without {_named(missing.phase, missing.layer)}, step {missing.step}"
                )
        seconds = max([result.seconds, *(each.end for each in self.collectives)])
        return TrainingResult(result.values, result.arguments, [], seconds, [], self.collectives, self.spans)

    def on_compute(self, rank: Rank, question: dict[str, Any]) -> None:
        """Compute the next layer."""
        asked = question["phase"], question["layer"]
        todo = self.computations[rank.number][self.computed[rank.number] :]
        if not todo or asked != (todo[0].phase, todo[0].layer):
            expected = _named(todo[0].phase, todo[0].layer) if todo else "nothing more"
            raise Failed(f"rank {rank.number} (line {rank.line}) computes {_named(*asked)}, expected {expected}")
        self.computed[rank.number] += 1
        begin, rank.clock = rank.clock, rank.clock + todo[0].seconds
        self.spans.append(Activity(rank.number, todo[0].phase, todo[0].layer, begin, rank.clock))
        rank.channel.send({"factor": todo[0].factor})

    def on_start(self, rank: Rank, question: dict[str, Any]) -> None:
        """Start the rank's next collective."""
        array, number, src = question["array"], self.started[rank.number], _number(question["src"], len(self.ranks))
        found = Collective(question["kind"], array.size, array.dtype.str, src, self._step(rank), rank.line)
        if found.kind not in KINDS or array.dtype.kind != "f":
            raise ValueError
        self.bytes += array.nbytes
        if number >= MOST_COLLECTIVES or self.bytes > MOST_BYTES:
            raise Failed(f"too many collectives: expected at most {MOST_COLLECTIVES:,}, and {MOST_BYTES:,} bytes")
        self._need_same(rank, number, found)
        self.collectives[number].arrays[rank.number] = array
        self.collectives[number].started[rank.number] = rank.clock
        self.started[rank.number] += 1
        rank.channel.send({"number": number})
        self._carry(number)

    def on_wait(self, rank: Rank, question: dict[str, Any]) -> None:
        """Wait for a collective that the rank has started."""
        rank.collective = _number(question["number"], self.started[rank.number])
        self._wake()

    def _step(self, rank: Rank) -> int:
        done = self.computed[rank.number]
        return self.computations[rank.number][done - 1].step if done else -1

    def _need_same(self, rank: Rank, number: int, found: Collective) -> None:
        """Note a new collective; raise Failed if other ranks have started another in its place."""
        if number == len(self.collectives):
            self.collectives.append(found)
            return
        first = self.collectives[number]
        if (first.kind, first.size, first.dtype, first.src) == (found.kind, found.size, found.dtype, found.src):
            return
        other = f"rank {next(iter(first.started))} (line {first.line}) {first}"
        mine = f"rank {rank.number} (line {rank.line}) starts {found}"
        raise Failed(f"collective {number}: {mine}, {other}; all ranks start the same collectives in the same order")

    def _carry(self, number: int) -> None:
        """Carry out a collective that all ranks have started."""
        one, p = self.collectives[number], len(self.ranks)
        if len(one.started) < p:
            return
        free = self.collectives[number - 1].end if number else 0.0
        one.begin = max(free, *one.started.values())
        one.end = one.begin + (self.cost(one.bytes) if p > 1 else 0.0)
        parts = [one.arrays[rank].ravel() for rank in range(p)]
        with np.errstate(all="ignore"):  # what overflows is the submission's affair
            one.result = np.sum(parts, axis=0) if one.kind == "all_reduce" else parts[one.src]
        one.arrays.clear()
        self._wake()

    def _wake(self) -> None:
        """Answer the ranks whose collective has ended."""
        for rank in self.ranks:
            one = None if rank.collective is None else self.collectives[rank.collective]
            if one is not None and one.result is not None:
                rank.clock = max(rank.clock, one.end)
                rank.collective = None
                rank.channel.send({"array": one.result})

    def deadlock(self, waiting: list[Rank]) -> str:
        """Which collective was not started by all, and what the others do instead."""
        first = min(waiting, key=lambda rank: rank.collective or 0)
        number = first.collective or 0
        missing = [rank for rank in self.ranks if self.started[rank.number] <= number]
        others = "; ".join(f"rank {rank.number} {self._doing(rank)}" for rank in missing[:4])
        return f"rank {first.number} {self._doing(first)}, which not all ranks have started: {others}"

    def _doing(self, rank: Rank) -> str:
        if rank.collective is None:
            return f"has returned after {self.started[rank.number]} collectives"
        return f"waits (line {rank.line}) for collective {rank.collective}, {self.collectives[rank.collective]}"


def _number(value: Any, end: int) -> int:
    if not isinstance(value, int) or not 0 <= value < end:
        raise ValueError
    return value


def _named(phase: object, layer: object) -> str:
    return f"layer {str(layer)[:20]} {str(phase)[:20]}"


def timeline(spans: Iterable[Activity], rank: int = 0, width: int = 64) -> str:
    """Three lanes, on which a digit is the number of a layer or of a bucket, modulo ten, and a dot is nothing.

    >>> parts = [("forward", 0, 0, 2), ("backward", 0, 2, 6), ("all-reduce", 0, 6, 7)]
    >>> print(timeline([Activity(0, *part) for part in parts], width=14))
    forward    0000..........
    backward   ....00000000..
    all-reduce ............00
               7000.00 ms
    """
    shown = [span for span in spans if span.rank == rank]
    begin, end = min(span.begin for span in shown), max(span.end for span in shown)
    column = (end - begin) / width or 1.0
    lanes = {what: ["."] * width for what in (FORWARD, BACKWARD, REDUCE)}
    for span in shown:
        first, last = ((at - begin) / column for at in (span.begin, span.end))
        for at in range(round(first), min(width, max(round(last), round(first) + 1))):
            lanes[span.what][at] = str(span.nth % 10)
    rows = [f"{what:<11}{''.join(lane)}" for what, lane in lanes.items()]
    return "\n".join([*rows, f"{'':<11}{(end - begin) * 1e3:.2f} ms"])
