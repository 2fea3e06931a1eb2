"""What an assignment's criteria.py is written with: a criterion, the submission, data, and comparisons that teach."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives_course.messages import Network, RunResult
from collectives_course.process import RankProcess
from collectives_course.sandbox import Limits, SandboxError
from collectives_course.verdict import EndedError, Failed, TimedOut
from collectives_course.world import World

MOST_RANKS = 16


@dataclass
class Submission:
    """What a check sees of a submission: functions that run it, each rank in a sandbox of its own.

    ``variant`` has the numbers that the assignment's seed gives; ``file`` and those around it may show them. The data
    of tests come from ``random``, whose secret no rank sees: the same data for the same secret. ``limit``: the seconds
    that a rank may use in all calls together (`collectives_course.channel`).
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
        self.random = np.random.default_rng([int(self.secret or "0", 16), 20])
        self._processes: list[RankProcess] = []
        self.spent = 0.0

    def run(
        self,
        call: str,
        arguments: Sequence[Sequence[Any]],
        network: Network | None = None,
        world: type[World] = World,
        file: str = "",
        **more: Any,
    ) -> RunResult:
        """Call a function on as many ranks as there are lists of arguments; a Comm goes before the arguments.

        Raises an `EndedError` for a deadlock, an error or a rank that does not end. Run nothing more after that.
        """
        channels = [process.channel for process in self.ranks(len(arguments))]
        playing = world(channels, network or Network(), self.limit, file or self.file, self.limits.memory, **more)
        return playing.run(call, [list(each) for each in arguments])

    def call(self, function: str, *arguments: Any, file: str = "") -> Any:
        """Call a function in one process, without a Comm; returns its value, a `Schedule` too."""
        (process,) = self.ranks(1)
        playing = World([process.channel], Network(), self.limit, file or self.file, self.limits.memory)
        return playing.run(function, [list(arguments)], alone=True).values[0]

    def ranks(self, p: int) -> list[RankProcess]:
        """The processes of the first p ranks, started when they are first needed."""
        if not 1 <= p <= MOST_RANKS:
            raise ValueError(f"ranks: got {p}, expected 1 to {MOST_RANKS}")
        old = len(self._processes)
        while len(self._processes) < p:
            self._processes.append(RankProcess(self.folder, self.limits, self.sandboxed))
        for process in self._processes[old:]:
            try:
                process.need_ready()
            except EndedError as error:
                self._need_idle(old)
                raise SandboxError(f"the sandbox does not work: {error}") from None
        return self._processes[:p]

    def _need_idle(self, old: int) -> None:
        """Raise TimedOut if ranks that have returned compute all the same, which may keep others from starting."""
        for rank, process in enumerate(self._processes[:old]):
            process.channel.meter.look()
            self._need_time(f"rank {rank} computes after it has returned, and", process)

    def charge(self, seconds: float, what: str) -> None:
        """Count the grader's work on what the submission returned, such as a proof, as the submission's time."""
        (process,) = self.ranks(1)
        process.channel.meter.spent += seconds
        self._need_time(f"{what}: to make and to prove it", process)

    def _need_time(self, what: str, process: RankProcess) -> None:
        if process.channel.meter.spent > self.limit:
            raise TimedOut(f"{what} has used the {self.limit:g} s that a rank has for a criterion")

    def close(self) -> None:
        """End all processes. ``spent`` has then what they have used, in seconds."""
        for process in self._processes:
            self.spent += process.channel.meter.spent
            process.kill()
        self._processes.clear()


@dataclass(frozen=True)
class Criterion:
    """``check`` raises `Failed` with a message that teaches, or returns; ``text`` is for the student.

    Any other error of a check is the grader's fault, and the criterion counts as not graded. A check therefore reads
    what the submission returned within `reading`, or looks at its type first.
    A dict that ``check`` returns is the details of a criterion that is passed.
    """

    name: str
    points: float
    text: str
    check: Callable[[Submission], dict[str, Any] | None]


def random_buffers(submission: Submission, p: int, n: int) -> list[NDArray[np.float64]]:
    """A buffer of n whole numbers for each rank, as float64: sums are exact in any order, and no two are alike."""
    values = submission.random.permutation(max(1, p * n) * 4)[: p * n].astype(np.float64)
    return list(values.reshape(p, n))


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Within it an error is the fault of the value that the submission returned: raises Failed. ``what`` names it."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise Failed(f"{what}: the value returned cannot be read: {type(error).__name__}: {error}") from None


def need_equal(result: RunResult, expected: Sequence[NDArray[Any]], what: str, argument: int = 0) -> None:
    """Raise Failed unless this argument of every rank is as expected now; names the first wrong rank and element.

    Whole numbers are compared exactly: of large ones the tolerance of floats would hide what rounding has lost.
    """
    for rank, (after, wanted) in enumerate(zip(result.arguments, expected, strict=True)):
        found = after[argument]
        if found is None or found.shape != wanted.shape:
            raise Failed(f"{what}: rank {rank} has {_shape(found)}, expected {_shape(wanted)}")
        is_float = "f" in found.dtype.kind + wanted.dtype.kind
        wrong = np.flatnonzero(~np.isclose(found, wanted, rtol=1e-12, atol=0) if is_float else found != wanted)
        if wrong.size:
            raise Failed(f"{what}: rank {rank}, {_difference(found, wanted, wrong)}")


def need_bounds(submission: Submission, n: int, p: int) -> None:
    """Raise Failed, with half of the points, unless ``bounds(n, p)`` cuts n elements evenly, larger chunks first."""
    told = submission.call("bounds", n, p)
    found = told.tolist() if isinstance(told, np.ndarray) else told
    small, larger = divmod(n, p)
    wanted = [chunk * small + min(chunk, larger) for chunk in range(p + 1)]
    if not isinstance(found, list) or not all(isinstance(each, int) for each in found) or found != wanted:
        raise Failed(f"bounds({n}, {p}): got {told!r:.80}, expected {wanted}: larger chunks first", share=0.5)


def all_equal(result: RunResult, what: str, argument: int = 0) -> None:
    """Raise Failed unless this argument has the same bits on all ranks."""
    first = result.arguments[0][argument]
    for rank, after in enumerate(result.arguments):
        if after[argument].tobytes() != first.tobytes():
            wrong = np.flatnonzero(after[argument] != first)
            raise Failed(f"{what}: ranks 0 and {rank} differ, {_difference(after[argument], first, wrong)}")


def _difference(found: NDArray[Any], wanted: NDArray[Any], wrong: NDArray[Any]) -> str:
    at = int(wrong[0]) if wrong.size else 0
    more = f"; {wrong.size} of {wanted.size} elements differ" if wrong.size > 1 else ""
    return f"element {at}: got {found.ravel()[at]}, expected {wanted.ravel()[at]}{more}"


def _shape(array: Any) -> str:
    return f"an array of shape {array.shape}" if array is not None else "no array"
