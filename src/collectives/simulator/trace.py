"""Times at which the messages of a schedule start and arrive on a machine: as numbers, and as a trace.

Traces are for Chrome (chrome://tracing) and Perfetto (ui.perfetto.dev), one process a rank.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from collectives.core.schedule import Schedule, run
from collectives.files import check_new_or_file, replace
from collectives.machine import Machine
from collectives.simulator.simulation import Simulation, TimedMessages, simulate

# Viewers fail with more messages than this.
MAX_MESSAGES = 1_000_000

Event = dict[str, Any]
Flights = list[tuple[list[float], list[float]]]


def flights(schedule: Schedule, machine: Machine, n: int, algorithm: str | None = None) -> Flights:
    """Return the messages' starts and arrivals in seconds for each step, in the order of `Step.messages`.

    Cost: a simulation, and two numbers for every message.

    >>> from collectives.algorithms import ALGORITHMS
    >>> from collectives.machine import machine
    >>> ring = ALGORITHMS["all_reduce", "ring"](2)
    >>> [[round(time * 1e6) for time in ends] for _, ends in flights(ring, machine("ethernet"), 8)]
    [[30, 30], [60, 60]]
    """
    found: Flights = []

    def on_step(_: int, messages: TimedMessages) -> None:
        found.append((messages.start.tolist(), messages.arrival.tolist()))

    simulate(schedule, machine, n, algorithm, on_step=on_step)
    return found


def trace(
    path: str | Path, schedule: Schedule, machine: Machine, n: int, algorithm: str | None = None
) -> Simulation:
    """Simulate ``n`` bytes, write every message's sending and receiving to a JSON file, and return the simulation.

    Each rank or switch has two lines: messages that it sends, until they have left, and messages
    that it receives, from the first byte on. Raises ValueError for more than a million messages and
    for a path that is not a regular file, and OSError if the disk is full. After an error the old
    file is unchanged.
    """
    with writing(path, schedule.p, schedule.switches) as events:

        def on_step(t: int, messages: TimedMessages) -> None:
            if len(events) + 2 * len(messages.src) > 2 * MAX_MESSAGES + schedule.participants:
                raise ValueError(
                    f"trace too long: expected at most {MAX_MESSAGES:,} messages; take fewer ranks or segments"
                )
            for row in zip(*messages, strict=True):
                events.extend(_events(t, *row))

        return simulate(schedule, machine, n, algorithm, on_step=on_step)


@contextmanager
def writing(path: str | Path, ranks: int, switches: int = 0) -> Iterator[list[Event]]:
    """Yield a list of events for the block to extend, and write it if the block succeeds.

    Raises ValueError for a path that is not a regular file, and OSError if the disk is full. After
    an error the old file is unchanged.
    """
    names = [f"rank {rank}" for rank in range(ranks)] + [
        f"switch {ranks + i}" for i in range(switches)
    ]
    events: list[Event] = [
        {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}
        for pid, name in enumerate(names)
    ]

    def write_to(partial: Path) -> None:
        with partial.open("x", encoding="utf8") as file:
            json.dump({"displayTimeUnit": "ns", "traceEvents": events}, file)

    check_new_or_file(path)
    yield events
    replace(Path(path), write_to)


def line(rank: int, nth: int, name: str, start: float, lasts: float) -> Event:
    """Return the event of a rank that is busy on its ``nth`` line for ``lasts`` seconds from ``start`` on."""
    shown = {
        "pid": int(rank),
        "tid": nth,
        "name": name,
        "ts": float(start) * 1e6,
        "dur": float(lasts) * 1e6,
    }
    return {"ph": "X"} | shown


def _events(
    t: int,
    src: int,
    dst: int,
    first: int,
    end: int,
    size: float,
    start: float,
    left: float,
    arrival: float,
) -> list[Event]:
    chunks = run(int(first), int(end - first))
    shared = {"args": {"step": t, "chunk": chunks, "bytes": int(size)}}
    lasts = left - start
    return [
        shared | line(src, 0, f"{chunks} to {dst}", start, lasts),
        shared | line(dst, 1, f"{chunks} from {src}", arrival - lasts, lasts),
    ]
