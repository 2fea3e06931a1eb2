"""Where two trees win is computed from rows, and a tie is no win; of the recorded rows only the broadcasts show one."""

import pandas as pd
import pytest

from collectives.bench.results import read
from collectives_book.scaling import figures
from places import ROOT

REFERENCE = ROOT / "experiments" / "results" / "reference" / "slow-motion"


def rows(**times: tuple[float, ...]) -> pd.DataFrame:
    """Milliseconds of each algorithm at 4 B, 8 B, …, with intervals of a tenth on either side."""
    made = [
        {
            "collective": "broadcast",
            "algorithm": name,
            "ranks": 3,
            "bytes": 4 << nth,
            "low_us": 900 * ms,
            "median_us": 1000 * ms,
            "high_us": 1100 * ms,
            "simulated_us": 1000 * ms,
        }
        for name, each in times.items()
        for nth, ms in enumerate(each)
    ]
    return pd.DataFrame(made)


def test_neighbouring_sizes_are_one_range() -> None:
    two_ranges = rows(two_tree=(1, 1, 2, 1), chain=(2, 4, 1, 3))
    assert figures.two_trees_headline(two_ranges) == "two trees win at 4 B to 8 B and 32 B"


def test_the_largest_lead_is_said_in_full() -> None:
    assert figures.two_trees_outcome(rows(two_tree=(1, 1, 2), chain=(2, 4, 1), binomial=(9, 9, 9))) == (
        "On 3 hosts two trees win at 4 B to 8 B. The lead is the largest at 8 B: 1 ms against 4 ms by the next best, "
        "chain, which takes 4.00 times as long. The simulator says 1 ms and 4 ms; "
        "by its times two trees win at 4 B to 8 B."
    )


def test_a_tie_is_no_win() -> None:
    tied = rows(two_tree=(1.0,), chain=(1.1,))
    assert figures.two_trees_headline(tied) == "two trees win nowhere"
    assert figures.two_trees_outcome(tied) == (
        "On 3 hosts two trees win nowhere. Their worst size is 4 B, where chain takes 1.1 ms and two trees "
        "about as long, because the intervals overlap: 1 ms."
    )


def test_the_largest_gap_is_said_in_full() -> None:
    assert figures.two_trees_outcome(rows(two_tree=(1, 3, 4), chain=(0.5, 1, 3), binomial=(9, 9, 9))) == (
        "On 3 hosts two trees win nowhere. Their worst size is 8 B, where chain takes 1 ms and two trees "
        "3.00 times as long: 3 ms."
    )


@pytest.mark.integration
@pytest.mark.parametrize(("name", "wins"), [("broadcast", True), ("all-reduce", False)])
def test_where_two_trees_win_in_the_recorded_rows(name: str, wins: bool) -> None:
    recorded, _ = read(REFERENCE / f"two-trees-{name}")
    assert bool(figures.two_trees_won(recorded)) == wins
    assert not recorded.wrong.any()
