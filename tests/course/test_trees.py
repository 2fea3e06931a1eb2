"""The check of the roots grows with what moves, not with steps times chunks: a schedule may have many of both."""

import time

from collectives.schedule import Schedule, Step
from collectives_course import assignment
from collectives_course.criterion import Submission
from course.wrong import ASSIGNMENTS

MADE = assignment.read(ASSIGNMENTS / "trees")
(ROOT,) = [each for each in MADE.criteria if each.name == "root"]
CHUNKS = 1 << 13


def one_by_one(p: int, root: int, k: int) -> Schedule:
    """Every chunk of every rank to the root and back, one in a step."""
    others = [rank for rank in range(p) if rank != root]

    def step(t: int) -> Step:
        turn, other = divmod(t % (k * len(others)), len(others))
        if t < k * len(others):
            return Step([others[other]], [root], turn, add=True)
        return Step([root], [others[other]], turn)

    return Schedule("all_reduce", p, k, 2 * k * len(others), step)


def test_many_steps_of_many_chunks() -> None:
    submission = Submission(MADE.folder / "reference", MADE.facts.files[0], MADE.variant(3), limit=60)
    root = submission.variant["root"]
    submission.call = lambda _function, p, _segments: one_by_one(p, root % p, CHUNKS if p == 2 else 2)  # type: ignore[method-assign]
    submission.charge = lambda _seconds, _what: None  # type: ignore[method-assign]
    start = time.thread_time()
    ROOT.check(submission)
    assert time.thread_time() - start < 5
