"""Six programs with faults: what the answers say of them, and how their repairs do.

Both are counted.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from collectives.core.schedule import Schedule
from collectives.core.traffic import traffic
from collectives_course.schedules import check_schedule, prove
from collectives_course.submission import (
    Criterion,
    Submission,
    check_equal,
    drawn_case,
    random_buffers,
)
from collectives_course.verdict import Failed
from collectives_course.world import Network, RunResult

from .truths import SMALL_BUFFERS, interior_in_both, truth


def variant(seed: int) -> dict[str, Any]:
    """Which rank has which part in a program, and sizes.

    That a fault is there does not depend on them.
    """
    random = np.random.default_rng([seed, 6])
    seven, split = random.permutation(7).tolist(), int(random.integers(3, 5))
    ring, elements = int(random.integers(4, 7)), int(random.integers(40, 80))
    room = [int(random.integers(9_000, 10_000))] * 4
    room[int(random.integers(0, 4))] = int(random.integers(3_000, 6_000))
    return {
        "corners": random.permutation(8).tolist(),
        "first": int(random.integers(0, 3)),
        "observer": int(random.integers(0, 8)),
        "groups": [seven[:split], seven[split:]],
        "places": random.permutation(int(random.choice([9, 11, 13]))).tolist(),
        "bytes": 2000 * int(random.integers(1_000, 9_000)),
        "ring": ring,
        "direction": int(random.choice([-1, 1])),
        "elements": elements,
        "root": int(random.integers(1, 7)),
        "filled": [*random.integers(0, elements - 1, 6).tolist(), elements],
        "room": room,
    }


SHARES = {"kind": 0.2, "where": 0.4, "how_much": 0.4}


def _found(program: str) -> Callable[[Submission], None]:
    """A check of the answers on a program; what is right counts, whatever else is wrong."""

    def check(submission: Submission) -> None:
        told = submission.call(program, file="answers.py")
        if not isinstance(told, dict) or set(told) != set(SHARES):
            raise Failed(
                f"answers.{program}: got {told!r:.200}, expected a dict with kind, where and how_much"
            )
        wanted = truth(program, submission.seed, submission.sandboxed)
        right = {name: _is_right(told[name], value) for name, value in wanted._asdict().items()}
        if not all(right.values()):
            wrong = " and ".join(
                f"{name} = {told[name]!r:.80}" for name in SHARES if not right[name]
            )
            share = sum(SHARES[name] for name in SHARES if right[name])
            raise Failed(f"answers.{program}: this is not what the program does: {wrong}", share)

    return check


def _is_right(told: Any, value: Any) -> bool:
    if isinstance(value, str):
        return isinstance(told, str) and told == value
    if isinstance(value, list):
        return (
            isinstance(told, list) and all(isinstance(each, int) for each in told) and told == value
        )
    return (
        isinstance(told, int | float)
        and abs(told) < 1e15
        and abs(told - value) <= 1e-3 * abs(value)
    )


# Repairs: right first, then as cheap as the program can be.


def _proved(
    submission: Submission, program: str, p: int, k: int, most_steps: int, most_sent: int
) -> Schedule:
    """The schedule, proved and counted; ``most_sent``: in buffers, by the busiest rank."""
    call, schedule = f"{program}.schedule()", submission.call("schedule", file=f"{program}.py")
    check_schedule(call, schedule, p)
    if schedule.k != k:
        raise Failed(f"{call}: got {schedule.k} chunks, expected {k}")
    prove(call, schedule)
    sent = int(traffic(schedule, 8 * k).sent.max()) / (8 * k)
    if schedule.nsteps > most_steps or sent > most_sent:
        got = f"{schedule.nsteps} steps, and the busiest rank sends {sent:g} times the buffer"
        raise Failed(f"{call}: right, but got {got}, expected {most_steps} and {most_sent} at most")
    return schedule


def hypercube_repaired(submission: Submission) -> None:
    schedule = _proved(submission, "hypercube", 8, 3, most_steps=3, most_sent=3)
    corner = {rank: place for place, rank in enumerate(submission.variant["corners"])}
    for t, step in enumerate(schedule.steps()):
        row, _ = step.cells()
        for (src, dst), chunks in Counter(
            zip(step.src[row].tolist(), step.dst[row].tolist(), strict=True)
        ).items():
            if chunks > 1 or corner[src] ^ corner[dst] not in (1, 2, 4):
                text = f"rank {src} sends {chunks} chunks to rank {dst}, expected one to each neighbour on the cube"
                raise Failed(f"hypercube.schedule(): step {t}: {text}")


def _need_sent(played: RunResult, least: list[int], what: str) -> None:
    """Raise Failed where a rank sent less than others need from it: the rest came to them from somewhere else."""
    for rank, (sent, needed) in enumerate(zip(played.bytes_sent(len(least)), least, strict=True)):
        if sent < needed:
            raise Failed(
                f"{what}: rank {rank} sent {sent:,} bytes, expected at least {needed:,}: all data by comm"
            )


def trees_repaired(submission: Submission) -> None:
    p = len(submission.variant["places"])
    schedule = _proved(submission, "trees", p, 2, most_steps=2 * (p.bit_length() - 1), most_sent=2)
    both = interior_in_both(schedule)
    if both:
        raise Failed(f"trees.py: ranks {both} have children in both trees, expected none")


def groups_repaired(submission: Submission) -> None:
    groups, n = submission.variant["groups"], 5
    for network in (Network(), SMALL_BUFFERS):
        buffers = random_buffers(submission, 7, n)
        sums = [np.sum([buffers[rank] for rank in group], axis=0) for group in groups]
        expected = [sums[rank not in groups[0]] for rank in range(7)]
        expected = [
            sum(sums) if [rank] in (groups[0][:1], groups[1][:1]) else expected[rank]
            for rank in range(7)
        ]
        played = submission.run("total", [[each] for each in buffers], network, file="groups.py")
        check_equal(played, expected, "groups.total")
        _need_sent(played, [8 * n] * 7, "groups.total")
        most = 8 * n * (sum(len(group) * (len(group) - 1) for group in groups) + 2)
        if sum(played.bytes_sent(7)) > most:
            raise Failed(
                f"groups.total: the ranks sent {sum(played.bytes_sent(7)):,} bytes, expected {most:,}"
            )


def ring_repaired(submission: Submission) -> None:
    for p, n in ((1, 3), (3, 10), (5, 100), (4, 3), drawn_case(submission, 0)):
        buffers = random_buffers(submission, p, n)
        played = submission.run(
            "all_reduce", [[each] for each in buffers], SMALL_BUFFERS, file="ring.py"
        )
        check_equal(
            played, [np.sum(buffers, axis=0)] * p, f"ring.all_reduce, p = {p}, {n} elements"
        )
        _need_sent(played, [8 * n * (p > 1)] * p, f"ring.all_reduce, p = {p}, {n} elements")
        most = 8 * -(-n // p)
        for message in played.sent:
            if message.bytes > most:
                text = f"a message of {message.bytes:,} bytes from rank {message.src}"
                raise Failed(
                    f"ring.all_reduce, p = {p}, {n} elements: {text}, expected one chunk, {most:,} at most"
                )
        if max(played.messages_sent(p)) > 2 * (p - 1):
            raise Failed(
                f"ring.all_reduce: {max(played.messages_sent(p))} messages, expected {2 * (p - 1)}"
            )


def counted_repaired(submission: Submission) -> None:
    for p, n in ((1, 4), (2, 9), (5, 30), (8, 17), drawn_case(submission, 1)):
        filled = submission.random.integers(0, n + 1, p)
        buffers = [
            np.where((np.arange(n) < filled[r]) & (np.arange(n) != 1), each + 1, 0)
            for r, each in enumerate(random_buffers(submission, p, n))
        ]
        played = submission.run("all_reduce", [[each] for each in buffers], file="counted.py")
        check_equal(
            played, [np.sum(buffers, axis=0)] * p, f"counted.all_reduce, p = {p}, {n} elements"
        )
        for rank, (said, sent) in enumerate(zip(played.values, played.bytes_sent(p), strict=True)):
            if not isinstance(said, int | float):
                raise Failed(
                    f"counted.all_reduce, p = {p}: rank {rank} returned {said!r:.40}, expected {sent:,} bytes"
                )
            if said != sent:
                raise Failed(
                    f"counted.all_reduce, p = {p}: rank {rank} says {said:,} bytes, it sent {sent:,}"
                )
        _need_sent(
            played,
            [int(8 * each * (p > 1 and each > 2)) for each in filled],
            f"counted.all_reduce, p = {p}",
        )
    played = submission.run("all_reduce", [[np.zeros(50)] for _ in range(4)], file="counted.py")
    if played.values != played.bytes_sent(4):
        raise Failed(
            f"counted.all_reduce of zeros: got {played.values!r:.80}, expected {played.bytes_sent(4)}"
        )
    if sum(played.bytes_sent(4)) > 2 * 3 * 8:
        raise Failed(
            f"counted.all_reduce: {sum(played.bytes_sent(4)):,} bytes for buffers of zeros, expected 48"
        )


def choice_repaired(submission: Submission) -> None:
    for p in (3, 4, int(submission.random.integers(5, 9))):
        room = submission.random.integers(8_000, 16_000, p)
        least = int(room.min()) // (8 * p)
        for n in (least - 1, least, least + 1, int(np.sort(room)[1]) // (8 * p) + 1, 3 * least):
            buffers = random_buffers(submission, p, n)
            arguments = [[each, int(bytes_)] for each, bytes_ in zip(buffers, room, strict=True)]
            played = submission.run("all_reduce", arguments, file="choice.py")
            check_equal(
                played, [np.sum(buffers, axis=0)] * p, f"choice.all_reduce, p = {p}, {n} elements"
            )
            _need_sent(played, [8 * n] * p, f"choice.all_reduce, p = {p}, {n} elements")
            name, most = ("exchange", 8 * n) if n <= least else ("ring", 8 * -(-n // p))
            largest = [
                max((message.bytes for message in played.sent if message.src == rank), default=0)
                for rank in range(p)
            ]
            if largest != [most] * p and not (name == "ring" and max(largest) <= most):
                text = f"rank 0's largest message has {largest[0]:,} bytes"
                raise Failed(
                    f"choice.all_reduce, p = {p}, {n} elements: {text}, expected {most:,}: the {name}"
                )
            over = max(played.bytes_sent(p)) - (p - 1) * most * (1 if name == "exchange" else 2)
            if over > 32 * p:
                raise Failed(
                    f"choice.all_reduce, p = {p}: to agree takes {over:,} bytes of a rank, expected {32 * p}"
                )


REPAIRED = {
    "hypercube": (
        "Proved, in three steps, in each of which every link carries one chunk.",
        hypercube_repaired,
    ),
    "groups": ("Right sums, also with small buffers, with no message more.", groups_repaired),
    "trees": (
        "Proved; no rank has children in both trees or sends more than twice the buffer.",
        trees_repaired,
    ),
    "ring": ("Right sums for any p and length; no message longer than a chunk.", ring_repaired),
    "counted": ("Every rank says what it has sent, for any data.", counted_repaired),
    "choice": (
        "All ranks choose alike: an exchange where it fits into the room of every rank.",
        choice_repaired,
    ),
}
POINTS = {
    "hypercube": (8, 8),
    "groups": (7, 9),
    "trees": (8, 10),
    "ring": (8, 8),
    "counted": (8, 9),
    "choice": (7, 10),
}

CRITERIA = []
for name, (text, check) in REPAIRED.items():
    of_found, of_repaired = POINTS[name]
    asked = f"What is wrong with {name}.py, where, by how much."
    CRITERIA.append(Criterion(f"{name}-found", of_found, asked, _found(name)))
    CRITERIA.append(Criterion(f"{name}-repaired", of_repaired, text, check))
