"""One training job that the chapters come back to: Llama 3 8B on 64 H100, by data parallelism and ZeRO-1.

In every step each GPU computes on one sequence. A reduce-scatter sums the gradients, each GPU
updates its part of the parameters, because the optimizer's state would not fit into one of them,
and an all-gather brings the parts together.
"""

from functools import cache
from typing import NamedTuple

from collectives.algorithms import candidates
from collectives.machine import machine
from collectives.search import fastest_plan
from collectives.simulator import overlap
from collectives.simulator.scaling import Case, row
from collectives_book import needs

MODEL = next(model for model in needs.MODELS if model.name == "Llama 3 8B")
GPUS, ON = 64, "dgx-h100"
GRADIENT = int(needs.gradient_bytes(MODEL.parameters))  # bytes; the parameters take as many
# Seconds of a step without communication, and of its forward and backward pass.
COMPUTING = (
    (needs.FORWARD + needs.BACKWARD) * MODEL.parameters * MODEL.sequence / needs.H100.achieved
)
FORWARD, BACKWARD = (
    COMPUTING * part / (needs.FORWARD + needs.BACKWARD) for part in (needs.FORWARD, needs.BACKWARD)
)


class Call(NamedTuple):
    """An algorithm, and its simulated seconds."""

    algorithm: str
    seconds: float


@cache
def call(collective: str, algorithm: str, nbytes: int = GRADIENT) -> Call:
    """Return the simulated seconds of one call, pipelined in the best number of segments.

    >>> call("all_gather", "ring").seconds > 6 * call("all_gather", "multi_channel_ring").seconds
    True
    """
    return Call(
        algorithm,
        float(row(Case(collective, algorithm, GPUS, nbytes, machine(ON)))["seconds"]),
    )


@cache
def fastest(collective: str, nbytes: int = GRADIENT) -> Call:
    """Return the fastest of all names and plans by levels, and its seconds.

    >>> fastest("all_gather").algorithm, fastest("all_gather", 25 << 20).algorithm
    ('multi_channel_ring', 'direct8/ring4/ring2')
    """
    names = candidates(collective)
    found = fastest_plan(collective, GPUS, nbytes, machine(ON))
    if found:
        names.append(str(found.plan))
    return min(
        (call(collective, name, nbytes) for name in names),
        key=lambda each: each.seconds,
    )


def exposed(bucket: int, algorithm: str | None = None) -> tuple[float, float]:
    """Return the seconds of a step in which the GPUs wait: after the backward pass, and before the forward pass.

    A reduce-scatter begins when the gradients of its bucket are ready, and outlasts the backward
    pass by at least the last one. The all-gathers run ahead of the next forward pass, which waits
    for the first. Read backwards in time, they are reduce-scatters. Without an ``algorithm``, the
    fastest of each.

    >>> [each < 0.01 * COMPUTING for each in exposed(25 << 20)]
    [True, True]
    """
    buckets = -(-GRADIENT // bucket)
    took = [
        call(collective, algorithm, bucket) if algorithm else fastest(collective, bucket)
        for collective in ("reduce_scatter", "all_gather")
    ]
    after, before = (
        overlap.exposed(overlap.ready_times(buckets, computing), [each.seconds] * buckets)
        for computing, each in zip((BACKWARD, FORWARD), took, strict=True)
    )
    return after, before
