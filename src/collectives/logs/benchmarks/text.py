"""Tables that nccl-tests and rccl-tests print, among lines of NCCL, launchers and anything else.

The columns are those that a table's own heading names. A row may be cut in two by lines of other programs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from collectives.logs.benchmarks.table import MOST_RANKS, MOST_ROWS, PERF, Head, Row, Table, tables_of
from collectives.logs.finding import COLOURS, Line, Place
from collectives.logs.names import collective_of
from collectives.logs.nccl.lines import HEAD

# Processes whose lines a launcher marks: each may print a table of its own. And names of collectives before a table.
MOST_PROCESSES, MOST_HINTS = 1 << 12, 4

# mpirun --tag-output and srun --label say which process printed a line; mpirun may say it in the middle, too.
PROCESS = re.compile(r"\s{0,8}(?:\[\d{1,6},\d{1,6}\](?:<\w{1,8}>)?:?|\d{1,6}:(?= ))")
TAG = re.compile(r"\[\d{1,6},\d{1,6}\]<\w{1,8}>:")
# nccl-tests prints "nThread 1 nGpus 8 minBytes 8", and rccl-tests "nThreads: 1 nGpus: 8 nRanks: 1 minBytes: 8".
CONFIG = re.compile(
    r"nThreads?:? \d{1,9} nGpus:? \d{1,9} (?:nRanks: \d{1,9} )?minBytes:? \d{1,19} maxBytes:? (\d{1,19}) "
)
RANK = re.compile(
    r"Rank\s{1,8}(\d{1,7})\b.{0,60}?\bon\s{1,20}(\S{1,253})\s{1,8}device\s{1,8}\d{1,4}\s{1,4}"
    r"\[[^\]]{0,40}\]\s{1,4}(\S.{0,99})"
)
TITLES = re.compile(r"size\s{1,40}count\s{1,40}type\b(?=.{0,120}?time\s{1,40}algbw\s{1,40}busbw)")
HEADING = re.compile("|".join(["Collective test starting: ", CONFIG.pattern, RANK.pattern, TITLES.pattern]))
BAD = re.compile(r"Out of bounds values\s{0,40}: (\d{1,18})")
END = re.compile(r"Avg bus bandwidth\s{0,40}: ")
FAILED = re.compile(r"Test (?:NCCL|CUDA|HIP) failure .{1,200}")
ROW = re.compile(
    r"(?<![\w.])(\d{1,19})[ \t]{1,40}\d{1,19}[ \t]{1,40}([a-z][a-z0-9_]{1,15})\b"
    r"(?:[ \t]{1,40}((?!nan|inf)[a-z]\w{1,11})\b)?"
)
VALUES = re.compile(r"(?:(?:^|[ \t]{1,40})(?:-?\d{1,20}(?:\.\d{1,20})?(?:e[-+]?\d{1,3})?|N/A|-?nan|-?inf))*")

# A row that was cut goes on with at least a time and two rates.
LEAST_REST = 3


@dataclass
class Begun:
    """What one process printed of a table: the columns after the type, and rows with all their numbers as values."""

    head: Head
    titles: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)


def begins(start: bytes) -> bool:
    """Whether a text that begins so has a table of nccl-tests, or its first lines, or why there is none.

    >>> begins(b"host: Test NCCL failure common.cu:961 'internal error'"), begins(b"Test failure")
    (True, False)
    """
    text = COLOURS.sub("", start.decode("utf8", "replace"))
    return any(pattern.search(text) for pattern in (CONFIG, TITLES, FAILED))


def tables(lines: Iterable[Line], hints: list[str]) -> Iterator[Table]:
    """The tables in these lines of one file; `hints`: collectives that the file's name has.

    >>> from collectives.logs.finding import numbered
    >>> text = ["# size count type redop root time algbw busbw #wrong", "1024 256 float sum -1 20.0 0.05 0.05 0"]
    >>> [(table.collective, len(table.nbytes)) for table in tables(numbered(text, "a.log"), ["all_reduce"])]
    [('all_reduce', 1)]
    """
    processes: dict[str, Begun] = {}
    for at, text in lines:
        found = PROCESS.match(text)
        process, start = (found[0].strip(), found.end()) if found else ("", 0)
        if process not in processes and len(processes) >= MOST_PROCESSES:
            continue
        begun = processes.get(process) or Begun(Head(at, hints=hints))
        if (begun.titles or begun.head.failure) and (begun.head.is_whole or HEADING.search(text)):
            yield from _made(begun)
            begun = Begun(Head(at, hints=hints))
        _read(begun, at, TAG.sub(" ", text[start:]))
        processes[process] = begun
    for begun in processes.values():
        yield from _made(begun)


def _read(begun: Begun, at: Place, text: str) -> None:
    head = begun.head
    if "_perf" in text:
        mentioned = [collective_of(name) for name in reversed(PERF.findall(text))]
        head.hints = [*mentioned, *head.hints][:MOST_HINTS]
    if found := CONFIG.search(text):
        head.at, head.last = at, float(found[1])
    elif found := RANK.search(text):
        if int(found[1]) < MOST_RANKS:
            head.ranks[int(found[1])] = (found[2], found[3].strip())
    elif found := TITLES.search(text):
        head.at = head.at if head.last else at
        begun.titles = [title for title in text[found.end() :].split() if title not in ("redop", "timestamp")]
    elif found := FAILED.search(text):
        head.failure = head.failure or (at, found[0])
    elif begun.titles:
        _below_titles(begun, at, _alone(head, text))


def _below_titles(begun: Begun, at: Place, text: str) -> None:
    """A row, the rest of one, or what follows the last one."""
    if found := BAD.search(text):
        begun.head.bad = int(found[1])
    elif END.search(text):
        begun.head.is_whole = True
    elif found := ROW.search(text):
        if len(begun.rows) < MOST_ROWS:
            begun.rows.append(Row(at, float(found[1]), found[2], found[3] or "", -1.0, _values(text, found.end())))
    elif begun.rows and len(begun.rows[-1].values) < len(begun.titles) and len(rest := _values(text)) >= LEAST_REST:
        begun.rows[-1].values.extend(rest)


def _alone(head: Head, text: str) -> str:
    """A row without the line of NCCL that begins inside it, with a host such as 38dcf168f605, as containers have."""
    if not (found := HEAD.search(text)) or not (whole := found["host"]):
        return text
    host = next((host for host, _ in head.ranks.values() if whole.endswith(host)), whole)
    return text[: found.end("host") - len(host)]


def _values(text: str, start: int = 0) -> list[float]:
    """The numbers from here on; N/A is NaN.

    >>> _values(" -1  12.5 N/A 0host: x")
    [-1.0, 12.5, nan, 0.0]
    """
    found = VALUES.match(text, start)
    return [float(value.replace("N/A", "nan")) for value in found[0].split()] if found else []


def _made(begun: Begun) -> Iterator[Table]:
    """The tables that were printed, from the rows of which at least one part is whole."""
    titles, rows = begun.titles, []
    if not titles:
        begun.head.last = 0.0
    # In older versions the fourth column of a part, `error`, holds a difference, not a count.
    kept = 4 if "#wrong" in titles else 3
    out, inside = [*(i for i, title in enumerate(titles) if title.endswith("time")), len(titles), len(titles)][:2]
    for row in begun.rows:
        if len(row.values) >= out + LEAST_REST:
            root = row.values[0] if titles[0] == "root" else -1.0
            parts = [(row.values[i : i + kept] + [float("nan")] * 4)[:4] for i in (out, inside)]
            rows.append(row._replace(root=root, values=[*parts[0], *parts[1]]))
    return tables_of(begun.head, rows)
