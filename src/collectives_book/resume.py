"""Experiments that resume: a case's rows are on disk as soon as they exist, and only missing cases are measured.

The file is that of `collectives.bench.sweep`, with the rows of a case in one line. Cases are measured in their order,
so the number of these lines says where to go on.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from collectives.bench import Row
from collectives.bench.environment import code, fingerprint, record
from collectives.bench.results import replace, write
from collectives.bench.sweep import is_complete, launched, lines, unfinished
from collectives_book.parameters import Parameters

T = TypeVar("T")
Keep = Callable[[Row], None]


def resume(
    parameters: Parameters,
    settings: Row,
    cases: Sequence[T],
    measure: Callable[[Sequence[T], Keep], None],
    complete: Callable[[Row], Row],
    say: Callable[[Row], None],
) -> None:
    """Measure the cases that have no rows yet; write all rows, and their record with these settings.

    ``measure(left, keep)`` measures these cases in their order and passes every event of the ranks to ``keep``. The
    rows of a case are one event, ``{"rows": [...]}``. Each row is completed, written to disk and said before ``keep``
    returns. An error of ``measure`` passes through, and the next call goes on there. Raises FileExistsError if the
    output has rows of other parameters.
    """
    stem = parameters.output
    given = parameters.model_dump(mode="json", exclude={"output"})
    made_of = fingerprint([type(parameters).__module__, given, code(Path(__file__).parent)])
    path = unfinished(stem, made_of)
    if is_complete(stem, made_of, path):
        return
    events = _begun(path)
    done = sum("rows" in event for event in events)
    if done:
        print(f"{done} of {len(cases)} cases were measured before", file=sys.stderr, flush=True)
    with path.open("a", encoding="utf8") as file:

        def keep(event: Row) -> None:
            if "rows" in event:
                event = {"rows": list(map(complete, event["rows"]))}
            elif "environment" not in event or event in events:
                return
            events.append(event)
            file.write(lines([event]))
            file.flush()
            for row in event.get("rows", []):
                say(row)

        if done < len(cases):
            measure(cases[done:], keep)
    rows = [row for event in events for row in event.get("rows", [])]
    environment = launched(events) or [record()]
    write(stem, rows, {"settings": [settings], "environment": environment, "fingerprint": made_of})
    path.unlink()


def _begun(path: Path) -> list[Row]:
    """The events that an earlier call has kept; what follows an incomplete or damaged line is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = path.read_bytes() if path.exists() else b""
    events = list(_sound(data))
    if (whole := lines(events).encode()) != data:
        print(f"{path}: damaged after line {len(events)}; what followed is measured again", file=sys.stderr)
        replace(path, lambda partial: partial.write_bytes(whole))
    return events


def _sound(data: bytes) -> Iterator[Row]:
    for line in data.split(b"\n")[:-1]:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            return
        if not _is_event(event):
            return
        yield event


def _is_event(event: Any) -> bool:
    kept = event.get("rows", event.get("environment")) if isinstance(event, dict) else None
    return isinstance(kept, list) and all(isinstance(each, dict) for each in kept)
