"""The training that a submission has to equal, in numpy: layers with tanh between them, and plain gradient descent.

The loss of a sample is half the square of the distance to its target. Everything is float64.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.simulator import overlap
from collectives_course.messages import Network
from collectives_course.training_world import Computation

Array = NDArray[np.float64]

FORWARD = 0.5  # a layer's forward pass takes half the time of its backward pass


class Shard(NamedTuple):
    """One rank's part of a batch: a row for each sample, and the layers that are skipped."""

    x: Array
    y: Array
    skip: tuple[int, ...] = ()


@dataclass(frozen=True)
class Model:
    """A network: its widths, its parameters, and which layers are frozen or have the parameters of another.

    ``parameters`` has the weight and the bias of each layer with parameters of its own. ``factors[step][layer]``
    multiply the gradient that comes back through a layer, ``seconds[layer]`` is the time of its backward pass.
    """

    widths: tuple[int, ...]
    parameters: tuple[Array, ...]
    factors: Array
    seconds: tuple[float, ...]
    frozen: tuple[int, ...] = ()
    tied: tuple[tuple[int, int], ...] = ()

    @property
    def layers(self) -> int:
        """How many layers it has."""
        return len(self.widths) - 1

    @property
    def owners(self) -> list[int]:
        """The layers with parameters of their own."""
        return [layer for layer in range(self.layers) if layer not in dict(self.tied)]

    @property
    def names(self) -> list[str]:
        """The parameters in words."""
        return [f"the {what} of layer {layer}" for layer in self.owners for what in ("weight", "bias")]

    @property
    def trained(self) -> list[int]:
        """Indices of the parameters that are not frozen."""
        return [
            2 * nth + which for nth, layer in enumerate(self.owners) if layer not in self.frozen for which in (0, 1)
        ]

    @property
    def sizes(self) -> list[int]:
        """Bytes of each parameter that is not frozen."""
        return [self.parameters[index].nbytes for index in self.trained]

    def gradient(self, step: int, shards: Sequence[Shard]) -> list[Array]:
        """The gradient of the batch's mean loss; zeros for parameters that are frozen."""
        total = [np.zeros_like(each) for each in self.parameters]
        for shard in shards:
            self._add(step, shard, total)
        samples = sum(len(shard.x) for shard in shards)
        return [each / samples if index in self.trained else each * 0 for index, each in enumerate(total)]

    def after(self, step: int, shards: Sequence[Shard], rate: float) -> "Model":
        """The model after one step."""
        found = self.gradient(step, shards)
        changed = tuple(each - rate * slope for each, slope in zip(self.parameters, found, strict=True))
        return replace(self, parameters=changed)

    def computations(self, skips: Sequence[Sequence[int]]) -> list[Computation]:
        """What a rank computes, in order, if it skips these layers in each step."""
        computations = []
        for step, skip in enumerate(skips):
            used = [layer for layer in range(self.layers) if layer not in skip]
            computations += [Computation(step, layer, "forward", FORWARD * self.seconds[layer]) for layer in used]
            for layer in reversed(used):
                factor = float(self.factors[step, layer])
                computations.append(Computation(step, layer, "backward", self.seconds[layer], factor))
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
    """Parameters, from the last to the first, in buckets of at most ``most`` bytes; a larger one has its own.

    >>> greedy([50, 10, 40, 30, 200], 100)
    [[4], [3, 2, 1], [0]]
    """
    buckets: list[list[int]] = []
    for index in reversed(range(len(sizes))):
        if not buckets or sum(sizes[each] for each in buckets[-1]) + sizes[index] > most:
            buckets.append([])
        buckets[-1].append(index)
    return buckets


def exposed(model: Model, network: Network, most: int) -> float:
    """Seconds of a step's communication that buckets of at most ``most`` bytes cannot hide."""
    buckets = greedy(model.sizes, most)
    costs = [network.alpha + network.beta * sum(model.sizes[index] for index in bucket) for bucket in buckets]
    return overlap.exposed([_ready(model, bucket) for bucket in buckets], costs)


def _ready(model: Model, bucket: Sequence[int]) -> float:
    """When backward has computed all gradients of a bucket, in seconds since the step began."""
    layer = min(model.owners[model.trained[index] // 2] for index in bucket)
    todo = model.computations([()])
    last = next(n for n, each in enumerate(todo) if (each.phase, each.layer) == ("backward", layer))
    return sum(each.seconds for each in todo[: last + 1])


def random_model(random: np.random.Generator, widths: Sequence[int], seconds: Sequence[float], steps: int) -> Model:
    """A model with random parameters."""
    parameters = []
    for inputs, outputs in pairwise(widths):
        parameters += [random.standard_normal((outputs, inputs)) / inputs**0.5, random.standard_normal(outputs) / 4]
    factors = random.uniform(0.7, 1.4, (steps, len(widths) - 1))
    return Model(tuple(widths), tuple(parameters), factors, tuple(seconds))


def random_shard(random: np.random.Generator, model: Model, samples: int, skip: tuple[int, ...] = ()) -> Shard:
    """A shard of random samples."""
    x, y = (random.standard_normal((samples, width)) for width in (model.widths[0], model.widths[-1]))
    return Shard(x, y, skip)
