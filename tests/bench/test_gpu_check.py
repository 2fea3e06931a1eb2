"""`make gpu-check`: what it says without a GPU, the report it writes, and its ranks' cases, here over gloo."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from collectives.bench import Measurement, Row
from collectives.launch import RankError, launch
from places import TASKS
from ranks import gpu_check

TWO_GPUS = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


@pytest.fixture(autouse=True)
def tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks find what they run."""
    monkeypatch.setenv("PYTHONPATH", str(TASKS), prepend=os.pathsep)


@pytest.mark.integration
@pytest.mark.parametrize("over", ["gloo", pytest.param("nccl", marks=[pytest.mark.multi_gpu, TWO_GPUS])])
def test_every_case_on_groups_of_1_to_all_ranks(over: str) -> None:
    ranks = 3 if over == "gloo" else torch.cuda.device_count()
    settings = {"check": "algorithms", "over": over}
    events = launch("gpu_check", settings, ranks, timeout=240)
    found = [event for event in events if "cases" in event]
    assert found == [{"ranks": p, "cases": len(list(gpu_check.cases(p))), "wrong": []} for p in range(1, ranks + 1)]


@pytest.mark.integration
@pytest.mark.parametrize(("task", "wrong"), [("gpu_check", False), ("unreduced", True)])
def test_training_is_the_same_over_ours(task: str, wrong: bool) -> None:
    """Over gloo's group; also where ours forgets to reduce (tests/ranks/unreduced.py), which it must find."""
    (event,) = launch(task, {"check": "ddp", "over": "gloo"}, 2, timeout=60)
    assert (event["check"], event["wrong"] > 0) == ("ddp", wrong)


@pytest.mark.parametrize(("gpus", "shared"), [(1, True), (2, False)])
def test_two_ranks_share_one_gpu_as_two_hosts(gpus: int, shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("NCCL_HOSTID", "NCCL_SOCKET_IFNAME", "NCCL_IB_DISABLE", "LOCAL_RANK")
    hosts = []
    for rank in range(2):
        for name in names:
            monkeypatch.setenv(name, str(rank))
        gpu_check.share_gpus(rank, gpus)
        hosts.append(tuple(os.environ[name] for name in names))
    expected = [(f"gpu-check-{rank}", "lo", "1", "0") if shared else (str(rank),) * 4 for rank in range(2)]
    assert hosts == expected


def test_without_a_gpu_one_line_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    assert gpu_check.main([str(tmp_path / "report.json")]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("gpu-check: p2p_nccl is absent: torch ")
    assert said.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def passes(*_: object, on_event: Callable[[Row], None], **__: object) -> None:
    for event in ({"begins": "ring on 2"}, {"check": "ring", "wrong": 0}):
        on_event(event)


def hangs(*_: object, on_event: Callable[[Row], None], **__: object) -> None:
    on_event({"begins": "ring on 2"})
    raise RankError("rank 1 of 2\nis late")


def is_wrong(*_: object, on_event: Callable[[Row], None], **__: object) -> None:
    on_event({"wrong": ["ring"]})


@pytest.mark.parametrize(
    ("launched", "gpus", "status", "results", "events"),
    [
        (passes, 2, 0, ["ok"] * 4, [{"check": "ring", "wrong": 0}]),
        (hangs, 2, 1, ["failed"] * 3 + ["ok"], [{"begins": "ring on 2"}, {"error": ["rank 1 of 2", "is late"]}]),
        (is_wrong, 1, 1, ["wrong results"] * 3 + ["skipped: one GPU"], [{"wrong": ["ring"]}]),
    ],
)
def test_the_report_has_a_result_for_each_part(
    launched: object,
    gpus: int,
    status: int,
    results: list[str],
    events: list[Row],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without GPUs: what is launched is made up, and a part that fails ends only itself."""
    row = {"backend": "nccl", "algorithm": "default", "bytes": 4, "busbw": 1.0, "wrong": 0}
    monkeypatch.setattr(gpu_check, "need", lambda name: None)
    monkeypatch.setattr(gpu_check, "machine", lambda: {"gpus": "two"})
    monkeypatch.setattr(gpu_check, "launch", launched)
    monkeypatch.setattr(gpu_check, "bench", lambda wanted: Measurement([row], []))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert gpu_check.main([str(tmp_path / "no" / "report.json")]) == 2, "it cannot be written"
    assert gpu_check.main([str(tmp_path / "report.json")]) == status
    (file,) = tmp_path.iterdir()
    report: Row = json.loads(file.read_text())
    assert report["machine"] == {"gpus": "two"}
    assert [report[name]["result"] for name in gpu_check.PARTS] == results
    assert report["algorithms"]["events"] == events


@pytest.mark.integration
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_streams_and_messages_to_itself_on_one_gpu() -> None:
    events = launch("gpu_check", {"check": "one_gpu", "over": "nccl"}, 1, timeout=120)
    assert [(event["check"], event["wrong"]) for event in events if "check" in event] == [
        ("to_itself", 0),
        ("on_two_streams", 0),
    ]
