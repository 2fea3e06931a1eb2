"""The proof has to be able to fail: every planted fault is rejected, for its own reason, with the place marked."""

import re
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives.algorithms import ALGORITHMS, build
from collectives.core.schedule import Schedule, ScheduleError, Step
from collectives.core.verify import exact, verify
from sweep import each

MODULE = sys.modules["collectives.core.verify"]  # its name in the package is the function
Fault = Callable[[Step], Step]


def rows(step: Step, keep: np.ndarray | slice) -> Step:
    return Step(*(getattr(step, name)[keep] for name in Step.__slots__))


def joined(*steps: Step) -> Step:
    return Step(
        *(np.concatenate([getattr(step, name) for step in steps]) for name in Step.__slots__)
    )


def planted(schedule: Schedule, t: int, fault: Fault) -> Schedule:
    def make(at: int) -> Step:
        return fault(schedule.make(at)) if at == t else schedule.make(at)

    return replace(schedule, make=make)


def inserted(schedule: Schedule, t: int, step: Step) -> Schedule:
    steps = [*schedule.steps()]
    steps.insert(t, step)
    return replace(schedule, make=steps.__getitem__, nsteps=len(steps))


def first_adding(schedule: Schedule) -> int:
    return next(t for t, step in enumerate(schedule.steps()) if step.add.any())


def redirected(step: Step) -> Step:
    """The first row goes to the next rank that is neither its sender nor its receiver."""
    dst = step.dst.copy()
    dst[0] = next(r for r in (dst[0] + 1 + np.arange(3)) % 4 if r not in (step.src[0], step.dst[0]))
    return Step(step.src, dst, step.chunk, step.count, step.add)


def swapped(step: Step) -> Step:
    """The first two rows go to each other's destination."""
    dst = step.dst.copy()
    dst[:2] = dst[:2][::-1]
    return Step(step.src, dst, step.chunk, step.count, step.add)


def shifted(step: Step) -> Step:
    """The first row moves another chunk, or other chunks and one less of them."""
    chunk, count = step.chunk.copy(), step.count.copy()
    count[0] = max(1, count[0] - 1)
    chunk[0] = chunk[0] + 1 if chunk[0] == 0 else chunk[0] - 1
    return Step(step.src, step.dst, chunk, count, step.add)


def replacing(step: Step) -> Step:
    """The first row replaces what it was to add to, or the other way round."""
    add = step.add.copy()
    add[0] = not add[0]
    return Step(step.src, step.dst, step.chunk, step.count, add)


def from_elsewhere(step: Step) -> Step:
    """The first row comes from the next rank that is neither its sender nor its receiver."""
    src = step.src.copy()
    src[0] = next(r for r in (src[0] + 1 + np.arange(3)) % 4 if r not in (step.src[0], step.dst[0]))
    return Step(src, step.dst, step.chunk, step.count, step.add)


def turned_round(step: Step) -> Step:
    """The first row goes from its receiver to its sender."""
    src, dst = step.src.copy(), step.dst.copy()
    src[0], dst[0] = dst[0], src[0]
    return Step(src, dst, step.chunk, step.count, step.add)


def without_first(step: Step) -> Step:
    return rows(step, slice(1, None))


def without_last(step: Step) -> Step:
    return rows(step, slice(0, -1))


def first_twice(step: Step) -> Step:
    return joined(rows(step, slice(1)), step)


def one_chunk_less(step: Step) -> Step:
    """The first row loses its last chunk, or, having but one, itself."""
    if step.count[0] == 1:
        return without_first(step)
    count = step.count.copy()
    count[0] -= 1
    return Step(step.src, step.dst, step.chunk, count, step.add)


def all_replacing(step: Step) -> Step:
    return Step(step.src, step.dst, step.chunk, step.count, ~step.add)


def exchanged(schedule: Schedule, t: int) -> Schedule:
    """Steps t and t + 1 change places."""
    order = {t: t + 1, t + 1: t}
    return replace(schedule, make=lambda at: schedule.make(order.get(at, at)))


def repeated(schedule: Schedule, t: int) -> Schedule:
    return inserted(schedule, t, schedule.step(t))


def stopped(schedule: Schedule, t: int) -> Schedule:
    return replace(schedule, nsteps=t)


FAULTS = [
    redirected,
    swapped,
    shifted,
    replacing,
    from_elsewhere,
    turned_round,
    without_first,
    without_last,
]
FAULTS += [first_twice, one_chunk_less, all_replacing]
IN_TIME = [exchanged, repeated, stopped]


def is_right(schedule: Schedule) -> bool:
    """The plain way: lists of contributors, moved row by row, and what must come out for each collective."""
    p, k = schedule.p, schedule.k
    at_root, at_owner = (lambda r, c: r == schedule.root), (lambda r, c: r == c * p // k)
    mine = {
        "broadcast": at_root,
        "scatter": at_root,
        "gather": at_owner,
        "all_gather": at_owner,
        "all_to_all": at_owner,
    }
    has = mine.get(schedule.collective, lambda r, c: True)
    held = [[[r] if has(r, c) else ["junk"] for c in range(k)] for r in range(p)]
    held += [[[] for c in range(k)] for _ in range(schedule.switches)]
    for step in schedule.steps():
        row, chunks = step.cells()
        moves = [
            (step.dst[i], c, bool(step.add[i]), list(held[step.src[i]][c]))
            for i, c in zip(row, chunks, strict=True)
        ]
        replaced = [(dst, c) for dst, c, add, _ in moves if not add]
        if any([(d, c) for d, c, _, _ in moves].count(cell) > 1 for cell in replaced):
            return False
        for dst, c, add, data in moves:
            held[dst][c] = held[dst][c] + data if add else data
    everyone = list(range(p))
    asked = {
        "broadcast": lambda r, c: [schedule.root],
        "scatter": lambda r, c: [schedule.root] if at_owner(r, c) else None,
        "gather": lambda r, c: [c * p // k] if at_root(r, c) else None,
        "all_to_all": lambda r, c: [c // p] if r == c % p else None,
        "reduce": lambda r, c: everyone if at_root(r, c) else None,
        "all_gather": lambda r, c: [c * p // k],
        "reduce_scatter": lambda r, c: everyone if at_owner(r, c) else None,
        "all_reduce": lambda r, c: everyone,
    }[schedule.collective]
    return all(
        asked(r, c) is None or sorted(map(str, held[r][c])) == sorted(map(str, asked(r, c)))
        for r in range(p)
        for c in range(k)
    )


REDUCED = ("reduce", "reduce_scatter", "all_reduce")
REDUCING = [key for key in ALGORITHMS if key[0] in REDUCED]


@pytest.mark.parametrize(("collective", "algorithm"), REDUCING)
@pytest.mark.parametrize("p", each([4, 7, 8], few=[7]))
def test_a_doubled_add_is_rejected(collective: str, algorithm: str, p: int) -> None:
    schedule = build(collective, algorithm, p, segments=2)
    t = first_adding(schedule)
    doubled = inserted(schedule, t, rows(schedule.step(t), slice(1)))
    with pytest.raises(ScheduleError, match=r"[23] times, not 1\n") as caught:
        verify(doubled)
    text = str(caught.value)
    assert re.search(r"\n +\d+ \|.*>\+[\d-]+<[\d,]+[^|]*<.*<-- counted again here", text), text


@pytest.mark.parametrize(("collective", "algorithm"), ALGORITHMS)
@pytest.mark.parametrize("p", each([4, 7, 8], few=[7]))
def test_a_dropped_step_is_rejected_wherever_it_was(
    collective: str, algorithm: str, p: int
) -> None:
    schedule = build(collective, algorithm, p, segments=2)
    if algorithm == "nvls_tree" and schedule.ranks_per_node in (1, p):
        return  # a switch of one rank, or of all, only gives back what is there already
    for t in [t for t, step in enumerate(schedule.steps()) if len(step)]:
        dropped = planted(schedule, t, lambda step: rows(step, slice(0)))
        with pytest.raises(
            ScheduleError,
            match=r"holds (chunk \d+ of rank \d+|uninitialised data) \d times, not [01]\nstep \|",
        ):
            verify(dropped)


REASONS = r"times, not [01]|replaced and written again|needs two different|needs chunks"


def agree(changed: Schedule) -> bool:
    """Whether the plain check finds a fault; the proof must find one too, or none."""
    if is_right(changed):
        verify(changed)
        return False
    with pytest.raises(ScheduleError, match=REASONS):
        verify(changed)
    return True


@pytest.mark.parametrize(("collective", "algorithm"), ALGORITHMS)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("p", each([5, 8], few=[5]))
def test_a_fault_is_rejected_wherever_it_was_planted(
    collective: str, algorithm: str, fault: Fault, p: int
) -> None:
    """Not every change is a fault (two leaves may swap parents): the plain check tells, and the proof must agree."""
    schedule = replace(build(collective, algorithm, p, segments=2), one_port=False)
    if fault is shifted and schedule.k == 1:
        return  # there is no other chunk
    at_work = [t for t, step in enumerate(schedule.steps()) if len(step)]
    faults = sum(agree(planted(schedule, t, fault)) for t in at_work)
    may_be_none = fault is swapped or (fault is first_twice and collective not in REDUCED)
    assert faults or may_be_none  # swapped rows may be worth the same


@pytest.mark.parametrize(("collective", "algorithm"), ALGORITHMS)
@pytest.mark.parametrize("fault", IN_TIME)
def test_a_fault_in_time_is_rejected(
    collective: str, algorithm: str, fault: Callable[[Schedule, int], Schedule]
) -> None:
    schedule = replace(build(collective, algorithm, 7, segments=2), one_port=False)
    changed = [fault(schedule, t) for t in range(schedule.nsteps - (fault is exchanged))]
    faults = sum(map(agree, changed))
    assert faults or fault is not stopped


@pytest.mark.parametrize(("collective", "algorithm"), ALGORITHMS)
def test_the_plain_check_agrees_that_the_algorithms_are_right(
    collective: str, algorithm: str
) -> None:
    for p in (1, 2, 3, 5, 8):
        assert is_right(build(collective, algorithm, p, segments=2))


def test_one_rank_counted_twice_while_another_is_dropped_is_rejected() -> None:
    """The total of every cell is right; only counting each contributor apart can see it."""
    steps = [Step(1, 0, 0, add=True), Step(1, 0, 0, add=True)]
    schedule = Schedule("reduce", 3, 1, 2, steps.__getitem__, root=0)
    with pytest.raises(
        ScheduleError, match="rank 0 holds chunk 0 of rank 1 2 times, not 1"
    ) as caught:
        verify(schedule)
    assert "   1 | >+0<1< |        |   <-- counted again here" in str(caught.value)


def test_adding_into_nothing_is_rejected() -> None:
    """A broadcast that adds leaves what lay there before in the sum."""
    schedule = planted(
        build("broadcast", "binomial", 4), 0, lambda s: Step(s.src, s.dst, s.chunk, s.count, True)
    )
    with pytest.raises(ScheduleError, match="holds uninitialised data 1 times, not 0"):
        verify(schedule)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (Step(0, 4, 0), r"step 0: row 0->4:=0 needs two different ranks out of 4 ranks"),
        (Step(-1, 0, 0), "two different ranks"),
        (Step(2, 2, 0), "two different ranks"),
        (Step(0, 1, 3, count=2), r"row 0->1:=3-4 needs chunks out of 4 ranks and 4 chunks"),
        (Step(0, 1, 0, count=0), "needs chunks"),
        (Step([0, 0], [1, 2], 0), "rank 0 sends 2 messages at once"),
        (Step([0, 1], [2, 2], [0, 1]), "rank 2 receives 2 messages at once"),
    ],
)
def test_an_impossible_row_is_rejected_before_it_is_played(step: Step, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        verify(Schedule("all_reduce", 4, 4, 1, lambda _: step))


def test_several_rows_for_one_pair_are_one_message() -> None:
    swap = Step([0, 0, 1, 1], [1, 1, 0, 0], [0, 1, 0, 1], add=True)
    verify(Schedule("all_reduce", 2, 2, 1, lambda _: swap))


def test_a_conflict_names_its_step() -> None:
    steps = [Step(0, 1, 0, add=True), Step([0, 2], [1, 1], 0, add=[True, False])]
    schedule = Schedule("all_reduce", 3, 1, 2, steps.__getitem__, one_port=False)
    with pytest.raises(
        ScheduleError, match="step 1: chunk 0 of rank 1 is replaced and written again"
    ):
        verify(schedule)


def adding(p: int, pairs: list[tuple[int, int, bool]], root: int = 0) -> Schedule:
    """A reduce of one chunk to ``root``, a row a step: (src, dst, add)."""
    steps = [Step(src, dst, 0, add=add) for src, dst, add in pairs]
    return Schedule("reduce", p, 1, len(steps), steps.__getitem__, root)


def multiplied(times: int) -> list[tuple[int, int, bool]]:
    """Rank 0 adds rank 1's data so many times, by doubling: rank 2 is where the multiples are made."""
    doubling = [(2, 3, False), (3, 2, True)]
    rows = [(1, 2, False)]
    for bit in range(times.bit_length()):
        rows += [(2, 0, True)] if times >> bit & 1 else []
        rows += doubling
    return rows


@pytest.fixture(params=["counted", "by fingerprint"])
def method(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "by fingerprint":
        monkeypatch.setattr(MODULE, "COUNTED_RANKS", 0)
    return str(request.param)


@pytest.mark.integration  # a schedule of 100,000 steps takes seconds
@pytest.mark.parametrize("times", [0, 2, 3, 255, 256, 257, 65_535, 65_536, 65_537, 100_000])
def test_no_number_of_additions_looks_like_one(times: int, method: str) -> None:
    """65,537 additions are one in sixteen bits.

    Rows of one step add one after the other, as steps do.
    """
    steps = [Step(1, 0, [0] * min(times, 1000), add=True)] * (times // 1000)
    steps += [Step(1, 0, 0, add=True)] * (times % 1000)
    many = Schedule("reduce", 2, 1, len(steps), steps.__getitem__, root=0)
    with pytest.raises(
        ScheduleError,
        match=f"rank 1 {times} times, not 1" if method == "counted" else "fingerprint",
    ):
        verify(many)


@pytest.mark.integration
@pytest.mark.parametrize("bits", [1, 7, 8, 15, 16, 31, 32, 53, 62, 63, 64, 65, 127, 128, 256, 1024])
@pytest.mark.parametrize("more", [-1, 1])
def test_no_growth_by_doubling_looks_like_one(bits: int, more: int, method: str) -> None:
    """A word of so many bits takes 2**bits + 1 times for once."""
    times = 2**bits + more
    if times == 1:
        return
    # What is left of the reduce: ranks 2 and 3 have become scratch memory, so they send first.
    wrong = adding(4, [(2, 0, True), (3, 0, True), *multiplied(times)])
    right = adding(4, [(2, 0, True), (3, 0, True), *multiplied(1)])
    verify(right)
    shown = str(times) if times < 10**9 else rf"at least 2\*\*{times.bit_length() - 1}"
    with pytest.raises(
        ScheduleError,
        match=f"rank 1 {shown} times, not 1" if method == "counted" else "fingerprint",
    ):
        verify(wrong)


def test_growth_that_replaces_what_it_should_add_to_is_found_at_any_scale(method: str) -> None:
    """The total of a cell may wrap to the right one, too: 2**64 times junk and p contributions."""
    doubled = [(1, 2, False), *[(2, 3, False), (3, 2, True)] * 64]
    with pytest.raises(ScheduleError):
        verify(
            adding(
                5, [(2, 0, True), (3, 0, True), (4, 0, True), *doubled, (1, 0, True), (2, 0, True)]
            )
        )


def counted_in_integers(schedule: Schedule) -> bool:
    """The plain way for any number of additions: a Python integer for every contributor of every cell."""
    p, k = schedule.p, schedule.k
    held = {(r, c): {r: 1} for r in range(p) for c in range(k)}
    for step in schedule.steps():
        moved = []
        row, chunks = step.cells()
        rows = zip(
            step.src[row].tolist(),
            step.dst[row].tolist(),
            chunks.tolist(),
            step.add[row].tolist(),
            strict=True,
        )
        for (s, d, c, add), times in Counter(rows).items():
            moved.append(((d, c), add, {who: n * times for who, n in held[s, c].items()}))
        for cell, add, data in moved:
            had = held[cell] if add else {}
            held[cell] = {who: had.get(who, 0) + data.get(who, 0) for who in {*had, *data}}
    cells = range(p) if schedule.collective == "all_reduce" else [schedule.root]
    return all(held[r, c] == dict.fromkeys(range(p), 1) for r in cells for c in range(k))


@st.composite
def scrambled(draw: st.DrawFn) -> Schedule:
    """A right schedule, or one with rows of chance put in, some of them over and over again."""
    p, root = draw(st.integers(2, 5)), 0
    collective = draw(st.sampled_from(["all_reduce", "reduce"]))
    base = build(
        collective,
        draw(st.sampled_from(["two_tree", "ring" if collective == "all_reduce" else "chain"])),
        p,
    )
    steps = [*base.steps()]
    for _ in range(draw(st.integers(0, 3))):
        src, dst = draw(st.permutations(range(p)))[:2]
        chunk, add = draw(st.integers(0, base.k - 1)), draw(st.booleans())
        times = draw(st.sampled_from([1, 1, 2, 255, 65_536]) if add else st.just(1))
        steps.insert(draw(st.integers(0, len(steps))), Step(src, dst, [chunk] * times, add=add))
    return replace(
        base, make=steps.__getitem__, nsteps=len(steps), root=base.root and root, repeats=()
    )


@pytest.mark.integration  # up to 100,000 additions, counted in Python
@settings(max_examples=40)
@given(schedule=scrambled())
def test_the_proof_agrees_with_counting_in_pythons_integers(schedule: Schedule) -> None:
    right = counted_in_integers(schedule)
    for ranks in (128, 0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MODULE, "COUNTED_RANKS", ranks)
            with (
                nullcontext()
                if right
                else pytest.raises(ScheduleError, match=r"times, not|fingerprint")
            ):
                verify(schedule)


def test_a_false_declaration_of_what_repeats_does_not_matter_to_the_proof() -> None:
    ring = build("all_reduce", "ring", 5)
    verify(replace(ring, repeats=(range(ring.nsteps),)))
    with pytest.raises(ScheduleError, match="times, not 1"):
        verify(
            replace(
                planted(ring, 6, lambda step: rows(step, slice(1, None))),
                repeats=(range(ring.nsteps),),
            )
        )


def test_the_proof_works_where_intp_has_32_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """There numpy refuses 64-bit counts: `bincount` and `repeat` cast them to intp by the rule "safe"."""

    def strict(function: Callable[..., np.ndarray], argument: int) -> Callable[..., np.ndarray]:
        def checked(*arguments: np.ndarray, **options: int) -> np.ndarray:
            given = arguments[argument]
            if isinstance(given, np.ndarray) and not np.can_cast(given.dtype, np.int32, "safe"):
                raise TypeError(
                    "Cannot cast array data from dtype('int64') to dtype('int32'), rule 'safe'"
                )
            return function(*arguments, **options)

        return checked

    monkeypatch.setattr(np, "intp", np.int32)
    monkeypatch.setattr(np, "bincount", strict(np.bincount, 0))
    monkeypatch.setattr(np, "repeat", strict(np.repeat, 1))
    for collective, algorithm in ALGORITHMS:
        verify(build(collective, algorithm, 12))
    with pytest.raises(ScheduleError, match="rank 0 sends 2 messages"):
        verify(Schedule("all_reduce", 4, 1, 1, lambda _: Step([0, 0], [1, 2], 0)))


@pytest.mark.parametrize(
    "fault", [swapped, lambda step: rows(step, slice(1, None))], ids=["swapped", "dropped row"]
)
def test_fingerprints_reject_too(fault: Fault) -> None:
    schedule = build("all_reduce", "ring", 330)
    assert not exact(schedule)
    with pytest.raises(ScheduleError, match=r"by fingerprint|messages at once|two different ranks"):
        verify(planted(schedule, 100, fault))


def test_a_collective_has_a_root_or_has_none() -> None:
    with pytest.raises(ScheduleError, match="broadcast needs a root"):
        verify(Schedule("broadcast", 2, 1, 1, lambda _: Step(0, 1, 0)))
    with pytest.raises(ScheduleError, match="all_reduce has no root"):
        verify(Schedule("all_reduce", 2, 1, 1, lambda _: Step(0, 1, 0), root=0))
    with pytest.raises(
        ScheduleError, match="unknown collective 'all_knowing'; known are broadcast"
    ):
        verify(Schedule("all_knowing", 2, 1, 1, lambda _: Step(0, 1, 0)))
