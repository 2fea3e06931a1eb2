"""JSON with results of benchmarks: a report of nccl-tests (`-J`), and the rows of `collectives bench --json`.

A report that was cut short yields the results before the cut.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from collectives.contracts import CONTRACTS
from collectives.logs.benchmarks.table import (
    MOST_RANKS,
    MOST_ROWS,
    MOST_TABLES,
    PERF,
    Head,
    Measured,
    Row,
    Table,
    tables_of,
)
from collectives.logs.finding import Line, LogError, Place

# A report of 8 GiB in 2,000 sizes with each iteration's time takes a few MB.
MOST_BYTES = 1 << 26

REPORT = re.compile(r'^\s{0,100}\{\s{0,100}"version"\s{0,9}:\s{0,9}\d{1,9}\s{0,9},')
CONFIG = re.compile(r'"config"\s{0,9}:\s{0,9}(?=\{)')
RESULTS = re.compile(r'"results"\s{0,9}:\s{0,9}\[')
BETWEEN = re.compile(r"[\s,]{0,1000}")

# A row of 10,000 samples takes 100 KB. Before the first row there may be lines of a launcher.
LONGEST_ROW, MOST_LINES_BEFORE = 1 << 20, 100

# What a row of ours has, if it was measured or failed.
OURS = ("collective", "algorithm", "backend", "where", "ranks", "bytes", "samples")


def is_report(start: bytes) -> bool:
    """Whether a file that begins so is a JSON report of nccl-tests."""
    text = start.decode("utf8", "replace")
    return REPORT.search(text) is not None and ('"nccl_version"' in text or '"minimum_bytes"' in text)


def is_ours(start: bytes) -> bool:
    """Whether a file that begins so has a row of `collectives bench --json` among its first lines."""
    lines = start.decode("utf8", "replace").splitlines()[:MOST_LINES_BEFORE]
    return any(_ours(line) is not None for line in lines)


def report(data: str, file: str, hints: list[str]) -> list[Table]:
    """The tables of a report. Raises LogError if it has no results.

    >>> result = '{"size": 4, "type": "float", "redop": "sum", "root": "-1", "in_place": {"time": 9.0}}'
    >>> (table,) = report('{"version": 1, "results": [' + result, "a.json", ["all_reduce"])
    >>> table.seconds.tolist(), table.collective
    ([9e-06], 'all_reduce')
    """
    begins = RESULTS.search(data)
    if not begins:
        raise LogError(f"{file}: got a report of nccl-tests without results, expected a list of them")
    head = _head(data, file, hints)
    rows: list[Row] = []
    for start, result in _objects(data, begins.end()):
        row = _result(result, Place(file, data.count("\n", 0, start) + 1)) if len(rows) < MOST_ROWS else None
        if row:
            rows.append(row)
        named = PERF.search(_text(result.get("experiment_name")))
        head.hints += [named[1]] if named and named[1] not in head.hints else []
    return [*tables_of(head, rows)]


def _objects(data: str, at: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a list that begins here, up to its end or where it is broken."""
    decoder = json.JSONDecoder()
    while True:
        at = BETWEEN.match(data, at).end()  # type: ignore[union-attr]  # it matches nothing, too
        start = at
        try:
            value, at = decoder.raw_decode(data, at)
        except (ValueError, RecursionError):
            return
        if isinstance(value, dict):
            yield start, value


def _head(data: str, file: str, hints: list[str]) -> Head:
    head = Head(Place(file), hints=[*hints])
    found = CONFIG.search(data)
    config = next((value for _, value in _objects(data, found.end())), {}) if found else {}
    if named := PERF.findall(data[: found.start() if found else 1 << 16]):
        head.hints.append(named[0])
    head.last = _number(config.get("maximum_bytes"), 0.0)
    head.step = _number(config.get("step_factor"), 1.0)
    devices = config.get("devices")
    devices = devices[:MOST_RANKS] if isinstance(devices, list) else []
    # Of each process the report names the first device only.
    size = len(devices) * _number(config.get("nthreads"), 0.0) * _number(config.get("ngpus"), 0.0)
    head.size = int(size) if 0 < size < MOST_RANKS else 0
    for device in devices:
        rank = _number(device.get("rank"), -1.0) if isinstance(device, dict) else -1.0
        if 0 <= rank < MOST_RANKS:
            head.ranks[int(rank)] = (_text(device.get("hostname")), _text(device.get("device_info")))
    head.is_whole = '"average_bus_bandwidth"' in data
    bad = re.search(r'"out_of_bounds"\s{0,9}:\s{0,9}\{\s{0,9}"count"\s{0,9}:\s{0,9}(\d{1,9})', data)
    head.bad = float(bad[1]) if bad else 0.0
    error = re.search(r'"errors"\s{0,9}:\s{0,9}\[\s{0,9}"([^"]{1,200})', data)
    head.failure = (Place(file, data.count("\n", 0, error.start()) + 1), error[1]) if error else None
    return head


def _result(result: dict[str, Any], at: Place) -> Row | None:
    nbytes = _number(result.get("size"), float("nan"))
    root = _number(_text(result.get("root")).strip() or None, -1.0)
    parts = [_measured(result.get(name)) for name in ("out_of_place", "in_place")]
    return Row(at, nbytes, _text(result.get("type")), _text(result.get("redop")), root, *parts) if nbytes > 0 else None


def _measured(value: Any) -> Measured:
    part = value if isinstance(value, dict) else {}
    us = _number(part.get("time", part.get("cpu_time")))
    return Measured(us, *(_number(part.get(name)) for name in ("alg_bw", "bus_bw", "nwrong")))


def _number(value: Any, otherwise: float = float("nan")) -> float:
    """A number, also one in a string; `otherwise` for anything else.

    >>> _number("-1"), _number(None), _number(10**400, 0.0)
    (-1.0, nan, 0.0)
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return otherwise
    try:
        return float(value)
    except (ValueError, OverflowError):
        return otherwise


def _text(value: Any) -> str:
    return value[:300] if isinstance(value, str) else ""


def _ours(line: str) -> dict[str, Any] | None:
    """A row of ours, or None for any other line."""
    if not line.lstrip().startswith("{") or '"algorithm"' not in line:
        return None
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and all(name in row for name in OURS) else None


def ours(lines: Iterable[Line]) -> list[Table]:
    """The tables that rows of ours make: one for each collective, algorithm, back end, place and number of ranks."""
    heads: dict[tuple[str, ...], tuple[Head, list[Row]]] = {}
    for at, text in lines:
        row = _ours(text)
        key = _key(row) if row else ()
        if not row or (key not in heads and len(heads) >= MOST_TABLES):
            continue
        head, rows = heads.setdefault(key, (_our_head(at, row, key), []))
        if error := _text(row.get("error")):
            head.failure = head.failure or (at, error.splitlines()[0])
        elif len(rows) < MOST_ROWS:
            measured = Measured(*(_number(row.get(name)) for name in ("median_us", "algbw", "busbw", "wrong")))
            rows.append(Row(at, _number(row["bytes"], 0.0), "", "", None, measured))
    return [table for head, rows in heads.values() for table in tables_of(head, _sorted(rows))]


def _sorted(rows: list[Row]) -> list[Row]:
    """Rows by size, in sweeps: the second row of a size belongs to the second sweep."""
    seen: dict[float, int] = {}
    sweeps = []
    for row in rows:
        seen[row.nbytes] = seen.get(row.nbytes, -1) + 1
        sweeps.append((seen[row.nbytes], row.nbytes))
    return [rows[i] for i in sorted(range(len(rows)), key=sweeps.__getitem__)]


def _key(row: dict[str, Any]) -> tuple[str, ...]:
    return tuple(str(row.get(name))[:100] for name in (*OURS[:5], "dtype", "op"))


def _our_head(at: Place, row: dict[str, Any], key: tuple[str, ...]) -> Head:
    collective, algorithm, backend, where = key[:4]
    ranks = _number(row["ranks"], 0.0)
    command = (
        f"collectives bench --collective {collective} --algorithm {algorithm} --backend {backend} --ranks {key[4]}"
    )
    return Head(
        at,
        name=collective if collective in CONTRACTS else "",
        program="collectives bench",
        label=f"{algorithm} by {backend} on {where}",
        command=f"{command} --where {where}",
        size=int(ranks) if 0 < ranks < MOST_RANKS else 0,
        is_whole=True,
    )
