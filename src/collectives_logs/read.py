"""Files of a job, also in folders and archives, recognised by their content, and the findings in them."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, NamedTuple, cast

from collectives_logs import benchmarks, flight, flight_dump, inspector, kineto, nccl, nccl_findings, ras
from collectives_logs.finding import MAX_NAMED, Finding, LogError, lines_of
from collectives_logs.json_stream import plain

# How much of a file decides what it is.
START = 1 << 20

# Files of a folder or an archive, and bytes that an archive may unpack.
MAX_FILES, MAX_UNPACKED = 1 << 14, 1 << 30
ZIP = (b"PK\x03\x04", b"PK\x05\x06")


class FileKind(NamedTuple):
    """A kind of file: its name, whether a file begins so, and the findings in files of it."""

    name: str
    begins: Callable[[bytes], bool]
    findings: Callable[[Sequence[Path]], Iterator[Finding]]


KINDS = (
    FileKind("flight recorder", flight_dump.begins, flight.findings_of),
    FileKind("NCCL RAS", ras.begins, ras.findings_of),
    FileKind("NCCL log", nccl.begins, nccl_findings.findings_of),
    FileKind("NCCL Inspector", inspector.begins, inspector.findings_of),
    FileKind("benchmark", benchmarks.begins, benchmarks.findings_of),
    FileKind("profiler trace", kineto.begins, kineto.findings_of),
)


@dataclass(frozen=True)
class ArchivedFile:
    """A file in an archive, which is read there, as far as the readers use a path."""

    archive: zipfile.ZipFile
    info: zipfile.ZipInfo

    def __str__(self) -> str:
        return f"{self.archive.filename}/{self.info.filename}"

    @property
    def name(self) -> str:
        """Return the last part of the path."""
        return self.info.filename.rpartition("/")[2]

    def open(self, _mode: str = "rb") -> IO[bytes]:
        """Return the unpacked bytes as a stream. Raises OSError for a file that is encrypted or packed otherwise."""
        if self.info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # LZMA takes any memory
            raise OSError(0, "got another compression, expected deflate or none")
        try:
            return self.archive.open(self.info)
        except (zipfile.BadZipFile, RuntimeError) as error:
            raise OSError(0, str(error)) from None


def inside(path: Path, archives: ExitStack) -> list[Path] | None:
    """Return the files in a folder or an archive; None for a file. Raises LogError for what is none, and OSError."""
    if getattr(path, "archive", None):  # an archive in an archive is a file of an unknown kind
        return None
    if path.is_dir():
        found = [*islice(filter(Path.is_file, path.rglob("*")), MAX_FILES + 1)]
        nbytes = 0
    elif path.exists() and not path.is_file():  # opening a pipe would wait for a writer
        raise LogError(f"cannot read {path}: got a pipe or device, expected a file or folder")
    else:
        with path.open("rb") as file:
            if file.read(4) not in ZIP:
                return None
        try:
            archive = archives.enter_context(zipfile.ZipFile(path))
        except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
            raise LogError(f"cannot read {path}: {error}") from None
        infos = [info for info in archive.infolist() if not info.filename.endswith("/")]
        found, nbytes = (
            cast(list[Path], [ArchivedFile(archive, info) for info in infos]),
            sum(i.file_size for i in infos),
        )
    if len(found) > MAX_FILES or nbytes > MAX_UNPACKED:
        most = f"{MAX_FILES:,} files, or {MAX_UNPACKED:,} bytes unpacked"
        raise LogError(f"{path}: got more than {most}, expected the files of one job")
    return sorted(found, key=str)


def kinds_of(path: Path) -> list[FileKind]:
    """Return the kinds that recognise a file's content; a log may contain a table, too.

    Raises OSError, and LogError if no kind recognises it.
    """
    with path.open("rb") as file:
        start = plain(file.read(START))
    if found := [kind for kind in KINDS if kind.begins(start)]:
        return found
    is_text = b"\0" not in start
    if is_text and any(nccl.is_own(text) for _, text in lines_of([path])):  # a hang is at the end of a long log
        return [kind for kind in KINDS if kind.begins is nccl.begins]
    expected = ", ".join(kind.name for kind in KINDS)
    raise LogError(f"{path}: got {len(start):,} bytes of an unknown kind, expected one of: {expected}")


def read(paths: Sequence[Path]) -> Iterator[tuple[str, Finding]]:
    """Yield the findings in these files, with the name of their kind; files of one kind are one job's, read together.

    Nothing in a file is executed, and nothing of an archive is written. A file that cannot be read or is of no known
    kind is named in a finding, and the others are read. Raises LogError if there is no other.
    """
    kinds: dict[Path, list[FileKind]] = {}
    refused, todo = [], [*reversed(paths)]
    with ExitStack() as archives:
        while todo:
            path = todo.pop()
            try:
                if (found := inside(path, archives)) is None:
                    kinds[path] = kinds_of(path)
                else:
                    todo += reversed(found)
            except LogError as error:
                refused.append(str(error))
            except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
                refused.append(f"cannot read {path}: {getattr(error, 'strerror', error)}")
        present = [kind for kind in KINDS if any(kind in some for some in kinds.values())]
        if not present:
            raise LogError(refused[0] if refused else f"{paths[0]}: got a folder without a file, expected one")
        if len(refused) > MAX_NAMED:
            refused[MAX_NAMED:] = [f"{len(refused) - MAX_NAMED:,} more files"]
        yield from (("files", Finding("unreadable", message)) for message in refused)
        for kind in present:
            alike = [path for path, some in kinds.items() if kind in some]
            try:
                yield from ((kind.name, found) for found in kind.findings(alike))
            except (LogError, OSError) as error:
                if len(present) == 1 and not refused:
                    raise LogError(str(error)) from None
                yield kind.name, Finding("unreadable", str(error))
