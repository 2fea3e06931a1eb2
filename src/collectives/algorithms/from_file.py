"""Schedules of your own: a function in a file, or a file that another package reads.

What goes wrong in it names it. The library reads no format of others: an entry point of the group
``collectives.schedules`` has a suffix as its name, without the dot, and names a function that takes
a path and returns a schedule.
"""

import functools
import inspect
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import numpy as np

from collectives.core.schedule import Schedule, ScheduleError, Step
from collectives.units import MAX_CHUNKS

READERS = "collectives.schedules"

# Trees for a machine's links: this, an @, and the machine, which may be a file.
PACKED = "packed_trees"

MAX_REASON = 300


def own(name: str) -> Callable[..., Schedule]:
    """Return a function of the user's own, named ``file.py:function``, or one that returns ``file.xml`` as a schedule.

    The schedule is checked when it is made, and each step when it is asked for. Raises ValueError
    if there is not such a function. Raises ScheduleError, which names the function and the step, if
    your code raises, exits, or returns anything but a schedule of valid steps.

    A program has a number of ranks and a root: the schedule has these, whatever is asked for.
    Raises ValueError for a file that is no program or that no installed package reads, and
    ScheduleError for one that is wrong or no schedule.
    """
    if is_program(name):
        return _program(name)
    path, _, function = name.rpartition(":")
    if not path:
        raise ValueError(
            f"a schedule of your own: got {name!r}, expected FILE.py:FUNCTION or FILE.xml"
        )
    if not Path(path).is_file():
        raise ValueError(f"there is no file {path} with a function {function!r}")
    folder = str(Path(path).resolve().parent)
    if folder not in sys.path:
        # As for a script: the file may import those beside it, also when it makes steps.
        sys.path.append(folder)
    with _blamed(name, "while its file was run"):
        found = runpy.run_path(path).get(function)
        if callable(found):
            inspect.signature(found)
    if not callable(found):
        raise ValueError(f"{path} has no function {function!r}")

    @functools.wraps(found)
    def checked_maker(*arguments: Any, **options: Any) -> Schedule:
        with _blamed(name, "when it was called"):
            return _checked(name, found(*arguments, **options))

    return checked_maker


def is_program(name: str) -> bool:
    """Return whether this names a file in a format of others: by its suffix, which no algorithm's name has.

    >>> [is_program(name) for name in ("own.xml", "own.py:ring", "ring", "packed_trees@mine.yaml")]
    [True, False, False, False]
    """
    suffix = Path(name).suffix
    return suffix != "" and not suffix.startswith(".py") and not name.startswith(f"{PACKED}@")


def suffixes(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group whose names are suffixes of files.

    >>> sorted(suffixes(READERS))
    ['.xml']
    """
    return {f".{entry.name}": entry for entry in sorted(entry_points(group=group))}


def _program(name: str) -> Callable[..., Schedule]:
    path = Path(name)
    schedule = _read(path, path.stat().st_mtime_ns if path.is_file() else None)

    def unrooted(p: int) -> Schedule:
        del p
        return schedule

    def rooted(p: int, root: int | None = None) -> Schedule:
        if root not in (None, schedule.root):
            raise ValueError(f"root of {name}: got {root}, expected {schedule.root}")
        return unrooted(p)

    return unrooted if schedule.root is None else rooted


@lru_cache(maxsize=8)
def _read(path: Path, changed: int | None) -> Schedule:
    """Return the schedule in a file, read again if the file has changed."""
    del changed
    readers = suffixes(READERS)
    if path.suffix not in readers:
        known = (
            f"one of {', '.join(readers)}" if readers else "none: no installed package reads any"
        )
        raise ValueError(f"suffix of {path}: got {path.suffix}, expected {known}")
    try:
        schedule: Schedule = readers[path.suffix].load()(path)
    except ValueError as error:
        raise type(error)(f"{path}: {error}") from None
    return schedule


@contextmanager
def _blamed(name: str, when: str) -> Iterator[None]:
    """Raise a ScheduleError, with the function's name and line if it has one, for any error of the code inside."""
    try:
        yield
    except KeyboardInterrupt as ended:  # also when its time is up
        ended.add_note(f"schedule {name} was stopped {when}")
        raise
    except GeneratorExit:  # a signal came before the block began
        raise
    except BaseException as error:  # sys.exit() too
        path, trace = name.rpartition(":")[0], traceback.walk_tb(error.__traceback__)
        lines = [line for frame, line in trace if frame.f_code.co_filename == path]
        where = f", line {lines[-1]}" if lines else ""
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:MAX_REASON]
        raise ScheduleError(f"schedule {name} failed {when}{where}: {reason}") from error


def _checked(name: str, schedule: Schedule) -> Schedule:
    """Return the schedule with its steps checked as they are made.

    Raises TypeError or ValueError for anything else.
    """
    if not isinstance(schedule, Schedule):
        raise TypeError(f"it returned {type(schedule).__name__}, expected a collectives.Schedule")
    if schedule.k > MAX_CHUNKS:
        raise ValueError(f"k: got {schedule.k:,} chunks, expected at most {MAX_CHUNKS:,}")

    def make(t: int) -> Step:
        with _blamed(name, f"in step {t}"):
            step = schedule.step(t)
            _check_step(schedule, step)
            return step

    return replace(schedule, make=make)


def _check_step(schedule: Schedule, step: Step) -> None:
    """Raise unless it is a step between ranks and of chunks that exist."""
    p, k = schedule.p, schedule.k
    ranks = (
        (step.src >= 0) & (step.src < p) & (step.dst >= 0) & (step.dst < p) & (step.src != step.dst)
    )
    chunks = (
        (step.chunk >= 0) & (step.count >= 1) & (step.count <= k) & (step.chunk <= k - step.count)
    )
    if not (ranks & chunks).all():
        row = int(np.argmin(ranks & chunks))
        got = ", ".join(
            f"{column} {getattr(step, column)[row]}" for column in ("src", "dst", "chunk", "count")
        )
        raise ValueError(
            f"row {row}: got {got}, expected two of the ranks 0 to {p - 1} and chunks 0 to {k - 1}"
        )
