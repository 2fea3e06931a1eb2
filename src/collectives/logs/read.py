"""Files of a job, recognised by their content, and the findings in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from collectives.logs import inspector
from collectives.logs.benchmarks import findings as benchmarks
from collectives.logs.finding import Finding, LogError, lines_of
from collectives.logs.flight import dump as flight_dump
from collectives.logs.flight import findings as flight
from collectives.logs.json_stream import plain
from collectives.logs.kineto import events as kineto_events
from collectives.logs.kineto import findings as kineto
from collectives.logs.nccl import findings as nccl
from collectives.logs.nccl import lines as nccl_lines
from collectives.logs.ras import findings as ras
from collectives.logs.ras import report as ras_report

# How much of a file decides what it is.
START = 1 << 20


class Kind(NamedTuple):
    """A kind of file: its name, whether a file begins so, and the findings in files of it."""

    name: str
    begins: Callable[[bytes], bool]
    findings: Callable[[Sequence[Path]], Iterator[Finding]]


KINDS = (
    Kind("flight recorder", flight_dump.begins, flight.findings_of),
    Kind("NCCL RAS", ras_report.begins, ras.findings_of),
    Kind("NCCL log", nccl_lines.begins, nccl.findings_of),
    Kind("NCCL Inspector", inspector.begins, inspector.findings_of),
    Kind("benchmark", benchmarks.begins, benchmarks.findings_of),
    Kind("profiler trace", kineto_events.begins, kineto.findings_of),
)


def kinds_of(path: Path) -> list[Kind]:
    """The kinds that recognise a file's content; a log may contain a table, too.

    Raises LogError if the file cannot be read or no kind recognises it.
    """
    if path.exists() and not path.is_file():  # opening a pipe would wait for a writer
        raise LogError(f"cannot read {path}: got a folder, pipe or device, expected a file")
    try:
        with path.open("rb") as file:
            start = plain(file.read(START))
    except OSError as error:
        raise LogError(f"cannot read {path}: {error.strerror}") from None
    if found := [kind for kind in KINDS if kind.begins(start)]:
        return found
    if any(nccl_lines.is_own(text) for _, text in lines_of([path])):  # a hang is at the end of a long log
        return [kind for kind in KINDS if kind.begins is nccl_lines.begins]
    expected = ", ".join(kind.name for kind in KINDS)
    raise LogError(f"{path}: got {len(start):,} bytes of an unknown kind, expected one of: {expected}")


def read(paths: Sequence[Path]) -> Iterator[tuple[str, Finding]]:
    """The findings in these files, with the name of their kind; files of one kind are one job's, and read together.

    Nothing in a file is executed. Raises LogError before the first finding if a file is of no known kind.
    """
    kinds = {path: kinds_of(path) for path in paths}
    for kind in KINDS:
        if alike := [path for path in kinds if kind in kinds[path]]:
            try:
                yield from ((kind.name, found) for found in kind.findings(alike))
            except LogError as error:
                if any(len(kinds[path]) == 1 for path in alike):
                    raise
                yield kind.name, Finding("unreadable", str(error))
