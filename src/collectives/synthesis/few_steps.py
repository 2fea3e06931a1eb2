"""Schedules with few steps for a topology: a solver finds one, or proves that none exists.

The question is SCCL's (Cai et al., "Synthesizing Optimal Collective Algorithms", PPoPP 2021, section 3). A topology is
a matrix: ``links[a, b]`` chunks go from rank a to rank b in one round. A schedule has S steps. Step t lasts r_t >= 1
rounds, so each pair of ranks carries at most ``links[a, b] * r_t`` chunks in it. All r_t add up to R. Is there an
all-gather of C chunks per rank?

Three answers are tried, the cheap ones first:

1. Bounds. Some chunk needs as many steps as the diameter, and what a rank lacks enters by its links.
2. Counts. How many chunks of each source does each link carry in each step? Where counts may be real numbers, this is
   a linear program, but for the r_t. If it has no solution, there is no schedule.
3. Chunks. One Boolean for each chunk, link and step: does the chunk travel there? This is asked for one split of the
   rounds after another. Each gets a second; then each that is left gets two, and another seed; and so on. A solver
   often ends at once or not for minutes: DGX-1's six chunks take 0.3 s in (1, 3, 3) rounds with five seeds of six.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import Literal, NamedTuple

import numpy as np

from collectives.schedule import Ints, Schedule, ScheduleError, reverse, then
from collectives.synthesis import encoding
from collectives.synthesis.encoding import Deadline, Question, apart, check
from collectives.topology.graph import distances, need_links
from collectives.verify import verify

COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce")
LIMIT = 60.0

# The share of the time that is left which the counts may take. If they do not end, the chunks are asked nevertheless.
COUNTS_SHARE = 0.25

Verdict = Literal["satisfiable", "unsatisfiable", "limit"]


class Answer(NamedTuple):
    """The verdict on one question, and why; the proved schedule if there is one; the seconds it took."""

    verdict: Verdict
    why: str
    steps: int
    rounds: int
    schedule: Schedule | None
    seconds: float


def synthesize(links: Ints, collective: str, steps: int, rounds: int, chunks: int, limit: float = LIMIT) -> Answer:
    """A schedule of this many steps and rounds, a proof that none exists, or "limit" after ``limit`` seconds.

    ``chunks`` are those of one rank, so the schedule has ``k = p * chunks``. It is proved by `verify`, and fits the
    links: `rounds_of`. A reduce-scatter is a reversed all-gather on reversed links. An all-reduce is a reduce-scatter,
    then an all-gather, with half of the steps and half of the rounds each.

    Raises ValueError for an invalid matrix, for a number below 1, for another collective, and for an odd
    number of steps or rounds of an all-reduce. Needs z3 (extra ``synthesis``). Cost: exponential at worst.

    >>> ring = np.array([[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]])
    >>> answer = synthesize(ring, "all_gather", steps=2, rounds=3, chunks=2)
    >>> answer.verdict, answer.schedule.nsteps, sorted(rounds_of(answer.schedule, ring))
    ('satisfiable', 2, [1, 2])
    >>> synthesize(ring, "all_gather", steps=2, rounds=2, chunks=2).why
    'rank 0 lacks 6 chunks and 2 enter in a round, so it needs 3 rounds'
    """
    begin = time.monotonic()
    _need_question(links, collective, steps, rounds, chunks)
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


def search(links: Ints, collective: str, steps: int, chunks: int, limit: float = LIMIT) -> Iterator[Answer]:
    """One answer for each number of rounds, from the bound upward, until there is a schedule or no time is left.

    Ends after one answer if the steps are too few for any number of rounds. ``limit`` is for all answers together.
    Raises what `synthesize` raises.

    >>> ring = np.array([[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]])
    >>> [(answer.rounds, answer.verdict) for answer in search(ring, "all_gather", steps=3, chunks=2)]
    [(3, 'satisfiable')]
    """
    _need_question(links, collective, steps, steps, chunks)
    halves, parts = _gathers(links, collective, steps, steps, chunks), _parts(collective)
    least = max(max(half.steps, least_rounds(half.links, chunks)) for half in halves)
    deadline = time.monotonic() + limit
    for rounds in count(parts * least, parts):
        answer = synthesize(links, collective, steps, rounds, chunks, deadline - time.monotonic())
        yield answer
        if answer.verdict != "unsatisfiable" or diameter(links) > halves[0].steps:
            return


def diameter(links: Ints) -> int:
    """The most links that a chunk has to pass: the least number of steps of an all-gather.

    >>> diameter(np.array([[0, 1, 0], [0, 0, 1], [1, 0, 0]]))
    2
    """
    return int(distances(links).max())


def least_rounds(links: Ints, chunks: int) -> int:
    """The rounds that an all-gather needs at least: a rank receives all chunks of the others by its links.

    >>> least_rounds(np.array([[0, 2, 0], [0, 0, 2], [1, 0, 0]]), chunks=3)
    6
    """
    return int(-((1 - len(links)) * chunks // links.sum(axis=0).min()))


def rounds_of(schedule: Schedule, links: Ints) -> list[int]:
    """The rounds that each step lasts: those of its busiest link.

    Raises ScheduleError for a message between two ranks that no link joins.

    >>> from collectives.schedule import Step
    >>> to_both = Schedule("broadcast", p=3, k=2, nsteps=1, make=lambda t: Step(0, [1, 2], 0, count=2), root=0)
    >>> rounds_of(to_both, np.array([[0, 1, 2], [1, 0, 0], [2, 0, 0]]))
    [2]
    """
    found = []
    for t, step in enumerate(schedule.steps()):
        src, dst, size, *_ = step.messages()
        if (missing := np.flatnonzero(links[src, dst] == 0)).size:
            a, b = int(src[missing[0]]), int(dst[missing[0]])
            raise ScheduleError(f"step {t}: got a message from rank {a} to rank {b}, expected a link there")
        found.append(int((-(-size // links[src, dst])).max(initial=0)))
    return found


def _parts(collective: str) -> int:
    """How many all-gathers follow each other in the collective, reversed or not."""
    return 2 if collective == "all_reduce" else 1


def _gathers(links: Ints, collective: str, steps: int, rounds: int, chunks: int) -> list[Question]:
    """The all-gathers that are asked for, in the order of the collective; one alone where both would be the same."""
    asked = Question(links, steps // _parts(collective), rounds // _parts(collective), chunks)
    to_reverse = asked._replace(links=links.T)
    if collective == "all_gather":
        return [asked]
    return [to_reverse] if collective == "reduce_scatter" or (links == links.T).all() else [to_reverse, asked]


def _need_question(links: Ints, collective: str, steps: int, rounds: int, chunks: int) -> None:
    """Raise ValueError for a question that has no sense."""
    need_links(links)
    if collective not in COLLECTIVES:
        raise ValueError(f"collective: got {collective}, expected one of {', '.join(COLLECTIVES)}")
    for name, value in (("steps", steps), ("rounds", rounds), ("chunks", chunks)):
        if value < 1:
            raise ValueError(f"{name}: got {value}, expected 1 or more")
        if name != "chunks" and value % _parts(collective):
            raise ValueError(f"{name} of an all_reduce: got {value}, expected an even number, for two equal halves")


def _composed(found: list[Schedule], collective: str, links: Ints, rounds: int) -> Schedule:
    """The collective, made of its all-gathers and proved."""
    made = found[-1]
    if collective != "all_gather":
        made = reverse(found[0], "reduce_scatter", add=True)
    if collective == "all_reduce":
        made = then(made, found[-1], collective)
    verify(made)
    if sum(rounds_of(made, links)) > rounds:
        raise ScheduleError(f"rounds of the schedule: got {sum(rounds_of(made, links))}, expected {rounds}")
    return made


def _all_gather(of: Question, deadline: Deadline) -> tuple[Verdict, str, Schedule | None]:
    """The verdict, why, and the schedule."""
    if why := _bounded(of):
        return "unsatisfiable", why, None
    if check(encoding.counts(of), _share(deadline)) == "unsat":
        return "unsatisfiable", "no counts of chunks fit the links, not even fractions", None
    left: Iterator[tuple[int, ...]] = encoding.splits(of.rounds, of.steps)
    for seed in count():
        unknown = []
        for split in left:
            if not deadline.left():
                return "limit", "the solver has not ended", None
            verdict, found = _with_split(of, split, seed, deadline.within(2**seed))
            if found is not None:
                return "satisfiable", "", found
            unknown += [split] if verdict == "unknown" else []
        if not unknown:
            return "unsatisfiable", "the solver has tried every split of the rounds", None
        left = iter(unknown)
    raise AssertionError("count() has no end")


def _share(deadline: Deadline) -> Deadline:
    return deadline.within(COUNTS_SHARE * deadline.left())


def _with_split(of: Question, split: tuple[int, ...], seed: int, deadline: Deadline) -> tuple[str, Schedule | None]:
    """The solver's answer for these rounds of each step, and the schedule."""
    if check(encoding.counts(of, split), _share(deadline)) == "unsat":
        return "unsat", None
    solver, sends = encoding.chunks(of, split, seed)
    verdict = check(solver, deadline)
    return verdict, encoding.schedule(of, solver.model(), sends) if verdict == "sat" else None


def _bounded(of: Question) -> str:
    """Why steps or rounds are too few, at once; empty if they may suffice."""
    if of.steps < diameter(of.links):
        a, b = map(int, np.argwhere(distances(of.links) == diameter(of.links))[0])
        return f"rank {b} is {diameter(of.links)} links from rank {a}, so it needs as many steps"
    if of.rounds < of.steps:
        return f"each of {of.steps} steps lasts a round at least"
    lacks, enter = (len(of.links) - 1) * of.chunks, of.links.sum(axis=0)
    if of.rounds < (least := least_rounds(of.links, of.chunks)):
        rank = int(enter.argmin())
        return f"rank {rank} lacks {lacks} chunks and {enter[rank]} enter in a round, so it needs {least} rounds"
    return ""
