"""Six programs with faults: what the answers say of them, and how their repairs do.

Both are counted.
"""

from collections import Counter
from collections.abc import Callable, Sequence
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
    """Return which rank has which part in a program, and sizes.

    That a fault is there does not depend on them.
    """
    random = np.random.default_rng([seed, 6])

    def drawn(least: int, below: int) -> int:
        return int(random.integers(least, below))

    seven, split = random.permutation(7).tolist(), drawn(3, 5)
    ring, elements = drawn(4, 7), drawn(40, 80)
    room = [drawn(9_000, 10_000)] * 4
    room[drawn(0, 4)] = drawn(3_000, 6_000)
    return {
        "corners": random.permutation(8).tolist(),
        "first": drawn(0, 3),
        "observer": drawn(0, 8),
        "groups": [seven[:split], seven[split:]],
        "places": random.permutation(int(random.choice([9, 11, 13]))).tolist(),
        "bytes": 2000 * drawn(1_000, 9_000),
        "ring": ring,
        "direction": int(random.choice([-1, 1])),
        "elements": elements,
        "root": drawn(1, 7),
        "filled": [*random.integers(0, elements - 1, 6).tolist(), elements],
        "room": room,
    }


SHARES = {"kind": 0.2, "where": 0.4, "how_much": 0.4}


def _found(program: str) -> Callable[[Submission], None]:
    """A check of the answers on a program; what is right counts, whatever else is wrong."""

    def check(submission: Submission) -> None:
        told = submission.call(program, file="answers.py")
        if not isinstance(told, dict) or set(told) != set(SHARES):
            expected = "a dict with kind, where and how_much"
            raise Failed(f"answers.{program}: got {told!r:.200}, expected {expected}")
        wanted = truth(program, submission.seed, submission.sandboxed)
        share, wrong = 0.0, []
        for name, value in wanted._asdict().items():
            if _is_right(told[name], value):
                share += SHARES[name]
            else:
                wrong.append(f"{name} = {told[name]!r:.80}")
        if wrong:
            text = " and ".join(wrong)
            raise Failed(f"answers.{program}: this is not what the program does: {text}", share)

    return check


def _is_right(told: Any, value: Any) -> bool:
    """Tell if an answer is the truth: a text, a list of whole numbers, or a number to three digits."""
    if isinstance(value, str):
        return isinstance(told, str) and told == value
    if isinstance(value, list):
        is_list = isinstance(told, list) and all(isinstance(number, int) for number in told)
        return is_list and told == value
    if not isinstance(told, int | float) or abs(told) >= 1e15:
        return False
    return abs(told - value) <= 1e-3 * abs(value)


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
    """Each rank sends a chunk to each neighbour on the cube, and to nobody else."""
    schedule = _proved(submission, "hypercube", 8, 3, most_steps=3, most_sent=3)
    corner = {rank: place for place, rank in enumerate(submission.variant["corners"])}
    for t, step in enumerate(schedule.steps()):
        row, _ = step.cells()
        pairs = zip(step.src[row].tolist(), step.dst[row].tolist(), strict=True)
        for (src, dst), chunks in Counter(pairs).items():
            is_neighbour = corner[src] ^ corner[dst] in (1, 2, 4)
            if chunks > 1 or not is_neighbour:
                text = f"rank {src} sends {chunks} chunks to rank {dst}"
                text += ", expected one to each neighbour on the cube"
                raise Failed(f"hypercube.schedule(): step {t}: {text}")


def _need_sent(played: RunResult, least: list[int], what: str) -> None:
    """Raise Failed where a rank sent less than others need from it: the rest came to them from somewhere else."""
    sent = played.bytes_sent(len(least))
    for rank, needed in enumerate(least):
        if sent[rank] < needed:
            got = f"rank {rank} sent {sent[rank]:,} bytes"
            raise Failed(f"{what}: {got}, expected at least {needed:,}: all data by comm")


def trees_repaired(submission: Submission) -> None:
    """Each rank has children in one of the two trees at most."""
    p = len(submission.variant["places"])
    schedule = _proved(submission, "trees", p, 2, most_steps=2 * (p.bit_length() - 1), most_sent=2)
    both = interior_in_both(schedule)
    if both:
        raise Failed(f"trees.py: ranks {both} have children in both trees, expected none")


def groups_repaired(submission: Submission) -> None:
    """Each rank has its group's sum, and the first of each group the sum over both."""
    groups, n = submission.variant["groups"], 5
    for network in (Network(), SMALL_BUFFERS):
        buffers = random_buffers(submission, 7, n)
        sums = [np.sum([buffers[rank] for rank in group], axis=0) for group in groups]
        expected = [None] * 7
        for group, of_group in zip(groups, sums, strict=True):
            for rank in group:
                expected[rank] = of_group
            expected[group[0]] = sum(sums)
        played = submission.run("total", _alone(buffers), network, file="groups.py")
        check_equal(played, expected, "groups.total")
        _need_sent(played, [8 * n] * 7, "groups.total")
        within = sum(len(group) * (len(group) - 1) for group in groups)
        most = 8 * n * (within + 2)
        sent = sum(played.bytes_sent(7))
        if sent > most:
            raise Failed(f"groups.total: the ranks sent {sent:,} bytes, expected {most:,}")


def _alone(buffers: Sequence[Any]) -> list[list[Any]]:
    """The arguments of each rank: its buffer."""
    return [[buffer] for buffer in buffers]


def ring_repaired(submission: Submission) -> None:
    """Right sums, by messages of a chunk and no more of them than a ring has."""
    for p, n in ((1, 3), (3, 10), (5, 100), (4, 3), drawn_case(submission, 0)):
        what = f"ring.all_reduce, p = {p}, {n} elements"
        buffers = random_buffers(submission, p, n)
        played = submission.run("all_reduce", _alone(buffers), SMALL_BUFFERS, file="ring.py")
        check_equal(played, [np.sum(buffers, axis=0)] * p, what)
        _need_sent(played, [8 * n if p > 1 else 0] * p, what)
        most = 8 * -(-n // p)
        for message in played.sent:
            if message.bytes > most:
                got = f"a message of {message.bytes:,} bytes from rank {message.src}"
                raise Failed(f"{what}: {got}, expected one chunk, {most:,} at most")
        messages = max(played.messages_sent(p))
        if messages > 2 * (p - 1):
            raise Failed(f"ring.all_reduce: {messages} messages, expected {2 * (p - 1)}")


def counted_repaired(submission: Submission) -> None:
    """Right sums, and each rank returns the bytes that it has sent, none of them for zeros."""
    for p, n in ((1, 4), (2, 9), (5, 30), (8, 17), drawn_case(submission, 1)):
        what = f"counted.all_reduce, p = {p}"
        filled = submission.random.integers(0, n + 1, p)
        buffers = []
        for rank, buffer in enumerate(random_buffers(submission, p, n)):
            is_filled = (np.arange(n) < filled[rank]) & (np.arange(n) != 1)
            buffers.append(np.where(is_filled, buffer + 1, 0))
        played = submission.run("all_reduce", _alone(buffers), file="counted.py")
        check_equal(played, [np.sum(buffers, axis=0)] * p, f"{what}, {n} elements")
        for rank, (said, sent) in enumerate(zip(played.values, played.bytes_sent(p), strict=True)):
            if not isinstance(said, int | float):
                raise Failed(f"{what}: rank {rank} returned {said!r:.40}, expected {sent:,} bytes")
            if said != sent:
                raise Failed(f"{what}: rank {rank} says {said:,} bytes, it sent {sent:,}")
        needed = [8 * int(length) if p > 1 and length > 2 else 0 for length in filled]
        _need_sent(played, needed, what)
    played = submission.run("all_reduce", _alone([np.zeros(50)] * 4), file="counted.py")
    sent = played.bytes_sent(4)
    if played.values != sent:
        raise Failed(f"counted.all_reduce of zeros: got {played.values!r:.80}, expected {sent}")
    if sum(sent) > 2 * 3 * 8:
        got = f"{sum(sent):,} bytes for buffers of zeros"
        raise Failed(f"counted.all_reduce: {got}, expected 48")


def choice_repaired(submission: Submission) -> None:
    """Right sums on both sides of the border, by the algorithm that fits into every rank's room."""
    for p in (3, 4, int(submission.random.integers(5, 9))):
        room = submission.random.integers(8_000, 16_000, p)
        least, second = (int(size) // (8 * p) for size in np.sort(room)[:2])
        for n in (least - 1, least, least + 1, second + 1, 3 * least):
            _check_choice(submission, p, n, room, is_exchange=n <= least)


def _check_choice(submission: Submission, p: int, n: int, room: Any, *, is_exchange: bool) -> None:
    """Check one length: the sum, the algorithm by its largest message, and the bytes to agree."""
    what = f"choice.all_reduce, p = {p}, {n} elements"
    buffers = random_buffers(submission, p, n)
    arguments = [[buffer, int(size)] for buffer, size in zip(buffers, room, strict=True)]
    played = submission.run("all_reduce", arguments, file="choice.py")
    check_equal(played, [np.sum(buffers, axis=0)] * p, what)
    _need_sent(played, [8 * n] * p, what)
    name, most, rounds = "ring", 8 * -(-n // p), 2
    if is_exchange:
        name, most, rounds = "exchange", 8 * n, 1
    largest = [0] * p
    for message in played.sent:
        largest[message.src] = max(largest[message.src], message.bytes)
    is_ring = not is_exchange and max(largest) <= most
    if largest != [most] * p and not is_ring:
        got = f"rank 0's largest message has {largest[0]:,} bytes"
        raise Failed(f"{what}: {got}, expected {most:,}: the {name}")
    over = max(played.bytes_sent(p)) - (p - 1) * most * rounds
    if over > 32 * p:
        got = f"to agree takes {over:,} bytes of a rank"
        raise Failed(f"choice.all_reduce, p = {p}: {got}, expected {32 * p}")


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
