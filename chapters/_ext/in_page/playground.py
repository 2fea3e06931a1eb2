"""The playground's schedules in Python: a reader's function is proved for many numbers of ranks, then compared."""

import json
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

from collectives.core.schedule import Schedule, ScheduleError
from collectives.core.verify import verify

RANKS = range(1, 17)
COMPARED = 16  # ranks of the comparison
MOST_STEPS = 1 << 12
BEST = Path(__file__).with_name("best.json")  # the build has simulated the library's algorithms


class WrongError(ValueError):
    """Keep the fault of a reader's schedule, and the schedule, if there is one."""

    def __init__(self, reason: str, schedule: Schedule | None = None) -> None:
        super().__init__(reason)
        self.schedule = schedule


def proved(mine: Callable[[int], Any], collective: str, p: int) -> Schedule:
    """Return a function's schedule for p ranks. Raises WrongError with the first thing that is wrong with it."""
    schedule = mine(p)
    if not isinstance(schedule, Schedule):
        raise WrongError(f"p = {p}: got {type(schedule).__name__}, expected a Schedule")
    if (schedule.collective, schedule.p) != (collective, p):
        got = f"{schedule.collective} on {schedule.p} ranks"
        raise WrongError(f"p = {p}: got a schedule of {got}, expected {collective} on {p}")
    if schedule.nsteps > MOST_STEPS:
        raise WrongError(f"p = {p}: got {schedule.nsteps:,} steps, expected at most {MOST_STEPS:,}")
    try:
        verify(schedule)
    except ScheduleError as error:
        raise WrongError(f"p = {p}: {error}", schedule) from None
    return schedule


def compared(mine: Callable[[int], Schedule], collective: str) -> str:
    """Return a table, in HTML, of the schedule's simulated time beside the library's best, on machines and sizes."""
    from collectives.core.traffic import traffic
    from collectives.machine import machine
    from collectives.simulator.simulation import simulate
    from collectives.units import duration, format_bytes

    schedule, lines = mine(COMPARED), []
    for name, n, best, least in json.loads(BEST.read_text(encoding="utf8"))[collective]:
        seconds = simulate(schedule, machine(name), n).seconds
        times = f"{duration(seconds)}</td><td>{duration(least)}, {escape(best)}</td>"
        lines.append(f"<tr><th>{name}, {format_bytes(n)}</th><td>{times}</tr>")
    sent = traffic(schedule, schedule.k * COMPARED).sent.max() / (schedule.k * COMPARED)
    caption = f"{COMPARED} ranks: {schedule.nsteps} steps, the busiest rank sends {sent:.3g} n"
    head = "<tr><td></td><th>yours, simulated</th><th>the library's best</th></tr>"
    return f"<table><caption>{caption}</caption>{head}{''.join(lines)}</table>"
