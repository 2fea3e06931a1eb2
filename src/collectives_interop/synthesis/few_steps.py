"""Find schedules with few steps for a topology by a solver, or prove that none exists.

The question is SCCL's (Cai et al., "Synthesizing Optimal Collective Algorithms", PPoPP 2021,
section 3). A topology is a matrix: ``links[a, b]`` chunks go from rank a to rank b in one round. A
schedule has S steps. Step t lasts r_t >= 1 rounds, so each pair of ranks carries at most ``links[a,
b] * r_t`` chunks in it. All r_t add up to R. Is there an all-gather of C chunks per rank?

Three answers are tried, the cheap ones first:

1. Bounds. Some chunk needs as many steps as the diameter, and what a rank lacks enters by its
   links.
2. Counts. How many chunks of each source does each link carry in each step? Where counts may be
   real numbers, this is a linear program, but for the r_t. If it has no solution, there is no
   schedule.
3. Chunks. One Boolean for each chunk, link and step: does the chunk travel there? This is asked for
   one split of the rounds after another. Each gets a second; then each that is left gets two, and
   another seed; and so on. A solver often ends at once or not for minutes: DGX-1's six chunks take
   0.3 s in (1, 3, 3) rounds with five seeds of six.

SCCL asks for the time of each chunk, an integer. Here the time is an index of a Boolean, and the
rounds of each step are given, so that a link's limit is a plain cardinality. z3 5.4 with
``pb.solver=sorting`` returned models that broke the weighted limits of an encoding with open
rounds: no such option is set here, and every schedule is proved.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import count, permutations, product
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from collectives.core.schedule import Ints, Schedule, ScheduleError, Step, reverse, then
from collectives.core.verify import verify
from collectives.topology.graph import check_links, distances

T = TypeVar("T")

COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce")
LIMIT = 60.0

# The share of the time that is left which the counts may take. If they do not end, the chunks are
# asked nevertheless.
COUNTS_SHARE = 0.25

# How long Ctrl-C waits at most while the solver runs, in seconds.
NAP = 0.1

Verdict = Literal["satisfiable", "unsatisfiable", "limit"]

# A chunk or a source; the rank that sends, the rank that receives; the step.
Move = tuple[int, int, int, int]


class Question(NamedTuple):
    """A question of existence: an all-gather of ``chunks`` per rank, in this many steps and rounds."""

    links: Ints
    steps: int
    rounds: int
    chunks: int


class Answer(NamedTuple):
    """The verdict on one question, and why; the proved schedule if there is one.

    The seconds it took.
    """

    verdict: Verdict
    why: str
    steps: int
    rounds: int
    schedule: Schedule | None
    seconds: float


def synthesize(
    links: Ints, collective: str, steps: int, rounds: int, chunks: int, limit: float = LIMIT
) -> Answer:
    """Return a schedule of this many steps and rounds, a proof that none exists, or "limit" after ``limit`` seconds.

    ``chunks`` are those of one rank, so the schedule has ``k = p * chunks``. It is proved by
    `verify`, and fits the links: `rounds_of`. A reduce-scatter is a reversed all-gather on reversed
    links. An all-reduce is a reduce-scatter, then an all-gather, with half of the steps and half of
    the rounds each.

    Raises ValueError for an invalid matrix, for a number below 1, for another collective, and for
    an odd number of steps or rounds of an all-reduce. Needs z3 (extra ``synthesis``). Cost:
    exponential at worst.

    >>> ring = np.array([[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]])
    >>> answer = synthesize(ring, "all_gather", steps=2, rounds=3, chunks=2)
    >>> answer.verdict, answer.schedule.nsteps, sorted(rounds_of(answer.schedule, ring))
    ('satisfiable', 2, [1, 2])
    >>> synthesize(ring, "all_gather", steps=2, rounds=2, chunks=2).why
    'rank 0 lacks 6 chunks and 2 enter in a round, so it needs 3 rounds'
    """
    begin = time.monotonic()
    _check_question(links, collective, steps, rounds, chunks)
    found: list[Schedule] = []
    verdict: Verdict = "satisfiable"
    why = ""
    for half in _gathers(links, collective, steps, rounds, chunks):
        left = begin + limit - time.monotonic()
        verdict, why, schedule = apart(partial(_all_gather, half), left)
        if schedule is None:
            break
        found.append(schedule)
    made = _composed(found, collective, links, rounds) if verdict == "satisfiable" else None
    return Answer(verdict, why, steps, rounds, made, time.monotonic() - begin)


def search(
    links: Ints, collective: str, steps: int, chunks: int, limit: float = LIMIT
) -> Iterator[Answer]:
    """Yield an answer for each number of rounds, from the bound upward, until there is a schedule or no time is left.

    Ends after one answer if the steps are too few for any number of rounds. ``limit`` is for all
    answers together. Raises what `synthesize` raises.

    >>> ring = np.array([[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]])
    >>> [(answer.rounds, answer.verdict) for answer in search(ring, "all_gather", steps=3, chunks=2)]
    [(3, 'satisfiable')]
    """
    _check_question(links, collective, steps, steps, chunks)
    halves = _gathers(links, collective, steps, steps, chunks)
    parts = _parts(collective)
    least = max(max(half.steps, least_rounds(half.links, chunks)) for half in halves)
    deadline = time.monotonic() + limit
    for rounds in count(parts * least, parts):
        left = deadline - time.monotonic()
        answer = synthesize(links, collective, steps, rounds, chunks, left)
        yield answer
        if answer.verdict != "unsatisfiable" or diameter(links) > halves[0].steps:
            return


def diameter(links: Ints) -> int:
    """Return the most links that a chunk has to pass: the least number of steps of an all-gather.

    >>> diameter(np.array([[0, 1, 0], [0, 0, 1], [1, 0, 0]]))
    2
    """
    return int(distances(links).max())


def least_rounds(links: Ints, chunks: int) -> int:
    """Return the least rounds of an all-gather: a rank receives all chunks of the others by its links.

    >>> least_rounds(np.array([[0, 2, 0], [0, 0, 2], [1, 0, 0]]), chunks=3)
    6
    """
    lacking = (len(links) - 1) * chunks
    entering = links.sum(axis=0).min()  # in a round, at the rank with the fewest links
    return int(-(-lacking // entering))


def rounds_of(schedule: Schedule, links: Ints) -> list[int]:
    """Return the rounds that each step lasts: those of its busiest link.

    Raises ScheduleError for a message between two ranks that no link joins.

    >>> from collectives.core.schedule import Step
    >>> to_both = Schedule("broadcast", p=3, k=2, nsteps=1, make=lambda t: Step(0, [1, 2], 0, count=2), root=0)
    >>> rounds_of(to_both, np.array([[0, 1, 2], [1, 0, 0], [2, 0, 0]]))
    [2]
    """
    found = []
    for t, step in enumerate(schedule.steps()):
        sent = step.messages()
        a_round = links[sent.src, sent.dst]  # chunks that each link carries in a round
        missing = np.flatnonzero(a_round == 0)
        if missing.size:
            a, b = int(sent.src[missing[0]]), int(sent.dst[missing[0]])
            raise ScheduleError(
                f"step {t}: got a message from rank {a} to rank {b}, expected a link there"
            )
        rounds = -(-sent.size // a_round)
        found.append(int(rounds.max(initial=0)))
    return found


def _parts(collective: str) -> int:
    """Return the number of all-gathers that follow each other in the collective, reversed or not."""
    return 2 if collective == "all_reduce" else 1


def _gathers(links: Ints, collective: str, steps: int, rounds: int, chunks: int) -> list[Question]:
    """Return the all-gathers of the collective in their order, one alone if both would be the same."""
    parts = _parts(collective)
    asked = Question(links, steps // parts, rounds // parts, chunks)
    to_reverse = asked._replace(links=links.T)
    if collective == "all_gather":
        return [asked]
    if collective == "reduce_scatter" or (links == links.T).all():
        return [to_reverse]
    return [to_reverse, asked]


def _check_question(links: Ints, collective: str, steps: int, rounds: int, chunks: int) -> None:
    """Raise ValueError for a question that has no sense."""
    check_links(links)
    if collective not in COLLECTIVES:
        raise ValueError(f"collective: got {collective}, expected one of {', '.join(COLLECTIVES)}")
    for name, value in (("steps", steps), ("rounds", rounds), ("chunks", chunks)):
        if value < 1:
            raise ValueError(f"{name}: got {value}, expected 1 or more")
        if name != "chunks" and value % _parts(collective):
            raise ValueError(
                f"{name} of an all_reduce: got {value}, "
                "expected an even number, for two equal halves"
            )


def _composed(found: list[Schedule], collective: str, links: Ints, rounds: int) -> Schedule:
    """Return the collective, made of its all-gathers and proved."""
    made = found[-1]
    if collective != "all_gather":
        made = reverse(found[0], "reduce_scatter", add=True)
    if collective == "all_reduce":
        made = then(made, found[-1], collective)
    verify(made)
    needed = sum(rounds_of(made, links))
    if needed > rounds:
        raise ScheduleError(f"rounds of the schedule: got {needed}, expected {rounds}")
    return made


def _all_gather(of: Question, deadline: Deadline) -> tuple[Verdict, str, Schedule | None]:
    """Return the verdict, why, and the schedule."""
    why = _bounded(of)
    if why:
        return "unsatisfiable", why, None
    if _lacks_counts(of, deadline):
        return "unsatisfiable", "no counts of chunks fit the links, not even fractions", None
    left: Iterator[tuple[int, ...]] = splits(of.rounds, of.steps)
    for seed in count():
        unknown = []
        for split in left:
            if not deadline.left():
                return "limit", "the solver has not ended", None
            verdict, found = _with_split(of, split, seed, deadline.within(2**seed))
            if found is not None:
                return "satisfiable", "", found
            if verdict == "unknown":
                unknown.append(split)
        if not unknown:
            return "unsatisfiable", "the solver has tried every split of the rounds", None
        left = iter(unknown)
    raise AssertionError("count() has no end")


def _with_split(
    of: Question, split: tuple[int, ...], seed: int, deadline: Deadline
) -> tuple[str, Schedule | None]:
    """Return the solver's answer for these rounds of each step, and the schedule."""
    if _lacks_counts(of, deadline, split):
        return "unsat", None
    try:
        solver, sends = chunks_of(of, split, deadline, seed)
    except TimeUpError:
        return "unknown", None
    verdict = check(solver, deadline)
    if verdict != "sat":
        return verdict, None
    return verdict, schedule_of(of, solver.model(), sends)


def _lacks_counts(of: Question, deadline: Deadline, split: Sequence[int] | None = None) -> bool:
    """Return True if no counts of chunks fit the links.

    False if some do, or a share of the time does not tell.
    """
    deadline = deadline.share(COUNTS_SHARE)
    try:
        return check(counts(of, deadline, split), deadline) == "unsat"
    except TimeUpError:
        return False


def _bounded(of: Question) -> str:
    """Return why steps or rounds are too few, at once; empty if they may suffice."""
    far = distances(of.links)
    farthest = int(far.max())
    if of.steps < farthest:
        a, b = np.argwhere(far == farthest)[0]
        return f"rank {b} is {farthest} links from rank {a}, so it needs as many steps"
    if of.rounds < of.steps:
        return f"each of {of.steps} steps lasts a round at least"
    least = least_rounds(of.links, of.chunks)
    if of.rounds < least:
        entering = of.links.sum(axis=0)
        rank = int(entering.argmin())
        lacking = (len(of.links) - 1) * of.chunks
        return (
            f"rank {rank} lacks {lacking} chunks and {entering[rank]} enter in a round, "
            f"so it needs {least} rounds"
        )
    return ""


def splits(rounds: int, steps: int) -> Iterator[tuple[int, ...]]:
    """Yield every way to give each step a round or more: steps of even length first.

    >>> list(splits(5, 3))
    [(1, 2, 2), (2, 1, 2), (2, 2, 1), (1, 1, 3), (1, 3, 1), (3, 1, 1)]
    """
    for most in range(-(-rounds // steps), rounds - steps + 2):
        yield from _up_to(most, rounds, steps, lacks_most=True)


def _up_to(most: int, rounds: int, steps: int, *, lacks_most: bool) -> Iterator[tuple[int, ...]]:
    """Yield every way in which no step has more than ``most`` rounds, and if none before has, one has as many."""
    if lacks_most and rounds - steps < most - 1:
        return
    if steps == 0:
        yield ()
        return
    # The other steps last between one round and the most.
    fewest = max(1, rounds - most * (steps - 1))
    largest = min(most, rounds - (steps - 1))
    for first in range(fewest, largest + 1):
        still_lacks = lacks_most and first < most
        for others in _up_to(most, rounds - first, steps - 1, lacks_most=still_lacks):
            yield first, *others


def moves(of: Question) -> list[Move]:
    """List (source, a, b, step) where a chunk of the source may go from a to b: it can be at a, and b lacks it."""
    far = distances(of.links)
    pairs = np.argwhere(of.links).tolist()
    found = []
    for source, t in product(range(len(of.links)), range(of.steps)):
        for a, b in pairs:
            if b != source and far[source, a] <= t:
                found.append((source, a, b, t))
    return found


def counts(of: Question, deadline: Deadline, split: Sequence[int] | None = None) -> Any:
    """Return a solver that is asked how many chunks of each source each link carries in each step, as real numbers.

    Without a split, the rounds of each step are asked, too. Raises TimeUpError if time is up before
    all is written.
    """
    import z3

    solver = z3.Solver()
    lasts = z3.Ints([f"rounds {t}" for t in range(of.steps)]) if split is None else split
    solver.add(z3.Sum(lasts) == of.rounds)
    for rounds in lasts:
        solver.add(rounds >= 1)
    into = defaultdict(list)
    through = defaultdict(list)
    carried = defaultdict(list)
    for source, a, b, t in deadline.limit(moves(of)):
        number = z3.Real(f"{source} {a} {b} {t}")
        solver.add(number >= 0)
        into[source, b].append((t, number))
        through[source, a, b].append((t, number))
        carried[a, b, t].append(number)
    # A rank receives all chunks of each other one.
    for source, rank in deadline.limit(permutations(range(len(of.links)), 2)):
        solver.add(z3.Sum([number for _, number in into[source, rank]]) == of.chunks)
    # A rank sends what it has received before.
    for (source, a, _), sent in through.items():
        for last in deadline.limit(t for t, _ in sent if a != source):
            had = [number for t, number in into[source, a] if t < last]
            solver.add(z3.Sum([number for t, number in sent if t <= last]) <= z3.Sum(had))
    # A link carries a number of chunks in each round.
    for (a, b, t), numbers in deadline.limit(carried.items()):
        solver.add(z3.Sum(numbers) <= int(of.links[a, b]) * lasts[t])
    return solver


def chunks_of(
    of: Question, split: Sequence[int], deadline: Deadline, seed: int = 0
) -> tuple[Any, dict[Move, Any]]:
    """Return a solver that is asked which chunks each link carries in each step, and its Booleans.

    Its time has a heavy tail, so a caller asks again with another seed. Raises TimeUpError as
    `counts` does.
    """
    import z3

    solver = z3.SolverFor("QF_FD")
    solver.set("random_seed", seed)
    solver.set("branching.heuristic", "chb")  # faster than the default, VSIDS, in most runs
    sends: dict[Move, Any] = {}
    into = defaultdict(list)
    carried = defaultdict(list)
    for source, a, b, t in deadline.limit(moves(of)):
        for i in range(of.chunks):
            chunk = source * of.chunks + i
            send = z3.Bool(f"{source} {i} {a} {b} {t}")
            sends[chunk, a, b, t] = send
            into[chunk, b].append((t, send))
            carried[a, b, t].append(send)
    # A rank sends what it has received before.
    for (chunk, a, _, t), send in deadline.limit(sends.items()):
        source = chunk // of.chunks
        if a != source:
            had = z3.Or([earlier for u, earlier in into[chunk, a] if u < t])
            solver.add(z3.Implies(send, had))
    # A rank receives each chunk of each other one once.
    for source, rank in permutations(range(len(of.links)), 2):
        first = source * of.chunks
        for chunk in deadline.limit(range(first, first + of.chunks)):
            received = [(send, 1) for _, send in into[chunk, rank]]
            solver.add(z3.PbEq(received, 1) if received else z3.BoolVal(False))
    # A link carries a number of chunks in each round.
    for (a, b, t), on_link in deadline.limit(carried.items()):
        most = int(of.links[a, b]) * split[t]
        if len(on_link) > most:
            solver.add(z3.AtMost(*on_link, most))
    _order(of, solver, sends, deadline)
    return solver, sends


def _order(of: Question, solver: Any, sends: dict[Move, Any], deadline: Deadline) -> None:
    """Put the chunks of a source, which are equal, in order of the links that they leave by in step 0."""
    import z3

    leaves = defaultdict(list)
    for (chunk, _, _, t), send in sends.items():
        if t == 0:
            leaves[chunk].append(send)
    for chunk in deadline.limit(leaves):
        is_last_of_source = (chunk + 1) % of.chunks == 0
        if is_last_of_source:
            continue
        # The first link that only one of both leaves by decides, as in a dictionary.
        ordered: Any = z3.BoolVal(True)
        pairs = list(zip(leaves[chunk], leaves[chunk + 1], strict=True))
        for one, other in reversed(pairs):
            ordered = z3.Or(z3.And(one, z3.Not(other)), z3.And(one == other, ordered))
        solver.add(ordered)


class TimeUpError(RuntimeError):
    """A formula is not whole, because time was up while it was written."""


class Deadline(NamedTuple):
    """The time of `time.monotonic` at which time is up; at once if ``ended`` is set."""

    at: float
    ended: threading.Event

    def left(self) -> float:
        """Return the seconds until then, 0 afterwards."""
        return 0.0 if self.ended.is_set() else max(0.0, self.at - time.monotonic())

    def within(self, seconds: float) -> Deadline:
        """Return the earlier of this deadline and one ``seconds`` from now."""
        return self._replace(at=min(self.at, time.monotonic() + seconds))

    def share(self, part: float) -> Deadline:
        """Return a deadline after this part of the time that is left."""
        return self.within(part * self.left())

    def limit(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items. Raises TimeUpError if time is up before one of them."""
        for item in items:
            if not self.left():
                raise TimeUpError
            yield item


def check(solver: Any, deadline: Deadline) -> str:
    """Return the solver's answer: sat, unsat, or unknown if time is up."""
    if not deadline.left():
        return "unknown"
    solver.set("timeout", int(deadline.left() * 1000) + 1)
    solver.set("ctrl_c", False)  # it would end one question, and the next would begin
    return str(solver.check())


def apart(work: Callable[[Deadline], T], seconds: float) -> T:
    """Run ``work`` in a thread, so that Ctrl-C ends it, and return its result.

    In the main thread Ctrl-C could come while z3 destroys a formula, where Python drops the
    exception.
    """
    deadline = Deadline(time.monotonic() + seconds, threading.Event())
    import z3  # takes most of a second, which is a part of the time

    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(work(deadline))
        except BaseException as error:
            outcome.set_exception(error)

    working = threading.Thread(target=run, daemon=True)
    working.start()
    try:
        while working.is_alive():
            working.join(NAP)
    finally:
        deadline.ended.set()
        while working.is_alive():
            z3.main_ctx().interrupt()
            working.join(NAP)
    return outcome.result()


def schedule_of(of: Question, model: Any, sends: dict[Move, Any]) -> Schedule:
    """Return the schedule that a model of `chunks_of` stands for; not proved."""
    rows: list[list[tuple[int, int, int]]] = [[] for _ in range(of.steps)]
    for (chunk, a, b, t), send in sends.items():
        if model[send]:
            rows[t].append((a, b, chunk))
    steps = []
    for of_step in rows:
        src, dst, chunks = np.array(sorted(of_step), dtype=np.int64).reshape(-1, 3).T
        steps.append(Step(src, dst, chunks))
    p = len(of.links)
    return Schedule("all_gather", p, p * of.chunks, of.steps, steps.__getitem__, one_port=False)
