"""Prove a schedule: count every contribution, or compare fingerprints if there are too many to count.

Counting is exact, whatever the schedule does: counts saturate (`contracts`).

Fingerprints are sound up to a known chance. Each contributor to a cell has a random 64-bit number f and is in the cell
c times. A cell keeps two sums: c f over all contributors, modulo 2**64, and c, which saturates far above p. Both must
be what the contract asks for. Why that suffices:

1. The contract asks for at most p contributions. A sum of c that equals this number has not saturated, so it is exact.
   Then no c exceeds p, and none has wrapped.
2. Let d = c - (what is asked of this contributor). If the cell is wrong, some d is not 0, and no d exceeds p. Let 2**v
   be the largest power of two that divides all d. Then 2**v <= p.
3. The f are independent and uniform. So the sum of d f modulo 2**64 is a uniform multiple of 2**v.
4. It is 0 with probability 2**v / 2**64. So a wrong cell is accepted with probability p / 2**64 at most.

The f come from the system's entropy, anew for each proof: no schedule can be made to fit them.

Counts and fingerprints move by the loop that also moves real data (`interpret`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from collectives.contracts import Counts, add_counts, after, before, cells, contract, where
from collectives.grid import grid
from collectives.interpret import Combine, apply
from collectives.schedule import Schedule, ScheduleError, Step
from collectives.units import many

Fingerprints = NDArray[np.uint64]
Mark = tuple[int, int, str]

# Limits of the exact proof: ranks, and counts (p * k * (p + 1), half a GiB of bytes).
COUNTED_RANKS, COUNTED = 128, 1 << 29

# Where the number of contributions to a cell saturates: far above every p, and twice as much still fits 64 bits.
MANY = np.uint64(1 << 62)

# `verify` keeps a 64-bit number for every rank and chunk, in three arrays: 3 GiB.
MAX_CELLS = 1 << 27

# A larger number is shown as a power of two.
SHOWN = 10**9


def verify(schedule: Schedule) -> None:
    """Raise a ScheduleError unless the schedule does exactly what its collective promises.

    Checked, in this order: every row is possible; no rank sends or receives two messages in one step (where the
    schedule promises ``one_port``; switches may); no cell is replaced and written again in one step; and at the end
    every asked-for cell holds each contribution exactly as often as the contract says, and no uninitialised data. The
    error shows the table of steps and ranks with the faulty cell marked.

    What the schedule declares of itself (``repeats``) is not looked at. Cost: p * k * (p + 1) bytes up to p = 128,
    beyond that p * k fingerprints of 16 bytes.

    >>> from collectives.algorithms import ALGORITHMS
    >>> verify(ALGORITHMS["all_reduce", "two_tree"](7, segments=3))
    >>> twice = Schedule("reduce", p=2, k=1, nsteps=2, make=lambda t: Step(1, 0, 0, add=True), root=0)
    >>> verify(twice)
    Traceback (most recent call last):
        ...
    collectives.schedule.ScheduleError: reduce on 2 ranks, 1 chunk, 2 steps: rank 0 holds chunk 0 of rank 1 2
    times, not 1 step | rank 0 | rank 1
       0 | +0<1   |
       1 | >+0<1< |          <-- counted again here
    """
    contract(schedule)
    if exact(schedule):
        _verify_counts(schedule)
    else:
        _verify_fingerprints(schedule)


def check_cells(p: int, k: int) -> None:
    """Raise ValueError if verifying a schedule of ``k`` chunks on ``p`` ranks would take more than 3 GiB.

    >>> check_cells(100_000, 100_000)
    Traceback (most recent call last):
        ...
    ValueError: verify keeps a number for every rank and chunk: got 100,000 ranks x 100,000 chunks, expected a product
    of at most 134,217,728
    """
    if p * k > MAX_CELLS:
        raise ValueError(
            f"verify keeps a number for every rank and chunk: got {p:,} ranks x {k:,} chunks, "
            f"expected a product of at most {MAX_CELLS:,}"
        )


def exact(schedule: Schedule) -> bool:
    """Return True if `verify` counts this schedule, and False if it uses fingerprints."""
    return schedule.p <= COUNTED_RANKS and schedule.participants * schedule.k * (schedule.p + 1) <= COUNTED


def _verify_counts(schedule: Schedule) -> None:
    held = before(schedule)
    _run(schedule, held, add_counts)
    at, asked = where(schedule), after(schedule)
    wrong = held[at] != asked
    if wrong.any():
        cell, who = map(int, np.unravel_index(wrong.argmax(), wrong.shape))
        rank, chunk = map(int, np.argwhere(at)[cell])
        found, expected = int(held[rank, chunk, who]), int(asked[cell, who])
        whose = "uninitialised data" if who == schedule.p else f"chunk {chunk} of rank {who}"
        times = _exact_count(schedule, rank, chunk, who) if found > 1 else found
        what = f"rank {rank} holds {whose} {_shown(times)} times, not {expected}"
        mark = _counted_again(schedule, who) if found > 1 else _last_write(schedule, rank, chunk)
        raise _error(schedule, what, mark)


def _exact_count(schedule: Schedule, rank: int, chunk: int, who: int) -> int:
    """Count a contribution in a cell at the end, in Python's integers, which cannot wrap."""
    held = before(schedule)[..., who].astype(object)
    for step in schedule.steps():
        apply(step, held)
    return int(held[rank, chunk])


def _shown(times: int) -> str:
    return str(times) if times < SHOWN else f"at least 2**{times.bit_length() - 1}"


def _verify_fingerprints(schedule: Schedule) -> None:
    random = np.random.default_rng()
    of = random.integers(0, 2**64, size=(schedule.p, schedule.k), dtype=np.uint64)
    held, asked = _held(schedule, of, random), _asked(schedule, of)
    _run(schedule, held, _add_fingerprints)
    wrong = np.argwhere((held[: schedule.p] != asked).any(axis=-1) & where(schedule)[: schedule.p])
    if wrong.size:
        rank, chunk = map(int, wrong[0])
        what = f"rank {rank} does not hold the right sum in chunk {chunk} (found by fingerprint)"
        raise _error(schedule, what, _last_write(schedule, rank, chunk))


def _add_fingerprints(a: Fingerprints, b: Fingerprints) -> Fingerprints:
    """Add fingerprints, whose sums may wrap, and numbers of contributions, which saturate."""
    total = a + b
    np.minimum(total[..., 1], MANY, out=total[..., 1])
    return total


def _held(schedule: Schedule, of: Fingerprints, random: np.random.Generator) -> Fingerprints:
    """Return the cells before: a rank has its own or uninitialised data, one contribution either way, a switch none."""
    own = contract(schedule).before(cells(schedule, np.arange(schedule.p)[:, None]))
    uninitialised = random.integers(0, 2**64, size=of.shape, dtype=np.uint64)
    held = np.zeros((schedule.participants, schedule.k, 2), dtype=np.uint64)
    held[: schedule.p] = np.stack([np.where(own, of, uninitialised), np.ones_like(of)], axis=-1)
    return held


def _asked(schedule: Schedule, of: Fingerprints) -> Fingerprints:
    """Return the sum over all contributors that the contract names, and their number."""
    none = np.zeros((1, 1), np.uint64)
    named = [contract(schedule).after(cells(schedule, who)) for who in range(schedule.p)]
    sums = sum((each * of[who] for who, each in enumerate(named)), none)
    return np.stack(np.broadcast_arrays(sums, sum((each.astype(np.uint64) for each in named), none)), axis=-1)


def _run(schedule: Schedule, state: Counts | Fingerprints, combine: Combine) -> None:
    for t, step in enumerate(schedule.steps()):
        _check_possible(schedule, t, step)
        try:
            apply(step, state, combine)
        except ScheduleError as error:
            raise _error(schedule, f"step {t}: {error}", (t, int(step.dst[0]), "in this step")) from None


def _check_possible(schedule: Schedule, t: int, step: Step) -> None:
    """Raise unless ranks and chunks exist, no rank sends to itself, and a promised single port has one message."""
    p, k = schedule.participants, schedule.k
    rank_ok = (step.src >= 0) & (step.src < p) & (step.dst >= 0) & (step.dst < p) & (step.src != step.dst)
    chunk_ok = (step.chunk >= 0) & (step.count >= 1) & (step.count <= k) & (step.chunk <= k - step.count)
    for bad, what in ((~rank_ok, "two different ranks"), (~chunk_ok, "chunks")):
        if bad.any():
            row = int(np.argmax(bad))
            text = f"step {t}: row {step_row(step, row)} needs {what} out of {p} ranks and {k} chunks"
            raise _error(schedule, text, (t, int(np.clip(step.dst[row], 0, p - 1)), "this row"))
    if schedule.one_port:
        _check_one_port(schedule, t, step)


def _check_one_port(schedule: Schedule, t: int, step: Step) -> None:
    """Check that a rank sends one message and receives one, on the links inside its node and on those outside.

    A switch is on no node.
    """
    src, dst, *_ = step.messages()
    inside = src // schedule.ranks_per_node == dst // schedule.ranks_per_node
    for links in (inside, ~inside):
        for verb, ranks in (("sends", src[links]), ("receives", dst[links])):
            busy = np.flatnonzero(np.bincount(ranks.astype(np.intp))[: schedule.p] > 1)
            if busy.size:
                what = f"step {t}: rank {busy[0]} {verb} {np.sum(ranks == busy[0])} messages at once"
                raise _error(schedule, what, (t, int(busy[0]), f"one port, but it {verb} more"))


def step_row(step: Step, row: int) -> str:
    """Return one row of a step as text, such as ``0->1:+3``."""
    one = Step(step.src[row], step.dst[row], step.chunk[row], step.count[row], step.add[row])
    return repr(one)[len("Step(") : -1]


def _counted_again(schedule: Schedule, who: int) -> Mark:
    """Find where a contribution is first added to a cell that has it already."""
    held = before(schedule)
    for t, step in enumerate(schedule.steps()):
        apply(step, held, add_counts)
        twice = np.argwhere(held[..., who] > 1)
        if twice.size:
            return t, int(twice[0, 0]), "counted again here"
    raise AssertionError("no cell holds a contribution twice")


def _last_write(schedule: Schedule, rank: int, chunk: int) -> Mark:
    """Return the step that wrote a cell last, or the last step if none did."""
    last = None
    for t, step in enumerate(schedule.steps()):
        row, chunks = step.cells()
        if ((step.dst[row] == rank) & (chunks == chunk)).any():
            last = t
    if last is None:
        return max(0, schedule.nsteps - 1), rank, f"no step ever writes chunk {chunk} here"
    return last, rank, f"the last write into chunk {chunk}"


def _error(schedule: Schedule, what: str, mark: Mark) -> ScheduleError:
    size = ", ".join(many(*each) for each in ((schedule.k, "chunk"), (schedule.nsteps, "step")))
    head = f"{schedule.collective} on {_ranks(schedule)}, {size}"
    return ScheduleError(f"{head}: {what}\n{grid(schedule, mark)}")


def _ranks(schedule: Schedule) -> str:
    switches = f" and {many(schedule.switches, 'switch')}" if schedule.switches else ""
    return many(schedule.p, "rank") + switches
