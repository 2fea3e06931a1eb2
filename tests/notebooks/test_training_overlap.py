"""The experiments overlap and weak-scaling: what ranks are told, what is predicted, and rows from emulated hosts."""

import os
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from collectives import emulator as clusters
from collectives.machine import machine
from collectives.simulator.overlap import REDUCE
from collectives_book import experiment as base
from collectives_book.overlap import figures, published
from collectives_book.overlap.experiment import Overlap, WeakScaling, predicted

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


def test_ranks_are_told_their_algorithms_and_a_layer_s_waiting() -> None:
    assert Overlap.given(GOOD | {"backend": "gloo", "algorithms": []}).job([1])["algorithms"] == [
        "default"
    ]
    assert Overlap.given(GOOD).job([1])["seconds"] == 0.002


def test_bytes_over_rate_and_its_ratio_to_computing_stay_as_they_were_published() -> None:
    asked = WeakScaling.given(SCALED | {"ranks": 40, "ranks_per_node": 8})
    told, on = asked.job([1]), asked.machine(40)
    nbytes = 4 * sum(a * b for a, b in pairwise(told["widths"]))
    ratio = published.GRADIENTS / published.NETWORK / published.COMPUTING
    assert nbytes / on.network.rate / (told["seconds"] * asked.layers) == pytest.approx(
        ratio, rel=0.01
    )
    assert on.inside is not None
    assert on.inside.rate / on.network.rate == pytest.approx(published.INSIDE / published.NETWORK)


def test_more_buckets_hide_more_until_their_latencies_add_up() -> None:
    """Eight ranks, links of 5 ms and 25 MB/s: a bucket of n bytes takes 14 · (5 ms + n / 8 / 25 MB/s) by a ring."""
    on, nbytes, waiting = machine("5ms,25MB/s"), 16 << 20, 2.1
    row = {"backend": "p2p", "algorithm": "ring", "bytes": nbytes, "ranks": 8}
    said = [
        predicted(row | {"buckets": number}, waiting, on)["predicted_us"]
        for number in (1, 2, 4, 8, 16)
    ]
    assert said[0] == pytest.approx(1e6 * 14 * (0.005 + nbytes / 8 / 25e6), abs=1)
    assert said[0] > said[1] > said[2] < said[3] < said[4]
    for known in ((waiting, None), (0.0, on)):
        assert predicted(row | {"buckets": 1}, *known)["predicted_us"] is None


@pytest.mark.extended
def test_overlap_is_measured_on_emulated_hosts(
    allowed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_weak_scaling_is_measured_on_racks(
    allowed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
