"""The solver's side of synthesis: an all-gather's counts of chunks, and its chunks, as formulas for z3.

SCCL asks an SMT solver for the time of each chunk, an integer (Cai et al., PPoPP 2021, section 3). Here the time is
an index of a Boolean, and the rounds of each step are given, so that a link's limit is a plain cardinality. z3 5.4 with
``pb.solver=sorting`` returned models that broke the weighted limits of an encoding with open rounds: no such option is
set here, and every schedule is proved.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from itertools import permutations
from typing import Any, NamedTuple, TypeVar

import numpy as np

from collectives.schedule import Ints, Schedule, Step
from collectives.topology.graph import distances

T = TypeVar("T")

# How long Ctrl-C waits at most while the solver runs, in seconds.
NAP = 0.1

# A chunk or a source; the rank that sends, the rank that receives; the step.
Move = tuple[int, int, int, int]


class Question(NamedTuple):
    """Whether there is an all-gather of ``chunks`` per rank in this many steps and rounds."""

    links: Ints
    steps: int
    rounds: int
    chunks: int


def splits(rounds: int, steps: int) -> Iterator[tuple[int, ...]]:
    """Every way to give each step a round or more: steps of even length first.

    >>> list(splits(5, 3))
    [(1, 2, 2), (2, 1, 2), (2, 2, 1), (1, 1, 3), (1, 3, 1), (3, 1, 1)]
    """
    for most in range(-(-rounds // steps), rounds - steps + 2):
        yield from (each for each in _up_to(most, rounds, steps) if max(each) == most)


def _up_to(most: int, rounds: int, steps: int) -> Iterator[tuple[int, ...]]:
    """Every way in which no step has more than ``most`` rounds."""
    if steps == 0:
        yield ()
        return
    for first in range(max(1, rounds - most * (steps - 1)), min(most, rounds - steps + 1) + 1):
        yield from ((first, *rest) for rest in _up_to(most, rounds - first, steps - 1))


def moves(of: Question) -> list[Move]:
    """Every (source, a, b, step) in which a chunk of the source may go from a to b: it can be at a, and b lacks it."""
    far, pairs = distances(of.links), np.argwhere(of.links).tolist()
    return [
        (source, a, b, t)
        for source in range(len(of.links))
        for t in range(of.steps)
        for a, b in pairs
        if b != source and far[source, a] <= t
    ]


def counts(of: Question, split: Sequence[int] | None = None) -> Any:
    """A solver that is asked how many chunks of each source each link carries in each step, as real numbers.

    Without a split, the rounds of each step are asked, too.
    """
    import z3

    solver = z3.Solver()
    lasts = z3.Ints([f"rounds {t}" for t in range(of.steps)]) if split is None else split
    solver.add(z3.Sum(lasts) == of.rounds, *(each >= 1 for each in lasts))
    into, through, carried = defaultdict(list), defaultdict(list), defaultdict(list)
    for source, a, b, t in moves(of):
        number = z3.Real(f"{source} {a} {b} {t}")
        solver.add(number >= 0)
        into[source, b].append((t, number))
        through[source, a, b].append((t, number))
        carried[a, b, t].append(number)
    for source, rank in permutations(range(len(of.links)), 2):
        solver.add(z3.Sum([number for _, number in into[source, rank]]) == of.chunks)
    for (source, a, _), sent in through.items():
        for last in (t for t, _ in sent if a != source):  # a rank sends what it has received before
            had = [number for t, number in into[source, a] if t < last]
            solver.add(z3.Sum([number for t, number in sent if t <= last]) <= z3.Sum(had))
    for (a, b, t), numbers in carried.items():
        solver.add(z3.Sum(numbers) <= int(of.links[a, b]) * lasts[t])
    return solver


def chunks(of: Question, split: Sequence[int], seed: int = 0) -> tuple[Any, dict[Move, Any]]:
    """A solver that is asked which chunks each link carries in each step, and its Booleans.

    Its time has a heavy tail, so a caller asks again with another seed.
    """
    import z3

    solver = z3.SolverFor("QF_FD")
    solver.set("random_seed", seed)
    solver.set("branching.heuristic", "chb")  # faster than the default, VSIDS, in most runs
    sends = {
        (source * of.chunks + i, a, b, t): z3.Bool(f"{source} {i} {a} {b} {t}")
        for source, a, b, t in moves(of)
        for i in range(of.chunks)
    }
    into, carried = defaultdict(list), defaultdict(list)
    for (chunk, a, b, t), send in sends.items():
        into[chunk, b].append((t, send))
        carried[a, b, t].append(send)
    for (chunk, a, _, t), send in sends.items():
        if a != chunk // of.chunks:
            solver.add(z3.Implies(send, z3.Or([earlier for u, earlier in into[chunk, a] if u < t])))
    for source, rank in permutations(range(len(of.links)), 2):
        for chunk in range(source * of.chunks, (source + 1) * of.chunks):
            received = [send for _, send in into[chunk, rank]]
            solver.add(z3.PbEq([(send, 1) for send in received], 1) if received else z3.BoolVal(False))
    for (a, b, t), each in carried.items():
        if len(each) > (most := int(of.links[a, b]) * split[t]):
            solver.add(z3.AtMost(*each, most))
    _order(of, solver, sends)
    return solver, sends


def _order(of: Question, solver: Any, sends: dict[Move, Any]) -> None:
    """Chunks of one source are alike: let them be in order of the links that they leave by in step 0."""
    import z3

    leaves = defaultdict(list)
    for (chunk, *_, t), send in sends.items():
        if t == 0:
            leaves[chunk].append(send)
    for chunk in leaves:
        if (chunk + 1) % of.chunks:
            ordered: Any = z3.BoolVal(True)
            for one, other in reversed([*zip(leaves[chunk], leaves[chunk + 1], strict=True)]):
                ordered = z3.Or(z3.And(one, z3.Not(other)), z3.And(one == other, ordered))
            solver.add(ordered)


class Deadline(NamedTuple):
    """When `time.monotonic` says that time is up; at once if ``ended`` is set."""

    at: float
    ended: threading.Event

    def left(self) -> float:
        """Seconds until then, 0 afterwards."""
        return 0.0 if self.ended.is_set() else max(0.0, self.at - time.monotonic())

    def within(self, seconds: float) -> Deadline:
        """The earlier of this deadline and one ``seconds`` from now."""
        return self._replace(at=min(self.at, time.monotonic() + seconds))


def check(solver: Any, deadline: Deadline) -> str:
    """The solver's answer: sat, unsat, or unknown where time is up."""
    if not deadline.left():
        return "unknown"
    solver.set("timeout", int(deadline.left() * 1000) + 1)
    solver.set("ctrl_c", False)  # it would end one question, and the next would begin
    return str(solver.check())


def apart(work: Callable[[Deadline], T], seconds: float) -> T:
    """What ``work`` returns, which runs in a thread, so that Ctrl-C ends it.

    In the main thread Ctrl-C could come while z3 destroys a formula, where Python drops the exception.
    """
    import z3

    deadline = Deadline(time.monotonic() + seconds, threading.Event())
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


def schedule(of: Question, model: Any, sends: dict[Move, Any]) -> Schedule:
    """The schedule that a model of `chunks` stands for; not proved."""
    rows: list[list[tuple[int, int, int]]] = [[] for _ in range(of.steps)]
    for (chunk, a, b, t), send in sends.items():
        if model[send]:
            rows[t].append((a, b, chunk))
    steps = [Step(*np.array(sorted(each), dtype=np.int64).reshape(-1, 3).T) for each in rows]
    p = len(of.links)
    return Schedule("all_gather", p, p * of.chunks, of.steps, steps.__getitem__, one_port=False)
