"""Hidden tests of the trees: schedules proved for every p to 64, then counted, then simulated."""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, product
from typing import Any

import numpy as np

from collectives.algorithms import ALGORITHMS
from collectives.core.bounds import best_segments, height, lower_bound
from collectives.core.contracts import add_counts, before
from collectives.core.interpret import apply
from collectives.core.schedule import Schedule
from collectives.core.traffic import traffic
from collectives.machine import machine
from collectives.units import duration
from collectives_course.schedules import (
    check_schedule,
    player_details,
    prove,
    prove_each,
    schedules,
    seconds,
)
from collectives_course.submission import Criterion, Submission
from collectives_course.verdict import EndedError, Failed

MOST_RANKS = 64
ODD_AND_EVEN = (*range(2, 17), 33, 64)
BYTES = 64 << 20
NO_PARENT = -1
PARTS = (1, 2, 3, 6, 7, 12, 37)  # numbers of ranks for which the trees themselves are looked at


def variant(seed: int) -> dict[str, Any]:
    """The roots, and which chunks go through which tree.

    The library's trees begin at rank 0 and split in halves.
    """
    random = np.random.default_rng([seed, 3])
    root, second, first = (
        int(random.integers(2, 10)),
        int(random.choice([-1, 1])),
        int(random.integers(0, 2)),
    )
    return {"root": root, "second": second, "first": first}


def _cases(ranks: Iterable[int], *segments: int) -> list[tuple[int, tuple[int, int]]]:
    """Arguments for each number of ranks and of segments."""
    return [(p, (p, s)) for p, s in product(ranks, segments)]


def _proved(
    submission: Submission, function: str, ranks: Iterable[int], *segments: int
) -> Iterator[tuple[str, Any]]:
    """What is counted or timed has to be right first."""
    for call, made in schedules(submission, function, _cases(ranks, *segments)):
        prove(call, made)
        yield call, made


def _each_proved(
    submission: Submission, ranks: Iterable[int], *segments: int
) -> Iterator[tuple[str, Any]]:
    """Yield the schedules of both functions, each with its call."""
    for function in ("tree", "two_tree"):
        yield from _proved(submission, function, ranks, *segments)


def _prove_all(submission: Submission, function: str) -> None:
    """One rank alone has nothing to do, so a right schedule for it does not give a part of the points."""
    segments = int(submission.random.integers(5, 13))
    beyond = int(submission.random.integers(MOST_RANKS + 1, 2 * MOST_RANKS))
    cases = (
        _cases((*range(2, MOST_RANKS + 1), beyond), 1),
        _cases((5, 8, 31), 4),
        _cases((6, 31), segments),
    )
    prove_each(submission, function, list(chain.from_iterable(cases)))
    for call, made in schedules(submission, function, _cases((1,), 1)):
        prove(call, made)


def tree(submission: Submission) -> None:
    """Prove a schedule for each number of ranks."""
    _prove_all(submission, "tree")


def two_tree(submission: Submission) -> None:
    """Prove a schedule for each number of ranks."""
    _prove_all(submission, "two_tree")


def ports(submission: Submission) -> None:
    """Count the messages at each port in each step."""
    for call, made in _each_proved(submission, ODD_AND_EVEN, int(submission.random.integers(2, 6))):
        prove(call, made, one_port=True)


def tree_root(submission: Submission) -> None:
    """Look for the rank that has the whole sum first."""
    for call, made in _proved(submission, "tree", (2, 3, 6, 8, 11, 13), 3):
        p = made.p
        _need_roots(call, made, [submission.variant["root"] % p] * made.k)
    for p in PARTS:
        _need_parents(submission, "first_tree", p, submission.variant["root"] % p)


def tree_roots(submission: Submission) -> None:
    """Look for the rank that has the whole sum of each chunk first."""
    root, second, first = (submission.variant[name] for name in ("root", "second", "first"))
    for call, made in _proved(submission, "two_tree", (3, 4, 6, 8, 11, 13), 3):
        roots = [
            (root if chunk % 2 == first else root + second) % made.p for chunk in range(made.k)
        ]
        _need_roots(call, made, roots)
    for p in PARTS:
        first = _need_parents(submission, "first_tree", p, root % p)
        other = _need_parents(submission, "second_tree", p, (root + second) % p)
        both = sorted(set(first) & set(other) - {NO_PARENT})
    if len(both) > p % 2:
        raise Failed(
            f"second_tree({p}): ranks {both} have children in both trees, expected {p % 2}",
            share=0.5,
        )


def _need_parents(submission: Submission, function: str, p: int, root: int) -> list[int]:
    """Return the parent of each rank.

    Raises Failed, with half of the points, unless they are a tree that is low.
    """
    call, told = f"{function}({p})", submission.call(function, p)
    parent = told.tolist() if isinstance(told, np.ndarray) else told
    if (
        not isinstance(parent, list)
        or len(parent) != p
        or not all(type(up) is int and -1 <= up < p for up in parent)
    ):
        raise Failed(
            f"{call}: got {told!r:.80}, expected a list with the parent of each of {p} ranks",
            share=0.5,
        )
    if parent[root] != NO_PARENT or parent.count(NO_PARENT) != 1:
        raise Failed(f"{call}: got {parent}, expected NO_PARENT for rank {root} alone", share=0.5)
    most = max(Counter(parent).values())
    if most > 2:
        raise Failed(f"{call}: a rank has {most} children, expected two at most", share=0.5)
    above = list(range(p))
    for _ in range(height(p)):
        above = [rank if parent[rank] == NO_PARENT else parent[rank] for rank in above]
    if {*above} != {root}:
        raise Failed(
            f"{call}: not all ranks are at most {height(p)} levels below the root", share=0.5
        )
    return parent


def _need_down(submission: Submission) -> None:
    """Raise Failed, with half of the points, unless ``down`` is right for a tree that is not the course's own."""
    p, segments = 6, int(submission.random.integers(3, 8))
    ranks = submission.random.permutation(p).tolist()
    parent = [NO_PARENT] * p
    for place in range(1, p):
        parent[ranks[place]] = ranks[(place - 1) // 2]
    colour = [0] * p
    for place in range(1, p):  # two children of one rank differ
        colour[ranks[place]] = place % 2
    call = f"down({parent}, {colour}, {segments})"
    try:
        made = submission.call("down", parent, colour, segments)
        check_schedule(call, made, p, "broadcast", ranks[0])
        prove(call, made, one_port=True)
        _need_edges(call, made, parent, colour, segments)
    except EndedError as error:
        error.share = 0.5
        raise


def _need_edges(
    call: str, made: Schedule, parent: list[int], colour: list[int], segments: int
) -> None:
    """Raise Failed for a message along no edge of its tree, or in a step of another colour."""
    rows = []
    for t, step in enumerate(made.steps()):
        rows += [(src, dst, t % 2) for src, dst in zip(step.src, step.dst, strict=True)]
    if made.k != segments or len(rows) != segments * (len(parent) - 1):
        text = f"got {made.k} chunks and {len(rows)} messages, expected {segments} and {segments * (len(parent) - 1)}"
        raise Failed(f"{call}: {text}")
    for src, dst, parity in rows:
        if parent[dst] != src or colour[dst] != parity:
            raise Failed(
                f"{call}: rank {src} sends to rank {dst} in a step of parity {parity}: another edge or colour"
            )


def _need_roots(call: str, schedule: Schedule, roots: list[int]) -> None:
    """Raise Failed where another rank than the root has the whole sum first."""
    for chunk, (found, expected) in enumerate(zip(_first_complete(schedule), roots, strict=True)):
        if found != [expected]:
            ranks = " and ".join(map(str, found))
            message = f"{call}: the sum of chunk {chunk} is first complete on rank {ranks}, expected rank {expected}"
            raise Failed(message, **player_details(call, schedule))


def _first_complete(schedule: Schedule) -> list[list[int]]:
    """For every chunk the ranks that first hold every contribution: the root, if it went up a tree."""
    held = before(schedule)
    complete = np.array([*[1] * schedule.p, 0])
    found: list[list[int]] = [[] for _ in range(schedule.k)]
    for step in schedule.steps():
        apply(step, held, add_counts)
        for chunk in np.unique(step.cells()[1]):  # no other can become complete
            if not found[chunk]:
                found[chunk] += np.flatnonzero((held[:, chunk] == complete).all(axis=-1)).tolist()
    return found


def depth(submission: Submission) -> None:
    """Count the steps of one segment."""
    for call, made in _each_proved(submission, ODD_AND_EVEN, 1):
        most = 4 * height(made.p)
        if made.nsteps > most:
            formula = f"4 ceil(log2 p) = {most}: at most 2 steps a level, up and down"
            raise Failed(
                f"{call}: got {made.nsteps} steps, expected at most {formula}",
                **player_details(call, made),
            )


def pipeline(submission: Submission) -> None:
    """Count the steps that further segments add."""
    segments = int(submission.random.integers(5, 16))
    for function, trees in (("tree", 1), ("two_tree", 2)):
        (_, short), *others = _proved(submission, function, (13,), 1, segments, 17)
        for (call, long), count in zip(others, (segments, 17), strict=True):
            _need_pipelined(call, long, short, trees, count)
    _need_down(submission)


def _need_pipelined(call: str, long: Schedule, short: Schedule, trees: int, segments: int) -> None:
    """Raise Failed for more steps than four a segment."""
    if long.k != trees * segments:
        raise Failed(f"{call}: got {long.k} chunks, expected {trees * segments}")
    more, most = long.nsteps - short.nsteps, 4 * (segments - 1)
    if more > most:
        message = f"got {more} steps more than with one segment, expected at most {most}"
        raise Failed(
            f"{call}: {message}: a segment follows two steps after the one before, up and down"
        )


def balance(submission: Submission) -> None:
    """Count the bytes through each port."""
    for call, made in _proved(submission, "two_tree", ODD_AND_EVEN, 2):
        n = made.k * 1000
        counted = traffic(made, n)
        for verb, most in (("sends", counted.sent), ("receives", counted.received)):
            if most.max() > 2 * n:
                rank, buffers = int(most.argmax()), most.max() / n
                message = f"rank {rank} {verb} {buffers:g} n, expected at most 2 n: it has too many children"
                raise Failed(
                    f"{call}: {message} in both trees together", **player_details(call, made)
                )


def bandwidth(submission: Submission) -> dict[str, Any]:
    """Against the library's single tree, with the number of segments that is best for each."""
    on, lines = machine("textbook"), []
    alpha, beta = on.network.alpha, on.network.beta
    for p in (32, 33, int(submission.random.integers(65, 130))):
        one, two = (best_segments(p, BYTES, alpha, beta, trees) for trees in (1, 2))
        single = seconds("tree", ALGORITHMS["all_reduce", "tree"](p, one), on, BYTES)
        ((call, made),) = _proved(submission, "two_tree", (p,), two)
        took, bound = (
            seconds(call, made, on, BYTES),
            lower_bound("all_reduce", p, BYTES, alpha, beta),
        )
        lines.append(
            f"{call}: {duration(took)}; a single tree {duration(single)}; no algorithm below {duration(bound)}"
        )
        if took > 0.65 * single:
            message = (
                f"{took / single:.2f} of a single tree's time for 64 MiB, expected at most 0.65"
            )
            raise Failed(f"{call}: got {message}", grid="\n".join(lines))
    return {"grid": "\n".join(lines)}


CRITERIA = [
    Criterion(
        "tree", 15, "tree(p, segments) is an all-reduce: proved for every p from 1 to 64.", tree
    ),
    Criterion(
        "two-tree",
        25,
        "two_tree(p, segments) is an all-reduce: proved for every p from 1 to 64.",
        two_tree,
    ),
    Criterion("ports", 10, "In a step no rank sends two messages, and none receives two.", ports),
    Criterion(
        "root",
        5,
        "tree: the sum is first complete on rank ROOT % p, the root of first_tree.",
        tree_root,
    ),
    Criterion(
        "roots",
        10,
        "two_tree: each chunk's sum is first complete on the root of its tree; second_tree is one.",
        tree_roots,
    ),
    Criterion(
        "depth", 10, "One segment takes at most 4 ceil(log2 p) steps, in both functions.", depth
    ),
    Criterion(
        "pipeline",
        5,
        "Each further segment takes at most 4 steps, in both functions; down keeps to the colours.",
        pipeline,
    ),
    Criterion("balance", 10, "two_tree: no rank sends, or receives, more than 2 n.", balance),
    Criterion(
        "bandwidth",
        10,
        "two_tree takes at most 0.65 of a single tree's time, simulated, 64 MiB.",
        bandwidth,
    ),
]
