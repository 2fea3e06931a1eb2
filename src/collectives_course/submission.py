"""A submission: the files that a student has handed in, and the functions with which criteria.py checks them.

A student may change a folder while it is read. So a file is opened once, no link on the way to it
is followed, and what was read is all that is looked at from then on.
"""

import errno
import os
import stat
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives_course.sandbox import Limits, RankProcess, SandboxError
from collectives_course.verdict import (
    EndedError,
    Failed,
    Status,
    TimedOut,
    Ungraded,
    Verdict,
    printable,
)
from collectives_course.world import Network, RunResult, World

MAX_FILE = 1 << 20
MAX_RANKS = 16
MAX_MESSAGE = 4000  # characters
# A pipe that nobody writes to does not block.
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
REASONS = {
    errno.ELOOP: "is a symbolic link, expected a file",
    errno.ENOENT: "is missing in the submission",
    errno.ENOTDIR: "is behind a symbolic link or a file, expected folders",
    errno.ENXIO: "is a folder, a pipe or a device, expected a file",
}


class SubmissionError(ValueError):
    """A submission that cannot be graded: a file is missing, empty, too large, a link or not readable."""


@dataclass(frozen=True)
class HandedIn:
    """The files of a submission as they were read, or ``problem``, why they cannot be graded."""

    files: dict[str, bytes] = field(default_factory=dict)
    problem: str = ""


def submissions_in(folder: Path) -> list[Path]:
    """List the folders in a class's folder, by name, links too.

    Raises ValueError if there is none.
    """
    found = [each for each in _folders(folder) if not _is_skipped(each.name)]
    if not found:
        raise ValueError(
            f"submissions: got {folder}, expected a folder with a folder for each student"
        )
    return found


def skipped(folder: Path) -> list[str]:
    """List the names of folders that no student handed in: hidden ones, and what macOS puts into a zip."""
    return [each.name for each in _folders(folder) if _is_skipped(each.name)]


def _folders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return sorted(
                folder / each.name for each in entries if each.is_symlink() or each.is_dir()
            )
    except OSError as error:
        raise ValueError(
            f"submissions: got {folder}, expected a folder with a folder for each: {error.strerror}"
        ) from None


def _is_skipped(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"


def read_files(folder: Path, names: Iterable[str]) -> HandedIn:
    """Read the files of these names in a submission's folder, which is no link itself."""
    try:
        return HandedIn({name: _read(folder, name) for name in names})
    except SubmissionError as error:
        return HandedIn(problem=str(error))


def _read(folder: Path, name: str) -> bytes:
    try:
        with os.fdopen(_open(folder, name), "rb") as file:
            status = os.fstat(file.fileno())
            data = file.read(MAX_FILE + 1)
    except OSError as error:
        why = REASONS.get(error.errno or 0, f"cannot be read: {error.strerror}")
        raise SubmissionError(f"{name} {why}") from None
    size = max(status.st_size, len(data))
    if size > MAX_FILE:
        raise SubmissionError(f"{name} has {size:,} bytes, expected at most {MAX_FILE:,}")
    if not data.strip():
        raise SubmissionError(f"{name} is empty: begin with the starter's file")
    return data


def _open(folder: Path, name: str) -> int:
    """Open a regular file and return its descriptor. Raises OSError."""
    *folders, last = PurePath(name).parts
    inside = os.open(folder, READ | os.O_DIRECTORY)
    try:
        for each in folders:
            outside, inside = inside, os.open(each, READ | os.O_DIRECTORY, dir_fd=inside)
            os.close(outside)
        file = os.open(last, READ, dir_fd=inside)
    finally:
        os.close(inside)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
    return file


@dataclass
class Submission:
    """A submission as a check sees it: functions that run it, each rank in its own sandbox.

    ``variant`` has the numbers that the assignment's seed gives; ``file`` and those around it may
    show them. The data of tests come from ``random``, whose secret no rank sees: the same data for
    the same secret. ``limit``: the seconds that a rank may use in all calls together
    (`collectives_course.world`). After `close`, ``spent``, ``waited`` and ``called`` have the
    seconds that its ranks have used, have waited for a processor, and that all calls took.
    """

    folder: Path
    file: str
    variant: dict[str, Any]
    seed: int = 0
    limits: Limits = field(default_factory=Limits)
    limit: float = 5.0
    sandboxed: bool = True
    secret: str = ""

    def __post_init__(self) -> None:
        self.random = np.random.default_rng([self.number, 20])
        self._processes: list[RankProcess] = []
        self.spent = self.waited = self.called = 0.0

    @property
    def number(self) -> int:
        """Return the secret as a number, from which tests that need numbers of their own draw them."""
        return int(self.secret or "0", 16)

    def run(
        self,
        call: str,
        arguments: Sequence[Sequence[Any]],
        network: Network | None = None,
        world: type[World] = World,
        file: str = "",
        **more: Any,
    ) -> RunResult:
        """Call a function on as many ranks as there are lists of arguments.

        A Comm goes before the arguments.

        Raises an `EndedError` for a deadlock, an error or a rank that does not end. Run nothing
        more after that.
        """
        channels = [process.channel for process in self.ranks(len(arguments))]
        playing = world(
            channels,
            network or Network(),
            self.limit,
            file or self.file,
            self.limits.memory,
            **more,
        )
        return self._played(playing, call, [list(each) for each in arguments])

    def call(self, function: str, *arguments: Any, file: str = "") -> Any:
        """Call a function in one process, without a Comm, and return its value, a `Schedule` too."""
        (process,) = self.ranks(1)
        playing = World(
            [process.channel], Network(), self.limit, file or self.file, self.limits.memory
        )
        return self._played(playing, function, [list(arguments)], alone=True).values[0]

    def _played(
        self, playing: World, call: str, arguments: list[list[Any]], alone: bool = False
    ) -> RunResult:
        start = time.monotonic()
        try:
            return playing.run(call, arguments, alone)
        finally:
            self.called += time.monotonic() - start

    def ranks(self, p: int) -> list[RankProcess]:
        """Return the processes of the first p ranks, started when they are first needed."""
        if not 1 <= p <= MAX_RANKS:
            raise ValueError(f"ranks: got {p}, expected 1 to {MAX_RANKS}")
        old = len(self._processes)
        while len(self._processes) < p:
            self._processes.append(RankProcess(self.folder, self.limits, self.sandboxed))
        for process in self._processes[old:]:
            try:
                process.wait_until_ready()
            except EndedError as error:
                self._check_idle(old)
                raise SandboxError(f"the sandbox does not work: {error}") from None
        return self._processes[:p]

    def _check_idle(self, old: int) -> None:
        """Raise TimedOut if ranks that have returned compute all the same, which may keep others from starting."""
        for rank, process in enumerate(self._processes[:old]):
            process.channel.meter.look()
            self._check_time(f"rank {rank} computes after it has returned, and", process)

    def charge(self, seconds: float, what: str) -> None:
        """Count the grader's work on what the submission returned, such as a proof, as the submission's time."""
        (process,) = self.ranks(1)
        process.channel.meter.spent += seconds
        self._check_time(f"{what}: to make and to prove it", process)

    def _check_time(self, what: str, process: RankProcess) -> None:
        if process.channel.meter.spent > self.limit:
            raise TimedOut(f"{what} has used the {self.limit:g} s that a rank has for a criterion")

    def close(self) -> None:
        """End all processes, and add up what they have used."""
        for process in self._processes:
            self.spent += process.channel.meter.spent
            self.waited += process.channel.meter.waited
            process.kill()
        self._processes.clear()


@dataclass(frozen=True)
class Criterion:
    """``check`` raises `Failed` with a message that teaches, or returns.

    ``text`` is for the student.

    Any other error of a check is the grader's fault, and the criterion counts as not graded. A
    check therefore reads what the submission returned within `reading`, or looks at its type first.
    A dict that ``check`` returns is the details of a criterion that is passed.
    """

    name: str
    points: float
    text: str
    check: Callable[[Submission], dict[str, Any] | None]

    def judged(self, submission: Submission) -> Verdict:
        """Return the verdict on a submission, and close it.

        An error of the check that is no EndedError is the grader's fault.
        """
        start = time.monotonic()
        ended: EndedError | None = None
        details: dict[str, Any] = {}
        try:
            details = self.check(submission) or {}
        except EndedError as error:
            ended, details = error, error.details
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(last.filename).name}, line {last.lineno}"
            ended = Ungraded(
                f"not graded: grader's fault: {type(error).__name__} ({where}): {error}"
            )
        finally:
            submission.close()
        return self.verdict(ended, time.monotonic() - start, details)

    def verdict(
        self, ended: EndedError | None, seconds: float, details: dict[str, Any] | None = None
    ) -> Verdict:
        """Return the verdict that this criterion was met, or ended so."""
        status: Status = "passed"
        points, message = self.points, ""
        if ended is not None:
            status = ended.status
            points = round(self.points * ended.share, 2)
            message = printable(str(ended))[:MAX_MESSAGE]
        return Verdict(
            self.name, self.text, status, points, self.points, message, seconds, details or {}
        )


def drawn_case(submission: Submission, nth: int) -> tuple[int, int]:
    """Draw a number of ranks other than 4, and a length that it divides, for the nth criterion that counts or times.

    Each of five criteria in a row gets another number, so all of 3 and 5 to 8 come in every
    grading.
    """
    random = np.random.default_rng([submission.number, 21])
    ranks = random.permutation([3, 5, 6, 7, 8])
    lengths = 2 * random.integers(5, 150, len(ranks)) + 1
    p = int(ranks[nth % len(ranks)])
    return p, p * int(lengths[nth % len(ranks)])


def random_buffers(submission: Submission, p: int, n: int) -> list[NDArray[np.float64]]:
    """Draw n whole numbers for each rank, as float64: sums are exact in any order, and no two are equal."""
    values = submission.random.permutation(max(1, p * n) * 4)[: p * n].astype(np.float64)
    return list(values.reshape(p, n))


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Raise Failed for errors within, as the fault of the value that the submission returned.

    ``what`` names it.
    """
    try:
        yield
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise Failed(
            f"{what}: the value returned cannot be read: {type(error).__name__}: {error}"
        ) from None


def check_equal(
    result: RunResult, expected: Sequence[NDArray[Any]], what: str, argument: int = 0
) -> None:
    """Raise Failed unless this argument of every rank is as expected now.

    Names the first wrong rank and element.

    Whole numbers are compared exactly: of large ones the tolerance of floats would hide what
    rounding has lost.
    """
    for rank, (after, wanted) in enumerate(zip(result.arguments, expected, strict=True)):
        found = after[argument]
        if found is None or found.shape != wanted.shape:
            raise Failed(f"{what}: rank {rank} has {_shape(found)}, expected {_shape(wanted)}")
        is_float = "f" in found.dtype.kind + wanted.dtype.kind
        wrong = np.flatnonzero(
            ~np.isclose(found, wanted, rtol=1e-12, atol=0) if is_float else found != wanted
        )
        if wrong.size:
            raise Failed(f"{what}: rank {rank}, {_difference(found, wanted, wrong)}")


BOUNDS = ((0, 4), (3, 4), (10, 4), (12, 4), (103, 4), (5, 1), (10, 3), (4, 7), (43, 5))


def check_all_bounds(submission: Submission) -> None:
    """Raise Failed, with half of the points, unless ``bounds`` is right for many lengths and numbers of ranks."""
    random = np.random.default_rng([submission.number, 22])
    for n, p in (*BOUNDS, (int(random.integers(200, 900)), int(random.integers(9, 17)))):
        check_bounds(submission, n, p)


def check_bounds(submission: Submission, n: int, p: int) -> None:
    """Raise Failed, with half of the points, unless ``bounds(n, p)`` cuts n elements evenly, larger chunks first."""
    returned = submission.call("bounds", n, p)
    found = returned.tolist() if isinstance(returned, np.ndarray) else returned
    small, larger = divmod(n, p)
    wanted = [chunk * small + min(chunk, larger) for chunk in range(p + 1)]
    if (
        not isinstance(found, list)
        or not all(isinstance(each, int) for each in found)
        or found != wanted
    ):
        raise Failed(
            f"bounds({n}, {p}): got {returned!r:.80}, expected {wanted}: larger chunks first",
            share=0.5,
        )


def all_equal(result: RunResult, what: str, argument: int = 0) -> None:
    """Raise Failed unless this argument has the same bits on all ranks."""
    first = result.arguments[0][argument]
    for rank, after in enumerate(result.arguments):
        if after[argument].tobytes() != first.tobytes():
            wrong = np.flatnonzero(after[argument] != first)
            raise Failed(
                f"{what}: ranks 0 and {rank} differ, {_difference(after[argument], first, wrong)}"
            )


def _difference(found: NDArray[Any], wanted: NDArray[Any], wrong: NDArray[Any]) -> str:
    at = int(wrong[0]) if wrong.size else 0
    more = f"; {wrong.size} of {wanted.size} elements differ" if wrong.size > 1 else ""
    return f"element {at}: got {found.ravel()[at]}, expected {wanted.ravel()[at]}{more}"


def _shape(array: Any) -> str:
    return f"an array of shape {array.shape}" if array is not None else "no array"
