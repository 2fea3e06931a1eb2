"""The experiment data-parallel: its launches, and a small run with a killed rank."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from collectives_book.data_parallel import figures
from collectives_book.data_parallel.experiment import DataParallel
from collectives_book.figures import measured

GOOD: dict[str, Any] = {
    "ranks": 2,
    "batch": 100,
    "steps": 12,
    "rate": 0.1,
    "backend": "p2p",
    "beside": ["gloo"],
    "algorithms": ["ring"],
    "fusion": [],
    "killed_at": 8,
    "every": 3,
    "batches": [64, 1500],
    "base_rate": 0.04,
    "epochs": 1,
    "seeds": 2,
    "where": "loopback",
    "output": "out/rows",
}


def test_ranks_that_are_started_alike_share_a_launch() -> None:
    many = {"beside": ["gloo", "horovod"], "algorithms": ["ring", "auto"], "fusion": [0, "1M"]}
    names = [
        ("one process", ""),
        ("p2p", "ring"),
        ("p2p", "auto"),
        ("gloo", "default"),
        ("rates", ""),
    ]
    assert DataParallel.given(GOOD | many).wanted() == [
        *(("loopback", None, *name) for name in names),
        ("horovodrun", "0", "horovod", "default"),
        ("horovodrun", "1048576", "horovod", "default"),
        ("killed", None, "p2p", "ring"),
    ]
    emulated = DataParallel.given(GOOD | many | {"where": "cluster:5ms,25MB/s"}).wanted()
    assert {case[0] for case in emulated} == {"cluster:5ms,25MB/s", "killed"}


@pytest.mark.extended
def test_replicas_equal_one_process_and_a_killed_rank_changes_nothing(tmp_path: Path) -> None:
    rows, record = DataParallel.given(GOOD | {"output": str(tmp_path / "rows")}).run()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.json", "rows.parquet"], (
        "no checkpoint is left"
    )
    assert rows.part.tolist() == [*["training"] * 3, *["rates"] * 8, "resumed"]
    assert max(figures.differences(rows).values()) < 1e-5
    assert figures.changed(rows) == 0
    (row,) = measured.part(rows, "resumed").itertuples()
    assert (row.killed_at, row.resumed_after, len(row.before)) == (8, 6, 7)
    assert row.said == "rank 1 of 2 was killed by SIGKILL"
    assert row.seconds > 0
    assert set(measured.part(rows, "rates").rate) == {0.04, 0.04 * 1500 / 64}
    assert len(record["environment"]) == 2
    for draw in (figures.losses, figures.times, figures.resumed, figures.rates):
        assert b"<svg" in draw(rows).light


def test_a_resumed_training_that_differs_is_found() -> None:
    one = {"part": "training", "backend": "p2p", "algorithm": "ring", "losses": [1.0, 0.5]}
    assert (
        figures.changed(pd.DataFrame([one, one | {"part": "resumed", "losses": [1.0, 0.25]}])) == 1
    )
