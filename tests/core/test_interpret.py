"""The one loop that moves data, against the plain program that its docstring gives."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.core.interpret import apply
from collectives.core.schedule import ScheduleError, Step


def plainly(step: Step, state: np.ndarray) -> np.ndarray:
    """Row by row, reading from a copy."""
    moved, result = state.copy(), state.copy()
    row, chunks = step.cells()
    for i, c in zip(row, chunks, strict=True):
        src, dst = step.src[i], step.dst[i]
        result[dst, c] = result[dst, c] + moved[src, c] if step.add[i] else moved[src, c]
    return result


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 3), st.integers(1, 3)),
        min_size=1,
        max_size=30,
    )
)
def test_adding_equals_the_plain_program(rows: list[tuple[int, int, int, int]]) -> None:
    src, dst, chunk, count = map(list, zip(*rows, strict=True))
    step = Step(src, dst, chunk, count, add=True)
    state = (np.arange(5 * 6, dtype=np.int64) ** 3).reshape(5, 6)
    expected = plainly(step, state)
    apply(step, state)
    assert state.tolist() == expected.tolist()


def test_everything_is_read_before_anything_is_written() -> None:
    state = np.array([[1], [2], [3]])
    apply(Step([0, 1, 2], [1, 2, 0], 0), state)
    assert state.ravel().tolist() == [3, 1, 2]


def test_several_adds_are_combined_in_rank_order_with_the_own_value_in_its_place() -> None:
    tiny, huge = 1.0, 2.0**53  # huge + 1 - huge is 0 or 1, by the order
    state = np.array([[huge], [-huge], [tiny], [tiny]])
    expected = ((huge - huge) + tiny) + tiny
    apply(Step([3, 0, 1], [2, 2, 2], 0, add=True), state)
    assert state[2, 0] == expected == 2.0
    assert ((tiny + huge) - huge) + tiny != expected  # the example does tell orders apart


@pytest.mark.parametrize("add", [[False, False], [False, True], [True, False]])
def test_a_cell_is_not_replaced_and_written_again_in_one_step(add: list[bool]) -> None:
    with pytest.raises(ScheduleError, match="chunk 1 of rank 2 is replaced and written again"):
        apply(Step([0, 1], [2, 2], 1, add=add), np.zeros((3, 2)))


def test_any_combination_will_do() -> None:
    state = np.array([[3, 5], [4, 1]])
    apply(Step(0, 1, 0, count=2, add=True), state, np.maximum)
    assert state.tolist() == [[3, 5], [4, 5]]
