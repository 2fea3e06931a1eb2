"""Measurements that resume: the rows of a case are on disk as soon as they exist, and only missing cases are measured.

Rows lie in ``STEM.KEY.partial.jsonl`` until all cases are measured. A line has the rows of one case, or the environment
of one launch. KEY is a hash of the settings and the code, so that rows of different measurements never share a file.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from collectives.bench import DTYPES, Row, Settings, bench, launches, need_all
from collectives.bench.environment import fingerprint, record
from collectives.bench.results import read, replace, write
from collectives.bench.table import progress
from collectives.launch import RankError

T = TypeVar("T")
Keep = Callable[[Row], None]
Measure = Callable[[Sequence[T], Keep], None]


def sweep(wanted: Sequence[Settings], stem: str | Path) -> None:
    """Measure what is missing, and write all rows and their record to ``stem`` (`results.write`).

    Rows are in the order of the settings and their sizes, and have one more column, ``error``. If ranks fail, the rows
    of that size have the reason and no times, and new ranks measure what follows; the next call measures the failed
    size again. Raises RankError if ranks do not start, or fail after their last row; ImportError if a back end is
    absent; FileExistsError if ``stem`` has rows of other settings.
    """
    need_all(wanted)
    parts = [one for alike in launches(wanted) for one in alike]
    sizes = [(nth, nbytes) for nth, one in enumerate(parts) for nbytes in one.bytes]
    # Horovod's ranks may be started elsewhere than the others; their rows stand with the others'.
    order = [(parts.index(one), nbytes) for each in wanted for nbytes in each.bytes for one in each.launches()]
    settings = [each.model_dump() for each in wanted]
    measure_missing(stem, settings, sizes, partial(_measure_sizes, parts), order=order, path=sweep_path(wanted, stem))


def sweep_path(wanted: Sequence[Settings], stem: str | Path) -> Path:
    """The file of rows of a sweep that is not complete. Sweeps that differ in their sizes only share it."""
    return _path(stem, fingerprint([each.model_dump(exclude={"bytes"}) for each in wanted]))


def _path(stem: str | Path, mark: str) -> Path:
    return Path(f"{stem}.{mark[:8]}.partial.jsonl")


def measure_missing(
    stem: str | Path,
    settings: list[Row],
    cases: Sequence[T],
    measure: Measure[T],
    line: Callable[[Row], str] = lambda _: "",
    *,
    depends_on: Any = None,
    order: Sequence[T] | None = None,
    path: Path | None = None,
) -> None:
    """Measure the cases that have no rows yet; write all rows, and their record with these settings, to ``stem``.

    ``measure(left, keep)`` measures the first of these cases or more, in their order, and passes every event of the
    ranks to ``keep``. The rows of a case are one event, ``{"rows": [...]}``. They are on disk, and the line of each is
    printed, before ``keep`` returns. An error of ``measure`` passes through, and the next call goes on there; rows
    with an ``error`` are measured again by the next call. A case is a JSON value. ``depends_on`` is what the rows
    depend on beside this package, if it is more than the settings; ``order`` is the cases' order in the results, if it
    is not the one they are measured in. Raises FileExistsError if the output has rows of another fingerprint.
    """
    mark = fingerprint(settings if depends_on is None else depends_on)
    path = path or _path(stem, mark)
    if _is_complete(stem, mark, path):
        return
    events = _begun(path)
    if done := len(cases) - len(_left(cases, events)):
        print(f"{done} of {len(cases)} cases were measured before", file=sys.stderr, flush=True)
    _measure_all(path, events, cases, measure, line)
    of_case = {_key(event["case"]): event["rows"] for event in events if "rows" in event}
    rows = [row for case in order or cases for row in of_case[_key(case)]]
    write(stem, rows, {"settings": settings, "environment": _launched(events) or [record()], "fingerprint": mark})
    if not any(row.get("error") for row in rows):
        path.unlink()


def _is_complete(stem: str | Path, mark: str, path: Path) -> bool:
    """Whether ``stem`` has all rows of this fingerprint, and none is left to measure in the file at ``path``."""
    if not Path(f"{stem}.parquet").exists():
        return False
    if read(stem)[1].get("fingerprint") != mark:
        raise FileExistsError(f"{stem}.parquet: got rows of other settings, expected none; name another output")
    return not path.exists()


def _measure_all(
    path: Path, events: list[Row], cases: Sequence[T], measure: Measure[T], line: Callable[[Row], str]
) -> None:
    """Measure until no case is left, and add to the events and to their file."""
    with path.open("a", encoding="utf8") as file:

        def keep(event: Row) -> None:
            if "rows" in event:
                event = {"case": _left(cases, events)[0], "rows": event["rows"]}
            elif "environment" not in event:
                return
            events.append(event)
            file.write(_lines([event]))
            file.flush()
            for said in filter(None, map(line, event.get("rows", []))):
                print(said, file=sys.stderr, flush=True)

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
    """What an earlier call has measured. All else is removed from the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = path.read_bytes() if path.exists() else b""
    events = [event for event in _read(path, data) if not any(row.get("error") for row in event.get("rows", []))]
    if (sound := _lines(events).encode()) != data:
        replace(path, lambda beside: beside.write_bytes(sound))
    return events


def _read(path: Path, data: bytes) -> Iterator[Row]:
    """The events in a file, without an incomplete last line."""
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            event = None
        if _is_event(event):
            yield event
        else:
            print(f"{path}, line {number}: damaged, so skipped; what it held is measured again", file=sys.stderr)


def _is_event(event: Any) -> bool:
    if not isinstance(event, dict):
        return False
    kept = event["rows"] if "rows" in event and "case" in event else event.get("environment")
    return isinstance(kept, list) and all(isinstance(each, dict) for each in kept)


def _lines(events: Sequence[Row]) -> str:
    return "".join(f"{json.dumps(event)}\n" for event in events)


def _launched(events: list[Row]) -> list[Row]:
    """Every rank's record, in every launch whose records are not those of an earlier one."""
    environments = [event["environment"] for event in events if "environment" in event]
    distinct = [launch for nth, launch in enumerate(environments) if launch not in environments[:nth]]
    return [rank for launch in distinct for rank in launch]


def _measure_sizes(parts: Sequence[Settings], left: Sequence[tuple[int, int]], keep: Keep) -> None:
    """Measure by one launch, until a size fails; its rows have the reason."""
    lacking = [
        one.model_copy(update={"bytes": [nbytes for part, nbytes in left if part == nth]})
        for nth, one in enumerate(parts)
    ]
    alike = launches([one for one in lacking if one.bytes])[0]
    kept: list[Row] = []

    def on_event(event: Row) -> None:
        show(event)
        if "rows" in event:
            event = {"rows": [row | {"error": None} for row in event["rows"]]}
        if "rows" in event or "environment" in event:
            kept.append(event)
            keep(event)

    with progress(alike) as show:
        try:
            bench(alike, on_event)
        except RankError as error:
            sizes = [(one, nbytes) for one in alike for nbytes in one.bytes][sum("rows" in event for event in kept) :]
            if not kept or not sizes:
                raise
            one, nbytes = sizes[0]
            print(f"{one.collective} of {nbytes} bytes failed: {error}", file=sys.stderr)
            keep({"rows": failed_rows(one, nbytes, str(error))})


def failed_rows(settings: Settings, nbytes: int, error: str) -> list[Row]:
    """The rows of a size that failed: without times, with the reason."""
    same = settings.model_dump(include={"collective", "where", "ranks", "dtype", "op"})
    size = {"bytes": settings.elements(nbytes) * DTYPES[settings.dtype][0], "samples": [], "error": error}
    return [
        same | {"backend": backend, "algorithm": algorithm} | size for backend, algorithm in settings.configurations()
    ]
