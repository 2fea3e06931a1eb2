"""Functions for criteria about schedules: a submission's schedules are refused if too large, proved and simulated.

A student's schedule is data from outside. Its size is checked before anything is done with it.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from collectives.core.schedule import Schedule, ScheduleError
from collectives.core.verify import verify
from collectives.machine import Machine
from collectives.simulator.simulation import simulate
from collectives_course.submission import Submission
from collectives_course.verdict import Failed

MAX_CELLS = 1 << 18  # ranks times chunks; a proof needs p + 1 bytes for each
# Chunks that move in all steps together, of which a proof copies p + 1 bytes each.
MAX_MOVED = 1 << 18
MAX_PLAYER_RANKS, MAX_PLAYER_MOVED = 16, 4096


def schedules(
    submission: Submission, function: str, cases: Iterable[tuple[int, tuple[Any, ...]]]
) -> Iterator[tuple[str, Schedule]]:
    """Yield each case's all-reduce schedule and call as text.

    A case is a number of ranks and the arguments.

    Raises Failed for another value, another collective, another number of ranks, and for more cells
    or moved chunks than a proof is made for. What the caller does with a schedule, its proof for
    example, counts as the submission's time, as the call does: raises TimedOut if both have used
    the criterion's time.
    """
    for p, arguments in cases:
        call = f"{function}({', '.join(map(_short, arguments))})"
        schedule = submission.call(function, *arguments)
        start = time.thread_time()
        check_schedule(call, schedule, p)
        yield call, schedule
        submission.charge(time.thread_time() - start, call)


def _short(argument: Any) -> str:
    if isinstance(argument, dict):
        return f"{{{', '.join(f'{key}: {value}' for key, value in list(argument.items())[:2])}, …}}"
    return f"{argument:,}" if isinstance(argument, int) and argument > 9999 else str(argument)[:40]


def check_schedule(
    call: str, schedule: Any, p: int, collective: str = "all_reduce", root: int | None = None
) -> None:
    """Raise Failed unless this is a schedule of the collective on p ranks that is small enough to be proved."""
    if not isinstance(schedule, Schedule):
        raise Failed(f"{call}: got {type(schedule).__name__}, expected a Schedule")
    if schedule.collective != collective:
        raise Failed(
            f"{call}: got a schedule for {str(schedule.collective)[:40]!r}, expected {collective!r}"
        )
    if schedule.p != p:
        raise Failed(f"{call}: got a schedule for {_count(schedule.p)} ranks, expected {p}")
    if schedule.switches:
        raise Failed(
            f"{call}: got a schedule with {_count(schedule.switches)} switches, expected ranks only"
        )
    if schedule.root != root:
        raise Failed(
            f"{call}: got root={schedule.root}, expected {'none' if root is None else root}"
        )
    _check_small(call, schedule)


def _check_small(call: str, schedule: Schedule) -> None:
    if schedule.k > MAX_CELLS // schedule.p:
        raise Failed(
            f"{call}: got {_count(schedule.k)} chunks, expected at most {MAX_CELLS // schedule.p:,}"
        )
    if moved(schedule) > MAX_MOVED:
        raise Failed(f"{call}: {moved(schedule):,.0f} chunks move, expected at most {MAX_MOVED:,}")


def _count(number: int) -> str:
    return f"{number:,}" if abs(number) < 10**15 else "more than 10**15"


def moved(schedule: Schedule) -> float:
    """Count the chunks that move in all steps, in floating point because counts may be anything yet.

    >>> from collectives.algorithms import ALGORITHMS
    >>> moved(ALGORITHMS["all_reduce", "ring"](4))
    24.0
    """
    return float(sum(np.abs(step.count.astype(np.float64)).sum() for step in schedule.steps()))


def prove(call: str, schedule: Schedule, one_port: bool = False) -> None:
    """Raise Failed, with the marked grid and the schedule for the player, unless the schedule is proved."""
    error = _fault(schedule, one_port)
    if error is not None:
        raise failed(call, schedule, error)


def _fault(schedule: Schedule, one_port: bool) -> ScheduleError | None:
    try:
        verify(replace(schedule, one_port=one_port, ranks_per_node=1))
    except ScheduleError as error:
        return error
    return None


def failed(call: str, schedule: Schedule, error: ScheduleError) -> Failed:
    """Return what the proof found: its first line as the message, the marked grid and the player's data as details."""
    first, _, table = str(error).partition("\n")
    return Failed(f"{call}: {first}", grid=table, **player_details(call, schedule))


def player_details(call: str, schedule: Schedule) -> dict[str, Any]:
    """Return what a report needs to play the schedule, nothing if it is too large or names ranks that are not."""
    if (
        schedule.p > MAX_PLAYER_RANKS
        or moved(schedule) > MAX_PLAYER_MOVED
        or not _is_possible(schedule)
    ):
        return {}
    from collectives.figures.player import player_data  # imports matplotlib

    return {"player": player_data(replace(schedule, ranks_per_node=1), call)}


def _is_possible(schedule: Schedule) -> bool:
    p, k = schedule.p, schedule.k
    return all(
        (
            (step.src >= 0)
            & (step.src < p)
            & (step.dst >= 0)
            & (step.dst < p)
            & (step.src != step.dst)
        ).all()
        and ((step.chunk >= 0) & (step.count >= 1) & (step.chunk <= k - step.count)).all()
        for step in schedule.steps()
    )


def prove_each(
    submission: Submission,
    function: str,
    cases: Iterable[tuple[int, tuple[Any, ...]]],
    one_port: bool = False,
) -> None:
    """Prove all cases' schedules.

    Raise what the first wrong one gives, with half the share of the right ones.
    """
    cases = list(cases)
    wrong, first = 0, None
    for call, schedule in schedules(submission, function, cases):
        error = _fault(schedule, one_port)
        if error is not None:
            wrong, first = wrong + 1, first or failed(call, schedule, error)
    if first is not None:
        others = (
            f"; {wrong - 1} of the other {len(cases) - 1} schedules are wrong, too"
            if wrong > 1
            else ""
        )
        raise Failed(f"{first}{others}", share=(1 - wrong / len(cases)) / 2, **first.details)


def seconds(call: str, schedule: Schedule, machine: Machine, n: int) -> float:
    """Return the simulated seconds for n bytes.

    Raises Failed if the schedule does not fit the machine.
    """
    try:
        return simulate(schedule, machine, n).seconds
    except ValueError as error:  # ScheduleError, too
        raise Failed(f"{call}: {str(error).partition(chr(10))[0]}") from None


def table(rows: list[list[str]]) -> str:
    """Align rows of text in columns, the first to the left and all others to the right.

    >>> print(table([["size", "ring"], ["1 KiB", "20 us"]]))
    size    ring
    1 KiB  20 us
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            [
                row[0].ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
            ]
        )
        for row in rows
    )
