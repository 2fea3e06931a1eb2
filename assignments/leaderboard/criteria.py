"""Hidden tests of the leaderboard: schedules for machines that nobody has seen, proved, then simulated."""

from collections.abc import Callable
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from collectives.machine import Link
from collectives.units import duration
from collectives_course.leaderboard import Race, Standing, machine, race, standings
from collectives_course.schedules import prove, prove_each, schedules, seconds, table
from collectives_course.submission import Criterion, Submission
from collectives_course.verdict import EndedError, Failed

SHAPES = ((1, 1), (2, 1), (7, 1), (1, 5), (3, 4), (2, 8), (6, 2), (8, 8))
PRACTICE = 1  # another stream of random numbers than a graded machine's


def variant(seed: int) -> dict[str, Any]:
    """A machine to practise on.

    The secret one does not follow from this seed, which all starters of a course share.
    """
    practice = race(seed, PRACTICE)
    return {"machine": practice.description(), "sizes": list(practice.sizes)}


def _shape(nodes: int, per_node: int) -> Race:
    inside, network = Link(overhead=2e-6, rate=100e9), Link(overhead=8e-6, rate=20e9)
    return Race(nodes, machine(per_node, per_node, inside, network), ())


def proved(submission: Submission) -> None:
    random = submission.random
    drawn = [tuple(shape) for shape in random.integers((3, 2), (12, 6), (2, 2)).tolist()]
    shapes = [_shape(*shape) for shape in (*SHAPES, *drawn)]
    sizes = 8, 1_000_003, int(2 ** random.uniform(10, 26))
    cases = []
    for shape in shapes:
        cases += [(shape.p, (shape.description(), n)) for n in sizes]
    secret = race(submission.number)
    prove_each(
        submission,
        "schedule",
        [*cases, *((secret.p, (secret.description(), n)) for n in secret.sizes)],
    )


Times = list[tuple[Standing, float]]
_last: dict[Path, Times | EndedError] = {}


def _times(submission: Submission) -> Times:
    """The submission's race, run once for all criteria: each grading has a folder of its own."""
    found = _last.get(submission.folder) or _raced(submission)
    _last.clear()
    _last[submission.folder] = found
    if isinstance(found, EndedError):
        raise found
    return found


def _raced(submission: Submission) -> Times | EndedError:
    try:
        return _proved_and_timed(submission)
    except EndedError as error:
        return error


def _proved_and_timed(submission: Submission) -> Times:
    """What is timed has to be right first."""
    on, found = race(submission.number), []
    cases = [(on.p, (on.description(), n)) for n in on.sizes]
    for standing, (call, made) in zip(
        standings(submission.number), schedules(submission, "schedule", cases), strict=True
    ):
        prove(call, made)
        found.append((standing, seconds(call, made, on.machine, standing.n)))
    return found


def _details(times: Times) -> dict[str, Any]:
    """The table for the report, and the score for the ranking."""
    head = [
        "bytes",
        "yours",
        "speed of light",
        "yours / light",
        "ring",
        "two trees",
        "the library's best",
        "",
    ]
    rows = [
        [
            f"{each.n:,}",
            duration(took),
            duration(each.bound),
            f"{took / each.bound:.2f}",
            duration(each.times["ring"]),
            duration(each.times["two_tree"]),
            duration(each.times[each.best]),
            each.best,
        ]
        for each, took in times
    ]
    score = geometric_mean([took / each.bound for each, took in times])
    text = f"{table([head, *rows])}\nScore: {score:.3f}, the geometric mean of yours / light (lower is better)"
    sizes = [
        {"bytes": each.n, "seconds": took, "bound_seconds": each.bound} for each, took in times
    ]
    return {"grid": text, "score": score, "sizes": sizes}


def ring(submission: Submission) -> dict[str, Any]:
    times = _times(submission)
    for each, took in times:
        if took > 1.001 * each.times["ring"]:
            message = f"{each.n:,} bytes: got {duration(took)}, slower than the ring's {duration(each.times['ring'])}"
            raise Failed(message, **_details(times))
    faster = geometric_mean([each.times["ring"] / took for each, took in times])
    if faster < 1.5:
        raise Failed(
            f"got {faster:.2f} times as fast as the ring, expected at least 1.5", **_details(times)
        )
    return _details(times)


def _within(most: float) -> Callable[[Submission], dict[str, Any]]:
    def check(submission: Submission) -> dict[str, Any]:
        times = _times(submission)
        found = geometric_mean([took / each.times[each.best] for each, took in times])
        if found > most:
            message = (
                f"got {found:.3f} times the time of the library's best, expected at most {most:g}"
            )
            raise Failed(f"{message} (geometric mean over the sizes)", **_details(times))
        return _details(times)

    return check


CRITERIA = [
    Criterion(
        "proved",
        30,
        "An all-reduce, proved on machines of eleven shapes, two of them drawn.",
        proved,
    ),
    Criterion(
        "ring",
        20,
        "On the secret machine never slower than the ring, and 1.5 times as fast on average.",
        ring,
    ),
    Criterion(
        "near",
        20,
        "At most 1.5 times as slow as the library's best algorithm, on average over the sizes.",
        _within(1.5),
    ),
    Criterion("close", 15, "At most 1.1 times as slow as the library's best.", _within(1.1)),
    Criterion(
        "score", 15, "At most 5% slower than the library's best, of all that it has.", _within(1.05)
    ),
]
