"""Files of a job, plain or packed, also in folders and archives: their bytes within one budget, and their lines."""

from __future__ import annotations

import codecs
import gzip
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path
from typing import IO, Any, ClassVar, NamedTuple, TypeVar

# What is read at once, how much of a file says what it is, and where a line is cut.
CHUNK, START, MAX_LINE = 1 << 20, 1 << 20, 1 << 16

# Files of a folder or an archive; how much more than its packed bytes a call may unpack, or this
# much at least.
MAX_FILES, MAX_RATIO, MIN_UNPACKED = 1 << 14, 100, 1 << 26

# After so many bytes the rest of a file is left out.
MAX_BYTES = 1 << 35

GZIP, ZIP = b"\x1f\x8b", (b"PK\x03\x04", b"PK\x05\x06")
COLOURS = re.compile(r"\x1b\[[\d;]*[A-Za-z]")
CONTROL = re.compile("[\ufffd\x01-\x07\x0e-\x1a\x1c-\x1f]")
MOST_CONTROL = 0.02


class LogError(ValueError):
    """A file that cannot be read, or whose content is of an unknown kind."""


class Place(NamedTuple):
    """A line of a file; line 0 is the whole file.

    >>> str(Place("job.log", 7)), str(Place("dump_0"))
    ('job.log:7', 'dump_0')
    """

    file: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


class LogLine(NamedTuple):
    """A line without its end, and its place."""

    at: Place
    text: str


@dataclass
class Budget:
    """The bytes that all packed files of a call may still unpack, and the files that were not read to their ends."""

    packed: int = 0
    spent: int = 0
    cut: set[str] = field(default_factory=set)

    @property
    def most(self) -> int:
        """Return the bytes that may be unpacked altogether."""
        return max(MIN_UNPACKED, MAX_RATIO * self.packed)

    def take(self, data: bytes, name: str) -> bytes:
        """Return as much of these bytes as may still be unpacked."""
        left = max(0, self.most - self.spent)
        self.spent += len(data)
        if len(data) > left:
            self.cut.add(name)
        return data[:left]


class Unpacked:
    """A packed file's bytes, which end where the budget does."""

    def __init__(self, file: IO[bytes], budget: Budget, name: str) -> None:
        self.file, self.budget, self.name = file, budget, name

    def read(self, size: int) -> bytes:
        """Return the next bytes, as many as asked for if there are so many."""
        pieces: list[bytes] = []
        while size > 0 and (piece := self.read1(min(size, CHUNK))):
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def read1(self, size: int) -> bytes:
        """Return the next bytes, which may be fewer than asked for."""
        data = bytes(self.file.read1(size))  # type: ignore[attr-defined]  # both kinds of file have it
        return self.budget.take(data, self.name)


@dataclass(frozen=True, eq=False)
class LogFile:
    """A file of a call, on the disk or in an archive, as far as readers use a path."""

    path: Path
    budget: Budget
    archive: zipfile.ZipFile | None = None
    info: zipfile.ZipInfo | None = None

    def __str__(self) -> str:
        return f"{self.path}/{self.info.filename}" if self.info else str(self.path)

    @property
    def name(self) -> str:
        """Return the last part of the path."""
        return str(self).rpartition("/")[2]

    def open(self, _mode: str = "rb") -> IO[bytes]:
        """Return the bytes as they lie in the folder or the archive.

        Raises OSError, also for a file of an archive that is encrypted or packed otherwise.
        """
        if self.archive is None or self.info is None:
            return self.path.open("rb")
        if self.info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            # LZMA takes any memory.
            raise OSError(0, "got another compression, expected deflate or none")
        try:
            return self.archive.open(self.info)
        except (zipfile.BadZipFile, RuntimeError) as error:
            raise OSError(0, str(error)) from None


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Open a file, plain or gzip, to be read in pieces.

    Where compressed data are cut or broken the block ends.

    Raises OSError.
    """
    with (
        path.open("rb") as raw,
        suppress(EOFError, zlib.error, gzip.BadGzipFile, zipfile.BadZipFile),
    ):
        is_gzip = raw.read(2) == GZIP
        raw.seek(0)
        if not is_gzip and getattr(path, "archive", None) is None:
            yield raw
            return
        budget = getattr(path, "budget", None) or Budget(Path(path).stat().st_size)
        yield Unpacked(gzip.GzipFile(fileobj=raw) if is_gzip else raw, budget, str(path))  # type: ignore[arg-type]


def start_of(path: Path) -> bytes:
    """Return the first bytes of a file without its compression, as UTF-8 where it is UTF-16.

    Raises OSError.
    """
    start = b""
    with opened(path) as file:
        start = bytes(file.read(START))
    code = encoding(start)
    return start if code == "utf8" else start.decode(code, "replace").encode()


def encoding(start: bytes) -> str:
    """Return the encoding of a text that begins so: UTF-16 shows by its first bytes, or by a zero in each pair.

    >>> encoding("NCCL".encode("utf-16")), encoding("NCCL".encode("utf-16-be")), encoding(b"NCCL")
    ('utf-16', 'utf-16-be', 'utf8')
    """
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    first, second = start[: 1 << 12 : 2], start[1 : 1 << 12 : 2]
    for zeros, others, name in ((second, first, "utf-16-le"), (first, second, "utf-16-be")):
        if zeros and zeros.count(0) > 0.7 * len(zeros) and others.count(0) < 0.1 * len(others):
            return name
    return "utf8"


def is_text(start: bytes) -> bool:
    """Return True if a file that begins so is a text: its bytes are letters, but for zeros that a crash may leave.

    >>> is_text(b"loss 0.3"), is_text(bytes(9) + b"loss 0.3"), is_text(bytes(range(256))), is_text(b"")
    (True, True, False, False)
    """
    letters = (
        start[: 1 << 16]
        .replace(b"\0", b"")
        .decode("utf8", "ignore" if len(start) > 1 << 16 else "replace")
    )
    return bool(letters.strip()) and len(CONTROL.findall(letters)) <= 1 + MOST_CONTROL * len(
        letters
    )


def texts(path: Path) -> Iterator[str]:
    """Yield a file's text in pieces, without compression.

    A compressed file that is cut short gives what it has.

    Raises OSError.
    """
    left = MAX_BYTES
    with opened(path) as file:
        piece = file.read1(CHUNK)
        decoder = codecs.getincrementaldecoder(encoding(piece))("replace")
        while piece and left > 0:
            yield decoder.decode(piece)
            left -= len(piece)
            piece = file.read1(CHUNK)


def lines_of(paths: Sequence[Path], longest: int = MAX_LINE) -> Iterator[LogLine]:
    """Yield the lines of files, plain or gzip, without colours and cut after `longest` characters.

    Of a longer one with carriage returns the end is kept, too: it is what a progress bar and then
    an error wrote.

    Raises OSError.
    """
    for path in paths:
        yield from numbered(_cut_lines(texts(path), longest), str(path))


def numbered(lines: Iterable[str], file: str) -> Iterator[LogLine]:
    """Return the lines of a file, counted from 1.

    >>> [str(line.at) for line in numbered(["a", "b"], "job.log")]
    ['job.log:1', 'job.log:2']
    """
    return (LogLine(Place(file, number), text) for number, text in enumerate(lines, start=1))


def _cut_lines(pieces: Iterable[str], longest: int) -> Iterator[str]:
    begun = ""
    for piece in pieces:
        *whole, begun = (begun + piece).split("\n")
        yield from (_cut(line, longest) for line in whole)
        if len(begun) > 2 * longest:
            begun = begun[:longest] + begun[-longest:]
    if begun:
        yield _cut(begun, longest)


def _cut(line: str, longest: int) -> str:
    if len(line) > longest:
        tail = line[longest:][-longest:]
        line = line[:longest] + (f"\r{tail}" if "\r" in tail.rstrip("\r") else "")
    line = line.replace("\0", "") if "\0" in line else line
    return COLOURS.sub("", line).rstrip("\r") if "\x1b" in line else line.rstrip("\r")


def files_of(
    paths: Sequence[Path], archives: ExitStack, budget: Budget, refused: list[str]
) -> list[LogFile]:
    """Return the files that paths stand for: themselves, or those in folders and archives.

    `refused` says which not.
    """
    files: list[LogFile] = []
    for path in paths:
        found = [path]
        if path.is_dir():
            found = list(islice(filter(Path.is_file, path.rglob("*")), MAX_FILES + 1))
        here: list[LogFile] = []
        for each in sorted(found):
            try:
                here += _in_file(each, archives, budget)
            except LogError as error:
                refused.append(str(error))
            except OSError as error:
                refused.append(f"cannot read {each}: {error.strerror}")
        if len(found) > MAX_FILES or len(here) > MAX_FILES:
            refused.append(
                f"{path}: got more than {MAX_FILES:,} files, expected the files of one job"
            )
        else:
            files += sorted(here, key=str)
    return files


def _in_file(path: Path, archives: ExitStack, budget: Budget) -> list[LogFile]:
    if path.exists() and not path.is_file():  # opening a pipe would wait for a writer
        raise LogError(f"cannot read {path}: got a pipe or device, expected a file or folder")
    with path.open("rb") as file:
        is_archive = file.read(4) in ZIP
    budget.packed += path.stat().st_size
    if not is_archive:
        return [LogFile(path, budget)]
    try:
        archive = archives.enter_context(zipfile.ZipFile(path))
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise LogError(f"cannot read {path}: {error}") from None
    infos = [info for info in archive.infolist() if not info.filename.endswith("/")]
    begins = sorted((info.header_offset, info.compress_size) for info in infos)
    if any(begin + size > following for (begin, size), (following, _) in pairwise(begins)):
        raise LogError(
            f"cannot read {path}: got entries that share bytes, expected each to have its own"
        )
    return [LogFile(path, budget, archive, info) for info in infos]


Method = TypeVar("Method", bound=Callable[..., object])
_PATTERNS: dict[Callable[..., object], re.Pattern[str]] = {}  # by the method that reads such a line


def reads(pattern: str | re.Pattern[str]) -> Callable[[Method], Method]:
    """Mark a method of a `LineReader`: it reads lines in which this pattern is found."""

    def mark(method: Method) -> Method:
        _PATTERNS[method] = re.compile(pattern)
        return method

    return mark


class LineReader:
    """A reader that has a method for each form of a line.

    The first whose pattern is found takes the line.
    """

    forms: ClassVar[tuple[tuple[re.Pattern[str], Callable[..., object]], ...]]

    def __init_subclass__(cls) -> None:
        methods = [each for each in vars(cls).values() if callable(each)]
        cls.forms = tuple((_PATTERNS[each], each) for each in methods if each in _PATTERNS)

    def take(self, text: str, *where: Any) -> None:
        """Read a line, which stands at a place and may be a process's."""
        for pattern, method in self.forms:
            found = pattern.search(text)
            if found:
                method(self, found, *where)
                return
