"""A simulation as a trace that Chrome (chrome://tracing) and Perfetto (ui.perfetto.dev) show: a line for each rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from collectives.machine import Machine
from collectives.schedule import Schedule, run
from collectives.simulation import Messages, Simulation, simulate

# A trace with more messages than this is of no use to anyone: viewers give up.
MOST_MESSAGES = 1_000_000


def trace(path: str | Path, schedule: Schedule, machine: Machine, n: int, algorithm: str | None = None) -> Simulation:
    """Simulate, and write every message's sending and receiving to a JSON file; returns the simulation.

    Each rank has two lines: what it sends, until the message has left, and what it receives, from the first byte on.
    Raises ValueError for more than a million messages, before anything is written.
    """
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": rank, "name": "process_name", "args": {"name": f"rank {rank}"}} for rank in range(schedule.p)
    ]

    def on_step(t: int, messages: Messages) -> None:
        if len(events) + 2 * len(messages.src) > 2 * MOST_MESSAGES + schedule.p:
            raise ValueError(f"a trace holds {MOST_MESSAGES:,} messages at most; take fewer ranks or segments")
        for row in zip(*messages, strict=True):
            events.extend(_events(t, *row))

    result = simulate(schedule, machine, n, algorithm, on_step=on_step)
    partial = Path(f"{path}.partial")
    partial.write_text(json.dumps({"displayTimeUnit": "ns", "traceEvents": events}))
    partial.replace(path)
    return result


def _events(
    t: int, src: int, dst: int, first: int, end: int, size: float, start: float, left: float, arrival: float
) -> list[dict[str, Any]]:
    chunks = run(int(first), int(end - first))
    shared = {"ph": "X", "args": {"step": t, "chunk": chunks, "bytes": int(size)}}
    lasts = left - start
    return [
        shared | _line(src, 0, f"{chunks} to {dst}", start, lasts),
        shared | _line(dst, 1, f"{chunks} from {src}", arrival - lasts, lasts),
    ]


def _line(rank: int, line: int, name: str, start: float, lasts: float) -> dict[str, Any]:
    return {"pid": int(rank), "tid": line, "name": name, "ts": float(start) * 1e6, "dur": float(lasts) * 1e6}
