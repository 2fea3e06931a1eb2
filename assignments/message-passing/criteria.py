"""Hidden tests of message passing: the four collectives.

Their messages, bytes and simulated time counted outside.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from collectives_course.submission import (
    Criterion,
    Submission,
    check_all_bounds,
    check_equal,
    drawn_case,
    random_buffers,
)
from collectives_course.verdict import EndedError, Failed
from collectives_course.world import Network, Rank, RunResult, World

from .results import bytes_received, expected_of, from_others, need_in_place, parts_of, result_of

CALLS = ("broadcast", "scatter", "gather", "all_gather")
MOST_RANKS = 16


def variant(seed: int) -> dict[str, Any]:
    """An order of the ranks that never begins with 0, and a slow rank that is last neither in it nor by number."""
    random = np.random.default_rng([seed, 1])
    order = random.permutation(MOST_RANKS).tolist()
    zero, one = order.index(0), order.index(1)
    order[min(zero, one)], order[max(zero, one)] = 1, 0
    slow = [rank for rank in order if rank < 4][1:3]
    return {"order": order, "slow": int(random.choice([rank for rank in slow if rank != 3]))}


@dataclass
class Asked(World):
    """A world that notes the first use of sendrecv, which it carries out all the same."""

    used: list[str] = field(default_factory=list)

    def on_sendrecv(self, rank: Rank, question: dict[str, Any]) -> None:
        """Note it."""
        self.used.append(f"rank {rank.number} calls sendrecv (line {rank.line})")
        super().on_sendrecv(rank, question)


def _order(submission: Submission, p: int) -> list[int]:
    return [rank for rank in submission.variant["order"] if rank < p]


def _need(
    submission: Submission,
    call: str,
    p: int = 4,
    n: int = 12,
    dtype: DTypeLike = float,
    first: int = 0,
    **options: Any,
) -> RunResult:
    """What is counted or timed has to be right first: a rank that does nothing sends nothing wrong, and fast."""
    sign = np.where(np.arange(n) % 2, 1, -1 if np.dtype(dtype).kind in "if" else 1).astype(dtype)
    buffers = [
        sign * (each.astype(dtype) + np.dtype(dtype).type(first))
        for each in random_buffers(submission, p, n)
    ]
    played = submission.run(call, [[each.copy()] for each in buffers], **options)
    ranks = _order(submission, p)
    right, parts = result_of(call, ranks, buffers), parts_of(call, ranks, n)
    expected = [
        expected_of(after[0], right, parts[rank]) for rank, after in enumerate(played.arguments)
    ]
    what = f"{call}, p = {p}, length {n}, {np.dtype(dtype)}"
    need_in_place(played, buffers, expected, what)
    check_equal(played, expected, what)
    for rank, elements in from_others(call, ranks, n).items():
        received, least = bytes_received(played, rank), elements * buffers[0].itemsize
        if received < least:
            text = f"received {received:,} bytes, expected at least {least:,}: all data by comm"
            raise Failed(f"{what}: rank {rank} {text}")
    return played


def _for_each(
    check: Callable[[Submission, str], None], calls: Sequence[str] = CALLS
) -> Callable[[Submission], None]:
    """A check of each of these collectives alone: one that is wrong costs its own part of the points."""

    def check_all(submission: Submission) -> None:
        ended = {}
        for call in calls:
            try:
                check(submission, call)
            except EndedError as error:
                ended[call] = error
                submission.close()  # ranks that wait for each other cannot run the next one
        if ended:
            first, *others = ended
            text = (
                f"{ended[first]}; not right, either: {', '.join(others)}"
                if others
                else str(ended[first])
            )
            raise type(ended[first])(text, share=1 - len(ended) / len(calls))

    return check_all


def _works(call: str) -> Callable[[Submission], None]:
    def check(submission: Submission) -> None:
        _need(submission, call)

    return check


def any_ranks(submission: Submission, call: str) -> None:
    """Also one rank, and primes."""
    for p in (1, 2, 3, 5, 8, int(np.random.default_rng([submission.number, 23]).integers(9, 13))):
        _need(submission, call, p, 3 * p)


def any_length(submission: Submission, call: str) -> None:
    """Also no element, and fewer than ranks."""
    for n in (0, 1, 3, 5, 6, 7, 103, int(submission.random.integers(1025, 5000))):
        _need(submission, call, n=n)


def any_length_and_bounds(submission: Submission) -> None:
    _for_each(any_length)(submission)
    check_all_bounds(submission)


def dtypes(submission: Submission, call: str) -> None:
    """Values that another dtype does not hold."""
    for dtype, first in (
        (np.float32, 0),
        (np.int32, 2**28 + 1),
        (np.int64, 2**53 + 1),
        (np.uint8, 101),
    ):
        _need(submission, call, n=8, dtype=dtype, first=first)


def tree(submission: Submission) -> None:
    """Look for each edge of the tree among the messages."""
    for p, n in ((8, 16), drawn_case(submission, 0)):
        _need_tree(submission, p, n)


def _need_tree(submission: Submission, p: int, n: int) -> None:
    """Raise Failed where a rank does not receive from its parent."""
    ranks = _order(submission, p)
    sent = {(message.src, message.dst) for message in _need(submission, "broadcast", p, n).sent}
    for position in range(1, p):
        parent = position - (1 << (position.bit_length() - 1))
        wanted = ranks[parent], ranks[position]
        if wanted not in sent:
            other = [src for src, dst in sent if dst == wanted[1]]
            raise Failed(
                f"rank {wanted[1]} (position {position}) receives from {_ranks(other)}, "
                f"expected rank {wanted[0]} (position {parent})"
            )


def _ranks(numbers: list[int]) -> str:
    return " and ".join(f"rank {number}" for number in sorted(numbers)) or "no rank"


def steps(submission: Submission, call: str) -> None:
    """Simulated, so it is the same in every run."""
    alpha, beta = 1e-6, 1e-9
    for p, n in ((8, 1024), drawn_case(submission, 1)):
        rounds = (p - 1).bit_length()
        most, size = (rounds, 8 * n) if call == "broadcast" else (2 * (p - 1), 8 * n // p)
        taken = _need(submission, call, p, n, network=Network(alpha, beta)).seconds / (
            alpha + beta * size
        )
        if taken > 1.01 * most:
            raise Failed(
                f"{call}, p = {p}: it takes the time of {taken:.1f} steps, expected at most {most}"
            )


def slow_rank(submission: Submission) -> None:
    """One rank begins late, and the root has to wait for it alone."""
    for p, n in ((4, 1024), drawn_case(submission, 2)):
        _need_slow_rank_last(submission, p, n)


def _need_slow_rank_last(submission: Submission, p: int, n: int) -> None:
    alpha, beta, late = 1e-6, 1e-9, 1e-3
    slow = submission.variant["slow"]
    network = Network(alpha, beta, late=tuple(late if rank == slow else 0.0 for rank in range(p)))
    message = alpha + beta * n * 8 / p
    after = (_need(submission, "gather", p, n, network=network).seconds - late) / message
    if after > 1.01:
        raise Failed(
            f"gather ends {after:.1f} messages after rank {slow} has begun, expected 1: receive from this rank last"
        )


def messages(submission: Submission, call: str) -> None:
    """Count the messages of all ranks."""
    for p, n in ((4, 12), drawn_case(submission, 3)):
        sent, most = (
            len(_need(submission, call, p, n).sent),
            (p - 1) * (p if call == "all_gather" else 1),
        )
        if sent > most:
            raise Failed(f"{call}, p = {p}: got {sent} messages, expected at most {most}")


def traffic(submission: Submission, call: str) -> None:
    """Count the bytes that leave or reach the root."""
    for p, n in ((4, 1024), drawn_case(submission, 4)):
        _need_traffic(submission, call, p, n)


def _need_traffic(submission: Submission, call: str, p: int, n: int) -> None:
    """Raise Failed for other bytes at the root than each chunk once."""
    root, most = _order(submission, p)[0], (p - 1) * n * 8 // p
    played = _need(submission, call, p, n)
    sent = played.bytes_sent(p)
    counted = {
        "scatter": {f"the root, rank {root}, sent": sent[root]},
        "gather": {f"the root, rank {root}, received": bytes_received(played, root)},
        "all_gather": {f"rank {rank} sent": each for rank, each in enumerate(sent)},
    }
    for what, got in counted[call].items():
        if got > most:
            raise Failed(
                f"{call}, p = {p}: {what} {got:,} bytes, expected {most:,}: each chunk once"
            )


def small_buffers(submission: Submission, call: str) -> None:
    """A send waits until its receiver has come."""
    for p, n in ((4, 12), drawn_case(submission, 5)):
        _need(submission, call, p, n, network=Network(small_buffers=True))


def received(submission: Submission, call: str) -> None:
    """Look for messages that nobody has taken."""
    for p, n in ((4, 12), drawn_case(submission, 6)):
        left = _need(submission, call, p, n).unreceived
        if left:
            src, dst = left[0]
            text = f"a message from rank {src} to rank {dst} is never received; the next call would get it"
            raise Failed(f"{call}, p = {p}: {text}")


def send_and_recv(submission: Submission, call: str) -> None:
    """Look for calls of sendrecv."""
    used: list[str] = []
    for p, n in ((4, 12), drawn_case(submission, 7)):
        _need(submission, call, p, n, world=Asked, used=used)
    if used:
        raise Failed(f"{call}: {used[0]}, expected send and recv only")


CRITERIA = [
    Criterion("broadcast", 8, "broadcast on four ranks, twelve elements.", _works("broadcast")),
    Criterion("scatter", 8, "scatter on four ranks, twelve elements.", _works("scatter")),
    Criterion("gather", 8, "gather on four ranks, twelve elements.", _works("gather")),
    Criterion("all-gather", 11, "all_gather on four ranks, twelve elements.", _works("all_gather")),
    Criterion(
        "any-p",
        10,
        "Any number of ranks: 1, 2, 3, 5, 8, and one from 9 to 12.",
        _for_each(any_ranks),
    ),
    Criterion(
        "any-length",
        10,
        "Any length: 0, 1, fewer than p, not divisible by p; bounds puts larger chunks first.",
        any_length_and_bounds,
    ),
    Criterion("dtypes", 5, "float32, int32, int64 and uint8, also below 0.", _for_each(dtypes)),
    Criterion("tree", 5, "broadcast follows the binomial tree of your order.", tree),
    Criterion(
        "steps",
        5,
        "broadcast takes log2(p) steps, all_gather at most 2(p - 1), in simulated time on 8 ranks.",
        _for_each(steps, ("broadcast", "all_gather")),
    ),
    Criterion(
        "slow-rank",
        5,
        "gather ends one message after the slow rank has begun, in simulated time.",
        slow_rank,
    ),
    Criterion("messages", 5, "p - 1 messages; for all_gather p(p - 1).", _for_each(messages)),
    Criterion(
        "bytes",
        5,
        "Each chunk leaves or reaches the root once; all_gather passes each on once.",
        _for_each(traffic, ("scatter", "gather", "all_gather")),
    ),
    Criterion(
        "small-buffers",
        5,
        "No deadlock where a send waits for its receiver.",
        _for_each(small_buffers),
    ),
    Criterion("received", 5, "Every message that is sent is received.", _for_each(received)),
    Criterion(
        "send-and-recv",
        5,
        "Only send and recv: sendrecv is the next assignment's.",
        _for_each(send_and_recv),
    ),
]
