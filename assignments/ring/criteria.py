"""Hidden tests of the ring: sums for any p and any length.

Steps, bytes and neighbours counted on the wire.
"""

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from collectives_course.submission import (
    Criterion,
    Submission,
    all_equal,
    check_all_bounds,
    check_equal,
    drawn_case,
    random_buffers,
)
from collectives_course.verdict import EndedError, Failed
from collectives_course.world import Network, RunResult


def variant(seed: int) -> dict[str, Any]:
    """A ring's direction, and by how much the owners of the chunks are shifted.

    Never the library's own.
    """
    random = np.random.default_rng([seed, 2])
    return {"direction": int(random.choice([-1, 1])), "shift": int(random.integers(1, 4))}


def _need_sum(submission: Submission, p: int, n: int, op: str = "sum", **network: Any) -> RunResult:
    """What is counted or timed has to be right first: a rank that does nothing sends nothing wrong, and fast."""
    return _need_result(submission, random_buffers(submission, p, n), op, **network)


def _need_result(
    submission: Submission, buffers: list[NDArray[Any]], op: str = "sum", **network: Any
) -> RunResult:
    """Raise Failed unless all_reduce leaves the result in every buffer, by way of messages."""
    p, total = len(buffers), np.sum(buffers, axis=0, dtype=buffers[0].dtype)
    expected = total / p if op == "mean" else total
    what = f"all_reduce, {op}, p = {p}, length {len(total)}, {total.dtype}"
    arguments = [[buffer, op] for buffer in buffers]
    played = submission.run("all_reduce", arguments, Network(**network))
    _need_in_place(played, buffers, expected, what)
    check_equal(played, [expected] * p, what)
    _need_messages(played, p, 2 * (p - 1) * total.nbytes, what)
    return played


def _need_in_place(
    played: RunResult, given: list[NDArray[Any]], expected: NDArray[Any], what: str
) -> None:
    """Raise Failed, with the reason, where a rank returns its result and leaves its buffer as it was."""
    for rank, before in enumerate(given):
        after = played.arguments[rank][0]
        is_unchanged = np.array_equal(after, before) and not np.array_equal(before, expected)
        if is_unchanged and isinstance(played.values[rank], np.ndarray):
            raise Failed(
                f"{what}: rank {rank} returned an array, but its buffer is unchanged: what a function returns is "
                "ignored, so write into the buffer, as buffer[:] = ... does"
            )


def _need_messages(played: RunResult, p: int, least: int, what: str) -> None:
    """Raise Failed for fewer bytes on the wire than any algorithm needs: the rest came from somewhere else."""
    sent = sum(played.bytes_sent(p))
    if sent < least:
        got = f"the ranks sent {sent:,} bytes together"
        raise Failed(f"{what}: {got}, expected at least {least:,}: all data by comm")


def four_ranks(submission: Submission) -> None:
    """Twice, with other data."""
    for _ in range(2):  # the second call has other data, so a result that was remembered is wrong
        _need_sum(submission, 4, 12)


def any_ranks(submission: Submission) -> None:
    """Also one rank, and primes."""
    for p in (1, 2, 3, 5, 8, int(submission.random.integers(9, 13))):
        _need_sum(submission, p, 3 * p)


def any_length(submission: Submission) -> None:
    """Also no element, and fewer than ranks."""
    for n in (0, 1, 3, 5, 6, 7, 103, int(submission.random.integers(1025, 5000))):
        _need_sum(submission, 4, n)
    check_all_bounds(submission)


def dtypes(submission: Submission) -> None:
    """Check sums whose values another dtype does not hold, and the bytes that this dtype needs."""
    p, n = 4, 8
    in_float64 = sum(_need_sum(submission, p, n).bytes_sent(p))
    for dtype, first in (
        (np.float32, 0),
        (np.int32, 2**28 + 1),
        (np.int64, 2**53 + 1),
        (np.uint8, 101),
    ):
        kind = np.dtype(dtype)
        sign = np.ones(n, int)
        if kind.kind == "i":
            sign = (-1) ** np.arange(n)
        buffers = []
        for rank in range(p):
            values = sign.astype(dtype) * (first + 2 * np.arange(n, dtype=dtype) + 2 * n * rank)
            buffers.append(values.astype(dtype))
        sent = sum(_need_result(submission, buffers).bytes_sent(p))
        expected = in_float64 * kind.itemsize // 8
        if sent > expected:
            raise Failed(
                f"all_reduce of {kind}: the ranks sent {sent:,} bytes together, expected {expected:,}: "
                "send and add elements of the buffer's own dtype"
            )


def mean(submission: Submission) -> None:
    """To the bit where division rounds, because a sum of quotients is not the quotient of the sum.

    Dividing by p and multiplying by 1/p round differently; both come once, after the sum, so both
    are right.
    """
    _need_sum(submission, 4, 12, "mean")
    for p, n in ((3, 300), (5, 305)):
        _need_mean(submission, p, n)


def _need_mean(submission: Submission, p: int, n: int) -> None:
    """Raise Failed for an element that neither way of dividing once gives."""
    buffers = random_buffers(submission, p, n)
    played = _need_result(submission, buffers, "mean")
    total = np.sum(buffers, axis=0)
    divided, multiplied = total / p, total * (1 / p)
    for rank, (after, _) in enumerate(played.arguments):
        wrong = np.flatnonzero((after != divided) & (after != multiplied)).tolist()
        if wrong:
            at = wrong[0]
            found, expected = float(after[at]), float(divided[at])
            raise Failed(
                f"all_reduce, mean, p = {p}: rank {rank}, element {at}: got {found!r}, "
                f"expected {expected!r}: add first, then divide once"
            )


def same_bits(submission: Submission) -> None:
    """Sums that every order of additions rounds otherwise, and among them infinity and what is not a number."""
    for dtype, rounding in ((np.float32, 1e-6), (np.float64, 2e-15)):
        _need_same_bits(submission, dtype, rounding)


def _need_same_bits(submission: Submission, dtype: DTypeLike, rounding: float) -> None:
    """Raise Failed unless the sums are right to rounding, and the same to the bit on all ranks."""
    random, p, n = submission.random, 4, 24
    buffers = []
    for _ in range(p):
        scale = random.standard_normal(n) * 10.0 ** random.integers(-8, 9, n)
        buffers.append(scale.astype(dtype))
    for value in (np.nan, np.inf, -np.inf):
        buffers[int(random.integers(p))][int(random.integers(n))] = value
    what = f"all_reduce of {np.dtype(dtype).name}"
    played = submission.run("all_reduce", [[buffer.copy(), "sum"] for buffer in buffers])
    found = played.arguments[0][0]
    with np.errstate(invalid="ignore"):  # infinity and minus infinity may meet
        exact = np.sum(buffers, axis=0, dtype=np.longdouble)
    is_number = np.isfinite(exact)
    error = np.abs(found[is_number] - exact[is_number])
    most = rounding * np.sum(np.abs(buffers), axis=0)[is_number]
    if not (error <= most).all():
        raise Failed(f"{what}: the sum is wrong by more than rounding")
    if not np.array_equal(found[~is_number], exact[~is_number], equal_nan=True):
        raise Failed(f"{what}: got {found[~is_number]}, expected {exact[~is_number]}")
    all_equal(played, f"{what}: the same bits on all ranks")
    _need_messages(played, p, 2 * (p - 1) * buffers[0].nbytes, what)


def owners(submission: Submission) -> None:
    """Check who owns which chunk, on four and on three ranks."""
    for p, n in ((4, 12), (3, 3 * int(submission.random.integers(5, 200)))):
        _need_owners(submission, p, n)


def _need_owners(submission: Submission, p: int, n: int) -> None:
    """Raise Failed unless share_reduce leaves each rank the whole sum of the chunk that it owns."""
    buffers = random_buffers(submission, p, n)
    played = submission.run("share_reduce", [[buffer] for buffer in buffers])
    total = np.sum(buffers, axis=0)
    for rank, (after,) in enumerate(played.arguments):
        own, part = _owned(submission, rank, p, n)
        if after is None or not np.array_equal(after[part], total[part]):
            found = "no array" if after is None else after[part]
            what = f"share_reduce: rank {rank}, chunk {own}"
            raise Failed(f"{what}: got {found}, expected the sum {total[part]}")
    _need_messages(played, p, (p - 1) * total.nbytes, "share_reduce")
    _need_shared(submission, p, n)


def _owned(submission: Submission, rank: int, p: int, n: int) -> tuple[int, slice]:
    """The chunk that a rank owns, and where it lies in a buffer of n elements."""
    own = (rank + submission.variant["shift"]) % p
    return own, slice(own * n // p, (own + 1) * n // p)


def _need_shared(submission: Submission, p: int, n: int) -> None:
    """Raise Failed, with half of the points, unless share_only gives every rank the chunks of their owners."""
    buffers, wanted = random_buffers(submission, p, n), np.empty(n)
    for rank, buffer in enumerate(buffers):
        _, part = _owned(submission, rank, p, n)
        wanted[part] = buffer[part]
    try:
        played = submission.run("share_only", [[buffer] for buffer in buffers])
        check_equal(played, [wanted] * p, "share_only")
        _need_messages(played, p, (p - 1) * wanted.nbytes, "share_only")
    except EndedError as error:
        error.share = 0.5
        raise


def neighbours(submission: Submission) -> None:
    """Look at the ends of every message."""
    for p, n in ((4, 12), drawn_case(submission, 0)):
        for message in _need_sum(submission, p, n).sent:
            expected = (message.src + submission.variant["direction"]) % p
            if message.dst != expected:
                got = f"rank {message.src} sends to rank {message.dst}"
                raise Failed(f"p = {p}: {got}, expected only its next rank, {expected}")


def traffic(submission: Submission) -> None:
    """Count bytes and messages of every rank."""
    for p, n in ((4, 1024), drawn_case(submission, 1)):
        _need_traffic(submission, p, n)


def _need_traffic(submission: Submission, p: int, n: int) -> None:
    """Raise Failed for a rank that sends other bytes than a ring does, or in other messages."""
    played = _need_sum(submission, p, n)
    chunks, chunk = 2 * (p - 1), 8 * n // p
    expected = chunks * chunk
    for rank, sent in enumerate(played.bytes_sent(p)):
        if sent != expected:
            raise Failed(
                f"rank {rank} sent {sent:,} bytes, expected {expected:,}, which is {chunks} chunks of "
                f"{chunk:,}: {sent / expected:.2f} times as many"
            )
        messages = played.messages_sent(p)[rank]
        if messages != chunks:
            got = f"rank {rank} sent {messages} messages"
            raise Failed(f"{got}, expected {chunks}: one chunk a step")


def time(submission: Submission) -> None:
    """Simulated, so it is the same in every run: 2(p - 1) steps, in each of which all ranks send at once."""
    alpha, beta = 1e-6, 1e-9
    for p, n in ((4, 1024), drawn_case(submission, 2)):
        played = _need_sum(submission, p, n, alpha=alpha, beta=beta)
        steps, one_step = 2 * (p - 1), alpha + beta * n * 8 / p
        if played.seconds > 1.01 * steps * one_step:
            got = f"it takes the time of {played.seconds / one_step:.1f} steps"
            raise Failed(f"p = {p}: {got}, expected {steps}: ranks wait, or send too much")


def small_buffers(submission: Submission) -> None:
    """A send waits until its receiver has come."""
    for p, n in ((4, 12), drawn_case(submission, 3)):
        _need_sum(submission, p, n, small_buffers=True)


def received(submission: Submission) -> None:
    """Look for messages that nobody has taken."""
    for p, n in ((4, 12), drawn_case(submission, 4)):
        left = _need_sum(submission, p, n).unreceived
        if left:
            src, dst = left[0]
            text = f"a message from rank {src} to rank {dst} is never received"
            raise Failed(f"p = {p}: {text}; the next call would get it")


CRITERIA = [
    Criterion("sum", 15, "The sum of four ranks, twelve elements.", four_ranks),
    Criterion("any-p", 10, "Any number of ranks: 1, 2, 3, 5, 8, and one from 9 to 12.", any_ranks),
    Criterion(
        "any-length",
        10,
        "Any length: 0, 1, fewer than p, not divisible by p; bounds puts larger chunks first.",
        any_length,
    ),
    Criterion(
        "dtypes",
        5,
        "float32, int32, int64 and uint8, also below 0, sent and added as they are.",
        dtypes,
    ),
    Criterion("mean", 10, "The mean: add first, then divide once.", mean),
    Criterion("same-bits", 5, "All ranks end with the same bits.", same_bits),
    Criterion(
        "owners",
        10,
        "share_reduce leaves chunk owned(rank, p) complete, share_only passes it to all.",
        owners,
    ),
    Criterion("neighbours", 5, "A rank sends to its next rank alone.", neighbours),
    Criterion(
        "bytes",
        10,
        "2(p - 1)/p of the buffer per rank, counted on the wire, in 2(p - 1) messages.",
        traffic,
    ),
    Criterion("time", 5, "All ranks send at once: the time of 2(p - 1) steps, simulated.", time),
    Criterion(
        "small-buffers", 10, "No deadlock where a send waits for its receiver.", small_buffers
    ),
    Criterion("received", 5, "Every message that is sent is received.", received),
]
