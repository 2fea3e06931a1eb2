"""Sums of every rank and chunk, against sums that are written out, and the bits that follow from them."""

from math import floor, log2

import numpy as np
import pytest

from collectives.algorithms import build, executable, names
from collectives.core.interpret import apply, run
from collectives.core.schedule import Schedule, Step
from collectives.core.summation import IDENTITY, ReductionTree, bound, is_alike, summation

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 17, 32, 33)
REDUCING = [(of, name) for of in ("all_reduce", "reduce", "reduce_scatter") for name in names(of)]


def written(a: str, b: str) -> str:
    """A sum of two as text, the same for either order; a switch's empty text adds nothing."""
    return f"({min(a, b)}+{max(a, b)})" if a and b else a or b


def texts(schedule: Schedule) -> np.ndarray:
    """What every rank and switch holds at the end, as text."""
    state = np.full((schedule.participants, schedule.k), "", dtype=object)
    state[: schedule.p] = np.array([[str(r)] for r in range(schedule.p)], dtype=object)
    return run(schedule, state, np.frompyfunc(written, 2, 1))[: schedule.p]


def nesting(text: str) -> int:
    """How deep the brackets of a sum are."""
    depths = np.cumsum([{"(": 1, ")": -1}.get(each, 0) for each in text])
    return int(depths.max())


@pytest.mark.integration
@pytest.mark.parametrize(("collective", "name"), REDUCING)
def test_terms_are_equal_where_written_sums_are(collective: str, name: str) -> None:
    """Every algorithm on up to 33 ranks, in one segment and in three."""
    for p in SIZES:
        schedule = build(collective, name, p, segments=1 if p % 2 else 3)
        expected, found = texts(schedule), summation(schedule)
        pairs = set(zip(expected.ravel(), found.node.ravel().tolist(), strict=True))
        assert len(pairs) == len({text for text, _ in pairs}) == len({term for _, term in pairs})
        deep = {term: nesting(text) for text, term in pairs}
        assert all(found.tree.depths[term] == depth for term, depth in deep.items())
        one = summation(schedule, schedule.k - 1)
        assert one.depth[:, 0].tolist() == found.depth[:, -1].tolist()


@pytest.mark.parametrize("name", names("all_reduce"))
def test_a_term_s_value_has_the_bits_of_the_schedule_s_run(name: str) -> None:
    for p in (1, 3, 8, 13):
        schedule = build("all_reduce", name, p, segments=2)
        x = np.random.default_rng(p).normal(size=(p, 7)).astype(np.float32)
        state = np.zeros((schedule.participants, schedule.k, 7), np.float32)
        state[:p] = x[:, None]
        expected, found = run(schedule, state)[:p], summation(schedule)
        for rank, c in np.ndindex(found.node.shape):
            value = found.tree.evaluate(int(found.node[rank, c]), x)
            assert value.tobytes() == expected[rank, c].tobytes()


def sent_and_run(schedule: Schedule) -> np.ndarray:
    """What every rank holds at the end as text, R(x) for what was sent: rounded again it is the same."""
    state = np.full((schedule.p, schedule.k), "", dtype=object)
    state[:] = np.array([[str(r)] for r in range(schedule.p)], dtype=object)
    for step in schedule.steps():
        row, chunk = step.cells()
        for src, c in set(zip(step.src[row].tolist(), chunk.tolist(), strict=True)):
            state[src, c] = state[src, c] if state[src, c].startswith("R") else f"R{state[src, c]}."
        apply(step, state, np.frompyfunc(written, 2, 1))
    return np.frompyfunc(lambda text: text if text.startswith("R") else f"R{text}.", 1, 1)(state)


@pytest.mark.parametrize("name", names("all_reduce", executable()))
def test_with_rounded_messages_every_term_that_is_sent_is_rounded_at_its_sender_too(
    name: str,
) -> None:
    for p in (1, 2, 5, 8, 13):
        schedule = build("all_reduce", name, p, segments=2)
        expected, found = sent_and_run(schedule), summation(schedule, rounds_messages=True)
        pairs = set(zip(expected.ravel(), found.node.ravel().tolist(), strict=True))
        assert len(pairs) == len({text for text, _ in pairs}) == len({term for _, term in pairs})
        is_alike_everywhere = bool((found.node == found.node[0]).all())
        assert is_alike_everywhere or (name, p) in {("swing_doubling", 8), ("swing_doubling", 13)}


def test_the_depths_that_the_book_states() -> None:
    for p in SIZES:
        depths = {
            name: int(summation(build("all_reduce", name, p)).depth.max())
            for name in ("ring", "reduce_broadcast", "one_shot")
        }
        assert set(depths.values()) == {p - 1}
        folds = floor(log2(p)) + (p & (p - 1) > 0)
        assert int(summation(build("all_reduce", "recursive_doubling", p)).depth.max()) == folds
        assert int(summation(build("all_reduce", "one_shot", p), once=True).depth.max()) == min(
            1, p - 1
        )


def test_every_all_reduce_but_swing_s_doubling_has_the_same_bits_everywhere() -> None:
    differ = {
        (name, p)
        for name in names("all_reduce")
        for p in SIZES
        if not is_alike(build("all_reduce", name, p))
    }
    assert differ == {("swing_doubling", p) for p in SIZES if p >= 8}


def test_two_schedules_are_compared_by_one_table_of_terms() -> None:
    tree = ReductionTree(8)
    doubling, halving, ring, again = (
        summation(build("all_reduce", name, 8), 0, tree).node[0, 0]
        for name in ("recursive_doubling", "halving_doubling", "ring", "ring")
    )
    assert ring == again != doubling
    cut = summation(build("all_reduce", "tree", 8, segments=3), tree=tree)
    assert set(cut.node.ravel().tolist()) == {
        summation(build("all_reduce", "tree", 8), 0, tree).node[0, 0]
    }
    assert (halving == doubling) == (
        texts(build("all_reduce", "halving_doubling", 8))[0, 0]
        == texts(build("all_reduce", "recursive_doubling", 8))[0, 0]
    )


def test_a_change_of_one_addition_is_noticed() -> None:
    """Ranks 1 and 2 send to 0, in one step or in two, in either order.

    Only the third order has another tree.
    """

    def chain(*senders: int) -> Schedule:
        return Schedule(
            "reduce", 3, 1, len(senders), lambda t: Step(senders[t], 0, 0, add=True), root=0
        )

    at_once = Schedule("reduce", 3, 1, 1, lambda _: Step([2, 1], 0, 0, add=True), root=0)
    tree = ReductionTree(3)
    first, other, together = (
        summation(each, tree=tree).node[0, 0] for each in (chain(1, 2), chain(2, 1), at_once)
    )
    assert first == together != other
    assert summation(at_once, tree=ReductionTree(3), once=True).tree.operands[3] == (0, 1, 2)


def test_values_that_are_replaced_and_switches_that_contribute_nothing() -> None:
    moved = Schedule("broadcast", 2, 1, 1, lambda _: Step(0, 1, 0), root=0)
    assert summation(moved).node.ravel().tolist() == [0, 0]
    assert ReductionTree(2).add([IDENTITY, 1]) == 1
    assert ReductionTree(2).add([IDENTITY]) == IDENTITY


@pytest.mark.parametrize("chunk", [-1, 8])
def test_a_chunk_that_is_not_there_is_refused(chunk: int) -> None:
    with pytest.raises(ValueError, match=f"chunk of the schedule: got {chunk}, expected 0 to 7"):
        summation(build("all_reduce", "ring", 8), chunk)


def test_too_many_cells_are_refused_before_anything_is_computed() -> None:
    with pytest.raises(ValueError, match="expected one chunk by its number"):
        summation(build("all_reduce", "ring", 24576))
    assert int(summation(build("all_reduce", "two_tree", 24576), 1).depth.max()) == 29


def test_a_bound_needs_a_dtype_that_rounds() -> None:
    assert bound(0, "float16") == 0
    assert bound(1, "float32") == pytest.approx(2.0**-24)
    with pytest.raises(ValueError, match="dtype"):
        bound(3, "int32")
