"""Public tests: `pytest` runs them. The grader's logs and traces are others, drawn by lot."""

from pathlib import Path

import lab
import pytest
from variant import SAMPLES

LOG = """# nThread 1 nGpus 8 minBytes 1024 maxBytes 4096 step: 4(factor) warmup iters: 5 iters: 20
#  Rank  0 Group  0 Pid   4711 on  node1 device  0 [0x07] NVIDIA H100
#       size   count   type  redop  root   time  algbw  busbw  #wrong   time  algbw  busbw  #wrong
        4096    1024  float    sum    -1  12.50   0.33   0.57       0  11.00   0.37   0.65     N/A
        1024     256  float    sum    -1  10.00   0.10   0.18     N/A    N/A    N/A    N/A     N/A
# Avg bus bandwidth    : 0.5
"""


def test_parse_reads_the_rows():
    first, second = lab.parse(LOG)
    assert first == {"bytes": 1024, "seconds": pytest.approx(1e-5), "in_place": None, "wrong": None}
    assert second == {
        "bytes": 4096,
        "seconds": pytest.approx(1.25e-5),
        "in_place": pytest.approx(1.1e-5),
        "wrong": 0,
    }


@pytest.mark.parametrize("name", ["ring", "tree", "free"])
def test_parse_reads_the_recorded_logs(name):
    assert len(lab.parse(Path("recorded", f"{name}.log").read_text(encoding="utf8"))) == 9


def test_busbw_of_an_all_reduce():
    assert lab.busbw("all_reduce", 8, 1_000_000_000, 0.01) == pytest.approx(175)


def test_faster_up_to_the_first_loss():
    first = [
        {"bytes": n, "seconds": seconds}
        for n, seconds in [(16, 1.0), (64, 1.0), (256, 3.0), (1024, 1.0)]
    ]
    assert lab.faster_up_to(first, [row | {"seconds": 2.0} for row in first]) == 64


def event(cat, name, start, length):
    return {"ph": "X", "cat": cat, "name": name, "ts": start, "dur": length}


def test_exposed_on_a_gpu():
    events = [
        event("kernel", "ncclDevKernel_AllReduce", 0.0, 100.0),
        event("kernel", "sgemm", 30.0, 50.0),
    ]
    assert lab.exposed(events) == pytest.approx(50e-6)


def test_exposed_on_a_processor():
    events = [
        event("user_annotation", "gloo:all_reduce", 0.0, 100.0),
        event("cpu_op", "aten::mm", 90.0, 50.0),
    ]
    assert lab.exposed(events) == pytest.approx(90e-6)


def test_choose_the_fastest_with_enough_samples():
    rows = [
        {"bucket_cap_mb": cap, "seconds": seconds} for cap, seconds in [(1, 0.3), (25, 0.2)]
    ] * SAMPLES
    assert lab.choose(rows) == 25
    assert lab.choose([*rows, {"bucket_cap_mb": 5, "seconds": 0.1}]) == 25
