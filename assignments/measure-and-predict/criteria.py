"""Hidden tests: samples against the messages, fits against secret links, predictions against the simulator."""

import math
from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives.algorithms import ALGORITHMS, COSTS
from collectives.core.bounds import best_segments, pipelined_seconds
from collectives.machine import Link, Machine
from collectives.simulator.simulation import simulate
from collectives_course.submission import Criterion, Submission
from collectives_course.verdict import Failed
from collectives_course.world import Network, RunResult

from .consistent import crossed, need_consistent
from .noisy import Noisy

Floats = NDArray[np.float64]

LINKS = 8
NOISY_SIZES = [64.0, 512.0, 4096.0, *(2.0**power for power in range(20, 26))]


def variant(seed: int) -> dict[str, Any]:
    """The rank at the link's other end, and what may be sent on it."""
    random = np.random.default_rng([seed, 5])
    unit = int(random.choice([24, 40, 56, 72]))
    return {
        "peer": int(random.integers(1, 4)),
        "unit": unit,
        "most": unit * int(random.integers(1_500, 2_500)),
        "messages": int(random.integers(120, 160)),
        "ranks": int(random.choice([24, 40, 48, 56])),
    }


def _link(submission: Submission) -> tuple[float, float]:
    """A secret alpha and beta."""
    random = submission.random
    return float(random.uniform(10e-6, 60e-6)), float(10 ** random.uniform(-9.5, -8.5))


def _measured(
    submission: Submission, alpha: float, beta: float
) -> tuple[RunResult, Floats, Floats]:
    """What rank 0 returns for a noisy link to a rank that starts late, as arrays."""
    p, peer = 4, submission.variant["peer"]
    late = tuple(5e-3 if rank == peer else 0.0 for rank in range(p))
    network = Network(alpha, beta, late=late)
    played = submission.run("measure", [[]] * p, network, Noisy, seed=submission.number, peer=peer)
    told = played.values[0]
    if not isinstance(told, list) or len(told) != 2:
        raise Failed(f"measure: rank 0 returned {told!r:.80}, expected (sizes, seconds)")
    sizes, seconds = _numbers(told[0], "sizes"), _numbers(told[1], "seconds")
    if sizes.shape != seconds.shape or not sizes.size:
        got = f"{sizes.size} sizes and {seconds.size} seconds"
        raise Failed(f"measure: got {got}, expected one of each for a sample")
    return played, sizes, seconds


def _numbers(told: Any, name: str) -> Floats:
    """Return what was returned, as an array of finite numbers."""
    try:
        numbers = np.asarray(told, dtype=np.float64).ravel()
    except (ValueError, TypeError, OverflowError):
        raise Failed(f"{name}: got {told!r:.80}, expected numbers") from None
    if not np.isfinite(numbers).all():
        raise Failed(f"{name}: got {numbers[~np.isfinite(numbers)][0]}, expected finite numbers")
    return numbers


def _there_and_back(played: RunResult, peer: int) -> dict[int, list[float]]:
    """By size, half of the seconds of every message to the peer and the one that came back after it."""
    there = [message for message in played.sent if (message.src, message.dst) == (0, peer)]
    back = [message for message in played.sent if (message.src, message.dst) == (peer, 0)]
    halves: dict[int, list[float]] = {}
    for ping, pong in zip(there, back, strict=False):
        if ping.bytes == pong.bytes:
            halves.setdefault(ping.bytes, []).append((pong.end - ping.start) / 2)
    return halves


def samples(submission: Submission) -> None:
    """Compare the median of each size with what the wire took, which nobody can guess."""
    played, sizes, seconds = _measured(submission, *_link(submission))
    peer = submission.variant["peer"]
    halves = _there_and_back(played, peer)
    for size in np.unique(sizes):
        if int(size) not in halves:
            raise Failed(f"measure: no message of {size:g} bytes went to rank {peer} and back")
        told = float(np.median(seconds[sizes == size]))
        seen = float(np.median(halves[int(size)]))
        if abs(told - seen) > 0.05 * seen:
            text = f"the median of the samples is {told:.4g} s"
            text += f", on the wire half a way there and back took {seen:.4g} s"
            raise Failed(f"measure, {size:g} bytes: {text}")


def rules(submission: Submission) -> None:
    """Count messages and sizes on the wire, and samples of each size."""
    played, sizes, _ = _measured(submission, *_link(submission))
    unit, most = submission.variant["unit"], submission.variant["most"]
    for size in sorted({message.bytes for message in played.sent}):
        if size % unit or not 0 < size <= most:
            expected = f"a multiple of {unit} up to {most:,}"
            raise Failed(f"measure: a message has {size:,} bytes, expected {expected}")
    messages = submission.variant["messages"]
    sent = sum(message.src == 0 for message in played.sent)
    if sent > messages:
        raise Failed(f"measure: rank 0 sent {sent} messages, expected {messages} at most")
    counts = Counter(sizes.tolist())
    if len(counts) < 4 or max(counts) < 100 * min(counts):
        text = f"{len(counts)} sizes from {min(counts):,.0f} to {max(counts):,.0f} bytes"
        raise Failed(f"measure: got {text}, expected 4 or more, the largest 100 times the smallest")
    halves = _there_and_back(played, submission.variant["peer"])
    # A message there and back is one sample, however often it is told.
    least = min(min(told, len(halves.get(int(size), ()))) for size, told in counts.items())
    if least < 7:
        got = f"{least} samples of a size"
        raise Failed(f"measure: got {got}, expected 7 or more: some are far too long")


def _need_fit(
    submission: Submission,
    sizes: Floats,
    seconds: Floats,
    link: tuple[float, float],
    within: float,
) -> None:
    """Raise Failed unless fit returns alpha and beta of the link, but for this part."""
    told = _numbers(submission.call("fit", sizes, seconds), "fit")
    if told.shape != (2,):
        raise Failed(f"fit: got {told.size} numbers, expected alpha and beta")
    for name, found, true in zip(("alpha", "beta"), told, link, strict=True):
        if abs(found - true) > within * true:
            expected = f"within {100 * within:g}% of {true:.4g}"
            raise Failed(f"fit: {name} = {found:.4g}, expected {expected}")


def exact_fit(submission: Submission) -> None:
    """Two sizes, and six that are neither sorted nor distinct."""
    for typed in ([8, 1024], [1 << 20, 64, 64, 4096, 1 << 24, 100]):
        alpha, beta = _link(submission)
        sizes = np.array(typed, float)
        _need_fit(submission, sizes, alpha + beta * sizes, (alpha, beta), 1e-3)


def noisy_fit(submission: Submission) -> None:
    """A sample in eight is far too long: neither a mean nor a minimum is right.

    Most sizes are large. Their absolute errors are a multiple of alpha, so a fit that does not
    weight them is wrong; on some links it may be right by chance, on all of them it is not.
    """
    random = submission.random
    for _ in range(LINKS):
        alpha, beta = _link(submission)
        sizes = np.repeat(NOISY_SIZES, 41)
        noise = 1 + 0.03 * random.standard_normal(sizes.size)
        seconds = (alpha + beta * sizes) * noise
        is_late = random.random(sizes.size) < 0.12
        seconds *= np.where(is_late, random.uniform(3, 20, sizes.size), 1)
        order = random.permutation(sizes.size)
        _need_fit(submission, sizes[order], seconds[order], (alpha, beta), 0.06)


def whole(submission: Submission) -> None:
    """Fit what measure returned: both have to be right together."""
    for _ in range(2):
        alpha, beta = _link(submission)
        _, sizes, seconds = _measured(submission, alpha, beta)
        _need_fit(submission, sizes, seconds, (alpha, beta), 0.1)


def _ring(p: int, n: float, alpha: float, beta: float) -> float:
    """Seconds of a ring by its closed form."""
    return COSTS["all_reduce", "ring"](p).seconds(n, alpha, beta)


def _trees(p: int, n: float, alpha: float, beta: float) -> float:
    """Seconds of two trees by their closed form, with the best number of segments."""
    return pipelined_seconds(p, n, best_segments(p, n, alpha, beta), alpha, beta)


def _predicted(submission: Submission, p: int, alpha: float, beta: float) -> float:
    """Return what crossing returns, as bytes."""
    told = submission.call("crossing", p, alpha, beta)
    if not isinstance(told, int | float) or not 0 <= told < 1e18:
        raise Failed(f"crossing({p}, …): got {told!r:.80}, expected bytes")
    return float(told)


def prediction(submission: Submission) -> None:
    """Put the bytes into both closed forms: there they take the same time."""
    random = submission.random
    # A whole number of segments is up to 3% from the best at 13 and 19 ranks, so these are not
    # drawn.
    drawn = [int(random.choice([10, 12, 14])), int(random.choice([11, 15]))]
    drawn.append(2 * int(random.integers(10, 120)) + 1)
    for p in [8, 16, submission.variant["ranks"], 100, 256, *drawn]:
        alpha, beta = _link(submission)
        told = _predicted(submission, p, alpha, beta)
        ring, trees = _ring(p, told, alpha, beta), _trees(p, told, alpha, beta)
        if told <= 0 or abs(ring - trees) > 0.01 * trees:
            text = f"{told:,.0f} bytes; there the ring takes {ring:.4g} s"
            text += f" and the trees take {trees:.4g} s"
            raise Failed(f"crossing({p}, {alpha:.3g}, {beta:.3g}): got {text}, expected the same")


def no_crossing(submission: Submission) -> None:
    """Up to six ranks the ring leads at all sizes."""
    for p in (2, 3, 4, 5, 6):
        told = _predicted(submission, p, *_link(submission))
        if told > 0:
            got = f"got {told:,.0f} bytes, expected 0"
            raise Failed(f"crossing({p}, …): {got}: the ring leads at all sizes")


def _simulated(
    p: int, sizes: list[int], alpha: float, beta: float
) -> tuple[list[float], list[float]]:
    """Seconds of ring and two-tree on a machine without latency, whose overhead is alpha."""
    link = Link(latency=0, overhead=alpha, rate=1 / beta)
    machine = Machine(name="secret", source="drawn by lot", network=link)
    ring = ALGORITHMS["all_reduce", "ring"](p)
    of_ring, of_trees = [], []
    for n in sizes:
        segments = best_segments(p, n, alpha, beta)
        trees = ALGORITHMS["all_reduce", "two_tree"](p, segments=segments)
        of_ring.append(simulate(ring, machine, n).seconds)
        of_trees.append(simulate(trees, machine, n).seconds)
    return of_ring, of_trees


def simulator(submission: Submission) -> None:
    """Play both schedules at these bytes."""
    alpha, beta = _link(submission)
    for p in (16, submission.variant["ranks"], 64):
        told = round(_predicted(submission, p, alpha, beta))
        true = _crossing_size(p, alpha, beta)
        # Both take no time where there are no bytes, so equal times prove nothing.
        if not true / 2 <= told <= 2 * true:
            expected = f"{true:,.0f}, to a factor of 2"
            raise Failed(f"crossing, p = {p}: got {told:,} bytes, expected {expected}")
        (ring,), (trees,) = _simulated(p, [told], alpha, beta)
        if not 0.85 * ring <= trees <= 1.15 * ring:
            text = f"at {told:,} bytes the ring takes {ring:.4g} s and two trees take {trees:.4g} s"
            expected = "a difference of 15% at most"
            raise Failed(f"crossing, p = {p}: in the simulator {text}, expected {expected}")


def measured(submission: Submission) -> None:
    """Take simulated times as if they were measured, and some that cross nowhere or twice."""
    for p in (16, submission.variant["ranks"]):
        alpha, beta = _link(submission)
        middle = _crossing_size(p, alpha, beta)
        sizes = [round(middle * 1.7**power) for power in range(-6, 5)]
        ring, trees = _simulated(p, sizes, alpha, beta)
        _need_crossing(submission, sizes, ring, trees)
        # The trees lead at all sizes, then the ring does, then the trees fall behind once more.
        _need_crossing(submission, sizes, [2 * max(ring)] * len(sizes), trees[:1] * len(sizes))
        _need_crossing(submission, sizes, ring, [seconds + 1.0 for seconds in ring])
        twice = list(trees)
        twice[2] = 2 * ring[2]
        _need_crossing(submission, sizes, ring, twice)


def _crossing_size(p: int, alpha: float, beta: float) -> float:
    """The size in bytes above which the ring leads, by halving."""
    low, high = 1.0, 1e15
    for _ in range(60):
        middle = math.sqrt(low * high)
        if _trees(p, middle, alpha, beta) < _ring(p, middle, alpha, beta):
            low = middle
        else:
            high = middle
    return low


def _need_crossing(
    submission: Submission, sizes: list[int], ring: list[float], trees: list[float]
) -> None:
    """Raise Failed unless the crossing of these times is found, to 2%."""
    told = submission.call("measured_crossing", sizes, ring, trees)
    true = crossed(sizes, ring, trees)
    is_bytes = isinstance(told, int | float) and (told == math.inf or 0 <= told < 1e18)
    if not is_bytes or not math.isclose(told, true, rel_tol=0.02):
        raise Failed(f"measured_crossing: got {told!r:.80} bytes, expected {true:,.0f}")


def report(submission: Submission) -> None:
    """Compute again what report.json says."""
    need_consistent(submission.folder / "report.json")


CRITERIA = [
    Criterion(
        "samples",
        15,
        "Samples are what the messages took, on a noisy network with a late rank.",
        samples,
    ),
    Criterion(
        "rules",
        5,
        "Allowed sizes, few messages; four sizes or more, seven samples or more of each.",
        rules,
    ),
    Criterion("exact-fit", 10, "alpha and beta of samples without noise, to 0.1%.", exact_fit),
    Criterion(
        "noisy-fit",
        15,
        "alpha and beta to 6%, where one sample in eight is far too long.",
        noisy_fit,
    ),
    Criterion("whole", 10, "alpha and beta of a secret link, from your samples, to 10%.", whole),
    Criterion(
        "crossing",
        15,
        "The closed forms of ring and two-tree agree at your bytes, to 1%.",
        prediction,
    ),
    Criterion("no-crossing", 5, "0 where the ring leads at all sizes.", no_crossing),
    Criterion("simulator", 5, "So do simulated ring and two-tree, to 15%.", simulator),
    Criterion(
        "measured", 10, "The crossing of simulated times, interpolated between sizes.", measured
    ),
    Criterion(
        "report",
        10,
        "report.json agrees with itself: fit, prediction and crossing follow from its rows.",
        report,
    ),
]
