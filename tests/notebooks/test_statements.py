"""Which rows are told apart: a winner, a tie, a single row, and however few samples."""

import itertools
from math import comb
from typing import Any

import pandas as pd
import pytest

from collectives.bench.statistics import median_interval
from collectives_book.figures import statements


def row(name: str, samples: list[float]) -> dict[str, Any]:
    low, median, high = median_interval(samples)
    return {"name": name, "samples": samples, "low_us": low, "median_us": median, "high_us": high}


def rows(**samples: list[float]) -> pd.DataFrame:
    return pd.DataFrame([row(name, each) for name, each in samples.items()])


def ahead(table: pd.DataFrame) -> list[str]:
    return [each.name for each in statements.leaders(table)]


A, B, C = [10.0, 11, 11, 11, 12], [20.0, 21, 21, 21, 22], [30.0, 33, 33, 33, 36]
LATE = [12.0, 13, 13, 13, 14]  # begins where A ends


def test_a_winner_is_named_where_intervals_are_apart() -> None:
    assert ahead(rows(root=C, tree=B, ring=A)) == ["ring"]
    assert ahead(rows(ring=A)) == ["ring"]


def test_a_tie_has_no_winner() -> None:
    assert ahead(rows(root=C, ring=A, two_tree=LATE)) == ["ring", "two_tree"]


# Rounds of one launch, four of them disturbed: the intervals of both rows reach from quiet to disturbed rounds.
ROUNDS = [900.0, 920, 5000, 935, 940, 5100, 910, 5200, 930, 5300]


def test_interleaved_samples_are_compared_round_by_round() -> None:
    slower = [1.5 * each for each in ROUNDS]
    assert ahead(rows(ring=ROUNDS, tree=slower)) == ahead(rows(tree=slower, ring=ROUNDS)) == ["ring"]
    now_and_then = [each * (1.5 if nth % 2 else 0.7) for nth, each in enumerate(ROUNDS)]
    assert len(ahead(rows(ring=ROUNDS, tree=now_and_then))) == 2
    assert len(ahead(rows(ring=ROUNDS, tree=slower[:9]))) == 2  # of other rounds
    assert len(ahead(rows(ring=ROUNDS[:5], tree=slower[:5]))) == 2  # too few rounds to be sure


def test_of_several_that_tie_with_the_first_some_may_be_apart() -> None:
    wide = rows(wide=[10.0, 15, 15, 15, 40], middle=[16.0, 17, 17, 17, 18], late=[30.0, 31, 31, 31, 32])
    assert ahead(wide) == ["wide", "middle", "late"]


@pytest.mark.parametrize("n", [1, 3, 4])
def test_few_samples_cannot_be_told_apart(n: int) -> None:
    """Of two equal series with three samples each, the intervals of one pair in ten have nothing in common."""
    assert ahead(rows(ring=A[:n], tree=[90.0] * 5)) == ["ring", "tree"]
    one, other = rows(ring=A[:n], tree=[90.0] * n).itertuples()
    assert statements.few(one)
    assert not statements.apart(one, other)


def test_five_samples_have_the_range_for_an_interval() -> None:
    low, high = [float(i) for i in range(5)], [float(i + 5) for i in range(5)]
    assert statements.apart(*rows(ring=low, tree=high).itertuples())
    high[0] = low[-1]
    assert not statements.apart(*rows(ring=low, tree=high).itertuples())


def test_few_samples_of_equal_series_are_apart_too_often() -> None:
    """How often n samples and n others of one distribution do not mix: 2 of the orders of 2n."""
    often = {n: 2 / comb(2 * n, n) for n in (3, statements.FEWEST)}
    assert often[3] == 0.1
    assert often[statements.FEWEST] < 0.01


def test_rows_without_samples_have_their_intervals() -> None:
    table = rows(ring=A, tree=B).drop(columns="samples")
    assert ahead(table) == ["ring"]


def test_the_order_and_the_index_of_rows_do_not_matter() -> None:
    table = rows(root=C, ring=A, two_tree=LATE, tree=B)
    expected = ahead(table)
    for order in itertools.permutations(range(4)):
        again = table.iloc[list(order)]
        again.index = pd.Index([7, 7, 7, 7])
        assert ahead(again) == expected


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([1], "single samples, without intervals"),
        ([1, 3], "some single samples, without intervals"),
        ([2], "50% intervals"),
        ([3], "75% intervals"),
        ([5, 5], "93.75% intervals"),
        ([5, 3], "75% to 93.75% intervals"),
        ([6], "96.87% intervals"),  # 96.875, not rounded up
    ],
)
def test_the_confidence_is_that_of_so_many_samples(counts: list[int], expected: str) -> None:
    assert statements.intervals(counts) == expected


def test_a_ratio_lies_as_far_out_as_its_intervals_allow() -> None:
    one, other = rows(ring=A, tree=B).itertuples()
    least, middle, most = statements.ratio(one, other)
    assert (least, middle, most) == pytest.approx((10 / 22, 11 / 21, 12 / 20))


@pytest.mark.parametrize(
    ("low", "high", "at_least", "expected"),
    [
        (8.0, 9.0, True, "reached"),
        (7.9, 9.0, True, "undecided"),
        (7.0, 7.9, True, "missed"),
        (7.0, 8.0, False, "reached"),
        (7.0, 8.1, False, "undecided"),
        (8.1, 9.0, False, "missed"),
    ],
)
def test_a_goal_inside_the_interval_is_undecided(low: float, high: float, at_least: bool, expected: str) -> None:
    assert statements.verdict(low, high, 8.0, at_least=at_least) == expected
