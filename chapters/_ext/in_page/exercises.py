"""Exercises that answer: numbers are recomputed, functions compared on many inputs, schedules proved.

A wrong answer is told why, and not what is right. What is asked for is here too, for the page: it needs no library.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

RANKS = range(1, 17)


class Number(NamedTuple):
    """A number to type: what it is, how to compute it, why another one is wrong, and by which share it may be off."""

    label: str
    truth: Callable[[], float]
    why: str
    near: float = 0.0


class Function(NamedTuple):
    """A function to write, which has to return what another one does for each of some arguments."""

    start: str
    truth: Callable[..., float]
    arguments: list[tuple[int, ...]]
    why: str


class Plan(NamedTuple):
    """A schedule to write, as a function of p: which collective, and what else is asked of it."""

    start: str
    collective: str
    fault: Callable[[Any], str]
    ranks: range = RANKS


class Assignment(NamedTuple):
    """A file of an assignment to write, which the assignment's own criteria grade."""

    name: str
    file: str

    def start(self) -> str:
        """Return the starter's text, which a build makes: no page has the solution."""
        from collectives_course.assignment import without_solution

        reference = Path(__file__).parents[3] / "assignments" / self.name / "reference" / self.file
        return without_solution(reference.read_text(encoding="utf8"))


Exercise = tuple[Number, ...] | Function | Plan | Assignment


def made(collective: str, algorithm: str, p: int, **options: Any) -> Any:
    """Return a schedule of the library."""
    from collectives.algorithms import ALGORITHMS

    return ALGORITHMS[collective, algorithm](p, **options)


def sent(collective: str, algorithm: str, p: int, n: int, **options: Any) -> Any:
    """Return what is counted of a schedule's traffic."""
    from collectives.core.traffic import traffic

    return traffic(made(collective, algorithm, p, **options), n)


def source_of(collective: str, algorithm: str, p: int, rank: int, step: int) -> int:
    """Return the rank from which a rank receives in a step."""
    found = made(collective, algorithm, p).step(step)
    return int(found.src[found.dst == rank][0])


def arrives(collective: str, algorithm: str, p: int, rank: int) -> int:
    """Return the first step in which a rank receives."""
    steps = made(collective, algorithm, p).steps()
    return next(t for t, step in enumerate(steps) if (step.dst == rank).any())


def completes(collective: str, algorithm: str, p: int, chunk: int) -> tuple[int, int]:
    """Return the rank and the step in which a chunk gets its last addition."""
    added = [
        (int(dst), t)
        for t, step in enumerate(made(collective, algorithm, p).steps())
        for dst in step.dst[step.add & (step.chunk == chunk)]
    ]
    return added[-1]


def chunks(collective: str, algorithm: str, p: int, step: int) -> int:
    """Return the most chunks that a message of a step has."""
    found = made(collective, algorithm, p).step(step)
    totals: dict[tuple[int, int], int] = {}
    for src, dst, count in zip(found.src, found.dst, found.count, strict=True):
        totals[src, dst] = totals.get((src, dst), 0) + int(count)
    return max(totals.values())


def messages(collective: str, algorithm: str, p: int, step: int) -> int:
    """Return how many pairs of ranks have a message in a step."""
    found = made(collective, algorithm, p).step(step)
    return len(set(zip(found.src.tolist(), found.dst.tolist(), strict=True)))


def border(p: int, small: str, large: str, alpha: float = 5e-6, beta: float = 1 / 25e9) -> float:
    """Return the bytes of an all-reduce from which on the second algorithm is faster, by the formulas."""
    from collectives.algorithms import COSTS

    few, many = (COSTS["all_reduce", name](p) for name in (small, large))
    return float((many.steps - few.steps) * alpha / ((few.sent - many.sent) * beta))


def ring_seconds(p: int, n: float, alpha: float, beta: float) -> float:
    """Return the seconds of a ring all-reduce by its formula."""
    from collectives.algorithms import COSTS

    return float(COSTS["all_reduce", "ring"](p).seconds(n, alpha, beta))


def few_steps(schedule: Any) -> str:
    """Return what is wrong with the cost of a reduce-scatter that should have the least steps and bytes."""
    from collectives.core.traffic import traffic

    p, n = schedule.p, schedule.k * schedule.p
    if schedule.nsteps != math.ceil(math.log2(p)):
        return f"{schedule.nsteps} steps, but the all-gather whose dual is asked for has fewer"
    if traffic(schedule, n).sent.max() > (p - 1) * n // p:
        return "a rank sends more than (p - 1) / p of the buffer"
    return ""


def cheap_reduce(schedule: Any) -> str:
    """Return what is wrong with the cost of a reduce whose longest messages should be two buffers together."""
    longest = sum(int(step.messages().size.max(initial=0)) for step in schedule.steps())
    if longest <= 2 * schedule.k:
        return ""
    return f"its longest messages have {longest / schedule.k:.3g} n together: send sums of parts"


EXERCISES: dict[str, Exercise] = {
    "ring-all-reduce-1": (
        Number(
            "MiB that each rank sends",
            lambda: sent("all_reduce", "ring", 8, 64 << 20).sent.max() / (1 << 20),
            "One chunk leaves a rank in each step.",
        ),
        Number(
            "messages",
            lambda: made("all_reduce", "ring", 8).nsteps,
            "There are as many steps in the reduce-scatter as in the all-gather.",
        ),
    ),
    "ring-all-reduce-2": (
        Number(
            "rank",
            lambda: completes("all_reduce", "ring", 3, 0)[0],
            "The sum of chunk c starts at rank c + 1, and goes round.",
        ),
        Number("step", lambda: completes("all_reduce", "ring", 3, 0)[1], "Steps count from 0."),
    ),
    "ring-all-reduce-4": (
        Number(
            "MB",
            lambda: border(64, "recursive_doubling", "ring") / 1e6,
            "Compare steps times α, and buffers times nβ, of both.",
            0.03,
        ),
    ),
    "ring-all-reduce-5": (
        Number(
            "milliseconds",
            lambda: ring_seconds(64, 16e9, 10e-6, 1 / 50e9) * 1e3,
            "Each of 2 (p - 1) steps moves a chunk of n / p bytes.",
            0.03,
        ),
        Number(
            "per cent of latency",
            lambda: 100 * 126 * 10e-6 / ring_seconds(64, 16e9, 10e-6, 1 / 50e9),
            "Divide the latencies of all steps by the whole time.",
            0.1,
        ),
    ),
    "broadcast-1": (
        Number(
            "from rank",
            lambda: source_of("broadcast", "binomial", 11, 10, 3),
            "Take the highest binary digit away.",
        ),
        Number(
            "in step",
            lambda: arrives("broadcast", "binomial", 11, 10),
            "The highest binary digit decides.",
        ),
    ),
    "broadcast-3": (
        Number(
            "steps on four ranks",
            lambda: made("broadcast", "chain", 4, segments=2).nsteps,
            "Segment 1 arrives one step after segment 0.",
        ),
        Number(
            "steps on eight ranks",
            lambda: made("broadcast", "chain", 8, segments=2).nsteps,
            "Segment 0 passes from rank to rank.",
        ),
    ),
    "broadcast-4": (
        Number(
            "n, flat",
            lambda: sent("scatter", "flat", 64, 6400).sent.sum() / 6400,
            "Every part but the root's own is sent once.",
            0.01,
        ),
        Number(
            "n, binomial",
            lambda: sent("scatter", "binomial", 64, 6400).sent.sum() / 6400,
            "A part is sent once for each hop.",
            0.01,
        ),
    ),
    "reduce-and-reduce-scatter-6": Plan(
        "from collectives import ALGORITHMS\nfrom collectives.core.schedule import reverse\n\n\ndef mine(p):\n"
        '    forwards = ALGORITHMS["broadcast", "scatter_allgather"](p)\n'
        '    return reverse(forwards, "reduce", add=True)\n',
        "reduce",
        cheap_reduce,
        range(2, 17),
    ),
    "scatter-gather-all-gather-1": (
        Number(
            "parts in a message of the last step",
            lambda: chunks("all_gather", "bruck", 6, 2),
            "Only what is still missing is sent.",
        ),
    ),
    "scatter-gather-all-gather-4": Plan(
        'from collectives import ALGORITHMS\n\n\ndef mine(p):\n    return ALGORITHMS["reduce_scatter", "ring"](p)\n',
        "reduce_scatter",
        few_steps,
        range(2, 17),
    ),
    "recursive-doubling-and-halving-1": tuple(
        Number(
            f"partner in step {t}",
            lambda t=t: source_of("all_reduce", "recursive_doubling", 8, 5, t),
            "Flip one binary digit.",
        )
        for t in range(3)  # type: ignore[misc]
    ),
    "recursive-doubling-and-halving-2": (
        Number(
            "steps",
            lambda: made("all_reduce", "recursive_doubling", 100).nsteps,
            "Folding takes a step before and a step after.",
        ),
        Number("ranks that wait", lambda: 100 - 64, "The core has the largest power of two."),
    ),
    "recursive-doubling-and-halving-3": tuple(
        Number(
            f"chunks in step {t}",
            lambda t=t: chunks("all_reduce", "halving_doubling", 8, t),
            "Each step halves what is still to be reduced.",
        )
        for t in range(3)  # type: ignore[misc]
    ),
    "recursive-doubling-and-halving-6": tuple(
        Number(
            f"kB on {p} ranks",
            lambda p=p: border(p, "recursive_doubling", "halving_doubling") / 1e3,
            "Set the bytes saved equal to the steps saved.",
            0.02,
        )
        for p in (4, 64, 1024)  # type: ignore[misc]
    ),
    "tree-all-reduce-2": (
        Number(
            "steps",
            lambda: made("all_reduce", "tree", 8, segments=2).nsteps,
            "Rank 0 has a single child.",
        ),
        Number(
            "more on nine ranks",
            lambda: (
                made("all_reduce", "tree", 9, segments=2).nsteps
                - made("all_reduce", "tree", 8, segments=2).nsteps
            ),
            "A level is added, on the way up and on the way down.",
        ),
    ),
    "tree-all-reduce-3": Function(
        'def steps(p, s):\n    """Return the steps of s segments, up a chain of p ranks and down."""\n'
        "    return 0\n",
        lambda p, s: 2 * made("broadcast", "chain", p, segments=s).nsteps,
        [(p, s) for p in (2, 3, 5, 8) for s in (1, 2, 7)],
        "Segment 0 passes p - 1 ranks, and each further one arrives a step later, both ways.",
    ),
    "after-two-trees-1": tuple(
        Number(
            f"partner in step {t}",
            lambda t=t: source_of("all_reduce", "swing_doubling", 16, 5, t),
            "An odd rank counts backwards, and the distances change their sign.",
        )
        for t in range(4)  # type: ignore[misc]
    ),
    "after-two-trees-3": tuple(
        Number(
            f"chunks in step {t}",
            lambda t=t: chunks("all_reduce", "swing", 8, t),
            "The bytes are those of halving-doubling.",
        )
        for t in range(3)  # type: ignore[misc]
    ),
    "switches-and-rings-2": tuple(
        Number(
            f"GB/s on {p} ranks",
            lambda p=p: 2 * (p - 1) / (p + 1) * 450,
            "(1 + 1/p) n bytes pass a port, and 2 (p - 1) / p n are counted.",
            0.01,
        )
        for p in (2, 8, 72)  # type: ignore[misc]
    ),
    "parameter-server-4": (
        Number(
            "messages, two_shot",
            lambda: messages("all_reduce", "two_shot", 8, 0),
            "Each rank sends a part to every other one.",
        ),
        Number(
            "messages, reduce_broadcast",
            lambda: messages("all_reduce", "reduce_broadcast", 8, 0),
            "Every rank but the root sends one.",
        ),
    ),
    "hierarchical-all-reduce-1": (
        Number("n, 2D ring, inside", lambda: 2 * 7 / 8, "A ring of 8 ranks in each row.", 0.01),
        Number(
            "n, 2D ring, outside",
            lambda: 2 * 3 / 4 / 8,
            "A ring of 4 ranks in each column, each with an eighth.",
            0.01,
        ),
        Number(
            "n, eight rings, inside",
            lambda: 2 * 31 / 32 * 7 / 8,
            "Of the eight channels one leaves the node at this GPU.",
            0.01,
        ),
        Number(
            "n, eight rings, outside",
            lambda: 2 * 31 / 32 / 8,
            "Of the eight channels one leaves the node at this GPU.",
            0.01,
        ),
    ),
    "why-many-gpus-4": (
        Number(
            "times slower", lambda: 2 * 400 / 10, "What happens to the bytes, and what to the rate?"
        ),
    ),
    "what-is-the-sum-worth-2": (
        Number("ranks", lambda: 256, "When is half the distance between two numbers of bf16 one?"),
    ),
    "assignments/ring": Assignment("ring", "ring.py"),
    "assignments/trees": Assignment("trees", "trees.py"),
}


def numbers_wrong(asked: tuple[Number, ...], given: list[str]) -> str:
    """Return why the first wrong number is wrong, or nothing."""
    for number, text in zip(asked, given, strict=True):
        try:
            value = float(text.strip().replace("−", "-"))
        except ValueError:
            return f"{number.label}: got '{text}', expected a number"
        truth = float(number.truth())
        if abs(value - truth) > max(
            number.near * abs(truth), 0.006 * abs(truth) if truth % 1 else 0
        ):
            size = "too small" if value < truth else "too large"
            return f"{number.label}: {value:g} is {size}. {number.why}"
    return ""


def function_wrong(asked: Function, mine: Callable[..., Any]) -> str:
    """Return for which arguments a function is wrong, or nothing."""
    for arguments in asked.arguments:
        got, expected = mine(*arguments), asked.truth(*arguments)
        if got != expected:
            called = f"{mine.__name__}{arguments if len(arguments) > 1 else f'({arguments[0]})'}"
            size = "too small" if isinstance(got, int | float) and got < expected else "wrong"
            return f"{called} returns {got!r}, which is {size}. {asked.why}"
    return ""


def asked_of(name: str) -> dict[str, Any]:
    """Return what a page shows of an exercise: labels of numbers, each with what is typed already, and code."""
    exercise = EXERCISES[name]
    if isinstance(exercise, Function | Plan):
        return {"start": exercise.start}
    if isinstance(exercise, Assignment):
        return {"labels": {"Your course's seed": "0"}, "start": exercise.start()}
    return {"labels": {number.label: "" for number in exercise}}
