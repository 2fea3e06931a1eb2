"""A schedule: steps that say which rank sends which chunk to which other rank.

One letter per idea, here and everywhere else:

    p       ranks (the world size)                      4
    r       one rank                                    0 … p-1
    t       a step: what may happen at the same time    0 … nsteps-1
    k       chunks that the buffer is cut into          4
    c       one chunk                                   0 … k-1
    s       segments of a chunk, where an algorithm pipelines
    n       elements of the buffer (bytes, where a time is computed)

A schedule is data. It contains no tensor, no clock and no picture; other modules verify, draw,
count and run it. Steps are made on request and are vectorised over ranks, because a ring over
24,576 ranks has 1.2 billion messages.
"""

# Longer than other files: a schedule of your own imports steps, schedules and combinators from this
# one place.

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

# Up to this many (rank, chunk) cells, `reverse` proves its result when it is made. Beyond, only
# `verify` does.
PROVED_CELLS = 1 << 22


class ScheduleError(ValueError):
    """The schedule is invalid, or does not do what its collective promises."""


def column(values: ArrayLike, dtype: type = np.int64) -> NDArray[Any]:
    """Return the values as an immutable array, whose memory is a ``bytes`` object.

    A step keeps such an array, or a contiguous piece of it, without a copy. An algorithm whose
    steps share a column makes it once with this function. Raises ScheduleError for values that are
    no whole numbers, or of uneven length.

    >>> ranks = column(range(4))
    >>> step = Step(ranks[:2], ranks[2:], 0)
    >>> np.shares_memory(step.src, ranks)
    True
    """
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ScheduleError(f"a column of a step: {error}") from None
    if _is_immutable(array) and array.dtype.type is dtype and array.flags.c_contiguous:
        return array
    if array.size and dtype is np.int64 and array.dtype.kind not in "iu":
        raise ScheduleError(f"ranks, chunks and counts are whole numbers, not {array.dtype}")
    return np.frombuffer(array.astype(dtype, copy=False).tobytes(), dtype).reshape(array.shape)


def _is_immutable(array: NDArray[Any]) -> bool:
    """Tell if nobody can change the array: a read-only flag is not enough, because the memory's owner can lift it."""
    memory: Any = array
    while type(memory) is np.ndarray:
        memory = memory.base
    return type(memory) is bytes


@lru_cache(maxsize=64, typed=True)
def _filled(value: Any, length: int, dtype: type) -> NDArray[Any]:
    """Return a column of one value, the same array for the same value, so that steps that share it cost nothing."""
    return column(np.full(length, value), dtype)


class Messages(NamedTuple):
    """The messages of one step, in the order of their first rows.

    One entry for each in ``src``, ``dst`` and ``size``.

    Message ``i`` consists of the rows ``row[first[i]:first[i + 1]]``, in their order in the step.
    """

    src: Ints
    dst: Ints
    size: Ints
    row: Ints
    first: Ints

    def rows(self, i: int) -> Ints:
        """Return the rows of message ``i``."""
        return self.row[self.first[i] : self.first[i + 1]]


@dataclass(frozen=True, eq=False, init=False, slots=True)
class Step:
    """Messages that may be in flight at the same time: rows, kept as arrays of equal length.

    Row ``i`` moves ``count[i]`` consecutive chunks from ``chunk[i]`` on, from rank ``src[i]`` to
    rank ``dst[i]``. Where ``add[i]`` they are added to the destination's chunks; otherwise they
    replace them. All reads of a step come before its writes. Several rows for one pair of ranks are
    one message (`messages`).

    The step owns its columns (int64, and bool for ``add``; one axis, contiguous, read-only). If you
    change an array later, the step does not change. Raises ScheduleError if a column has values of
    another kind or another length. Cost: a copy of each column, except of one that `column` has
    made.

    A number fills a whole column:

    >>> Step(src=[0, 1], dst=[1, 0], chunk=0, add=True)
    Step(0->1:+0, 1->0:+0)
    """

    src: Ints
    dst: Ints
    chunk: Ints
    count: Ints
    add: Bools

    def __init__(
        self,
        src: ArrayLike,
        dst: ArrayLike,
        chunk: ArrayLike,
        count: ArrayLike = 1,
        add: ArrayLike = False,
    ) -> None:
        given = [
            *(_given(values, np.int64) for values in (src, dst, chunk, count)),
            _given(add, np.bool_),
        ]
        length = max(
            (len(each) for each in given if isinstance(each, np.ndarray) and each.ndim), default=1
        )
        for name, each in zip(Step.__slots__, given, strict=True):
            object.__setattr__(self, name, _broadcast_column(name, each, length))

    def __len__(self) -> int:
        return len(self.src)

    def __repr__(self) -> str:
        rows = zip(self.src, self.dst, self.chunk, self.count, self.add, strict=True)
        return f"Step({', '.join(f'{s}->{d}:{sign(a)}{run(c, m)}' for s, d, c, m, a in rows)})"

    def _reversed(self, add: bool) -> Step:
        """Return the same rows from receiver to sender.

        Its columns are this step's, so nothing is to be checked.
        """
        reversed_step = object.__new__(Step)
        columns = self.dst, self.src, self.chunk, self.count, _filled(add, len(self), np.bool_)
        for name, each in zip(Step.__slots__, columns, strict=True):
            object.__setattr__(reversed_step, name, each)
        return reversed_step

    def cells(self) -> tuple[Ints, Ints]:
        """Return every chunk that moves, one entry each: (its row, the chunk).

        >>> row, chunk = Step(src=[0, 2], dst=[1, 3], chunk=[0, 4], count=[2, 1]).cells()
        >>> row.tolist(), chunk.tolist()
        ([0, 0, 1], [0, 1, 4])
        """
        if (self.count == 1).all():
            return np.arange(len(self)), self.chunk
        row = np.repeat(np.arange(len(self)), self.count.astype(np.intp))
        first = np.cumsum(self.count) - self.count
        return row, self.chunk[row] + np.arange(len(row)) - first[row]

    def messages(self, edges: Ints | None = None) -> Messages:
        """Return the messages: all rows of one pair of ranks are one message, and an empty message is not sent.

        ``edges`` (k + 1 offsets, see `cut`) say where chunks begin and end; sizes have their unit.
        A row without elements is in no message. Without ``edges`` every chunk has size 1. Cost: a
        sort of the rows at most.

        >>> step = Step(src=[0, 2, 0, 1], dst=[1, 1, 1, 0], chunk=[0, 1, 2, 3])
        >>> sent = step.messages(cut(3, k=4))
        >>> sent.src.tolist(), sent.dst.tolist(), sent.size.tolist(), sent.rows(0).tolist()
        ([0, 2], [1, 1], [2, 1], [0, 2])
        """
        size = self.count if edges is None else edges[self.chunk + self.count] - edges[self.chunk]
        src, dst, row = self.src, self.dst, np.arange(len(self))
        if not size.all():
            row = np.flatnonzero(size)
            src, dst, size = src[row], dst[row], size[row]
        if _have_distinct_pairs(src, dst):
            return Messages(column(src), column(dst), size, row, np.arange(len(row) + 1))
        _, at, message = np.unique(_pairs(src, dst), return_index=True, return_inverse=True)
        # The first row of each row's message; the first rows of all messages.
        begin, at = at[message], np.sort(at)
        order = np.argsort(begin, kind="stable")
        first = np.append(np.searchsorted(begin[order], at), len(row))
        return Messages(
            column(src[at]),
            column(dst[at]),
            np.add.reduceat(size[order], first[:-1]),
            row[order],
            first,
        )


def _pairs(src: Ints, dst: Ints) -> Ints:
    """Return one number for each pair of ranks."""
    return src * (np.ptp(dst) + 1 if len(dst) else 1) + dst


# The last two columns that were asked about, and the answer. Steps of a ring share both; a column
# cannot change.
_asked: list[tuple[Any, Any, bool]] = [(None, None, True)]


def _have_distinct_pairs(src: Ints, dst: Ints) -> bool:
    """Return True if no two rows belong to one pair of ranks."""
    last_src, last_dst, answer = _asked[0]
    if last_src is src and last_dst is dst:
        return answer
    answer = _distinct(_pairs(src, dst))
    _asked[0] = src, dst, answer
    return answer


def _distinct(values: Ints) -> bool:
    if (values[1:] > values[:-1]).all():
        return True
    ordered = np.sort(values)
    return bool((ordered[1:] != ordered[:-1]).all())


def _given(values: ArrayLike, dtype: type) -> Any:
    """Return a number, which fills a whole column, or a column."""
    return values if isinstance(values, int | np.generic) else column(values, dtype)


def _broadcast_column(name: str, values: Any, length: int) -> NDArray[Any]:
    dtype = np.bool_ if name == "add" else np.int64
    if not isinstance(values, np.ndarray):
        return _filled(values, length, dtype)
    if values.shape == (length,):
        return values
    if values.size != 1 or values.ndim > 1:
        raise ScheduleError(
            f"columns of a step: got {name} of shape {values.shape}, expected {length} values, or one"
        )
    return _filled(values.item(), length, dtype)


def sign(add: bool) -> str:
    """Return the sign of a row: ``+`` if it adds, ``=`` if it replaces."""
    return "+" if add else "="


def run(chunk: int, count: int) -> str:
    """Return consecutive chunks as text: ``3`` or ``3-5``."""
    return f"{chunk}" if count == 1 else f"{chunk}-{chunk + count - 1}"


# The number of parts of each collective's buffer, as a power of p. `contracts` enters it, because
# that module imports this one.
PARTS: dict[str, int] = {}


def parts(collective: str, p: int) -> int:
    """Return the number of parts of a collective's buffer on p ranks, or 1 if the collective is unknown.

    >>> parts("all_gather", 4), parts("all_to_all", 4), parts("all_reduce", 4)
    (4, 16, 1)
    """
    return int(p ** PARTS.get(collective, 0))


def owner(chunk: ArrayLike, p: int, k: int) -> Ints:
    """Return the rank that owns chunk ``c`` if ``k`` is a multiple of ``p``: ``c * p // k``.

    >>> owner([0, 1, 2, 3, 4, 5], p=3, k=6).tolist()
    [0, 0, 1, 1, 2, 2]
    """
    return np.asarray(chunk, dtype=np.int64) * p // k


def cut(n: int, k: int, parts: int = 1) -> Ints:
    """Return the borders of ``k`` chunks of ``n`` elements: ``k + 1`` offsets, the first 0 and the last ``n``.

    The elements are first divided into ``parts``, then each part into ``k // parts`` segments.
    Sizes differ by at most one element; the larger pieces come first.

    >>> cut(10, 4).tolist()
    [0, 3, 6, 8, 10]
    >>> cut(12, 6, parts=3).tolist()
    [0, 2, 4, 6, 8, 10, 12]
    """
    segments = k // parts
    # Not in numpy's own whole numbers, which have 32 bits in a browser.
    part = np.full(parts, n // parts, dtype=np.int64)
    part[: n % parts] += 1
    sizes = part[:, None] // segments + (np.arange(segments) < part[:, None] % segments)
    return np.concatenate([[0], np.cumsum(sizes)])


@dataclass(frozen=True, eq=False)
class Schedule:
    """An algorithm for ``p`` ranks, as steps over a buffer of ``k`` chunks.

    ``make(t)`` makes step ``t``; get it by ``step(t)`` or ``steps()``. ``root`` is the rank that a
    broadcast or scatter starts from, or that a gather or reduce ends at. ``one_port`` promises that
    no rank sends more than one message, or receives more than one, in a step. With
    ``ranks_per_node`` above 1, ranks fill nodes of that size in order. The promise then holds
    separately for links inside a node and for links between nodes.

    ``repeats`` declares runs of steps that differ in their chunks only: senders, receivers, counts
    and adds stay the same, as in a ring. The simulator runs such steps many times as fast, and
    rejects a false declaration.

    ``switches`` are numbered behind the ranks, from ``p`` on. A switch contributes nothing, needs
    no result, and has a port for each rank: ``one_port`` says nothing of it. What is added to a
    chunk that it has not received is the whole chunk. Back ends execute on ranks only, so that such
    a schedule is proved, drawn and simulated, but not executed.

    ``name`` is the algorithm's, or the plan's. A simulation takes the machine's protocols for it.

    Raises ScheduleError if a number is invalid or a step is not a `Step`.

    >>> swap = Schedule("all_reduce", p=2, k=1, nsteps=1, make=lambda t: Step([0, 1], [1, 0], 0, add=True))
    >>> list(swap.steps())
    [Step(0->1:+0, 1->0:+0)]
    """

    collective: str
    p: int
    k: int
    nsteps: int
    make: Callable[[int], Step]
    root: int | None = None
    one_port: bool = True
    ranks_per_node: int = 1
    repeats: tuple[range, ...] = ()
    switches: int = 0
    name: str = ""

    def __post_init__(self) -> None:
        for name in ("p", "k", "nsteps", "ranks_per_node", "root", "switches"):
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) and not (name == "root" and value is None):
                raise ScheduleError(f"{name} of a schedule: got {value!r}, expected a whole number")
        if self.p < 1 or self.k < 1 or self.nsteps < 0:
            raise ScheduleError(
                f"p and k are at least 1 and nsteps at least 0, not {self.p}, {self.k}, {self.nsteps}"
            )
        if self.switches < 0:
            raise ScheduleError(f"switches of a schedule: got {self.switches}, expected 0 or more")
        if self.root is not None and not 0 <= self.root < self.p:
            raise ScheduleError(f"root {self.root} is not one of the ranks 0 to {self.p - 1}")
        if self.ranks_per_node < 1 or self.p % self.ranks_per_node:
            raise ScheduleError(f"{self.p} ranks do not fill nodes of {self.ranks_per_node}")
        if self.k % parts(self.collective, self.p):
            raise ScheduleError(
                f"{self.collective} on {self.p} ranks has {parts(self.collective, self.p)} parts: "
                f"k must be a multiple of that, not {self.k}"
            )

    @property
    def participants(self) -> int:
        """Return the number of ranks and switches."""
        return self.p + self.switches

    def step(self, t: int) -> Step:
        """Return step ``t``.

        Raises IndexError outside 0 … nsteps-1, and ScheduleError if ``make`` returns no step.
        """
        if not 0 <= t < self.nsteps:
            raise IndexError(f"step {t} of a schedule with {self.nsteps} steps")
        step = self.make(t)
        if not isinstance(step, Step):
            raise ScheduleError(f"step {t}: got {step!r}, expected a Step")
        return step

    def steps(self) -> Iterator[Step]:
        """Return the steps in order, each made when the iterator reaches it."""
        return map(self.step, range(self.nsteps))

    def repeated(self, t: int) -> bool:
        """Return True if step ``t`` is declared to be step ``t - 1`` with other chunks (see ``repeats``)."""
        return any(t in run and t - 1 in run and t > 0 for run in self.repeats)

    def cut(self, n: int) -> Ints:
        """Return the borders of this schedule's chunks in a buffer of ``n`` elements (see `cut`).

        In an all-to-all, ``n`` is the size of one rank's buffer. The chunks of all ranks follow
        each other: p * n elements.
        """
        whole = parts(self.collective, self.p)
        return cut(n * max(1, whole // self.p), self.k, whole)


# What a schedule says of itself, and the columns of a step, in the order in which they are
# serialised.
_SERIALISED = ("collective", "p", "k", "nsteps", "root", "one_port", "ranks_per_node")
_DIGEST_BYTES = 16


def serialised(schedule: Schedule) -> Iterator[bytes]:
    """Yield a schedule as bytes, the same on every machine: its properties, then each step's length and columns.

    Properties are JSON; numbers are little-endian, 8 bytes each, and 1 byte in ``add``.
    """
    properties = [getattr(schedule, name) for name in _SERIALISED]
    yield json.dumps(properties, separators=(",", ":"), default=int).encode()
    for step in schedule.steps():
        yield len(step).to_bytes(8, "little")
        for ints in (step.src, step.dst, step.chunk, step.count):
            yield ints.astype("<i8", copy=False).tobytes()
        yield step.add.astype("u1", copy=False).tobytes()


def digest(schedule: Schedule) -> bytes:
    """Return 16 bytes that are equal for schedules of equal steps, and for no others.

    Ranks that execute one call compare it, because two files of one name may hold two algorithms.
    It is the beginning of SHA-256 over `serialised`. Cost: one pass over all rows.

    >>> adds = Schedule("all_reduce", 2, 1, 1, lambda t: Step([0, 1], [1, 0], 0, add=True))
    >>> replaces = Schedule("all_reduce", 2, 1, 1, lambda t: Step([0, 1], [1, 0], 0))
    >>> digest(adds) == digest(replace(adds)), digest(adds) == digest(replaces)
    (True, False)
    """
    hashed = hashlib.sha256()
    for part in serialised(schedule):
        hashed.update(part)
    return hashed.digest()[:_DIGEST_BYTES]


def then(first: Schedule, second: Schedule, collective: str, root: int | None = None) -> Schedule:
    """Join two schedules one after the other: the steps are ``[*first.steps(), *second.steps()]``.

    Raises ScheduleError if ranks or chunks differ.
    """
    _check_alike(first, second)

    def make(t: int) -> Step:
        return first.step(t) if t < first.nsteps else second.step(t - first.nsteps)

    later = (range(run.start + first.nsteps, run.stop + first.nsteps) for run in second.repeats)
    joined = _joined(first, second, collective, first.nsteps + second.nsteps, make, root)
    return replace(joined, repeats=(*first.repeats, *later))


def parallel(one: Schedule, other: Schedule, collective: str, root: int | None = None) -> Schedule:
    """Join two schedules at the same time: step ``t`` has the rows of step ``t`` of each.

    Raises ScheduleError if ranks or chunks differ.
    """
    _check_alike(one, other)

    def make(t: int) -> Step:
        return beside(*(schedule.step(t) for schedule in (one, other) if t < schedule.nsteps))

    return _joined(one, other, collective, max(one.nsteps, other.nsteps), make, root)


def beside(*steps: Step) -> Step:
    """Return one step with the rows of all these, in their order.

    >>> beside(Step(0, 1, 0), Step([], [], []), Step(1, 0, 0, add=True))
    Step(0->1:=0, 1->0:+0)
    """
    return Step(
        *(np.concatenate([getattr(step, name) for step in steps]) for name in Step.__slots__)
    )


def _joined(
    a: Schedule,
    b: Schedule,
    collective: str,
    nsteps: int,
    make: Callable[[int], Step],
    root: int | None,
) -> Schedule:
    one_port, ranks_per_node = a.one_port and b.one_port, max(a.ranks_per_node, b.ranks_per_node)
    switches = max(a.switches, b.switches)
    return Schedule(
        collective, a.p, a.k, nsteps, make, root, one_port, ranks_per_node, switches=switches
    )


def _check_alike(a: Schedule, b: Schedule) -> None:
    if (a.p, a.k) != (b.p, b.k):
        raise ScheduleError(
            f"schedules can only be joined for the same ranks and chunks: {a.p} ranks and {a.k} chunks, "
            f"but {b.p} ranks and {b.k} chunks"
        )


def on(
    schedule: Schedule,
    p: int,
    k: int,
    ranks: ArrayLike,
    chunks: ArrayLike,
    width: int = 1,
    ranks_per_node: int = 1,
) -> Schedule:
    """Place the schedule on some of the ranks and chunks of a larger one.

    Rank ``r`` becomes ``ranks[r]`` of ``p``; chunk ``c`` becomes the ``width`` consecutive chunks
    of ``k`` that begin at ``chunks[c]``. If ``ranks`` has a second axis, each of its rows is one
    more copy of the schedule at the same time, on the chunks in the same row of ``chunks`` (or on
    the same chunks, if that has one row). Raises ScheduleError if there are not as many places as
    ranks and chunks, and for a schedule with switches.

    >>> swap = Schedule("all_reduce", p=2, k=1, nsteps=1, make=lambda t: Step([0, 1], [1, 0], 0, add=True))
    >>> on(swap, p=6, k=4, ranks=[2, 5], chunks=[2], width=2).step(0)
    Step(2->5:+2-3, 5->2:+2-3)
    >>> on(swap, p=4, k=2, ranks=[[0, 1], [2, 3]], chunks=[[0], [1]]).step(0)
    Step(0->1:+0, 1->0:+0, 2->3:+1, 3->2:+1)
    """
    check_ranks_only(schedule, "placing it on other ranks")
    place, first = np.atleast_2d(column(ranks)), np.atleast_2d(column(chunks))
    if (
        place.shape[1:] != (schedule.p,)
        or first.shape[1:] != (schedule.k,)
        or len(first) not in (1, len(place))
    ):
        raise ScheduleError(f"{schedule.p} ranks and {schedule.k} chunks need as many places")
    copies, first = len(place), np.broadcast_to(first, (len(place), schedule.k))
    runs_stay_runs = (np.diff(first) == width).all()
    sender, receiver = (_remembered(lambda ranks: place[:, ranks].ravel()) for _ in range(2))
    counts = _remembered(
        lambda count: np.tile(
            count * width if runs_stay_runs else np.full_like(count, width), copies
        )
    )
    adds = _remembered(lambda add: np.tile(add, copies))

    def make(t: int) -> Step:
        step = schedule.step(t)
        src, dst, chunk, count, add = step.src, step.dst, step.chunk, step.count, step.add
        if not runs_stay_runs and not (count == 1).all():
            row, chunk = step.cells()
            src, dst, count, add = src[row], dst[row], count[row], add[row]
        return Step(sender(src), receiver(dst), first[:, chunk].ravel(), counts(count), adds(add))

    root = None if schedule.root is None or len(place) > 1 else int(place[0, schedule.root])
    return replace(schedule, p=p, k=k, make=make, root=root, ranks_per_node=ranks_per_node)


def check_ranks_only(schedule: Schedule, what: str) -> None:
    """Raise a ScheduleError for a schedule with switches, if ``what`` needs one of ranks alone.

    >>> check_ranks_only(Schedule("all_reduce", p=4, k=1, nsteps=0, make=Step, switches=1), "a back end")
    Traceback (most recent call last):
        ...
    collectives.core.schedule.ScheduleError: switches of a schedule: got 1, expected none for a back end
    """
    if schedule.switches:
        raise ScheduleError(
            f"switches of a schedule: got {schedule.switches}, expected none for {what}"
        )


def _remembered(function: Callable[[Any], NDArray[Any]]) -> Callable[[Any], NDArray[Any]]:
    """Return the function, computed again only for another column than the last: a ring's senders never change.

    A column cannot change, so the same one has the same result.
    """
    last: list[NDArray[Any]] = []

    def remembering(given: NDArray[Any]) -> NDArray[Any]:
        if not last or last[0] is not given:
            result = function(given)
            last[:] = given, column(result, result.dtype.type)
        return last[1]

    return remembering


def reverse(schedule: Schedule, collective: str, *, add: bool) -> Schedule:
    """Run the schedule backwards: each sender of a chunk receives it, and adds it or (``add=False``) replaces its own.

    A reversed broadcast is a reduce, and a reversed all-gather a reduce-scatter, both with
    ``add=True``. A reversed scatter is a gather. This holds **if** the schedule writes each (rank,
    chunk) at most once, and never after that rank has sent the chunk. Otherwise a contribution
    would count twice, and a ScheduleError says so.
    """
    if schedule.p * schedule.k <= PROVED_CELLS:
        _check_reversible(schedule)

    def make(t: int) -> Step:
        return schedule.step(schedule.nsteps - 1 - t)._reversed(add)

    n = schedule.nsteps
    repeats = tuple(range(max(0, n - run.stop), n - run.start) for run in schedule.repeats)
    return replace(schedule, collective=collective, make=make, repeats=repeats)


def _check_reversible(schedule: Schedule) -> None:
    """Check that each cell is written at most once, and never after it was read."""
    used = np.zeros((schedule.participants, schedule.k), dtype=np.int64)
    for t, step in enumerate(schedule.steps()):
        row, chunk = step.cells()
        used[step.src[row], chunk] += 1
        into = step.dst[row], chunk
        np.add.at(used, into, 1)
        again = np.flatnonzero(used[into] > 1)
        if again.size:
            rank, c = int(into[0][again[0]]), int(chunk[again[0]])
            raise ScheduleError(
                f"{schedule.collective} cannot be reversed: step {t} writes chunk {c} of rank {rank}, "
                "which was written or sent before"
            )
