"""Findings with their sentences and places; lines of files; and what reads lines by their forms.

`advice.toml` has the sentences of every kind of finding.
"""

from __future__ import annotations

import gzip
import re
import tomllib
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import resources
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar, cast
from zipfile import BadZipFile

from collectives.units import runs

if TYPE_CHECKING:
    from collectives.figures.style import Picture

    Draw = Callable[[], Picture | None]  # a picture of a finding, or None if there is too much to draw

# A line is cut after this many bytes: the trees of 32 channels take 2 KB.
MAX_LINE = 1 << 16

# How many of a kind one finding names.
MAX_NAMED = 8

GZIP = b"\x1f\x8b"
COLOURS = re.compile(r"\x1b\[[\d;]*m")


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


def places(files: Iterable[str]) -> tuple[Place, ...]:
    """Return the first few of these files, each once."""
    return tuple(Place(file) for file in dict.fromkeys(files))[:MAX_NAMED]


class Finding(NamedTuple):
    """A sentence each: what the files say, what follows (or ""), what to try next (or ""); and their places."""

    kind: str
    found: str
    follows: str = ""
    next: str = ""
    at: tuple[Place, ...] = ()
    draw: Draw | None = None


ADVICE: dict[str, dict[str, str]] = tomllib.loads(
    (resources.files(__package__) / "advice.toml").read_text(encoding="utf8")
)


def finding(key: str, *at: Place, **values: object) -> Finding:
    """Return the finding of a row of `advice.toml`, with values in its sentences, and the first few places.

    >>> finding("nccl.crossings", Place("job.log", 3), channel=0, times=4, least=2).found
    'the ring of channel 0 leaves a node 4 times, and 2 would do'
    """
    row = ADVICE[key]
    found, follows, advice = (
        row.get(name, default).format(**values)
        for name, default in (("found", "{found}"), ("follows", ""), ("next", ""))
    )
    return Finding(row.get("kind", key.partition(".")[2]), found, follows, advice, at[:MAX_NAMED])


class LogLine(NamedTuple):
    """A line without its end, and its place."""

    at: Place
    text: str


def numbered(texts: Iterable[str], file: str) -> Iterator[LogLine]:
    """Return the lines of a file, counted from 1.

    >>> [str(line.at) for line in numbered(["a", "b"], "job.log")]
    ['job.log:1', 'job.log:2']
    """
    return (LogLine(Place(file, number), text) for number, text in enumerate(texts, start=1))


def lines_of(paths: Sequence[Path], longest: int = MAX_LINE) -> Iterator[LogLine]:
    """Yield the lines of files, plain or gzip, without colours and cut after `longest` bytes.

    Of a longer one with carriage returns the end is kept, too: it is what a progress bar and then an error wrote.

    Raises OSError.
    """
    for path in paths:
        yield from numbered(_texts(path, longest), str(path))


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file, plain or gzip, to be read in pieces; where compressed data are cut or broken the block ends.

    Raises OSError.
    """
    with path.open("rb") as raw, suppress(EOFError, zlib.error, gzip.BadGzipFile, BadZipFile):
        is_gzip = raw.read(2) == GZIP
        raw.seek(0)
        yield cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if is_gzip else raw


def _texts(path: Path, longest: int) -> Iterator[str]:
    with opened(path) as file:
        while data := file.readline(longest):
            kept, tail = data, b""
            while data and not data.endswith(b"\n"):
                data = file.readline(longest)
                tail = (tail + data)[-longest:]
            if b"\r" in tail:  # a progress bar writes for hours into one line, and the error is at its end
                kept += b"\r" + tail
            yield COLOURS.sub("", kept.decode("utf8", "replace")).rstrip("\r\n")


Method = TypeVar("Method", bound=Callable[..., object])
_PATTERNS: dict[Callable[..., object], re.Pattern[str]] = {}  # by the method that reads such a line


def reads(pattern: str | re.Pattern[str]) -> Callable[[Method], Method]:
    """Mark a method of a `LineReader`: it reads lines in which this pattern is found."""

    def mark(method: Method) -> Method:
        _PATTERNS[method] = re.compile(pattern)
        return method

    return mark


class LineReader:
    """A reader of lines that has a method for each form of a line; the first whose pattern is found takes the line."""

    forms: ClassVar[tuple[tuple[re.Pattern[str], Callable[..., object]], ...]]

    def __init_subclass__(cls) -> None:
        methods = [each for each in vars(cls).values() if callable(each)]
        cls.forms = tuple((_PATTERNS[each], each) for each in methods if each in _PATTERNS)

    def take(self, text: str, *where: Any) -> None:
        """Read a line, which stands at a place and may be a process's."""
        for pattern, method in self.forms:
            if found := pattern.search(text):
                method(self, found, *where)
                return


def named(names: Sequence[str], most: int = MAX_NAMED) -> str:
    """Return the first few of these names, and how many there are beside them.

    >>> named(["n1", "n2"]), named([str(i) for i in range(10)])
    ('n1, n2', '0, 1, 2, 3, 4, 5, 6, 7 and 2 more')
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def ranks(numbers: Iterable[int]) -> str:
    """Return ranks as text, consecutive ones as runs, many of them shortened.

    >>> ranks([5, 0, 1, 2]), ranks([4])
    ('ranks 0–2, 5', 'rank 4')
    """
    given = sorted(set(numbers))
    return f"rank{'' if len(given) == 1 else 's'} {named(runs(given).split(', '))}"


# The longer names first, because they have the shorter ones in them.
COLLECTIVES = {
    "allreduce": "all_reduce",
    "crossdevicereduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "barrier": "barrier",
    "sendrecv": "send and receive",
    "send": "send and receive",
    "recv": "send and receive",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
}


def collective_of(name: str) -> str:
    """Return the collective that c10d or NCCL calls so.

    >>> [collective_of(name) for name in ("_allgather_base", "ReduceScatter_Sum_f32_RING_LL", "nonsense")]
    ['all_gather', 'reduce_scatter', 'nonsense']
    """
    squeezed = re.sub(r"[^a-z]", "", name.lower())
    return next((known for key, known in COLLECTIVES.items() if key in squeezed), name[:60])
