"""Experiments that are not measured: parameters that do not fit together are named.

Without hosts a notebook ends.
"""

from typing import Any

import nbformat
import pytest
from test_asynchronous import GOOD as ASYNCHRONOUS
from test_data_parallel import GOOD as DATA_PARALLEL
from test_model_parallel import GOOD as MODEL_PARALLEL
from test_scaling import GOOD as SCALING
from test_straggler import GOOD as STRAGGLER
from test_training_overlap import GOOD as OVERLAP
from test_training_overlap import SCALED

from collectives_book import experiment as base
from collectives_book import load
from collectives_book.experiment import ExperimentError
from places import ROOT

GOOD = {
    "asynchronous": ASYNCHRONOUS,
    "data-parallel": DATA_PARALLEL,
    "model-parallel": MODEL_PARALLEL,
    "overlap": OVERLAP,
    "scaling": SCALING,
    "straggler": STRAGGLER,
    "weak-scaling": SCALED,
}
JOINING = "p2p, gloo, p2p_nccl, nccl, horovod"
WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("asynchronous", {"ranks": 2}, "ranks: Input should be greater than or equal to 3, got 2"),
    ("asynchronous", {"slow_worker": 3}, "slow_worker: got 3, expected 0 to 2"),
    ("asynchronous", {"slow_worker": -1}, "slow_worker: got -1, expected 0 to 2"),
    (
        "asynchronous",
        {"slow": ["link"]},
        "slow: got 'link' with where 'loopback', expected cluster:LATENCY,RATE",
    ),
    (
        "asynchronous",
        {"slow": ["me"]},
        "slow.0: Input should be 'nobody', 'compute', 'link' or 'turns', got 'me'",
    ),
    ("asynchronous", {"backend": "mpi"}, f"unknown backend: got 'mpi', expected one of {JOINING}"),
    ("asynchronous", {"algorithm": "rnig"}, "no algorithm 'rnig' for 'all_reduce'"),
    ("asynchronous", {"batch": 2}, "batch: got 2, expected a sample or more for each of 3 workers"),
    (
        "data-parallel",
        {"beside": ["p2p"]},
        "beside: got 'p2p', which is the backend, expected others only",
    ),
    ("data-parallel", {"algorithms": ["rnig"]}, "no algorithm 'rnig' for 'all_reduce'"),
    (
        "data-parallel",
        {"killed_at": 12},
        "killed_at: got 12 on 2 ranks, expected 0, or less than 12 on 2 ranks or",
    ),
    ("data-parallel", {"ranks": 1}, "killed_at: got 8 on 1 ranks"),
    (
        "data-parallel",
        {"beside": ["horovod"]},
        "fusion: got none, expected a threshold or more for horovod",
    ),
    (
        "model-parallel",
        {"stages": 4},
        "stages: got 4, expected at most one for each of the 3 ranks",
    ),
    (
        "model-parallel",
        {"micro_batches": [1, 6]},
        "micro_batches: got 6, expected at most the 5 samples",
    ),
    (
        "model-parallel",
        {"schedules": ["zigzag"]},
        "schedules.0: Input should be 'gpipe' or '1f1b', got 'zigzag'",
    ),
    ("model-parallel", {"backend": "nccl2"}, "unknown backend 'nccl2'"),
    ("model-parallel", {"algorithms": ["rnig"]}, "no algorithm 'rnig' for 'all_reduce'"),
    (
        "model-parallel",
        {"widths": [0]},
        "widths.0: Input should be greater than or equal to 1, got 0",
    ),
    ("model-parallel", {"batches": []}, "batches: List should have at least 1 item"),
    ("model-parallel", {"forward": "2000s"}, "forward: Input should be less than or equal to 60"),
    ("model-parallel", {"brances": 3}, "unknown field 'brances'"),
    ("overlap", {"buckets": [3]}, "buckets: got 3 for 4 layers, expected a divisor"),
    ("overlap", {"backend": "horovod"}, "backend: got 'horovod', expected one of p2p, gloo"),
    ("overlap", {"algorithms": []}, "algorithms: got none, expected one or more for p2p"),
    ("overlap", {"algorithms": ["rnig"]}, "no algorithm 'rnig' for 'all_reduce'"),
    ("overlap", {"where": "moon"}, "unknown where 'moon'"),
    ("overlap", {"waiting": "soon"}, "invalid time 'soon'"),
    ("scaling", {"hosts": [1]}, "hosts.0: Input should be greater than or equal to 2, got 1"),
    ("scaling", {"hosts": [255]}, "hosts.0: Input should be less than or equal to 254, got 255"),
    ("scaling", {"rate": "0MB/s"}, "rate: Input should be greater than 0"),
    ("scaling", {"latency": "0ms"}, "latency: Input should be greater than 0"),
    ("scaling", {"algorithms": ["auto"]}, "'auto' is given twice"),
    ("scaling", {"backends": ["gloo"], "selectable": ["gloo"]}, "'gloo' is given twice"),
    ("scaling", {"selectable": ["mpi:rnig"]}, "known are basic_linear"),
    ("straggler", {"slow_host": 2}, "slow host: got 2, expected 0 to 1"),
    ("straggler", {"positions": [0, -1]}, "slow host: got -1, expected 0 to 1"),
    ("straggler", {"factors": [0]}, "factors.0: Input should be greater than or equal to 1, got 0"),
    ("straggler", {"algorithms": ["auto"]}, "algorithms: got 'auto', expected names only"),
    (
        "weak-scaling",
        {"ranks": 20, "ranks_per_node": 8},
        "ranks: got 20, expected a multiple of 8, whole nodes",
    ),
    (
        "weak-scaling",
        {"where": "cluster:5ms,25MB/s"},
        "where: got 'cluster:5ms,25MB/s', expected 'cluster'",
    ),
    ("weak-scaling", {"network": "fast"}, "invalid rate 'fast'"),
]


@pytest.mark.parametrize(("name", "given", "message"), WRONG)
def test_wrong_parameters_are_refused(name: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ExperimentError) as caught:
        load(name).given(GOOD[name] | given)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["overlap", "straggler", "weak-scaling"])
def test_where_no_hosts_are_allowed_the_notebook_says_why_and_ends(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(base, "no_hosts", lambda: "only Linux has them")
    namespace: dict[str, Any] = {"display": print}
    for cell in nbformat.read(ROOT / "experiments" / f"{name}.ipynb", 4).cells:
        if cell.cell_type == "code":
            exec(cell.source, namespace)
    assert capsys.readouterr().out == "Not measured: only Linux has them\n"
