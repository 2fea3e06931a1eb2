"""Libraries beside auto: ratios, the quickest and the table."""

import pandas as pd
import pytest

from collectives_book.figures import measured


def rows() -> pd.DataFrame:
    """On 2 and 3 ranks auto takes 10 us, Open MPI 20, gloo 30; a named algorithm 1; 8 B of gloo on 3 ranks failed."""
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
                series = {"backend": backend, "algorithm": algorithm, "auto": backend == "p2p", "error": error}
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
    wide = measured.ratio_table({"first": measured.over_auto(rows()), "second": measured.over_auto(rows())})
    assert list(wide.columns) == ["4 B", "8 B"]
    assert wide.loc[("first", "2 ranks", "gloo")].tolist() == ["3.00", "3.00"]
    assert wide.loc[("second", "3 ranks", "Open MPI")].tolist() == ["2.00", "2.00"]
