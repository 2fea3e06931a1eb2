"""Measured rows: libraries beside auto, the quickest and the table, and the series that a figure can show."""

import pandas as pd
import pytest

from collectives_book.figures import measured


def rows() -> pd.DataFrame:
    """On 2 and 3 ranks auto takes 10 us, Open MPI 20, gloo 30; a named algorithm 1.

    8 B of gloo on 3 ranks failed.
    """
    found = []
    for ranks in (2, 3):
        for nbytes in (4, 8):
            for backend, algorithm, us in (
                ("p2p", "ring", 10.0),
                ("mpi", "default", 20.0),
                ("gloo", "default", 30.0),
                ("mpi", "ring", 1.0),
            ):
                error = "late" if (ranks, nbytes, backend) == (3, 8, "gloo") else None
                times = {"median_us": us, "low_us": us / 1.5, "high_us": us * 1.5}
                series = {
                    "backend": backend,
                    "algorithm": algorithm,
                    "auto": backend == "p2p",
                    "error": error,
                }
                found.append({"ranks": ranks, "bytes": nbytes} | series | times)
    return pd.DataFrame(found)


def test_a_library_s_own_choice_is_held_against_auto() -> None:
    found = measured.over_auto(rows())
    assert found[["ranks", "bytes", "library", "ratio"]].to_numpy().tolist() == [
        [2, 4, "Open MPI", 2.0],
        [2, 4, "gloo", 3.0],
        [2, 8, "Open MPI", 2.0],
        [2, 8, "gloo", 3.0],
        [3, 4, "Open MPI", 2.0],
        [3, 4, "gloo", 3.0],
        [3, 8, "Open MPI", 2.0],
    ]
    assert found.low.iloc[:2].tolist() == pytest.approx([2 / 1.5**2, 3 / 1.5**2])
    assert found.high.iloc[:2].tolist() == pytest.approx([2 * 1.5**2, 3 * 1.5**2])
    assert set(found.chosen) == {"ring"}
    assert measured.quickest_library(found).library.tolist() == ["Open MPI"] * 4


def test_the_table_has_a_column_for_each_size() -> None:
    wide = measured.ratio_table(
        {"first": measured.over_auto(rows()), "second": measured.over_auto(rows())}
    )
    assert list(wide.columns) == ["4 B", "8 B"]
    assert wide.loc[("first", "2 ranks", "gloo")].tolist() == ["3.00", "3.00"]
    assert wide.loc[("second", "3 ranks", "Open MPI")].tolist() == ["2.00", "2.00"]


@pytest.mark.integration  # draws
def test_of_too_many_series_the_caption_names_those_that_are_not_drawn() -> None:
    rows = pd.DataFrame({"algorithm": [f"a{nth}" for nth in range(12)], "median_us": range(1, 13)})
    rows = rows.assign(
        backend="p2p", collective="all_reduce", ranks=4, bytes=8, low_us=1.0, high_us=12.0
    )
    assert measured.times(rows[::-1]).caption == "Not drawn, because others are faster: a10, a11."
    assert measured.times(rows[:10]).caption == ""
