"""A table of a benchmark, time by size, made from rows of text or JSON."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.core.contracts import CONTRACTS
from collectives_logs.finding import COLLECTIVES, collective_of, named
from collectives_logs.json_stream import Object, array_in, as_number, as_object, as_text
from collectives_logs.log import HEAD
from collectives_logs.sources import COLOURS, LogLine, Place, texts

Floats = NDArray[np.float64]

# What is kept at most: rows of a table, tables of all files, and ranks of a table.
MAX_ROWS, MAX_TABLES, MAX_RANKS = 1 << 12, 1 << 12, 1 << 16

# Sizes from 2^53 on are no whole numbers as floats.
MAX_SIZE, MAX_US = 1 << 53, 1e15

# What nccl-tests calls collectives, and which it calls otherwise than this library.
PROGRAM = "all_reduce|all_?gather|reduce_scatter|alltoall|broadcast|sendrecv|scatter|gather|reduce"
PERF = re.compile(rf"(?<!concluded: )(?<![A-Za-z0-9])({PROGRAM})_perf")

SEND = COLLECTIVES["sendrecv"]
NAMES = {"all_to_all": "alltoall", SEND: "sendrecv", "": "all_reduce"}

# How many hosts, or devices, a sentence names.
MAX_HOSTS = 2


class TableRow(NamedTuple):
    """A size's row; `values`: µs, GB/s (algbw, busbw), wrong elements, out of place, then in place.

    NaN for unknown.
    """

    at: Place
    nbytes: float
    dtype: str
    op: str  # "" or "none" for no reduction
    root: float  # -1 for none
    values: list[float]


@dataclass
class TableHead:
    """The facts of a table outside its rows."""

    at: Place
    name: str = ""  # of the collective, if it is certain
    # Its names in lines before, the last one first, or in the file's.
    hints: list[str] = field(default_factory=list)
    label: str = ""
    command: str = ""  # that measures it, if that is not nccl-tests
    size: int = 0  # ranks, if it is said otherwise than by naming them
    ranks: dict[int, tuple[str, str]] = field(default_factory=dict)  # host and device
    last: float = 0.0  # bytes of the largest size that was asked for
    is_whole: bool = False
    bad: int = 0  # values out of bounds
    failure: tuple[Place, str] | None = None


class BenchmarkTable(NamedTuple):
    """One sweep over sizes; arrays have one element a size, ascending, each once."""

    head: TableHead
    collective: str  # "" if nothing says which
    ranks: int  # 0 if nothing says how many
    hosts: tuple[str, ...]
    devices: tuple[str, ...]
    label: str  # type and reduction, or algorithm and back end
    factor: float  # busbw / algbw
    nbytes: Floats
    times: Floats  # seconds of shape (2, sizes): out of place and in place; or (1, sizes)
    wrong: Floats  # elements; 0 where nothing was checked
    places: tuple[Place, ...]

    @property
    def busbw(self) -> Floats:
        """Bus bandwidth in GB/s, out of place.

        The printed one has two digits after the point; this one has all.
        """
        return np.asarray(self.factor * self.nbytes / self.times[0] / 1e9)

    @property
    def title(self) -> str:
        """Return the collective and its hosts, as far as they are known."""
        on = f" on {named(self.hosts, MAX_HOSTS)}" if self.hosts else ""
        return f"{self.collective or 'a collective'}{on}"

    def again(self, first: float, last: float) -> str:
        """Return the command that measures these sizes again."""
        low, high = int(first), int(last)
        if self.head.command:
            return f"`{self.head.command} --bytes {low}{f' {high}' if high > low else ''} --repetitions 100`"
        program = NAMES.get(self.collective, self.collective)
        return f"`{program}_perf -b {low} -e {high} -f 2 -w 20 -n 100`"


def tables_of(head: TableHead, rows: Iterable[TableRow]) -> Iterator[BenchmarkTable]:
    """Yield the tables that rows make: a new one begins with another type, reduction or root, or where sizes fall.

    Rows without a time or a size are left out. Without rows, there is a table if sizes were asked
    for or a run failed.
    """
    some: list[TableRow] = []
    for row in rows:
        us = row.values[0] if np.isfinite(row.values[0]) else row.values[4]
        if not (0 < row.nbytes < MAX_SIZE and 0 < us < MAX_US):
            continue
        if some and (row[2:5] != some[-1][2:5] or row.nbytes <= some[-1].nbytes):
            yield _table(head, some)
            some = []
        if len(some) < MAX_ROWS:
            some.append(row)
    if some or head.failure or head.last:
        yield _table(head, some)


def _table(head: TableHead, rows: list[TableRow]) -> BenchmarkTable:
    us, _, busbw, wrong = (
        np.array([row.values for row in rows]).reshape(-1, 2, 4).transpose(2, 1, 0)
    )
    nbytes = np.array([row.nbytes for row in rows])
    times = np.where(np.isfinite(us), us, us[::-1]) * 1e-6
    has_both = bool(np.all((us[1] > 0) & (us[1] < MAX_US)))
    ranks = max(max(head.ranks, default=-1) + 1, head.size)
    # Rates of at least three digits. Algbw is not always bytes over time: some versions print busbw
    # there.
    some = busbw[0] > 1
    ratio = (
        float(np.median(busbw[0, some] * us[0, some] * 1e3 / nbytes[some]))
        if some.any()
        else np.nan
    )
    collective = head.name or _collective(head.hints, rows, ranks, ratio)
    is_known = collective in CONTRACTS and ranks > 1
    return BenchmarkTable(
        head,
        collective,
        ranks,
        tuple(dict.fromkeys(host for host, _ in head.ranks.values())),
        tuple(dict.fromkeys(device for _, device in head.ranks.values())),
        head.label
        or (f"{rows[0].dtype} {rows[0].op}".removesuffix(" none").strip() if rows else ""),
        CONTRACTS[collective].factor(ranks) if is_known else ratio if np.isfinite(ratio) else 1.0,
        nbytes,
        times if has_both else times[:1],
        np.nansum(wrong, axis=0),
        tuple(row.at for row in rows),
    )


def _collective(hints: list[str], rows: list[TableRow], ranks: int, ratio: float) -> str:
    """Return the last name that was mentioned and agrees with the rows and the rates, or the only one that agrees."""
    if not np.isfinite(ratio) or ranks < 2:
        return hints[0] if hints else ""
    kind = (rows[0].op not in ("", "none"), rows[0].root >= 0)
    possible = []
    for name, contract in CONTRACTS.items():
        agrees = abs(contract.factor(ranks) / ratio - 1) < 0.02
        if agrees and (contract.reduces, contract.rooted) == kind:
            possible.append(name)
    for name in hints:
        if name == SEND or name in possible:
            return name
    return possible[0] if len(possible) == 1 else ""


# Processes whose lines a launcher marks: each may print a table of its own. And names of
# collectives before a table.
MAX_PROCESSES, MAX_HINTS = 1 << 12, 4

# mpirun --tag-output and srun --label say which process printed a line; mpirun may say it in the
# middle, too.
PROCESS = re.compile(r"\s{0,8}(?:\[\d{1,6},\d{1,6}\](?:<\w{1,8}>)?:?|\d{1,6}:(?= ))")
TAG = re.compile(r"\[\d{1,6},\d{1,6}\]<\w{1,8}>:")
# nccl-tests prints "nThread 1 nGpus 8 minBytes 8", and rccl-tests "nThreads: 1 nGpus: 8 nRanks: 1
# minBytes: 8".
CONFIG = re.compile(
    r"nThreads?:? \d{1,9} nGpus:? \d{1,9} (?:nRanks: \d{1,9} )?minBytes:? \d{1,19} maxBytes:? (\d{1,19}) "
)
RANK = re.compile(
    r"Rank\s{1,8}(\d{1,7})\b.{0,60}?\bon\s{1,20}(\S{1,253})\s{1,8}device\s{1,8}\d{1,4}\s{1,4}"
    r"\[[^\]]{0,40}\]\s{1,4}(\S.{0,99})"
)
TITLES = re.compile(r"size\s{1,40}count\s{1,40}type\b(?=.{0,120}?time\s{1,40}algbw\s{1,40}busbw)")
HEADING = re.compile(
    "|".join(["Collective test starting: ", CONFIG.pattern, RANK.pattern, TITLES.pattern])
)
BAD = re.compile(r"Out of bounds values\s{0,40}: (\d{1,18})")
LAST_LINE = re.compile(r"Avg bus bandwidth\s{0,40}: ")
FAILED = re.compile(r"Test (?:NCCL|CUDA|HIP) failure .{1,200}")
ROW = re.compile(
    r"(?<![\w.])(\d{1,19})[ \t]{1,40}\d{1,19}[ \t]{1,40}([a-z][a-z0-9_]{1,15})\b"
    r"(?:[ \t]{1,40}((?!nan|inf)[a-z]\w{1,11})\b)?"
)
VALUES = re.compile(
    r"(?:(?:^|[ \t]{1,40})(?:-?\d{1,20}(?:\.\d{1,20})?(?:e[-+]?\d{1,3})?|N/A|-?nan|-?inf))*"
)

# The columns of nccl-tests behind the type, for rows that were quoted without their titles.
COLUMNS_OF_ROWS = ["root", "time", "algbw", "busbw", "#wrong", "time", "algbw", "busbw", "#wrong"]
# How far a rate may be from size over time: a part of it, and the hundredths that it is printed
# with.
MOST_OFF, ROUNDED = 0.05, 0.01

# A row that was cut goes on with at least a time and two rates.
LEAST_REST = 3


@dataclass
class PrintedTable:
    """A table as one process printed it: the columns after the type, and rows with all their numbers as values."""

    head: TableHead
    titles: list[str] = field(default_factory=list)
    rows: list[TableRow] = field(default_factory=list)


def has_table(start: bytes) -> bool:
    """Return True if a text that begins so has a table of nccl-tests, or its first lines, or why there is none.

    >>> has_table(b"host: Test NCCL failure common.cu:961 'internal error'"), has_table(b"Test failure")
    (True, False)
    """
    text = COLOURS.sub("", start.decode("utf8", "replace"))
    has_head = any(pattern.search(text) for pattern in (CONFIG, TITLES, FAILED))
    return has_head or any(_titles_of(line) for line in text.splitlines())


def printed_tables(lines: Iterable[LogLine], hints: list[str]) -> Iterator[BenchmarkTable]:
    """Yield the tables in these lines of one file; `hints`: collectives that the file's name has.

    >>> from collectives_logs.sources import numbered
    >>> text = ["# size count type redop root time algbw busbw #wrong", "1024 256 float sum -1 20.0 0.05 0.05 0"]
    >>> [(table.collective, len(table.nbytes)) for table in printed_tables(numbered(text, "a.log"), ["all_reduce"])]
    [('all_reduce', 1)]
    """
    processes: dict[str, PrintedTable] = {}
    for at, text in lines:
        found = PROCESS.match(text)
        process, start = (found[0].strip(), found.end()) if found else ("", 0)
        if process not in processes and len(processes) >= MAX_PROCESSES:
            continue
        begun = processes.get(process) or PrintedTable(TableHead(at, hints=hints))
        if (begun.titles or begun.head.failure) and (begun.head.is_whole or HEADING.search(text)):
            yield from _made(begun)
            begun = PrintedTable(TableHead(at, hints=hints))
        _read(begun, at, TAG.sub(" ", text[start:]))
        processes[process] = begun
    for begun in processes.values():
        yield from _made(begun)


def _read(begun: PrintedTable, at: Place, text: str) -> None:
    """Read a line: of a table's head, its titles, or what is below them."""
    head = begun.head
    if "_perf" in text:
        mentioned = [collective_of(name) for name in reversed(PERF.findall(text))]
        head.hints = (mentioned + head.hints)[:MAX_HINTS]
    config, rank, titles = CONFIG.search(text), RANK.search(text), TITLES.search(text)
    if config:
        head.at, head.last = at, float(config[1])
    elif rank:
        if int(rank[1]) < MAX_RANKS:
            head.ranks[int(rank[1])] = (rank[2], rank[3].strip())
    elif titles:
        head.at = head.at if head.last else at
        behind = text[titles.end() :].split()
        begun.titles = [title for title in behind if title not in ("redop", "timestamp")]
    else:
        _read_below(begun, at, text)


def _read_below(begun: PrintedTable, at: Place, text: str) -> None:
    """Read why a run failed, or a line below the titles, which may be left out."""
    failed = FAILED.search(text)
    if failed:
        begun.head.failure = begun.head.failure or (at, failed[0])
        return
    begun.titles = begun.titles or _titles_of(text)
    if begun.titles:
        _below_titles(begun, at, _alone(begun.head, text))


def _titles_of(text: str) -> list[str]:
    """Return the titles that a row has by its numbers alone: all are there, and algbw is size over time.

    >>> _titles_of("1048576 262144 float sum -1 105.9 9.90 17.33 0 106.0 9.89 17.31 0")[:4], _titles_of("8 2 float 1")
    (['root', 'time', 'algbw', 'busbw'], [])
    """
    found = ROW.search(text)
    values = _values(text, found.end()) if found else []
    if found is None or len(values) != len(COLUMNS_OF_ROWS) or not values[1] > 0:
        return []
    rate, algbw = float(found[1]) / values[1] / 1e3, values[2]
    return COLUMNS_OF_ROWS if abs(rate - algbw) <= MOST_OFF * algbw + ROUNDED else []


def _below_titles(begun: PrintedTable, at: Place, text: str) -> None:
    """Read a row, the rest of one, or what follows the last one."""
    bad, row = BAD.search(text), ROW.search(text)
    if bad:
        begun.head.bad = int(bad[1])
    elif LAST_LINE.search(text):
        begun.head.is_whole = True
    elif row:
        values = _values(text, row.end())
        if len(begun.rows) < MAX_ROWS:
            begun.rows.append(TableRow(at, float(row[1]), row[2], row[3] or "", -1.0, values))
    elif begun.rows and len(begun.rows[-1].values) < len(begun.titles):
        rest = _values(text)
        if len(rest) >= LEAST_REST:
            begun.rows[-1].values.extend(rest)


def _alone(head: TableHead, text: str) -> str:
    """Return a row without the line of NCCL that begins inside it, with a host such as 38dcf168f605."""
    other = HEAD.search(text)
    if not other or not other["host"]:
        return text
    host = other["host"]
    for known, _ in head.ranks.values():
        if host.endswith(known):  # what stands before it is the row's
            host = known
            break
    return text[: other.end("host") - len(host)]


def _values(text: str, start: int = 0) -> list[float]:
    """Return the numbers from here on; N/A is NaN.

    >>> _values(" -1  12.5 N/A 0host: x")
    [-1.0, 12.5, nan, 0.0]
    """
    found = VALUES.match(text, start)
    return [float(value.replace("N/A", "nan")) for value in found[0].split()] if found else []


def _made(begun: PrintedTable) -> Iterator[BenchmarkTable]:
    """Yield the tables that were printed, from the rows of which at least one part is whole."""
    titles = begun.titles
    if not titles:
        begun.head.last = 0.0
    # In older versions the fourth column of a part, `error`, holds a difference, not a count.
    kept = 4 if "#wrong" in titles else 3
    starts = [i for i, title in enumerate(titles) if title.endswith("time")]
    starts += [len(titles), len(titles)]  # a part that is not there has no values
    rows = []
    for row in begun.rows:
        if len(row.values) < starts[0] + LEAST_REST:
            continue
        root = row.values[0] if titles[0] == "root" else -1.0
        values = []
        for start in starts[:2]:
            values += _four(row.values[start : start + kept])
        rows.append(row._replace(root=root, values=values))
    return tables_of(begun.head, rows)


def _four(values: list[float]) -> list[float]:
    """Return a part of a row: its first four values, NaN for those that it lacks."""
    lacking = 4 - len(values)
    return values[:4] + [float("nan")] * lacking


# Before the first row there may be lines of a launcher. A row of 10,000 samples takes 100 KB.
MAX_LINES_BEFORE, MAX_ROW_BYTES = 100, 1 << 20

REPORT = re.compile(r'\s{0,100}\{\s{0,100}"version"\s{0,9}:\s{0,9}\d')
RESULTS = re.compile(r'"results"\s{0,9}:\s{0,9}\[')

# What a row of ours has, if it was measured or failed, and one of rccl-tests.
OURS = {"collective", "algorithm", "backend", "where", "ranks", "bytes", "samples"}
THEIRS = {"name", "size", "inPlace", "time", "algBw"}

# A part's values, by the names that they have.
TIMES, ALGBW, BUSBW = (
    ("time", "cpu_time", "median_us"),
    ("alg_bw", "algBw", "algbw"),
    ("bus_bw", "busBw", "busbw"),
)
COLUMNS = (TIMES, ALGBW, BUSBW, ("nwrong", "#wrong", "wrong"))


def is_report(start: bytes) -> bool:
    """Return True if a file that begins so is a JSON report of nccl-tests."""
    return REPORT.match(start.decode("utf8", "replace")) is not None and b'"nccl_version"' in start


def has_rows(start: bytes) -> bool:
    """Return True if a file that begins so has a row of rccl-tests or ours among its first lines."""
    lines = start.decode("utf8", "replace").splitlines()[:MAX_LINES_BEFORE]
    return any(_record(line) for line in lines)


def report_tables(path: Path, hints: list[str]) -> Iterator[BenchmarkTable]:
    """Return the tables of a report, which is one line; if it was cut, of the results before.

    Raises OSError.
    """
    before, results = array_in(path, RESULTS)
    config, at = as_object(before.get("config")), Place(str(path), 1)
    given = config.get("devices")
    devices = []
    if isinstance(given, list):
        devices = [as_object(device) for device in given[:MAX_RANKS]]
    names = {}
    for rank, device in enumerate(devices):
        names[rank] = as_text(device.get("hostname")), as_text(device.get("device_info"))
    # Of each process the report names the first device only.
    of_process = as_number(config.get("nthreads")) * as_number(config.get("ngpus"))
    mentioned = [collective_of(name) for name in PERF.findall(str(before.get("args")))]
    head = TableHead(
        at,
        hints=mentioned + hints,
        size=_ranks(len(devices) * of_process),
        ranks=names,
        last=as_number(config.get("maximum_bytes"), 0.0),
        is_whole='"average_bus_bandwidth"' in "".join(deque(texts(path), maxlen=2)),
    )
    rows = (
        _row(at, result, [result.get("out_of_place"), result.get("in_place")])
        for result in results
        if result
    )
    return tables_of(head, islice(rows, MAX_ROWS))


def row_tables(lines: Iterable[LogLine]) -> Iterator[BenchmarkTable]:
    """Yield the tables that rows make: one for each collective, number of ranks, type, reduction and sweep.

    >>> from collectives_logs.sources import numbered
    >>> row = '{"name": "AllReduce", "gpus": 4, "size": 8, "inPlace": 0, "time": 9, "algBw": 1}'
    >>> [(table.collective, table.ranks, table.nbytes.tolist()) for table in row_tables(numbered([row], "a.jsonl"))]
    [('all_reduce', 4, [8.0])]
    """
    tables: dict[tuple[str | int, ...], tuple[TableHead, list[TableRow]]] = {}
    for at, text in lines:
        record = _record(text)
        if not record:
            continue
        head, row = _head(at, record), _row(at, record, [record])
        key = (head.name, head.label, head.size, row.dtype, row.op)
        if key not in tables and len(tables) >= MAX_TABLES:
            continue
        head, alike = tables.setdefault(key, (head, []))
        error = as_text(record.get("error"))
        if error:
            head.failure = head.failure or (at, error)
        elif record.get("inPlace") and alike and alike[-1].nbytes == row.nbytes:
            alike[-1].values[4:] = row.values[:4]
        elif len(alike) < MAX_ROWS:
            alike.append(row)
    for head, alike in tables.values():
        for sweep in _sweeps(alike):
            yield from tables_of(head, sweep)


def _record(line: str) -> Object:
    """Return a row of rccl-tests or ours, or nothing for any other line."""
    if not line.lstrip().startswith("{"):
        return {}
    try:
        record = as_object(json.loads(line))
    except (ValueError, RecursionError):
        return {}
    return record if record.keys() >= OURS or record.keys() >= THEIRS else {}


def _head(at: Place, record: Object) -> TableHead:
    """Return what a row says of its table."""
    name = collective_of(as_text(_first(record, "name", "collective")))
    if name not in CONTRACTS and name != SEND:
        name = ""
    head = TableHead(at, name, size=_ranks(as_number(_first(record, "gpus", "ranks"))))
    if "algorithm" in record:
        algorithm = str(record["algorithm"])[:100]
        backend = str(record["backend"])[:100]
        where = str(record["where"])[:100]
        head.label = f"{algorithm} by {backend} on {where}"
        head.command = f"collectives bench {name} {algorithm} -p {head.size}"
        head.command += f" --backend {backend} --where {where}"
    return head


def _row(at: Place, record: Object, parts: Iterable[Any]) -> TableRow:
    """Return a row of two parts, or of one."""
    values: list[float] = []
    for part in parts:
        given = as_object(part)
        values += [as_number(_first(given, *names)) for names in COLUMNS]
    values += [float("nan")] * 4
    return TableRow(
        at,
        as_number(_first(record, "size", "bytes")),
        as_text(_first(record, "type", "dtype")),
        as_text(_first(record, "redop", "op")),
        as_number(record.get("root"), -1.0),
        values[:8],
    )


def _sweeps(rows: list[TableRow]) -> list[list[TableRow]]:
    """Sort rows into sweeps: the second row of a size belongs to the second sweep."""
    sizes: dict[float, list[TableRow]] = {}
    for row in rows:
        sizes.setdefault(row.nbytes, []).append(row)
    sweeps: list[list[TableRow]] = [[]]
    for _, alike in sorted(sizes.items()):
        for nth, row in enumerate(alike):
            if nth == len(sweeps):
                sweeps.append([])
            sweeps[nth].append(row)
    return sweeps


def _first(record: Object, *names: str) -> Any:
    """Return the value by the first of these names that it has."""
    return next((record[name] for name in names if name in record), None)


def _ranks(number: float) -> int:
    """Return a number of ranks; 0 for none."""
    return int(number) if 0 < number < MAX_RANKS else 0
