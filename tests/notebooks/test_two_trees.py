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


def test_a_tie_is_no_win() -> None:
    assert [size for size, _, _ in figures.two_trees_won(rows(two_tree=(1, 1, 2, 1), chain=(2, 4, 1, 1.1)))] == [4, 8]


@pytest.mark.integration
@pytest.mark.parametrize(("name", "wins"), [("broadcast", True), ("all-reduce", False)])
def test_where_two_trees_win_in_the_recorded_rows(name: str, wins: bool) -> None:
    recorded, _ = read(REFERENCE / f"two-trees-{name}")
    assert bool(figures.two_trees_won(recorded)) == wins
    assert not recorded.wrong.any()
