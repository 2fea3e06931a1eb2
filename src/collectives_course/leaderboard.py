"""The leaderboard: a race (machine and sizes from a seed), its lower bound, the library's times, and a class's ranking.

Every submission runs in one new race, whose number is drawn for the run and recorded.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from heapq import heappop, heappush
from math import ceil, exp, log
from pathlib import Path
from secrets import randbelow
from typing import Any

import numpy as np

from collectives.algorithms import build, candidates, takes
from collectives.core.bounds import lower_bound
from collectives.machine import Link, Machine
from collectives.simulator.simulation import simulate
from collectives_course.assignment import MAX_SEED, Assignment, AssignmentError
from collectives_course.grade import grade, name_of, or_ungraded
from collectives_course.submission import read_files, submissions_in
from collectives_course.verdict import Grade, Verdict

BANDS = ((256, 8 << 10), (32 << 10, 512 << 10), (2 << 20, 16 << 20), (64 << 20, 512 << 20))
SEGMENTS = (1, 4, 16, 64)
CRITERION = "score"
LEAST_SEGMENT = 512  # bytes; smaller ones only cost more

Row = dict[str, Any]


@dataclass(frozen=True)
class Race:
    """A machine of ``nodes`` nodes, and the sizes of the buffer in bytes."""

    nodes: int
    machine: Machine
    sizes: tuple[int, ...]

    @property
    def p(self) -> int:
        """Return the number of all ranks."""
        return self.nodes * self.machine.ranks_per_node

    def description(self) -> dict[str, Any]:
        """Return the machine as a submission gets it: plain numbers, in seconds and bytes."""
        links = {
            "inside": self.machine.inside or self.machine.network,
            "network": self.machine.network,
        }
        return {
            "nodes": self.nodes,
            "ranks_per_node": self.machine.ranks_per_node,
            "ports_per_node": self.machine.ports,
            **{name: {"alpha": link.alpha, "beta": link.beta} for name, link in links.items()},
        }


def race(seed: int, stream: int = 0) -> Race:
    """Draw the race of a seed, a number of any size.

    Another ``stream`` of the same seed is another race.

    >>> race(3) == race(3), race(3) == race(4), race(3) == race(3, stream=1)
    (True, False, False)
    """
    random = np.random.default_rng([seed, 7, stream])
    nodes, per_node = int(random.integers(2, 9)), int(random.choice([2, 3, 4, 6, 8]))
    inside = Link(overhead=_between(random, 1e-6, 4e-6), rate=_between(random, 60e9, 400e9))
    network = Link(overhead=_between(random, 4e-6, 25e-6), rate=_between(random, 5e9, 40e9))
    ports = int(random.choice([1, per_node]))
    sizes = tuple(int(_between(random, *band)) for band in BANDS)
    return Race(nodes, machine(per_node, ports, inside, network), sizes)


def _between(random: np.random.Generator, low: float, high: float) -> float:
    """Draw a number, uniform on a logarithmic scale, with three digits."""
    return float(f"{exp(random.uniform(log(low), log(high))):.3g}")


def machine(per_node: int, ports: int, inside: Link, network: Link) -> Machine:
    """Return a machine in which a message of m bytes costs alpha + beta m on both of its ports."""
    return Machine(
        name="of the race",
        ranks_per_node=per_node,
        ports_per_node=ports,
        inside=inside,
        network=network,
    )


def bound(on: Race, n: int) -> float:
    """Return the seconds below which no algorithm can be: the largest of three times.

    The bytes that cross the network: a node is as one rank that has all of its ports. The bytes of
    all links: an all-reduce moves at least 2 (p - 1) n. The start-up: what one rank has must reach
    all others, over links inside and outside at the same time (`_reach`).

    >>> on = race(3)
    >>> bound(on, 8) < bound(on, 8 << 20) < bound(on, 8 << 30)
    True
    """
    links, nodes, g = on.machine, on.nodes, on.machine.ranks_per_node
    crossing = lower_bound("all_reduce", nodes, n, 0.0, links.network.beta / links.ports)
    rate = links.network.rate * links.ports * (nodes > 1) + (
        links.inside.rate * g if links.inside and g > 1 else 0.0
    )
    moved = 2 * (on.p - 1) * n / (nodes * rate) if rate else 0.0
    return max(crossing, moved, _reach(on))


def _reach(on: Race) -> float:
    """Return the seconds until all ranks have the data, if each kind of link hands it on to one rank in one alpha.

    Only the network enters another node, where it multiplies the nodes that have the data by g + 1
    at most.
    """
    g, network = on.machine.ranks_per_node, on.machine.network.alpha
    alphas = [network] * (on.nodes > 1)
    if on.machine.inside and g > 1:
        alphas.append(on.machine.inside.alpha)
    hands, have, now = [(alpha, alpha) for alpha in alphas], 1, 0.0
    while have < on.p:
        now, alpha = heappop(hands)
        have += 1
        heappush(hands, (now + alpha, alpha))
        for each in alphas:
            heappush(hands, (now + each, each))
    return max(now, ceil(log(on.nodes, g + 1) - 1e-9) * network)


@dataclass(frozen=True)
class Standing:
    """One size of a race: the bound, and the times of the library's algorithms, in seconds, the best one first."""

    n: int
    bound: float
    times: dict[str, float]

    @property
    def best(self) -> str:
        """Return the library's fastest algorithm here."""
        return min(self.times, key=lambda name: self.times[name])


@cache
def standings(seed: int) -> tuple[Standing, ...]:
    """Time the library in the race of a seed, each algorithm with the number of segments that is best for it."""
    on = race(seed)
    rivals = candidates("all_reduce")
    return tuple(
        Standing(n, bound(on, n), {name: _time(on, name, n) for name in rivals}) for n in on.sizes
    )


def _time(on: Race, name: str, n: int) -> float:
    most = max(1, n // LEAST_SEGMENT)
    cuts = [s for s in SEGMENTS if s <= most] if takes("all_reduce", name, "segments") else [1]
    options = {"ranks_per_node": on.machine.ranks_per_node}
    made = (build("all_reduce", name, on.p, segments=s, **options) for s in cuts)
    return min(simulate(each, on.machine, n).seconds for each in made)


def ranking(
    assignment: Assignment,
    folder: Path,
    seed: int | None = None,
    sandboxed: bool = True,
    on_row: Callable[[Row], None] | None = None,
) -> list[Row]:
    """Rank the submissions, the folders of ``folder``.

    ``on_row`` gets the row of each as soon as there is one.

    The keys of a row: place, submission, score, status, message, sizes, seed. All submissions run
    in the same race. Without a ``seed`` a new one is drawn; the rows have it, so that a run can be
    repeated.

    The score is the geometric mean, over the sizes, of simulated time over the bound; None where a
    schedule is not proved or there is none. Those are last, by name, and have no place. Equal
    scores share a place. If the grader itself fails at a submission, its status is "ungraded".

    Raises ValueError for a folder that has no submissions, AssignmentError for an assignment that
    has no score, and what `collectives_course.grade.grade` raises.
    """
    scored = _only_score(assignment)
    submissions = submissions_in(folder)
    seed = randbelow(MAX_SEED) if seed is None else seed

    def graded(each: Path) -> Grade:
        handed_in = read_files(each, scored.facts.files)
        # The race is drawn from the secret. Variants keep seed 0: a submission sees the practice
        # machine of its seed.
        return grade(scored, each, 0, sandboxed, secret=f"{seed:x}", handed_in=handed_in)

    rows = []
    for each in submissions:
        (verdict,) = or_ungraded(graded, scored, each, seed, sandboxed).verdicts
        rows.append(_row(name_of(each), verdict, seed))
        if on_row:
            on_row(rows[-1])
    return placed(rows)


def _only_score(assignment: Assignment) -> Assignment:
    scored = tuple(each for each in assignment.criteria if each.name == CRITERION)
    if not scored:
        raise AssignmentError(
            f"assignment: got {assignment.name}, expected one with a criterion {CRITERION!r}"
        )
    return replace(assignment, criteria=scored)


def _row(name: str, verdict: Verdict, seed: int) -> Row:
    score = verdict.details.get("score")
    return {
        "place": None,
        "submission": name,
        "score": score,
        "status": verdict.status if score is None else "passed",
        "message": verdict.message if score is None else "",
        "sizes": verdict.details.get("sizes", []),
        "seed": seed,
    }


def placed(rows: list[Row]) -> list[Row]:
    """Return the rows in order of their scores, with their places.

    >>> scores = {"a": None, "b": 2.5, "c": 1.5, "d": 1.5}
    >>> rows = [{"submission": name, "score": score} for name, score in scores.items()]
    >>> [(row["place"], row["submission"]) for row in placed(rows)]
    [(1, 'c'), (1, 'd'), (3, 'b'), (None, 'a')]
    """
    scores = [row["score"] for row in rows if row["score"] is not None]
    with_places = [
        {
            **row,
            "place": None
            if row["score"] is None
            else 1 + sum(score < row["score"] for score in scores),
        }
        for row in rows
    ]
    return sorted(
        with_places, key=lambda row: (row["place"] is None, row["place"], row["submission"])
    )
