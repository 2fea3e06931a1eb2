"""`make gpu-check`: what it says without a GPU, the report it writes, and its ranks' cases, here over gloo."""

import json
import os
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


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def launched(module: str, settings: Row, ranks: int, *, timeout: float, on_event: object) -> None:
        for event in ({"begins": "a"}, {"begins": "b"}, {"check": settings["check"], "ranks": ranks, "wrong": 0}):
            on_event(event)  # type: ignore[operator]

    row = {"backend": "nccl", "algorithm": "default", "bytes": 4, "busbw": 1.0, "wrong": 0}
    monkeypatch.setattr(gpu_check, "need", lambda name: None)
    monkeypatch.setattr(gpu_check, "machine", lambda: {"gpus": "two"})
    monkeypatch.setattr(gpu_check, "launch", launched)
    monkeypatch.setattr(gpu_check, "bench", lambda wanted: Measurement([row], []))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


def report_of(folder: Path, status: int) -> Row:
    assert gpu_check.main([str(folder / "report.json")]) == status
    (file,) = folder.iterdir()
    report: Row = json.loads(file.read_text())
    return report


@pytest.mark.usefixtures("two_gpus")
def test_the_report(tmp_path: Path) -> None:
    report = report_of(tmp_path, 0)
    assert report["machine"] == {"gpus": "two"}
    assert [report[name]["result"] for name in gpu_check.PARTS] == ["ok"] * 4
    assert report["algorithms"]["events"] == [{"check": "algorithms", "ranks": 2, "wrong": 0}]
    assert report["bandwidth"]["events"][0]["row"]["backend"] == "nccl"


@pytest.mark.usefixtures("two_gpus")
def test_a_part_that_fails_ends_only_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs(*_: object, on_event: object, **__: object) -> None:
        on_event({"begins": "ring on 2"})  # type: ignore[operator]
        raise RankError("rank 1 of 2\nis late")

    monkeypatch.setattr(gpu_check, "launch", hangs)
    report = report_of(tmp_path, 1)
    assert report["algorithms"]["result"] == "failed"
    assert report["algorithms"]["events"] == [{"begins": "ring on 2"}, {"error": ["rank 1 of 2", "is late"]}]
    assert report["bandwidth"]["result"] == "ok"


@pytest.mark.usefixtures("two_gpus")
def test_wrong_elements_and_a_lonely_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(gpu_check, "launch", lambda *_, on_event, **__: on_event({"wrong": ["ring"]}))
    report = report_of(tmp_path, 1)
    assert [report[name]["result"] for name in gpu_check.PARTS] == ["wrong results"] * 3 + ["skipped: one GPU"]


@pytest.mark.usefixtures("two_gpus")
def test_a_file_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check.main([str(tmp_path / "no" / "report.json")]) == 2
    assert capsys.readouterr().err.startswith("gpu-check: ")


def test_all_parts_together_take_less_than_five_minutes() -> None:
    assert sum(gpu_check.SECONDS.values()) + len(gpu_check.TOOLS) * gpu_check.TOOL_SECONDS < 5 * 60


@pytest.mark.integration
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_streams_and_messages_to_itself_on_one_gpu() -> None:
    events = launch("gpu_check", {"check": "one_gpu", "over": "nccl"}, 1, timeout=120)
    assert [(event["check"], event["wrong"]) for event in events if "check" in event] == [
        ("to_itself", 0),
        ("on_two_streams", 0),
    ]
