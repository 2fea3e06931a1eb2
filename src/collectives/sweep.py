"""A measurement that can be cut off: finished sizes are kept on disk as they come, and what fails becomes rows, too.

Rows lie in ``STEM.KEY.partial.jsonl`` until all sizes are measured, one JSON object per line. KEY is made of the
settings and the code, so that rows of different measurements never meet in one file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from collectives.bench import DTYPES, OURS, Row, Settings, bench, launches, need_all
from collectives.bench.table import progress
from collectives.environment import fingerprint
from collectives.launch import RankError
from collectives.results import read, write


def sweep(wanted: Sequence[Settings], stem: str | Path) -> None:
    """Measure what is not yet measured, and write all rows and their record to ``stem`` (`results.write`).

    Rows are in the order of the settings and their sizes, and have one more column, ``error``: where ranks fail, the
    rows of that size say why and have no times, and new ranks go on with what follows. The next call measures what
    failed again. Raises RankError where the ranks do not even start, ImportError where a back end is absent, and
    FileExistsError where other rows stand at ``stem``.
    """
    need_all(wanted)
    made_of, path = fingerprint([each.model_dump() for each in wanted]), partial(wanted, stem)
    if Path(f"{stem}.parquet").exists():
        if read(stem)[1].get("fingerprint") != made_of:
            raise FileExistsError(f"{stem}.parquet has other rows, which stay there; name another output")
        if not path.exists():
            return
    events = [event for event in _read(path) if not event.get("row", {}).get("error")]
    parts = [one for alike in launches(wanted) for one in alike]
    sizes = sum(len(one.bytes) for one in parts)
    if done := sizes - sum(len(one.bytes) for one in _left(parts, events)):
        print(f"{done} of {sizes} sizes were measured before", file=sys.stderr)
    with path.open("a", encoding="utf8") as file:

        def keep(event: Row) -> None:
            events.append(event)
            print(json.dumps(event), file=file, flush=True)

        while left := _left(parts, events):
            _measure(launches(left)[0], keep)
    rows = _rows(wanted, events)
    settings = [each.model_dump() for each in wanted]
    write(stem, rows, {"settings": settings, "environment": _environment(events), "fingerprint": made_of})
    if not any(row["error"] for row in rows):
        path.unlink()


def partial(wanted: Sequence[Settings], stem: str | Path) -> Path:
    """Where the rows of a measurement lie until it is complete."""
    asked = [each.model_dump(exclude={"bytes"}) for each in wanted]
    return Path(f"{stem}.{fingerprint(asked)[:8]}.partial.jsonl")


def _read(path: Path) -> list[Row]:
    """The whole lines of a file, without the half one that a cut leaves at its end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = path.read_text(encoding="utf8") if path.exists() else ""
    path.write_text(whole := text[: text.rfind("\n") + 1], encoding="utf8")
    return [json.loads(line) for line in whole.splitlines()]


def _bytes(settings: Settings, nbytes: int) -> int:
    """A size as its rows have it."""
    return settings.elements(nbytes) * DTYPES[settings.dtype][0]


def _series(row: Row) -> tuple[Any, ...]:
    """What tells the rows of one part from those of others: all of our algorithms are measured together."""
    algorithm = "" if row["backend"] in OURS else row["algorithm"]
    return row["where"], row["ranks"], row["collective"], row["backend"], algorithm


def _left(parts: Sequence[Settings], events: list[Row]) -> list[Settings]:
    """What there are no rows of yet: the parts with the sizes that are left of them."""
    rows = [event["row"] for event in events if "row" in event]
    left = [one.model_copy(update={"bytes": _sizes_left(one, rows)}) for one in parts]
    return [one for one in left if one.bytes]


def _sizes_left(one: Settings, rows: list[Row]) -> list[int]:
    mine = {_series(row) for row in _failed(one, 0, "")}
    done = {row["bytes"] for row in rows if _series(row) in mine}
    return [nbytes for nbytes in one.bytes if _bytes(one, nbytes) not in done]


def _measure(alike: Sequence[Settings], keep: Callable[[Row], None]) -> None:
    """Measure by one launch, until a size fails."""
    kept: list[Row] = []

    def on_event(event: Row) -> None:
        show(event)
        if "row" in event:
            event = {"row": event["row"] | {"error": None}}
        if "done" not in event:
            kept.append(event)
            keep(event)

    with progress(alike) as show:
        try:
            bench(alike, on_event)
        except RankError as error:
            if not kept:
                raise
            failed = _left(alike, kept)[0]
            print(f"{failed.collective} of {failed.bytes[0]} bytes failed: {error}", file=sys.stderr)
            for row in _failed(failed, _bytes(failed, failed.bytes[0]), str(error)):
                keep({"row": row})


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
    return sorted(rows, key=lambda row: order.index((row["where"], row["ranks"], row["collective"], row["bytes"])))


def _environment(events: list[Row]) -> list[Row]:
    """Every rank's record, in every launch whose records are not those of an earlier one."""
    launches = [event["environment"] for event in events if "environment" in event]
    distinct = [launch for nth, launch in enumerate(launches) if launch not in launches[:nth]]
    return [rank for launch in distinct for rank in launch]
