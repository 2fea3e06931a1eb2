"""A training run: its collectives carried out, timed and counted here, and the model that a submission has to equal.

A rank's clock goes on when it computes a layer and when it waits for a collective. The network
carries one collective after another, each when all ranks have started it: alpha + beta * bytes.
Which layers a rank computes, in which order, is known before; the rank learns the factor of a
layer's gradient when its computing has ended.

The model has layers with tanh between them, and is trained by plain gradient descent. The loss of a
sample is half the square of the distance to its target. Everything is float64.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np

from collectives.simulator import overlap
from collectives.simulator.overlap import BACKWARD, FORWARD, REDUCE, Activity
from collectives_course.verdict import Failed
from collectives_course.world import ENDINGS, Array, Network, Rank, RunResult, World

MAX_COLLECTIVES, MAX_BYTES = 10_000, 256 << 20  # of all ranks together, in one call
KINDS = ("all_reduce", "broadcast")
FORWARD_SHARE = 0.5  # of the time of a layer's backward pass


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

    ``step`` is -1 before the first. ``started`` has each rank's time, ``line`` the line that
    started it first.
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
        """Return the size of the buffer."""
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
        """Return the all_reduces."""
        return [each for each in self.collectives if each.kind == "all_reduce"]

    @property
    def spans(self) -> list[Activity]:
        """Return what the ranks computed, and what the network carried for each."""
        sums = [(nth, each) for nth, each in enumerate(self.reduced) if each.result is not None]
        carried = []
        for nth, one in sums:
            of_sum = (REDUCE, nth, one.begin, one.end, one.bytes)
            carried += [Activity(r, *of_sum) for r in one.started]
        return self.computed + carried


@dataclass
class TrainingWorld(World):
    """``computations`` has, for each rank, the layers that it computes, in the order of a training run."""

    comm: ClassVar[str] = "TrainingComm"
    ops: ClassVar[dict[str, tuple[str, ...]]] = {  # nothing goes past them
        **ENDINGS,
        "time": (),
        "compute": ("layer", "phase"),
        "start": ("kind", "array", "src"),
        "wait": ("number",),
    }
    computations: Sequence[Sequence[Computation]] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.collectives: list[Collective] = []
        self.bytes = 0
        self.started: Counter[int] = Counter()
        self.computed: Counter[int] = Counter()
        self.spans: list[Activity] = []

    def run(self, call: str, arguments: Sequence[list[Any]], alone: bool = False) -> TrainingResult:
        """Call a function as `World.run` does.

        Raises Failed, too, if a rank has not computed everything.
        """
        result = super().run(call, arguments, alone)
        for rank, expected in enumerate(self.computations):
            if self.computed[rank] < len(expected):
                missing = expected[self.computed[rank]]
                raise Failed(
                    f"rank {rank} returned without {_named(missing.phase, missing.layer)}, step {missing.step}"
                )
        seconds = max([result.seconds, *(each.end for each in self.collectives)])
        return TrainingResult(
            result.values, result.arguments, [], seconds, [], self.collectives, self.spans
        )

    def on_compute(self, rank: Rank, question: dict[str, Any]) -> None:
        """Compute the next layer."""
        asked = question["phase"], question["layer"]
        todo = self.computations[rank.number][self.computed[rank.number] :]
        if not todo or asked != (todo[0].phase, todo[0].layer):
            expected = _named(todo[0].phase, todo[0].layer) if todo else "nothing more"
            raise Failed(
                f"rank {rank.number} (line {rank.line}) computes {_named(*asked)}, expected {expected}"
            )
        self.computed[rank.number] += 1
        begin, rank.clock = rank.clock, rank.clock + todo[0].seconds
        self.spans.append(Activity(rank.number, todo[0].phase, todo[0].layer, begin, rank.clock))
        rank.channel.send({"factor": todo[0].factor})

    def on_start(self, rank: Rank, question: dict[str, Any]) -> None:
        """Start the rank's next collective."""
        array, number, src = (
            question["array"],
            self.started[rank.number],
            _number(question["src"], len(self.ranks)),
        )
        found = Collective(
            question["kind"], array.size, array.dtype.str, src, self._step(rank), rank.line
        )
        if found.kind not in KINDS or array.dtype.kind != "f":
            raise ValueError
        self.bytes += array.nbytes
        if number >= MAX_COLLECTIVES or self.bytes > MAX_BYTES:
            raise Failed(
                f"too many collectives: expected at most {MAX_COLLECTIVES:,}, and {MAX_BYTES:,} bytes"
            )
        self._check_same(rank, number, found)
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

    def _check_same(self, rank: Rank, number: int, found: Collective) -> None:
        """Note a new collective. Raise Failed if other ranks have started another in its place."""
        if number == len(self.collectives):
            self.collectives.append(found)
            return
        first = self.collectives[number]
        if (first.kind, first.size, first.dtype, first.src) == (
            found.kind,
            found.size,
            found.dtype,
            found.src,
        ):
            return
        other = f"rank {next(iter(first.started))} (line {first.line}) {first}"
        mine = f"rank {rank.number} (line {rank.line}) starts {found}"
        raise Failed(
            f"collective {number}: {mine}, {other}; all ranks start the same collectives in the same order"
        )

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
        """Say which collective was not started by all, and what the others do instead."""
        first = min(waiting, key=lambda rank: rank.collective or 0)
        number = first.collective or 0
        missing = [rank for rank in self.ranks if self.started[rank.number] <= number]
        others = "; ".join(f"rank {rank.number} {self._doing(rank)}" for rank in missing[:4])
        return (
            f"rank {first.number} {self._doing(first)}, which not all ranks have started: {others}"
        )

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
    """Draw three lanes, on which a digit is the number of a layer or of a bucket, modulo ten, and a dot is nothing.

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


class Shard(NamedTuple):
    """One rank's part of a batch: a row for each sample, and the layers that are skipped."""

    x: Array
    y: Array
    skip: tuple[int, ...] = ()


@dataclass(frozen=True)
class MLP:
    """A network: its widths, its parameters, and which layers are frozen or have the parameters of another.

    ``parameters`` has the weight and the bias of each layer with parameters of its own.
    ``factors[step][layer]`` multiply the gradient that comes back through a layer,
    ``seconds[layer]`` is the time of its backward pass.
    """

    widths: tuple[int, ...]
    parameters: tuple[Array, ...]
    factors: Array
    seconds: tuple[float, ...]
    frozen: tuple[int, ...] = ()
    tied: tuple[tuple[int, int], ...] = ()

    @property
    def layers(self) -> int:
        """Return the number of layers."""
        return len(self.widths) - 1

    @property
    def owners(self) -> list[int]:
        """Return the layers that have their own parameters."""
        return [layer for layer in range(self.layers) if layer not in dict(self.tied)]

    @property
    def names(self) -> list[str]:
        """Return the parameters' names."""
        names = []
        for layer in self.owners:
            names += [f"the weight of layer {layer}", f"the bias of layer {layer}"]
        return names

    @property
    def trained(self) -> list[int]:
        """Return the indices of the parameters that are not frozen."""
        trained = []
        for nth, layer in enumerate(self.owners):
            if layer not in self.frozen:
                trained += [2 * nth, 2 * nth + 1]
        return trained

    @property
    def sizes(self) -> list[int]:
        """Return the bytes of each parameter that is not frozen."""
        return [self.parameters[index].nbytes for index in self.trained]

    def gradient(self, step: int, shards: Sequence[Shard]) -> list[Array]:
        """Return the gradient of the batch's mean loss, zeros for parameters that are frozen."""
        total = [np.zeros_like(each) for each in self.parameters]
        for shard in shards:
            self._add(step, shard, total)
        samples = sum(len(shard.x) for shard in shards)
        return [
            each / samples if index in self.trained else each * 0
            for index, each in enumerate(total)
        ]

    def after(self, step: int, shards: Sequence[Shard], rate: float) -> "MLP":
        """Return the model after one step."""
        found = self.gradient(step, shards)
        changed = tuple(
            each - rate * slope for each, slope in zip(self.parameters, found, strict=True)
        )
        return replace(self, parameters=changed)

    def computations(self, skips: Sequence[Sequence[int]]) -> list[Computation]:
        """Return what a rank computes, in order, if it skips these layers in each step."""
        computations = []
        for step, skip in enumerate(skips):
            used = [layer for layer in range(self.layers) if layer not in skip]
            computations += [
                Computation(step, layer, "forward", FORWARD_SHARE * self.seconds[layer])
                for layer in used
            ]
            for layer in reversed(used):
                factor = float(self.factors[step, layer])
                computations.append(
                    Computation(step, layer, "backward", self.seconds[layer], factor)
                )
        return computations

    def _index(self, layer: int) -> int:
        return 2 * self.owners.index(dict(self.tied).get(layer, layer))

    def _add(self, step: int, shard: Shard, total: list[Array]) -> None:
        """Add the gradient of the sum of a shard's losses."""
        used = [layer for layer in range(self.layers) if layer not in shard.skip]
        inputs = [shard.x]
        for layer in used:
            at = self._index(layer)
            out = inputs[-1] @ self.parameters[at].T + self.parameters[at + 1]
            inputs.append(out if layer == self.layers - 1 else np.tanh(out))
        slope = inputs[-1] - shard.y
        for nth, layer in reversed(list(enumerate(used))):
            if layer != self.layers - 1:
                slope = slope * (1 - inputs[nth + 1] ** 2)
            slope = slope * self.factors[step, layer]
            at = self._index(layer)
            total[at] += slope.T @ inputs[nth]
            total[at + 1] += slope.sum(axis=0)
            slope = slope @ self.parameters[at]


def greedy(sizes: Sequence[int], most: int) -> list[list[int]]:
    """Put parameters, the last first, into buckets of at most ``most`` bytes.

    A larger one has its own.

    >>> greedy([50, 10, 40, 30, 200], 100)
    [[4], [3, 2, 1], [0]]
    """
    buckets: list[list[int]] = []
    for index in reversed(range(len(sizes))):
        if not buckets or sum(sizes[each] for each in buckets[-1]) + sizes[index] > most:
            buckets.append([])
        buckets[-1].append(index)
    return buckets


def exposed(model: MLP, network: Network, most: int) -> float:
    """Return the seconds of a step's communication that buckets of at most ``most`` bytes cannot hide."""
    buckets = greedy(model.sizes, most)
    costs = [
        network.alpha + network.beta * sum(model.sizes[index] for index in bucket)
        for bucket in buckets
    ]
    return overlap.exposed([_ready(model, bucket) for bucket in buckets], costs)


def _ready(model: MLP, bucket: Sequence[int]) -> float:
    """Return the seconds from a step's begin until backward has computed all gradients of a bucket."""
    layer = min(model.owners[model.trained[index] // 2] for index in bucket)
    todo = model.computations([()])
    last = next(n for n, each in enumerate(todo) if (each.phase, each.layer) == ("backward", layer))
    return sum(each.seconds for each in todo[: last + 1])


def random_model(
    random: np.random.Generator, widths: Sequence[int], seconds: Sequence[float], steps: int
) -> MLP:
    """Draw a model with random parameters."""
    parameters = []
    for inputs, outputs in pairwise(widths):
        parameters += [
            random.standard_normal((outputs, inputs)) / inputs**0.5,
            random.standard_normal(outputs) / 4,
        ]
    factors = random.uniform(0.7, 1.4, (steps, len(widths) - 1))
    return MLP(tuple(widths), tuple(parameters), factors, tuple(seconds))


def random_shard(
    random: np.random.Generator, model: MLP, samples: int, skip: tuple[int, ...] = ()
) -> Shard:
    """Draw a shard of random samples."""
    x, y = (
        random.standard_normal((samples, width)) for width in (model.widths[0], model.widths[-1])
    )
    return Shard(x, y, skip)
