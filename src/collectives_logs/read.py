"""Files of a job, also in folders and archives, recognised by their content, and the findings in them."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, cast

from collectives_logs import benchmarks, flight, flight_dump, inspector, kineto, log_findings, ras
from collectives_logs.finding import MAX_NAMED, Finding
from collectives_logs.sources import Budget, LogError, LogFile, files_of, is_text, start_of


class FileKind(NamedTuple):
    """A kind of file: its name, whether a file begins so, and the findings in files of it."""

    name: str
    begins: Callable[[bytes], bool]
    findings: Callable[[Sequence[Path]], Iterator[Finding]]


# Any text is a log if it is nothing else; a benchmark's table may have a log around it.
LOG = FileKind("log", is_text, log_findings.findings_of)
BENCHMARK = FileKind("benchmark", benchmarks.begins, benchmarks.findings_of)
KINDS = (
    FileKind("flight recorder", flight_dump.begins, flight.findings_of),
    FileKind("NCCL RAS", ras.begins, ras.findings_of),
    LOG,
    FileKind("NCCL Inspector", inspector.begins, inspector.findings_of),
    BENCHMARK,
    FileKind("profiler trace", kineto.begins, kineto.findings_of),
)


def kinds_of(file: LogFile) -> list[FileKind]:
    """Return the kinds that recognise a file's content.

    Raises OSError, and LogError if none does.
    """
    start = start_of(cast(Path, file))
    if not start and str(file) in file.budget.cut:
        raise LogError(f"{file}: {_most(file.budget)}")
    kinds = [kind for kind in KINDS if kind is not LOG and kind.begins(start)]
    kinds += [LOG] if is_text(start) and kinds in ([], [BENCHMARK]) else []
    if not kinds:
        expected = ", ".join(kind.name for kind in KINDS)
        raise LogError(
            f"{file}: got {len(start):,} bytes of an unknown kind, expected one of: {expected}"
        )
    return kinds


def _most(budget: Budget) -> str:
    return f"got more than {budget.most:,} unpacked bytes in all files, expected fewer; the rest is left out"


def read(paths: Sequence[Path]) -> Iterator[tuple[str, Finding]]:
    """Yield the findings in these files, with the name of their kind.

    Files of one kind are one job's, read together.

    Nothing in a file is executed, and nothing of an archive is written. A file that cannot be read
    is named in a finding, and the others are read. Raises LogError if there is no other.
    """
    refused: list[str] = []
    budget = Budget()
    with ExitStack() as archives:
        kinds = _recognised(files_of(paths, archives, budget, refused), refused)
        present = [kind for kind in KINDS if any(kind in some for some in kinds.values())]
        if not present:
            nothing = f"{paths[0]}: got a folder without a file, expected one"
            raise LogError(refused[0] if refused else nothing)
        if len(refused) > MAX_NAMED:
            refused[MAX_NAMED:] = [f"{len(refused) - MAX_NAMED:,} more files"]
        yield from (("files", Finding("unreadable", message)) for message in refused)
        for kind in present:
            budget.spent, budget.cut = 0, set()
            try:
                yield from ((kind.name, one) for one in _findings(kind, kinds))
            except (LogError, OSError) as error:
                if len(present) == 1 and not refused:
                    raise LogError(str(error)) from None
                yield kind.name, Finding("unreadable", str(error))
            if budget.cut:
                yield kind.name, Finding("unreadable", f"{min(budget.cut)}: {_most(budget)}")


def _recognised(files: Iterable[LogFile], refused: list[str]) -> dict[LogFile, list[FileKind]]:
    """Return the kinds of each file that has one; `refused` says which have none."""
    kinds: dict[LogFile, list[FileKind]] = {}
    for file in files:
        try:
            kinds[file] = kinds_of(file)
        except LogError as error:
            refused.append(str(error))
        except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            refused.append(f"cannot read {file}: {getattr(error, 'strerror', error)}")
    return kinds


def _findings(kind: FileKind, kinds: dict[LogFile, list[FileKind]]) -> Iterable[Finding]:
    """Return the findings in the files of a kind, which are one job's."""
    found = kind.findings(cast(list[Path], [file for file, some in kinds.items() if kind in some]))
    return _beside_tables(found, kinds) if kind is LOG else found


def _beside_tables(found: Iterator[Finding], kinds: dict[LogFile, list[FileKind]]) -> list[Finding]:
    """Return what a log says; of a benchmark's output, which is a table, only what is wrong."""
    alone = {str(file) for file, some in kinds.items() if some == [LOG]}
    kept = [
        one for one in found if one.kind not in log_findings.LAST_WORDS or one.at[0].file in alone
    ]
    return kept if alone or len(kept) > 1 else []
