"""Measurements that resume: the rows of a case are on disk as soon as they exist, and only missing cases are measured.

Rows lie in ``STEM.KEY.partial.jsonl`` until all cases are measured. A line has the rows of one
case, or the environment of one launch. KEY is a hash of the settings and the code, so that rows of
different measurements never share a file.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from collectives.bench import DTYPES, Row, Settings, bench, check_here
from collectives.bench.lock import locked
from collectives.bench.results import fingerprint, read, record, write
from collectives.bench.settings import group_by_launch
from collectives.bench.table import progress
from collectives.files import append, replace
from collectives.launch import RankError

T = TypeVar("T")
Keep = Callable[[Row], None]
Measure = Callable[[Sequence[T], Keep], None]


def sweep(wanted: Sequence[Settings], stem: str | Path) -> None:
    """Measure what is missing, and write all rows and their record to ``stem`` (`results.write`).

    Rows are in the order of the settings and their sizes, and have one more column, ``error``. If
    ranks fail, the rows of that size have the reason and no times, and new ranks measure what
    follows; the next call measures the failed size again. Raises RankError if ranks do not start,
    or fail after their last row; ImportError if a back end is absent; FileExistsError if ``stem``
    has rows of other settings.
    """
    check_here(wanted)
    parts = _parts(wanted)
    # Horovod's ranks may be started elsewhere than the others; their rows stand with the others'.
    cases = []
    for each in wanted:
        places = [parts.index(one) for one in _parts([each])]
        for nbytes in each.bytes:
            cases += [(place, nbytes) for place in places]
    settings = [each.model_dump() for each in wanted]
    measure_missing(
        stem, settings, cases, partial(_measure_sizes, parts), path=sweep_path(wanted, stem)
    )


def _parts(wanted: Sequence[Settings]) -> list[Settings]:
    return list(chain.from_iterable(group_by_launch(wanted)))


def sweep_path(wanted: Sequence[Settings], stem: str | Path) -> Path:
    """Return the file of rows of a sweep that is not complete.

    Sweeps that differ in their sizes alone share it.
    """
    return _path(stem, [each.model_dump(exclude={"bytes"}) for each in wanted])


def _path(stem: str | Path, depends_on: Any) -> Path:
    return Path(f"{stem}.{fingerprint(depends_on)[:8]}.partial.jsonl")


def other_rows(stem: str | Path, depends_on: Any) -> str | None:
    """Return in one line which rows at ``stem`` are in the way of these.

    None if there are none, or these.
    """
    if not Path(f"{stem}.parquet").exists():
        return None
    try:
        is_own = read(stem)[1].get("fingerprint") == fingerprint(depends_on)
    except ValueError as error:
        return str(error)
    return None if is_own else f"{stem}.parquet was made with other parameters or other code"


def is_measured(stem: str | Path, depends_on: Any) -> bool:
    """Return True if all rows of these settings are there, and none has failed."""
    return (
        Path(f"{stem}.parquet").exists()
        and not other_rows(stem, depends_on)
        and not count_failed(stem)
    )


def count_failed(stem: str | Path) -> int:
    """Return the number of rows with an error.

    0 without rows, because a notebook may say why it measured none.
    """
    if not Path(f"{stem}.parquet").exists():
        return 0
    rows, _ = read(stem)
    return int(rows.error.notna().sum()) if "error" in rows else 0


def measure_missing(
    stem: str | Path,
    settings: list[Row],
    cases: Sequence[T],
    measure: Measure[T],
    line: Callable[[Row], str] = lambda _: "",
    *,
    depends_on: Any = None,
    path: Path | None = None,
) -> None:
    """Measure the cases that have no rows yet.

    Write all rows, and their record with these settings, to ``stem``.

    ``measure(left, keep)`` measures one of these cases or more, and passes every event of the ranks
    to ``keep``. The rows of a case are one event, ``{"rows": [...]}``, of the first case that is
    left unless it has another ``"case"``. They are on disk, and the line of each is printed, before
    ``keep`` returns. An error of ``measure`` passes through, and the next call goes on there; rows
    with an ``error`` are measured again by the next call. A case is a JSON value. ``depends_on`` is
    what the rows depend on beside this package, if it is more than the settings. Another process
    that measures the same into ``stem`` is waited for. Raises FileExistsError for `other_rows`, and
    for a process that measures something else there; OSError, which names the file, for a full
    disk: the rows that exist are kept.
    """
    depends_on = settings if depends_on is None else depends_on
    if _is_done(stem, depends_on):
        return
    mark = fingerprint(depends_on)
    with locked(stem, mark):
        if _is_done(stem, depends_on):  # by a process that was waited for
            return
        path = path or _path(stem, depends_on)
        events = _begun(path)
        done = len(cases) - len(_left(cases, events))
        if done:
            print(f"{done} of {len(cases)} cases were measured before", file=sys.stderr, flush=True)
        _measure_all(path, events, cases, measure, line)
        of_case = {_key(event["case"]): event["rows"] for event in events if "rows" in event}
        rows = list(chain.from_iterable(of_case[_key(case)] for case in cases))
        environment = _environment(events) or [record()]
        write(stem, rows, {"settings": settings, "environment": environment, "fingerprint": mark})
        if not any(row.get("error") for row in rows):
            path.unlink()


def _is_done(stem: str | Path, depends_on: Any) -> bool:
    others = other_rows(stem, depends_on)
    if others:
        raise FileExistsError(f"{others}; name another output")
    return is_measured(stem, depends_on)


def _measure_all(
    path: Path,
    events: list[Row],
    cases: Sequence[T],
    measure: Measure[T],
    line: Callable[[Row], str],
) -> None:
    """Measure until no case is left, and add to the events and to their file."""

    def keep(event: Row) -> None:
        if "rows" in event:
            event = {"case": _left(cases, events)[0], **event}
        elif "environment" not in event:
            return
        append(path, _lines([event]).encode())
        events.append(event)
        for text in filter(None, map(line, event.get("rows", []))):
            print(text, file=sys.stderr, flush=True)

    while left := _left(cases, events):
        measure(left, keep)
        if _left(cases, events) == left:
            raise RuntimeError(f"measuring {left[0]}: got no rows, expected one or more")


def _key(case: Any) -> str:
    return json.dumps(case)


def _left(cases: Sequence[T], events: Sequence[Row]) -> list[T]:
    done = {_key(event["case"]) for event in events if "rows" in event}
    return [case for case in cases if _key(case) not in done]


def _begun(path: Path) -> list[Row]:
    """Return the events of earlier calls, without those that failed, and remove all else from the file."""
    data = path.read_bytes() if path.exists() else b""
    events = [
        event
        for event in _read(path, data)
        if not any(row.get("error") for row in event.get("rows", []))
    ]
    sound = _lines(events).encode()
    if sound != data:
        replace(path, lambda beside: beside.write_bytes(sound))
    return events


def _read(path: Path, data: bytes) -> Iterator[Row]:
    """Yield the events in a file, without an incomplete last line."""
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            event = None
        if _is_event(event):
            yield event
        else:
            print(
                f"{path}, line {number}: damaged, so skipped; what it held is measured again",
                file=sys.stderr,
            )


def _is_event(event: Any) -> bool:
    if not isinstance(event, dict):
        return False
    kept = event["rows"] if "rows" in event and "case" in event else event.get("environment")
    return isinstance(kept, list) and all(isinstance(each, dict) for each in kept)


def _lines(events: Sequence[Row]) -> str:
    return "".join(f"{json.dumps(event)}\n" for event in events)


def _environment(events: list[Row]) -> list[Row]:
    """Return every rank's record, in every launch whose records are not those of an earlier one."""
    environments = [event["environment"] for event in events if "environment" in event]
    distinct = [
        launch for nth, launch in enumerate(environments) if launch not in environments[:nth]
    ]
    return list(chain.from_iterable(distinct))


def _measure_sizes(parts: Sequence[Settings], left: Sequence[tuple[int, int]], keep: Keep) -> None:
    """Measure by the first launch that has sizes left, until one fails.

    Its rows have the reason.
    """
    sizes = {
        nth: [nbytes for of, nbytes in left if of == nth]
        for nth in sorted({nth for nth, _ in left})
    }
    wanted = group_by_launch(
        [parts[nth].model_copy(update={"bytes": each}) for nth, each in sizes.items()]
    )[0]
    cases = []
    for nth in list(sizes)[: len(wanted)]:
        cases += [(nth, nbytes) for nbytes in sizes[nth]]
    has_begun = False

    def on_event(event: Row) -> None:
        nonlocal has_begun
        show(event)
        has_begun |= "environment" in event
        if "rows" in event:
            event = {"case": cases.pop(0), "rows": [row | {"error": None} for row in event["rows"]]}
        keep(event)

    with progress(wanted) as show:
        try:
            bench(wanted, on_event)
        except RankError as error:
            if not has_begun or not cases:
                raise
            nth, nbytes = cases[0]
            print(f"{parts[nth].collective} of {nbytes} bytes failed: {error}", file=sys.stderr)
            keep({"case": cases[0], "rows": error_rows(parts[nth], nbytes, str(error))})


def error_rows(settings: Settings, nbytes: int, error: str) -> list[Row]:
    """Return the rows of a size that failed: without times, with the reason."""
    same = settings.model_dump(include={"collective", "where", "ranks", "dtype", "op"})
    size = {
        "bytes": settings.elements(nbytes) * DTYPES[settings.dtype][0],
        "samples": [],
        "error": error,
    }
    return [
        same | {"backend": backend, "algorithm": algorithm} | size
        for backend, algorithm in settings.configurations()
    ]
