"""The experiment about workers out of step: its rows from real ranks, its model and its tables."""

from typing import Any

import pandas as pd
import pytest

from collectives_book.asynchronous import figures, model
from collectives_book.asynchronous.experiment import Asynchronous

GOOD: dict[str, Any] = {
    "ranks": 4,
    "where": "loopback",
    "backend": "p2p",
    "algorithm": "ring",
    "modes": ["all_reduce", "synchronous", "stale", "asynchronous"],
    "bound": 2,
    "slow": ["nobody", "compute"],
    "slow_worker": 1,
    "factor": 5,
    "link_factor": 1,
    "compute": "4ms",
    "batch": 400,
    "rate": 0.25,
    "steps": 9,
    "repetitions": 2,
    "output": "out/rows",
}
CLUSTER = {
    "where": "cluster:5ms,25MB/s",
    "ranks": 8,
    "slow": ["nobody", "compute", "link", "turns"],
}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What real ranks did, all modes in one launch."""
    folder = tmp_path_factory.mktemp("rows")
    return Asynchronous(**GOOD | {"output": str(folder / "rows")}).run()[0]


@pytest.mark.integration
def test_each_mode_trains_with_every_gradient_once_and_within_its_bound(rows: Any) -> None:
    expected = [(slow, mode) for _ in range(2) for slow in GOOD["slow"] for mode in GOOD["modes"]]
    assert list(zip(rows.slow, rows["mode"], strict=True)) == expected
    bounds = {"all_reduce": 0, "synchronous": 0, "stale": 2}
    for row in rows.itertuples():
        assert row.updates == sum(row.by_worker) == sum(row.staleness) == sum(row.delay) == 27
        assert len(row.staleness) - 1 <= bounds.get(row.mode, 27)
        assert len(row.at) == len(row.losses) == 10
        assert list(row.at) == sorted(row.at)
        assert row.losses[-1] < row.losses[0]
    late = rows[(rows["mode"] == "asynchronous") & (rows.slow == "compute")]
    assert all(
        row.by_worker[1] < min(row.by_worker[0], row.by_worker[2]) for row in late.itertuples()
    )


@pytest.mark.integration
def test_synchronous_runs_agree_to_the_bit_and_with_an_all_reduce_to_rounding(rows: Any) -> None:
    for mode in ("synchronous", "all_reduce"):
        assert rows[rows["mode"] == mode].digest.nunique() == 1
    ours, theirs = (
        rows[rows["mode"] == mode].losses.iloc[0] for mode in ("synchronous", "all_reduce")
    )
    assert list(ours) == pytest.approx(list(theirs), abs=1e-4)


def test_tables_have_the_rows_numbers() -> None:
    """Two runs of one mode, as 7 workers might have made them."""
    run: dict[str, Any] = {"mode": "asynchronous", "workers": 7, "bound": 4, "accuracy": 0.75}
    run |= {"staleness": [7, 5, 2], "delay": [2, 10, 2], "losses": [2.0, 1.5, 1.0]}
    rows = pd.DataFrame([run | {"at": [0.0, 1.0, seconds]} for seconds in (2.0, 2.01)])
    assert figures.lag(rows).loc["asynchronous"].tolist() == [2, 1, 2]
    assert figures.outcome(rows).loc["asynchronous"].tolist() == [
        "1.00",
        "75%",
        "14",
        "2 s to 2.01 s",
    ]


def test_the_model_knows_who_waits_for_whom() -> None:
    asked = Asynchronous(
        **GOOD
        | CLUSTER
        | {"compute": "40ms", "factor": 4, "link_factor": 16, "bound": 4, "steps": 60}
    )
    found = model.predictions(asked)
    assert set(found) == {
        (slow, mode) for slow in ("nobody", "compute", "link") for mode in GOOD["modes"]
    }
    message = model.message_bytes() / 25e6
    alone, slow = 0.04 + 2 * (0.005 + message), 0.16 + 2 * (0.005 + message)
    assert found["nobody", "asynchronous"] == pytest.approx(7 / alone)
    assert found["compute", "asynchronous"] == pytest.approx(6 / alone + 1 / slow)
    assert found["nobody", "synchronous"] == pytest.approx(7 / (0.05 + 14 * message))
    assert found["compute", "synchronous"] == pytest.approx(7 / (0.17 + 8 * message))
    assert found["compute", "stale"] == pytest.approx(420 / ((60 - 6 * 5 / 7) * slow))
    assert model.predictions(Asynchronous(**GOOD)) == {}
