"""Results of benchmarks as JSON: a report of nccl-tests (`-J`), rows of rccl-tests or `collectives bench --json`."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

from collectives.contracts import CONTRACTS
from collectives.logs.benchmarks.table import (
    MOST_RANKS,
    MOST_ROWS,
    MOST_TABLES,
    PERF,
    SEND,
    Head,
    Row,
    Table,
    tables_of,
)
from collectives.logs.finding import Line, Place
from collectives.logs.json_stream import Object, array_in, as_number, as_object, as_text, texts
from collectives.logs.names import collective_of

# Before the first row there may be lines of a launcher. A row of 10,000 samples takes 100 KB.
MOST_LINES_BEFORE, LONGEST_ROW = 100, 1 << 20

REPORT = re.compile(r'\s{0,100}\{\s{0,100}"version"\s{0,9}:\s{0,9}\d')
RESULTS = re.compile(r'"results"\s{0,9}:\s{0,9}\[')

# What a row of ours has, if it was measured or failed, and one of rccl-tests.
OURS = {"collective", "algorithm", "backend", "where", "ranks", "bytes", "samples"}
THEIRS = {"name", "size", "inPlace", "time", "algBw"}

# A part's values, by the names that they have.
TIMES, ALGBW, BUSBW = ("time", "cpu_time", "median_us"), ("alg_bw", "algBw", "algbw"), ("bus_bw", "busBw", "busbw")
VALUES = (TIMES, ALGBW, BUSBW, ("nwrong", "#wrong", "wrong"))


def is_report(start: bytes) -> bool:
    """Whether a file that begins so is a JSON report of nccl-tests."""
    return REPORT.match(start.decode("utf8", "replace")) is not None and b'"nccl_version"' in start


def has_rows(start: bytes) -> bool:
    """Whether a file that begins so has a row of rccl-tests or ours among its first lines."""
    lines = start.decode("utf8", "replace").splitlines()[:MOST_LINES_BEFORE]
    return any(_record(line) for line in lines)


def report(path: Path, hints: list[str]) -> Iterator[Table]:
    """The tables of a report, which is one line; if it was cut, of the results before. Raises OSError."""
    before, results = array_in(path, RESULTS)
    config, at = as_object(before.get("config")), Place(str(path), 1)
    devices = config.get("devices")
    devices = [as_object(each) for each in devices[:MOST_RANKS]] if isinstance(devices, list) else []
    head = Head(
        at,
        hints=[*map(collective_of, PERF.findall(str(before.get("args")))), *hints],
        # Of each process the report names the first device only.
        size=_ranks(len(devices) * as_number(config.get("nthreads")) * as_number(config.get("ngpus"))),
        ranks={i: (as_text(each.get("hostname")), as_text(each.get("device_info"))) for i, each in enumerate(devices)},
        last=as_number(config.get("maximum_bytes"), 0.0),
        is_whole='"average_bus_bandwidth"' in "".join(deque(texts(path), maxlen=2)),
    )
    rows = (_row(at, each, each.get("out_of_place"), each.get("in_place")) for each in results if each)
    return tables_of(head, islice(rows, MOST_ROWS))


def rows(lines: Iterable[Line]) -> Iterator[Table]:
    """The tables that rows make: one for each collective, number of ranks, type, reduction, and so on, and each sweep.

    >>> from collectives.logs.finding import numbered
    >>> row = '{"name": "AllReduce", "gpus": 4, "size": 8, "inPlace": 0, "time": 9, "algBw": 1}'
    >>> [(table.collective, table.ranks, table.nbytes.tolist()) for table in rows(numbered([row], "a.jsonl"))]
    [('all_reduce', 4, [8.0])]
    """
    tables: dict[tuple[str | int, ...], tuple[Head, list[Row]]] = {}
    for at, text in lines:
        if not (record := _record(text)):
            continue
        head, row = _head(at, record), _row(at, record, record)
        key = (head.name, head.label, head.size, row.dtype, row.op)
        if key not in tables and len(tables) >= MOST_TABLES:
            continue
        head, alike = tables.setdefault(key, (head, []))
        if error := as_text(record.get("error")):
            head.failure = head.failure or (at, error)
        elif record.get("inPlace") and alike and alike[-1].nbytes == row.nbytes:
            alike[-1].values[4:] = row.values[:4]
        elif len(alike) < MOST_ROWS:
            alike.append(row)
    for head, alike in tables.values():
        for sweep in _sweeps(alike):
            yield from tables_of(head, sweep)


def _record(line: str) -> Object:
    """A row of rccl-tests or ours, or nothing for any other line."""
    if not line.lstrip().startswith("{"):
        return {}
    try:
        record = as_object(json.loads(line))
    except (ValueError, RecursionError):
        return {}
    return record if record.keys() >= OURS or record.keys() >= THEIRS else {}


def _head(at: Place, record: Object) -> Head:
    name = collective_of(as_text(_first(record, "name", "collective")))
    name = name if name in (*CONTRACTS, SEND) else ""
    head = Head(at, name, size=_ranks(as_number(_first(record, "gpus", "ranks"))))
    if "algorithm" in record:
        algorithm, backend, where = (str(record[key])[:100] for key in ("algorithm", "backend", "where"))
        head.label = f"{algorithm} by {backend} on {where}"
        head.command = f"collectives bench --collective {name} --algorithm {algorithm} --backend {backend}"
        head.command += f" --ranks {head.size} --where {where}"
    return head


def _row(at: Place, record: Object, *parts: Any) -> Row:
    """A row of two parts, or of one."""
    values = [as_number(_first(as_object(part), *names)) for part in parts for names in VALUES]
    dtype, op = as_text(_first(record, "type", "dtype")), as_text(_first(record, "redop", "op"))
    nbytes, root = as_number(_first(record, "size", "bytes")), as_number(record.get("root"), -1.0)
    return Row(at, nbytes, dtype, op, root, (values + [float("nan")] * 4)[:8])


def _sweeps(rows: list[Row]) -> list[list[Row]]:
    """Rows by size: the second row of a size belongs to the second sweep."""
    sizes: dict[float, list[Row]] = {}
    for row in rows:
        sizes.setdefault(row.nbytes, []).append(row)
    sweeps = zip_longest(*(sizes[nbytes] for nbytes in sorted(sizes)))
    return [[row for row in sweep if row] for sweep in sweeps] or [[]]


def _first(record: Object, *names: str) -> Any:
    """The value by the first of these names that it has."""
    return next((record[name] for name in names if name in record), None)


def _ranks(number: float) -> int:
    """A number of ranks; 0 for none."""
    return int(number) if 0 < number < MOST_RANKS else 0
