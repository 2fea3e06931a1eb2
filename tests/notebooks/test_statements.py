"""Which rows are told apart: a winner, a tie, a single row, and however few samples."""

import itertools
from typing import Any

import pandas as pd
import pytest

from collectives.statistics import median_interval
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
# Rounds of one launch, four of them disturbed: the intervals of both rows reach from quiet to
# disturbed rounds.
ROUNDS = [900.0, 920, 5000, 935, 940, 5100, 910, 5200, 930, 5300]
SLOWER = [1.5 * each for each in ROUNDS]
NOW_AND_THEN = [each * (1.5 if nth % 2 else 0.7) for nth, each in enumerate(ROUNDS)]


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (rows(root=C, tree=B, ring=A), ["ring"]),
        (rows(ring=A), ["ring"]),
        (rows(ring=A, tree=B).drop(columns="samples"), ["ring"]),
        (rows(root=C, ring=A, two_tree=LATE), ["ring", "two_tree"]),
        # Of several that tie with the first some may be apart.
        (
            rows(wide=[10.0, 15, 15, 15, 40], middle=[16.0, 17, 17, 17, 18], late=C),
            ["wide", "middle", "late"],
        ),
        # Interleaved samples are compared round by round.
        (rows(ring=ROUNDS, tree=SLOWER), ["ring"]),
        (rows(tree=SLOWER, ring=ROUNDS), ["ring"]),
        (rows(ring=ROUNDS, tree=NOW_AND_THEN), ["ring", "tree"]),
        (rows(ring=ROUNDS, tree=SLOWER[:9]), ["ring", "tree"]),  # of other rounds
        (rows(ring=ROUNDS[:5], tree=SLOWER[:5]), ["ring", "tree"]),  # too few rounds to be sure
        # Of two equal series with three samples each, the intervals of one pair in ten have nothing
        # in common.
        *((rows(ring=A[:n], tree=[90.0] * 5), ["ring", "tree"]) for n in (1, 3, 4)),
        (rows(ring=A[:4], tree=[90.0] * 4), ["ring", "tree"]),
        # Five samples have their range for an interval.
        (rows(ring=[0.0, 1, 2, 3, 4], tree=[5.0, 6, 7, 8, 9]), ["ring"]),
        (rows(ring=[0.0, 1, 2, 3, 4], tree=[4.0, 6, 7, 8, 9]), ["ring", "tree"]),
    ],
)
def test_a_winner_is_named_where_the_data_tell_rows_apart(
    table: pd.DataFrame, expected: list[str]
) -> None:
    assert ahead(table) == expected


def test_the_order_and_the_index_of_rows_do_not_matter() -> None:
    table = rows(root=C, ring=A, two_tree=LATE, tree=B)
    for order in itertools.permutations(range(4)):
        again = table.iloc[list(order)]
        again.index = pd.Index([7, 7, 7, 7])
        assert ahead(again) == ["ring", "two_tree"]


def test_the_confidence_is_that_of_so_many_samples() -> None:
    assert statements.intervals([1, 3]) == "some single samples, without intervals"
    assert statements.intervals([6]) == "96.87% confidence intervals"  # 96.875, not rounded up


def test_a_ratio_lies_as_far_out_as_its_intervals_allow() -> None:
    one, other = rows(ring=A, tree=B).itertuples()
    assert statements.ratio(one, other) == pytest.approx((10 / 22, 11 / 21, 12 / 20))
