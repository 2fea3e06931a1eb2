"""A measurement that resumes: a finished size is written to disk at once, and a failure becomes rows with its reason.

Rows lie in ``STEM.KEY.partial.jsonl`` until all sizes are measured, one JSON object per line. KEY is a hash of the
settings and the code, so that rows of different measurements never share a file.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from collectives.bench import DTYPES, OURS, Row, Settings, bench, launches, need_all
from collectives.bench.environment import fingerprint, record
from collectives.bench.results import read, replace, write
from collectives.bench.table import progress
from collectives.launch import RankError

# Fields that every row has, and their types.
NAMED = {"where": str, "ranks": int, "collective": str, "backend": str, "algorithm": str, "bytes": int}


def sweep(wanted: Sequence[Settings], stem: str | Path) -> None:
    """Measure what is missing, and write all rows and their record to ``stem`` (`results.write`).

    Rows are in the order of the settings and their sizes, and have one more column, ``error``. If ranks fail, the rows
    of that size have the reason and no times, and new ranks measure what follows; the next call measures the failed
    size again. Raises RankError if ranks do not start, or fail after their last row; ImportError if a back end is
    absent; FileExistsError if ``stem`` has rows of other settings.
    """
    need_all(wanted)
    made_of, path = fingerprint([each.model_dump() for each in wanted]), partial(wanted, stem)
    if is_complete(stem, made_of, path):
        return
    parts = [one for alike in launches(wanted) for one in alike]
    events = _begun(path, parts)
    sizes = sum(len(one.bytes) for one in parts)
    if done := sizes - sum(len(one.bytes) for one in _left(parts, events)):
        print(f"{done} of {sizes} sizes were measured before", file=sys.stderr)
    with path.open("a", encoding="utf8") as file:

        def keep(more: Sequence[Row]) -> None:
            events.extend(more)
            file.write(lines(more))
            file.flush()

        while left := _left(parts, events):
            _measure(launches(left)[0], keep)
    rows = _rows(wanted, events)
    settings = [each.model_dump() for each in wanted]
    environment = launched(events) or [record()]
    write(stem, rows, {"settings": settings, "environment": environment, "fingerprint": made_of})
    if not any(row["error"] for row in rows):
        path.unlink()


def partial(wanted: Sequence[Settings], stem: str | Path) -> Path:
    """The file of rows of a measurement that is not complete."""
    return unfinished(stem, fingerprint([each.model_dump(exclude={"bytes"}) for each in wanted]))


def unfinished(stem: str | Path, made_of: str) -> Path:
    """The file of events of a measurement with this fingerprint, until its rows are at ``stem``."""
    return Path(f"{stem}.{made_of[:8]}.partial.jsonl")


def is_complete(stem: str | Path, made_of: str, path: Path) -> bool:
    """Whether ``stem`` has all rows of this fingerprint, and none is left to measure in the file at ``path``.

    Raises FileExistsError for rows of another fingerprint.
    """
    if not Path(f"{stem}.parquet").exists():
        return False
    if read(stem)[1].get("fingerprint") != made_of:
        raise FileExistsError(f"{stem}.parquet: got rows of other settings, expected none; name another output")
    return not path.exists()


def _begun(path: Path, parts: Sequence[Settings]) -> list[Row]:
    """What an earlier call has measured. All else is removed from the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = path.read_bytes() if path.exists() else b""
    events = [event for event in _read(path, data) if not event.get("row", {}).get("error")]
    again = {(series, _bytes(one, n)) for one in _left(parts, events) for n in one.bytes for series in _all_of(one)}
    events = [event for event in events if "row" not in event or _place(event["row"]) not in again]
    if (whole := lines(events).encode()) != data:
        replace(path, lambda partial: partial.write_bytes(whole))
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
    row, ranks = event.get("row"), event.get("environment")
    if row is None:
        return isinstance(ranks, list) and all(isinstance(rank, dict) for rank in ranks)
    return isinstance(row, dict) and all(isinstance(row.get(name), kind) for name, kind in NAMED.items())


def lines(events: Sequence[Row]) -> str:
    """The events as the file of an unfinished measurement has them."""
    return "".join(f"{json.dumps(event)}\n" for event in events)


def _bytes(settings: Settings, nbytes: int) -> int:
    """A size as its rows have it."""
    return settings.elements(nbytes) * DTYPES[settings.dtype][0]


def _series(row: Row) -> tuple[Any, ...]:
    """The key of a series: all of our algorithms are measured together, and share one."""
    algorithm = "" if row["backend"] in OURS else row["algorithm"]
    return row["where"], row["ranks"], row["collective"], row["backend"], algorithm


def _place(row: Row) -> tuple[Any, int]:
    return _series(row), row["bytes"]


def _all_of(one: Settings) -> Counter[tuple[Any, ...]]:
    """How many rows a size of this part has in each series."""
    return Counter(_series(row) for row in _failed(one, 0, ""))


def _left(parts: Sequence[Settings], events: Sequence[Row]) -> list[Settings]:
    """The parts that still lack rows, with the sizes that are missing."""
    rows = Counter(_place(event["row"]) for event in events if "row" in event)
    left = [one.model_copy(update={"bytes": _sizes_left(one, rows)}) for one in parts]
    return [one for one in left if one.bytes]


def _sizes_left(one: Settings, rows: Counter[tuple[Any, int]]) -> list[int]:
    wanted = _all_of(one)
    return [n for n in one.bytes if any(rows[series, _bytes(one, n)] < count for series, count in wanted.items())]


def _measure(alike: Sequence[Settings], keep: Callable[[Sequence[Row]], None]) -> None:
    """Measure by one launch, until a size fails. The rows of a size are kept together or not at all."""
    kept: list[Row] = []
    size: list[Row] = []

    def settle(more: list[Row]) -> None:
        kept.extend(more)
        keep(more)

    def on_event(event: Row) -> None:
        show(event)
        if "environment" in event:
            settle([event])
        elif "row" in event:
            size.append({"row": event["row"] | {"error": None}})
            if _left(alike, [*kept, *size]) != _left(alike, kept):
                settle([*size])
                size.clear()

    with progress(alike) as show:
        try:
            bench(alike, on_event)
        except RankError as error:
            left = _left(alike, kept)
            if not kept or not left:
                raise
            nbytes = left[0].bytes[0]
            print(f"{left[0].collective} of {nbytes} bytes failed: {error}", file=sys.stderr)
            keep([{"row": row} for row in _failed(left[0], _bytes(left[0], nbytes), str(error))])


def _failed(settings: Settings, nbytes: int, error: str) -> Iterator[Row]:
    same = settings.model_dump(include={"collective", "where", "ranks", "dtype", "op"})
    for backend, algorithm in settings.configurations():
        yield same | {"backend": backend, "algorithm": algorithm, "bytes": nbytes, "samples": [], "error": error}


def _rows(wanted: Sequence[Settings], events: list[Row]) -> list[Row]:
    order = [
        (one.where, one.ranks, one.collective, _bytes(one, n))
        for each in wanted
        for n in each.bytes
        for one in each.launches()  # Horovod's ranks may be started elsewhere than the others
    ]
    rows = [event["row"] for event in events if "row" in event]
    named = [((row["where"], row["ranks"], row["collective"], row["bytes"]), row) for row in rows]
    return [
        row for _, row in sorted((pair for pair in named if pair[0] in order), key=lambda pair: order.index(pair[0]))
    ]


def launched(events: list[Row]) -> list[Row]:
    """Every rank's record, in every launch whose records are not those of an earlier one."""
    launches = [event["environment"] for event in events if "environment" in event]
    distinct = [launch for nth, launch in enumerate(launches) if launch not in launches[:nth]]
    return [rank for launch in distinct for rank in launch]
