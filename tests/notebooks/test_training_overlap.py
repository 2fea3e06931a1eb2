"""The experiments overlap and weak-scaling: their parameters, rows from emulated hosts, sentences and figures."""

import os
import sys
from pathlib import Path
from typing import Any

import nbformat
import pandas as pd
import pytest

from collectives import emulator as clusters
from collectives.machine import machine
from collectives.simulator.overlap import BACKWARD, REDUCE, Activity
from collectives_book import ExperimentError
from collectives_book import experiment as base
from collectives_book.overlap import figures, published
from collectives_book.overlap.experiment import Overlap, WeakScaling, predicted
from places import ROOT

GOOD: dict[str, Any] = {
    "ranks": 2,
    "where": "cluster:1ms,100MB/s",
    "backend": "p2p",
    "algorithms": ["ring", "auto"],
    "layers": 4,
    "gradients": "64K",
    "batch": 1,
    "waiting": "8ms",
    "buckets": [1, 4],
    "repetitions": 1,
    "output": "out/rows",
}
SCALED: dict[str, Any] = {
    "ranks": 2,
    "ranks_per_node": 1,
    "where": "cluster",
    "backend": "p2p",
    "algorithm": "ring",
    "latency": "1ms",
    "inside": "10GB/s",
    "network": "6GB/s",
    "layers": 4,
    "gradients": 1_200_000_000,
    "computing": "370ms",
    "batch": 32,
    "shrink": 10_000,
    "slower": 0.1,
    "buckets": [1, 4],
    "repetitions": 1,
    "output": "out/rows",
}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"buckets": [3]}, "buckets: got 3 for 4 layers, expected a divisor"),
        ({"buckets": []}, "buckets: List should have at least 1 item"),
        ({"backend": "horovod"}, "backend: got 'horovod', expected one of p2p, gloo"),
        ({"backend": "nccl2"}, "backend: got 'nccl2', expected one of p2p, gloo"),
        ({"algorithms": []}, "algorithms: got none, expected one or more for p2p"),
        ({"algorithms": ["rnig"]}, "no algorithm 'rnig' for 'all_reduce'"),
        ({"where": "moon"}, "unknown where 'moon'"),
        ({"waiting": "soon"}, "invalid time 'soon'"),
        ({"repetitions": 0}, "repetitions: Input should be greater than or equal to 1, got 0"),
    ],
)
def test_wrong_parameters_of_overlap_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ExperimentError) as caught:
        Overlap.given(GOOD | given)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ranks": 20, "ranks_per_node": 8}, "ranks: got 20, expected a multiple of 8, whole nodes"),
        ({"where": "cluster:5ms,25MB/s"}, "where: got 'cluster:5ms,25MB/s', expected 'cluster'"),
        ({"slower": 0.0}, "slower: Input should be greater than or equal to 0.01, got 0.0"),
        ({"buckets": [8]}, "buckets: got 8 for 4 layers"),
        ({"algorithm": "rnig"}, "no algorithm 'rnig' for 'all_reduce'"),
        ({"network": "fast"}, "invalid rate 'fast'"),
    ],
)
def test_wrong_parameters_of_weak_scaling_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ExperimentError) as caught:
        WeakScaling.given(SCALED | given)
    assert message in str(caught.value)


def test_a_library_chooses_its_own_algorithm() -> None:
    assert Overlap.given(GOOD | {"backend": "gloo", "algorithms": []}).job([1])["algorithms"] == ["default"]
    assert Overlap.given(GOOD).job([1])["seconds"] == 0.002


def test_bytes_over_rate_and_its_ratio_to_computing_stay_as_they_were_published() -> None:
    asked = WeakScaling.given(SCALED | {"ranks": 40, "ranks_per_node": 8})
    assert asked.workers() == [1, 2, 4, 8, 16, 32, 40]
    told, on = asked.job([1]), asked.machine(40)
    nbytes = 4 * sum(a * b for a, b in zip(told["widths"], told["widths"][1:], strict=False))
    computing = told["seconds"] * asked.layers
    ratio = published.GRADIENTS / published.NETWORK / published.COMPUTING
    assert nbytes / on.network.rate / computing == pytest.approx(ratio, rel=0.01)
    assert on.inside is not None
    assert on.inside.rate / on.network.rate == pytest.approx(published.INSIDE / published.NETWORK)


def test_390_ms_are_about_400() -> None:
    assert published.ring_seconds(40) == pytest.approx(0.39)
    assert published.ring_seconds(10**9) == pytest.approx(published.SAID_SECONDS)
    assert published.COMPUTING + published.ring_seconds(40) == pytest.approx(published.step_seconds(40), rel=0.06)


def test_more_buckets_hide_more_until_their_latencies_add_up() -> None:
    """Eight ranks, links of 5 ms and 25 MB/s: a bucket of n bytes takes 14 · (5 ms + n / 8 / 25 MB/s) by a ring."""
    on, nbytes, waiting = machine("5ms,25MB/s"), 16 << 20, 2.1
    rows = [_row("ring", number, nbytes) for number in (1, 2, 4, 8, 16)]
    said = [predicted(row, waiting, on)["predicted_us"] for row in rows]
    assert said[0] == pytest.approx(1e6 * 14 * (0.005 + nbytes / 8 / 25e6), abs=1)
    assert said[0] > said[1] > said[2] < said[3] < said[4]
    assert predicted(rows[0], waiting, None)["predicted_us"] is None
    assert predicted(rows[0], 0.0, on)["predicted_us"] is None


def _row(algorithm: str, buckets: int, nbytes: int = 16 << 20, median: float = 1e6) -> dict[str, Any]:
    spans = [
        *(Activity(rank, BACKWARD, 0, 0.1, 0.3 + 0.01 * rank)._asdict() for rank in range(2)),
        *(Activity(rank, REDUCE, 0, 0.3, 0.9, nbytes)._asdict() for rank in range(2)),
    ]
    return {
        "backend": "p2p",
        "algorithm": algorithm,
        "buckets": buckets,
        "bytes": nbytes,
        "ranks": 8,
        "spans": spans,
        "median_us": median,
        "low_us": 0.99 * median,
        "high_us": 1.01 * median,
        "samples": [median] * 5,  # fewer name no winner
        "counted_median_us": 1.05 * median,
        "predicted_us": 0.9 * median,
        "chosen": "ring",
    }


@pytest.mark.integration  # seconds
def test_the_table_and_texts_of_overlap_have_the_rows_numbers() -> None:
    table = pd.DataFrame([_row("ring", 1), _row("ring", 4, median=4e5), _row("tree", 1), _row("tree", 4)])
    first, best = figures.extremes(table)
    assert (first.buckets, best.buckets) == (1, 4)
    assert "one bucket of 16 MiB: 1 s exposed" in figures.timeline(first, best).alt
    assert "ring from 400 ms at 4 MiB to 1 s at 16 MiB" in figures.exposed(table).alt
    assert figures.counters(table)["counters less hook"].tolist() == ["+5%"] * 4


@pytest.mark.integration  # seconds
def test_the_texts_of_weak_scaling_have_the_rows_numbers() -> None:
    made = []
    for ranks, buckets, speed in ((1, 1, 80.0), (1, 4, 80.0), (40, 1, 1600.0), (40, 4, 2000.0)):
        step = ranks * 32 * 2 / speed * 1e6
        each = {"ranks": ranks, "buckets": buckets, "per_second": speed, "slower": 2.0, "step_median_us": step}
        made.append(each | dict.fromkeys(("low_per_second", "high_per_second", "predicted_per_second"), speed))
    table = pd.DataFrame(made)
    assert "without overlap from 80 at 1 to 1,600 at 40" in figures.speed(table).alt
    assert "with overlap from 100% at 1 to 62% at 40" in figures.efficiency(table).alt


@pytest.mark.parametrize("name", ["overlap", "weak-scaling"])
def test_where_no_hosts_are_allowed_the_notebook_says_why_and_ends(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(base, "no_hosts", lambda: "only Linux has them")
    namespace: dict[str, Any] = {"display": print}
    for cell in nbformat.read(ROOT / "experiments" / f"{name}.ipynb", 4).cells:
        if cell.cell_type == "code":
            exec(cell.source, namespace)
    assert capsys.readouterr().out == "Not measured: only Linux has them\n"


@pytest.mark.extended
def test_overlap_is_measured_on_emulated_hosts(allowed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    rows, record = Overlap.given(GOOD | {"output": str(tmp_path / "rows")}).run()
    assert [(row.algorithm, row.buckets) for row in rows.itertuples()] == [
        (name, number) for number in GOOD["buckets"] for name in GOOD["algorithms"]
    ]
    assert len(record["environment"]) == GOOD["ranks"]
    assert rows.wrong.sum() == 0
    ideal = 2 * (GOOD["ranks"] - 1) / GOOD["ranks"] * rows.bytes
    assert (rows.sent_bytes >= ideal).all()
    assert (rows.sent_bytes < 1.25 * ideal).all(), "with headers and acknowledgements"
    for row in rows.itertuples():
        reduced = [span for span in figures.spans(row) if span.what == REDUCE]
        assert [span.nth for span in reduced] == [*range(row.buckets)] * GOOD["ranks"]
        assert sum(span.bytes for span in reduced) == GOOD["ranks"] * row.bytes


@pytest.mark.extended
def test_weak_scaling_is_measured_on_racks(allowed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    racks, make = [], clusters.cluster

    def made(hosts: int, latency: str, rate: str, **more: Any) -> Any:
        racks.append((hosts, rate, more["racks"], more["uplink"]))
        return make(hosts, latency, rate, **more)

    monkeypatch.setattr(base, "cluster", made)
    rows, record = WeakScaling.given(SCALED | {"output": str(tmp_path / "rows")}).run()
    assert racks == [(1, "10MB/s", 1, None), (2, "10MB/s", 2, "6MB/s")]
    assert list(zip(rows.ranks, rows.buckets, strict=True)) == [(1, 1), (1, 4), (2, 1), (2, 4)]
    assert rows.wrong.sum() == 0
    assert (rows.low_per_second <= rows.per_second).all()
    assert len(record["environment"]) == 3
