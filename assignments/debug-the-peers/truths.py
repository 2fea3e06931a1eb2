"""What is wrong with the programs as they are handed out: found by running, proving and counting them."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from collectives.core.contracts import add_counts, before
from collectives.core.interpret import apply
from collectives.core.schedule import Schedule
from collectives.core.traffic import traffic
from collectives.core.verify import verify
from collectives_course import assignment
from collectives_course.grade import let_others_read
from collectives_course.submission import Submission
from collectives_course.verdict import Failed
from collectives_course.world import Network, RunResult, World

SMALL_BUFFERS = Network(small_buffers=True)


class Truth(NamedTuple):
    """What is wrong with a program."""

    kind: str
    where: list[int]
    how_much: float


class Stuck(World):
    """Says which ranks wait for each other, and how many never return."""

    def deadlock(self, waiting: list[Any]) -> str:
        """Raise Failed with the ranks of the cycle."""
        path = [waiting[0]]
        while (following := self.ranks[path[-1].peer]) not in path and following.waits:
            path.append(following)
        ranks = sorted(rank.number for rank in path[path.index(following) :])
        lost = sum(rank.returned is None for rank in self.ranks)
        raise Failed("deadlock", ranks=ranks, lost=lost)


@contextmanager
def _handed_out(seed: int, sandboxed: bool) -> Iterator[Submission]:
    """The starter as a submission."""
    made = assignment.read(Path(__file__).parent)
    with tempfile.TemporaryDirectory(prefix="collectives-grade-") as temporary:
        tree = Path(temporary) / "tree"
        assignment.write_starter(made, seed, tree)
        let_others_read(tree)
        numbers, limit = made.variant(seed), made.facts.limit
        submission = Submission(tree, "cases.py", numbers, seed, made.limits, limit, sandboxed)
        try:
            yield submission
        finally:
            submission.close()


@cache
def truth(program: str, seed: int, sandboxed: bool) -> Truth:
    """What is wrong with a program as it is handed out for a seed; found once for a whole class."""
    with _handed_out(seed, sandboxed) as peers:
        return TRUTHS[program](peers)


def _played(peers: Submission, program: str, function: str, **more: Any) -> RunResult:
    """Play a program with the arguments that it has by itself."""
    return peers.run(function, peers.call(program), file=f"{program}.py", **more)


def _hypercube(peers: Submission) -> Truth:
    """Return which contributions are counted twice on one rank, and by how much its sum is too large."""
    schedule = peers.call("schedule", file="hypercube.py")
    counts = before(schedule)
    for step in schedule.steps():
        apply(step, counts, add_counts)
    held = counts[peers.variant["observer"], :, : schedule.p].astype(int)
    (wrong,) = np.flatnonzero((held > 1).any(axis=1))
    weights = np.arange(schedule.p) + 1
    twice = np.flatnonzero(held[wrong] > 1).tolist()
    return Truth("counted twice", twice, float(held[wrong] @ weights - weights.sum()))


def _groups(peers: Submission) -> Truth:
    """Return which ranks wait for each other, and what is lost."""
    try:
        _played(peers, "groups", "total", network=SMALL_BUFFERS, world=Stuck)
    except Failed as stuck:
        return Truth("deadlock", stuck.details["ranks"], stuck.details["lost"])
    raise AssertionError("groups.py ends")


def _trees(peers: Submission) -> Truth:
    """Return which ranks have children in both trees, and what one of them sends beyond two buffers."""
    schedule, n = peers.call("schedule", file="trees.py"), peers.variant["bytes"]
    verify(schedule)
    return Truth(
        "overloaded ranks", interior_in_both(schedule), int(traffic(schedule, n).sent.max()) - 2 * n
    )


def interior_in_both(schedule: Schedule) -> list[int]:
    """Ranks that add in every chunk: each chunk goes up a tree of its own."""
    inner: list[set[int]] = [set() for _ in range(schedule.k)]
    for step in schedule.steps():
        row, chunks = step.cells()
        for dst, chunk, add in zip(step.dst[row], chunks, step.add[row], strict=True):
            if add:
                inner[int(chunk)].add(int(dst))
    return sorted(set.intersection(*inner))


def _ring(peers: Submission) -> Truth:
    """Return which messages of rank 0 are longer than a chunk, and how many times too much it sends."""
    played, p = _played(peers, "ring", "all_reduce"), peers.variant["ring"]
    whole = p * peers.variant["elements"] * 8
    first = [message.bytes for message in played.sent if message.src == 0]
    too_long = [i for i, size in enumerate(first) if size > whole // p]
    return Truth("whole buffers", too_long, played.bytes_sent(p)[0] / (2 * (p - 1) * whole // p))


def _counted(peers: Submission) -> Truth:
    """Return which ranks say more than they have sent, and by how much together."""
    played = _played(peers, "counted", "all_reduce")
    errors = np.array(played.values) - np.array(played.bytes_sent(len(played.values)))
    return Truth("untrue counter", np.flatnonzero(errors > 0).tolist(), int(errors.sum()))


def _choice(peers: Submission) -> Truth:
    room, p = peers.variant["room"], len(peers.variant["room"])
    most = [_most_exchanged(peers, each, p) for each in room]
    elements, usual = min(most) + 1, max(set(most), key=most.count)
    for n in (elements - 1, elements):
        try:
            peers.run("all_reduce", peers.call("choice", n), file="choice.py")
        except Failed:
            return Truth(
                "different algorithms", [r for r, each in enumerate(most) if each != usual], n
            )
    raise AssertionError("choice.py ends")


def _most_exchanged(peers: Submission, room: int, p: int) -> int:
    """The most elements that a rank with this room exchanges."""
    low, high = 0, room
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (
            (middle, high)
            if peers.call("fits", 8 * middle, room, p, file="choice.py")
            else (low, middle)
        )
    return low


TRUTHS = {
    "hypercube": _hypercube,
    "groups": _groups,
    "trees": _trees,
    "ring": _ring,
    "counted": _counted,
    "choice": _choice,
}
