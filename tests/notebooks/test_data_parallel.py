"""The experiment data-parallel: its parameters, its launches, a small run with a killed rank, and its sentences."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from collectives.bench.results import read
from collectives_book import ExperimentError, checked
from collectives_book.data_parallel import captions, figures
from collectives_book.data_parallel.experiment import Parameters, run
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


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"backend": "mpi"}, "unknown backend: got 'mpi', expected one of p2p, gloo, horovod, nccl, p2p_nccl"),
        ({"beside": ["p2p"]}, "beside: got 'p2p', which is the backend, expected others only"),
        ({"algorithms": ["rnig"]}, "no algorithm 'rnig' for 'all_reduce'"),
        ({"algorithms": []}, "algorithms: List should have at least 1 item"),
        ({"killed_at": 12}, "killed_at: got 12 on 2 ranks, expected 0, or less than 12 on 2 ranks or more"),
        ({"ranks": 1}, "killed_at: got 8 on 1 ranks"),
        ({"beside": ["horovod"]}, "fusion: got none, expected a threshold or more for horovod"),
        ({"rate": 0.0}, "rate: Input should be greater than 0"),
        ({"steps": 4}, "steps: Input should be greater than or equal to 5"),
        ({"where": "moon"}, "unknown where 'moon'"),
        ({"batches": [64, 64]}, "batches: 64 is given twice"),
    ],
)
def test_wrong_parameters_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ExperimentError) as caught:
        checked(Parameters, GOOD | given)
    assert message in str(caught.value)


def test_ranks_that_are_started_alike_share_a_launch() -> None:
    many = {"beside": ["gloo", "horovod"], "algorithms": ["ring", "auto"], "fusion": [0, "1M"]}
    ours = [("p2p", "ring"), ("p2p", "auto"), ("gloo", "default")]
    horovod = [("horovod", "default")]
    assert [tuple(each) for each in checked(Parameters, GOOD | many).launches()] == [
        ("loopback", None, ours),
        ("horovodrun", "0", horovod),
        ("horovodrun", "1048576", horovod),
    ]
    emulated = checked(Parameters, GOOD | many | {"where": "cluster:5ms,25MB/s"}).launches()
    assert {each.where for each in emulated} == {"cluster:5ms,25MB/s"}


@pytest.mark.extended
def test_replicas_equal_one_process_and_a_killed_rank_changes_nothing(tmp_path: Path) -> None:
    output = tmp_path / "rows"
    run(checked(Parameters, GOOD | {"output": str(output)}))
    rows, record = read(output)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.json", "rows.parquet"], "no checkpoint is left"
    assert rows.part.tolist() == [*["training"] * 3, *["rates"] * 8, "resumed"]
    assert max(captions.differences(rows).values()) < 1e-5
    assert captions.same_again(rows) == "Every loss equals the undisturbed one, bit for bit."
    (row,) = measured.part(rows, "resumed").itertuples()
    assert (row.killed_at, row.resumed_after, len(row.before)) == (8, 6, 7)
    assert row.said == "rank 1 of 2 was killed by SIGKILL"
    assert row.seconds < 60
    assert set(measured.part(rows, "rates").rate) == {0.04, 0.04 * 1500 / 64}
    assert len(record["environment"]) == 2
    for draw in (figures.losses, figures.times, figures.resumed, figures.rates):
        assert b"<svg" in draw(rows).light
    assert "on 2 replicas, no loss differs from that of one process by more than" in captions.equality(rows)


def row(backend: str, median: float, fusion: float = float("nan"), **more: Any) -> dict[str, Any]:
    base = {"part": "training", "backend": backend, "algorithm": "default", "ranks": 2, "losses": [1.0, 0.5]}
    time = {"samples": [median] * 6, "median_us": median, "low_us": median, "high_us": median}
    return base | time | {"fusion": fusion, "batch": 8, "steps": 2, "bytes": 2048} | more


def test_the_sentence_about_fusion_is_true_in_a_tie() -> None:
    apart = pd.DataFrame([row("horovod", 4e3, 0.0), row("horovod", 2e3, 1e6)])
    assert captions.fusion(apart).endswith("without it: 2.0 times as long.")
    tie = pd.DataFrame([row("horovod", 2e3, 0.0), row("horovod", 2e3, 1e6)])
    assert captions.fusion(tie).endswith("about as long, because the intervals overlap.")
    assert captions.fusion(pd.DataFrame([row("horovod", 2e3, 0.0)])) == ""


def test_a_resumed_training_that_differs_is_said_to() -> None:
    one = row("p2p", 1e3, algorithm="ring")
    resumed = one | {"part": "resumed", "losses": [1.0, 0.25]}
    assert captions.same_again(pd.DataFrame([one, resumed])) == "Losses that differ from the undisturbed ones: 1 of 2."


def test_the_largest_good_batch_is_before_the_first_bad_one() -> None:
    found = [(32, 0.95), (64, 0.96), (128, 0.5), (256, 0.95)]
    table = pd.DataFrame([{"part": "rates", "rule": "linear", "batch": size, "accuracy": good} for size, good in found])
    assert captions.largest_good(table, "linear") == 64
    assert "up to 64 samples; at 256 samples 95% are read right." in captions.rule_of_rates(table)
