"""When every message of a schedule starts and arrives on a machine, step by step."""

from collectives.machine import Machine
from collectives.schedule import Schedule
from collectives.simulator.simulation import Messages, simulate

Flights = list[tuple[list[float], list[float]]]


def flights(schedule: Schedule, machine: Machine, n: int, algorithm: str | None = None) -> Flights:
    """For each step the messages' starts and arrivals in seconds, in the order of `Step.messages`.

    Cost: a simulation, and two numbers for every message.

    >>> from collectives.algorithms import ALGORITHMS
    >>> from collectives.machine import machine
    >>> ring = ALGORITHMS["all_reduce", "ring"](2)
    >>> [[round(time * 1e6) for time in ends] for _, ends in flights(ring, machine("ethernet"), 8)]
    [[30, 30], [60, 60]]
    """
    found: Flights = []

    def on_step(_: int, messages: Messages) -> None:
        found.append((messages.start.tolist(), messages.arrival.tolist()))

    simulate(schedule, machine, n, algorithm, on_step=on_step)
    return found
