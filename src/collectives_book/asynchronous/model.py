"""Updates per second of each mode as the cost model predicts them, on links that are known."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from collectives.algorithms import build
from collectives.launch import links
from collectives.machine import Link, Machine, machine
from collectives.simulator.simulation import simulate
from collectives_book.asynchronous.experiment import Asynchronous
from collectives_book.digits import perceptron


def predictions(parameters: Asynchronous) -> dict[tuple[str, str], float]:
    """Return the updates per second by slowness and mode; none where chance decides who is slow.

    Empty where the links are unknown.
    """
    network = links(parameters.where, parameters.ranks)
    if network is None:
        return {}
    link = machine(network).network
    nbytes = message_bytes()
    known = [slow for slow in parameters.slow if slow != "turns"]
    return {
        (slow, mode): predicted(parameters, link, slow, mode, nbytes)
        for slow, mode in product(known, parameters.modes)
    }


def message_bytes() -> int:
    """Return the bytes of a message: the model's parameters, or its gradient, in float32, and the step.

    >>> message_bytes()
    104492
    """
    return 4 * (1 + sum(parameter.numel() for parameter in perceptron().parameters()))


def predicted(parameters: Asynchronous, link: Link, slow: str, mode: str, nbytes: int) -> float:
    """Return the updates per second of one mode.

    A worker's cycle is its computing and a message each way. Workers that never wait add up their
    own rates, which no more than fill the server's port. Synchronous ones wait for the slowest, and
    all parameters leave the server's port at once; so do all gradients come in, but for a slow
    worker's. Stale ones have their lead once, and then wait.
    """
    workers, at = parameters.workers, parameters.slow_worker
    compute = [parameters.compute] * workers
    sent = [nbytes * link.beta] * workers
    compute[at] *= parameters.factor if slow == "compute" else 1
    sent[at] *= parameters.link_factor if slow == "link" else 1
    alone = [one + 2 * (link.alpha + other) for one, other in zip(compute, sent, strict=True)]
    port = workers * nbytes * link.beta
    if mode == "asynchronous":
        return min(sum(1 / each for each in alone), workers / port)
    if mode == "stale":
        return _with_a_lead(alone, parameters.steps, parameters.bound)
    if mode == "all_reduce":
        slower = {at + 1: float(parameters.link_factor if slow == "link" else 1)}
        on = Machine(name="cluster", network=link, slower=slower)
        schedule = build("all_reduce", parameters.algorithm, parameters.ranks)
        return workers / (
            max(compute) + simulate(schedule, on, nbytes, parameters.algorithm).seconds
        )
    rounds = [
        one
        + 2 * link.alpha
        + max(port, other)
        + (other if slow != "nobody" and worker == at else port)
        for worker, (one, other) in enumerate(zip(compute, sent, strict=True))
    ]
    return workers / max(rounds)


def _with_a_lead(alone: Sequence[float], steps: int, bound: int) -> float:
    """Return the updates per second of stale workers: all others end ``bound + 1`` steps ahead, if they can.

    >>> _with_a_lead([1.0, 1.0], steps=10, bound=4), round(_with_a_lead([1.0, 10.0], steps=10, bound=4), 3)
    (2.0, 0.267)
    """
    workers = len(alone)
    slowest = max(alone)
    free = sum(1 / each for each in alone)
    done = workers * steps / free / slowest  # steps of the slowest if no worker waits
    behind = max(done, steps - (workers - 1) * (bound + 1) / workers)
    return workers * steps / (behind * slowest)
