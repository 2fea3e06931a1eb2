"""A measurement that can be cut off: finished sizes are kept on disk as they come, and what fails becomes rows, too.

Rows lie in ``STEM.KEY.partial.jsonl`` until all sizes are measured, one JSON object per line. KEY is made of the
settings and the code, so that rows of different measurements never meet in one file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from collectives.bench import DTYPES, OURS, Row, Settings, bench, need_all
from collectives.bench.table import progress
from collectives.environment import fingerprint
from collectives.launch import RankError
from collectives.results import read, write


def sweep(settings: Settings, stem: str | Path) -> None:
    """Measure what is not yet measured, and write all rows and their record to ``stem`` (`results.write`).

    Rows are in the order of the sizes and have one more column, ``error``: where ranks fail, the rows of that size say
    why and have no times, and new ranks go on with the next size. The next call measures what failed again. Raises
    RankError where the ranks do not even start, and FileExistsError where other rows stand at ``stem``.
    """
    need_all(settings)
    made_of, path = fingerprint(settings.model_dump()), partial(settings, stem)
    if Path(f"{stem}.parquet").exists():
        if read(stem)[1].get("fingerprint") != made_of:
            raise FileExistsError(f"{stem}.parquet has other rows, which stay there; name another output")
        if not path.exists():
            return
    events = [event for event in _read(path) if not event.get("row", {}).get("error")]
    launches = settings.launches()
    sizes = len(launches) * len(settings.bytes)
    if done := sizes - sum(len(_left(one, events)) for one in launches):
        print(f"{done} of {sizes} sizes were measured before", file=sys.stderr)
    with path.open("a", encoding="utf8") as file:

        def keep(event: Row) -> None:
            events.append(event)
            print(json.dumps(event), file=file, flush=True)

        for one in launches:
            while left := _left(one, events):
                _measure(one.model_copy(update={"bytes": left}), keep)
    rows = _rows(settings, events)
    write(stem, rows, {"settings": settings.model_dump(), "environment": _environment(events), "fingerprint": made_of})
    if not any(row["error"] for row in rows):
        path.unlink()


def partial(settings: Settings, stem: str | Path) -> Path:
    """Where the rows of a measurement lie until it is complete."""
    asked = settings.model_dump(exclude={"bytes"})
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


def _series(backend: str, algorithm: str) -> tuple[str, str]:
    """What tells one launch's rows from another's: all of our algorithms are measured in one."""
    return backend, "" if backend in OURS else algorithm


def _left(settings: Settings, events: list[Row]) -> list[int]:
    """The sizes of one launch of which there is no row yet."""
    mine = {_series(*configuration) for configuration in settings.configurations()}
    rows = [event["row"] for event in events if "row" in event]
    done = {row["bytes"] for row in rows if _series(row["backend"], row["algorithm"]) in mine}
    return [nbytes for nbytes in settings.bytes if _bytes(settings, nbytes) not in done]


def _measure(settings: Settings, keep: Callable[[Row], None]) -> None:
    """Measure these sizes, until one fails."""
    kept: list[Row] = []

    def on_event(event: Row) -> None:
        show(event)
        if "row" in event:
            event = {"row": event["row"] | {"error": None}}
        if "done" not in event:
            kept.append(event)
            keep(event)

    with progress(settings) as show:
        try:
            bench(settings, on_event)
        except RankError as error:
            if not kept:
                raise
            failed = _left(settings, kept)[0]
            print(f"{failed} bytes failed: {error}", file=sys.stderr)
            for row in _failed(settings, failed, str(error)):
                keep({"row": row})


def _failed(settings: Settings, nbytes: int, error: str) -> Iterator[Row]:
    same = settings.model_dump(include={"collective", "where", "ranks", "dtype", "op"})
    for backend, algorithm in settings.configurations():
        size = _bytes(settings, nbytes)
        yield same | {"backend": backend, "algorithm": algorithm, "bytes": size, "samples": [], "error": error}


def _rows(settings: Settings, events: list[Row]) -> list[Row]:
    order = [_bytes(settings, nbytes) for nbytes in settings.bytes]
    return sorted((event["row"] for event in events if "row" in event), key=lambda row: order.index(row["bytes"]))


def _environment(events: list[Row]) -> list[Row]:
    """Every rank's record, in every launch whose records are not those of an earlier one."""
    launches = [event["environment"] for event in events if "environment" in event]
    distinct = [launch for nth, launch in enumerate(launches) if launch not in launches[:nth]]
    return [rank for launch in distinct for rank in launch]
