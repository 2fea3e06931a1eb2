"""Prove a schedule: count every contribution, or compare fingerprints if there are too many to count.

Counting is exact, whatever the schedule does: counts saturate (`contracts`). A count of 0, 1 or
more takes two bits, so a cell is two rows of bits, one bit for each contributor: is it there, and
is it there more than once? Only for a schedule that is wrong are the counts themselves kept, a byte
each, to say where.

Fingerprints are sound up to a known chance. Each contributor to a cell has a random 64-bit number f
and is in the cell c times. A cell keeps two sums: c f over all contributors, modulo 2**64, and c,
which saturates far above p. Both must be what the contract asks for. Why that suffices:

1. The contract asks for at most p contributions. A sum of c that equals this number has not
   saturated, so it is exact. Then no c exceeds p, and none has wrapped.
2. Let d = c - (what is asked of this contributor). If the cell is wrong, some d is not 0, and no d
   exceeds p. Let 2**v be the largest power of two that divides all d. Then 2**v <= p.
3. The f are independent and uniform. So the sum of d f modulo 2**64 is a uniform multiple of 2**v.
4. It is 0 with probability 2**v / 2**64. So a wrong cell is accepted with probability p / 2**64 at
   most.

The f come from the system's entropy, anew for each proof: no schedule can be made to fit them.

Counts and fingerprints move by the loop that also moves real data (`interpret`).
"""

from __future__ import annotations

from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from collectives.core.contracts import Counts, add_counts, after, before, cells, contract, where
from collectives.core.grid import grid
from collectives.core.interpret import Combine, apply
from collectives.core.schedule import Bools, Ints, Schedule, ScheduleError, Step
from collectives.units import many

Fingerprints = NDArray[np.uint64]
Bits = NDArray[np.uint64]
Mark = tuple[int, int, str]

# Limits of the exact proof: ranks, and counts (p * k * (p + 1), half a GiB of bytes).
COUNTED_RANKS, COUNTED = 128, 1 << 29

# Contributors of which one number keeps the bits.
WORD = 64

# Where the number of contributions to a cell saturates: far above every p, and twice as much still
# fits 64 bits.
MANY = np.uint64(1 << 62)

# `verify` keeps a 64-bit number for every rank and chunk, in three arrays: 3 GiB.
MAX_CELLS = 1 << 27

# A larger number is shown as a power of two.
SHOWN = 10**9


def verify(schedule: Schedule) -> None:
    """Raise a ScheduleError unless the schedule does exactly what its collective promises.

    Checked, in this order: every row is possible; no rank sends or receives two messages in one
    step (where the schedule promises ``one_port``; switches may); no cell is replaced and written
    again in one step; and at the end every asked-for cell holds each contribution exactly as often
    as the contract says, and no uninitialised data. The error shows the table of steps and ranks
    with the faulty cell marked.

    What the schedule declares of itself (``repeats``) is not looked at. Cost: twice p * k * (p + 1)
    bits up to p = 128, and as many bytes if it is wrong; beyond that p * k fingerprints of 16
    bytes.

    >>> from collectives.algorithms import ALGORITHMS
    >>> verify(ALGORITHMS["all_reduce", "two_tree"](7, segments=3))
    >>> twice = Schedule("reduce", p=2, k=1, nsteps=2, make=lambda t: Step(1, 0, 0, add=True), root=0)
    >>> verify(twice)
    Traceback (most recent call last):
        ...
    collectives.core.schedule.ScheduleError: reduce on 2 ranks, 1 chunk, 2 steps: rank 0 holds chunk 0 of rank 1 2
    times, not 1 step | rank 0 | rank 1
       0 | +0<1   |
       1 | >+0<1< |          <-- counted again here
    """
    contract(schedule)
    if exact(schedule):
        if not _is_counted_right(schedule):
            _show_wrong_count(schedule)
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
    return (
        schedule.p <= COUNTED_RANKS
        and schedule.participants * schedule.k * (schedule.p + 1) <= COUNTED
    )


def _is_counted_right(schedule: Schedule) -> bool:
    """Run the schedule on bits, and return True if every asked-for cell has each contribution as often as asked."""
    each = _bits(schedule.p + 1)
    held = _bits_before(schedule, each)
    _run(schedule, held, _add_bits)
    return not _wrong_cells(schedule, held, _asked_bits(schedule, each)).any()


def _bits(contributors: int) -> Bits:
    """Return one row for each contributor: its bit, in as many numbers as all of them need."""
    who = np.arange(contributors, dtype=np.uint64)
    each = np.zeros((contributors, -(-contributors // WORD)), dtype=np.uint64)
    each[np.arange(contributors), np.arange(contributors) // WORD] = np.uint64(
        1
    ) << who % np.uint64(WORD)
    return each


def _bits_before(schedule: Schedule, each: Bits) -> Bits:
    """Return the cells before as bits: what is there once or more often, then, in as many numbers, what is more often.

    This is `contracts.before`: a rank has its own data or uninitialised data, and a switch nothing.
    """
    p, words = schedule.p, each.shape[1]
    rank = np.arange(p)[:, None]
    own = np.broadcast_to(contract(schedule).before(cells(schedule, rank)), (p, schedule.k))
    held = np.zeros((schedule.participants, schedule.k, 2 * words), dtype=np.uint64)
    held[:p, :, :words] = each[np.where(own, rank, p)]
    return held


def _add_bits(a: Bits, b: Bits) -> Bits:
    """Add two cells: there more than once is what is so in one of them, and what is in both."""
    words = a.shape[-1] // 2
    total: Bits = a | b
    for word in range(words):
        total[..., words + word] |= a[..., word] & b[..., word]
    return total


def _asked_bits(schedule: Schedule, each: Bits) -> Bits:
    """Return what the contract asks for, as bits: `contracts.after`, but one entry for cells that are all alike."""
    who = np.arange(len(each))[:, None, None]
    named = contract(schedule).after(cells(schedule, who))
    once = [
        np.bitwise_or.reduce(np.where(named, word[:, None, None], np.uint64(0))) for word in each.T
    ]
    return np.stack([*once, *np.zeros_like(once)], axis=-1)


def _wrong_cells(
    schedule: Schedule, held: Bits | Fingerprints, asked: Bits | Fingerprints
) -> Bools:
    """Return the (rank, chunk) that the contract asks about and that hold another number than it asks for."""
    wrong = np.zeros((schedule.p, schedule.k), dtype=np.bool_)
    for number in range(held.shape[-1]):
        wrong |= held[: schedule.p, :, number] != asked[..., number]
    wrong &= where(schedule)[: schedule.p]
    return wrong


def _show_wrong_count(schedule: Schedule) -> NoReturn:
    """Count again, a byte for each contributor, and raise a ScheduleError that shows the first wrong count."""
    held = before(schedule)
    _run(schedule, held, add_counts)
    at, asked = where(schedule), after(schedule)
    wrong = held[at] != asked
    if not wrong.any():
        raise AssertionError("bits and counts of a schedule differ")
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
    """Compare every cell's sum of fingerprints with the one asked for, and raise at the first wrong cell."""
    random = (
        np.random.default_rng()
    )  # of the system's entropy, so that no schedule can be made to fit
    shape = (schedule.p, schedule.k)
    fingerprints = random.integers(0, 2**64, size=shape, dtype=np.uint64)
    # Uninitialised cells get numbers of their own, so that whoever uses them has a wrong sum.
    held = _held(schedule, fingerprints, random)
    asked = _asked(schedule, fingerprints)
    _run(schedule, held, _add_fingerprints)
    wrong = _wrong_cells(schedule, held, asked)
    if wrong.any():
        rank, chunk = map(int, np.argwhere(wrong)[0])
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
    held = np.zeros((schedule.participants, schedule.k, 2), dtype=np.uint64)
    data, number = held[: schedule.p, :, 0], held[: schedule.p, :, 1]
    data[:] = random.integers(0, 2**64, size=of.shape, dtype=np.uint64)  # uninitialised
    np.copyto(data, of, where=own)
    number[:] = 1
    return held


def _asked(schedule: Schedule, of: Fingerprints) -> Fingerprints:
    """Return the sum over all contributors that the contract names, and their number."""
    none = np.zeros((1, 1), np.uint64)
    named = [contract(schedule).after(cells(schedule, who)) for who in range(schedule.p)]
    sums = sum((each * of[who] for who, each in enumerate(named)), none)
    return np.stack(
        np.broadcast_arrays(sums, sum((each.astype(np.uint64) for each in named), none)), axis=-1
    )


def _run(schedule: Schedule, state: Counts | Fingerprints, combine: Combine) -> None:
    last = None
    for t, step in enumerate(schedule.steps()):
        _check_possible(schedule, t, step, last)
        try:
            apply(step, state, combine)
        except ScheduleError as error:
            raise _error(
                schedule, f"step {t}: {error}", (t, int(step.dst[0]), "in this step")
            ) from None
        last = step


def _check_possible(schedule: Schedule, t: int, step: Step, last: Step | None) -> None:
    """Raise unless ranks and chunks exist, no rank sends to itself, and a promised single port has one message.

    A column cannot change. So if the last step, which passed, has the very same senders and
    receivers, as in a ring, then these are possible, and only the chunks are looked at.
    """
    p, k = schedule.participants, schedule.k
    is_new = last is None or last.src is not step.src or last.dst is not step.dst
    if is_new:
        exist = (
            (step.src >= 0)
            & (step.src < p)
            & (step.dst >= 0)
            & (step.dst < p)
            & (step.src != step.dst)
        )
        _check_rows(schedule, t, step, exist, "two different ranks")
    exist = (
        (step.chunk >= 0) & (step.count >= 1) & (step.count <= k) & (step.chunk <= k - step.count)
    )
    _check_rows(schedule, t, step, exist, "chunks")
    if schedule.one_port and is_new:
        _check_one_port(schedule, t, step)


def _check_rows(schedule: Schedule, t: int, step: Step, is_right: Bools, what: str) -> None:
    if is_right.all():
        return
    p, row = schedule.participants, int(np.argmin(is_right))
    text = (
        f"step {t}: row {step_row(step, row)} needs {what} out of {p} ranks and {schedule.k} chunks"
    )
    raise _error(schedule, text, (t, int(np.clip(step.dst[row], 0, p - 1)), "this row"))


def _check_one_port(schedule: Schedule, t: int, step: Step) -> None:
    """Check that a rank sends one message and receives one, on the links inside its node and on those outside.

    A switch is on no node.
    """
    src, dst, *_ = step.messages()
    inside = src // schedule.ranks_per_node == dst // schedule.ranks_per_node
    if not any(_has_twice(2 * ranks + inside, 2 * schedule.p) for ranks in (src, dst)):
        return
    for links in (inside, ~inside):
        for verb, ranks in (("sends", src[links]), ("receives", dst[links])):
            busy = np.flatnonzero(np.bincount(ranks.astype(np.intp))[: schedule.p] > 1)
            if busy.size:
                what = (
                    f"step {t}: rank {busy[0]} {verb} {np.sum(ranks == busy[0])} messages at once"
                )
                raise _error(schedule, what, (t, int(busy[0]), f"one port, but it {verb} more"))


def _has_twice(ports: Ints, count: int) -> bool:
    """Return True if one of the first ``count`` ports is there more than once."""
    times = np.bincount(ports.astype(np.intp))[:count]
    return bool((times > 1).any())


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
