"""`make gpu-check` without a GPU: its report, its ranks' cases over gloo, and its parts on emulated hosts."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import fake_gpus
from collectives.bench import Measurement, Row, Settings
from collectives.bench.settings import group_by_launch
from collectives.launch import RankError, launch
from collectives_book.one_gpu import rows_of_report
from places import PATIENCE
from ranks import gpu_cases, gpu_check, gpu_parts
from ranks.cut_cable import cut_cable

TWO_GPUS = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
HOSTS = pytest.mark.usefixtures("allowed")


@pytest.mark.integration
@pytest.mark.parametrize(
    "over", ["gloo", pytest.param("nccl", marks=[pytest.mark.multi_gpu, TWO_GPUS])]
)
def test_every_case_on_groups_of_1_to_all_ranks(over: str) -> None:
    ranks = 3 if over == "gloo" else torch.cuda.device_count()
    settings = {"check": "algorithms", "over": over, "seconds": 1000}
    events = launch("gpu_cases", settings, ranks, timeout=PATIENCE)
    found = [event for event in events if "cases" in event]
    assert found == [
        {"ranks": p, "cases": len(list(gpu_cases.cases(p))), "wrong": []}
        for p in range(1, ranks + 1)
    ]


@pytest.mark.integration
def test_groups_that_time_does_not_allow_are_left_out() -> None:
    events = launch(
        "gpu_cases", {"check": "algorithms", "over": "gloo", "seconds": 0}, 2, timeout=PATIENCE
    )
    assert events == [{"ranks": p, "left_out": "half of 0 s were over"} for p in (1, 2)]


@pytest.mark.integration
@pytest.mark.parametrize(("task", "wrong"), [("gpu_cases", False), ("unreduced", True)])
def test_training_is_the_same_over_ours(task: str, wrong: bool) -> None:
    """Over gloo's group.

    Also where ours forgets to reduce (tests/ranks/unreduced.py), which it must find.
    """
    (event,) = launch(task, {"check": "ddp", "over": "gloo"}, 2, timeout=PATIENCE)
    assert event["check"] == "ddp"
    assert (event["wrong"] > 0) == wrong


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


def measures(wanted: list[Settings], on_event: Callable[[Row], None]) -> Measurement:
    """Report a row of the first size by each configuration, as `bench` does."""
    (one,) = wanted
    on_event({"environment": [{"rank": rank} for rank in range(one.ranks)]})
    times = {"samples": [1.5] * 5, "median_us": 1.5, "low_us": 1.5, "high_us": 1.5}
    rows = [
        {
            "backend": name,
            "algorithm": algorithm,
            "where": one.where,
            "ranks": one.ranks,
            "bytes": 4,
            "wrong": 0,
        }
        for name, algorithm in one.configurations()
    ]
    on_event({"rows": [row | times for row in rows]})
    return Measurement([], [])


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with a GPU, 16 cores and emulated hosts, whose ranks are made up.

    Returns the report's path.
    """
    fake_gpus.install(tmp_path, monkeypatch)
    monkeypatch.setattr(gpu_check, "need", lambda name: None)
    monkeypatch.setattr(gpu_check, "machine", lambda: {"gpus": "one"})
    monkeypatch.setattr(gpu_parts, "launch", passes)
    monkeypatch.setattr(gpu_parts, "bench", measures)
    with_nccl = SimpleNamespace(available=lambda: None, on_gpus=True)
    monkeypatch.setattr(gpu_parts, "backend", lambda _: with_nccl)
    monkeypatch.setattr(
        gpu_parts, "cut_cable", lambda over, hosts, seconds, note: note({"cut": {"hosts": hosts}})
    )
    monkeypatch.setattr(gpu_parts, "_no_hosts", lambda: None)
    monkeypatch.setattr(gpu_parts.gpus, "several_ranks", dict)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    (tmp_path / "sent").mkdir()
    return tmp_path / "sent" / "report.json"


def results(report: Path) -> dict[str, str]:
    """The result of each part."""
    return {
        name: part["result"]
        for name, part in json.loads(report.read_text()).items()
        if name != "machine"
    }


CHECKS = ("one_gpu", "ddp", "algorithms")


@pytest.mark.parametrize(
    ("launched", "status", "result", "events"),
    [
        (passes, 0, "ok", [{"check": "ring", "wrong": 0}]),
        (hangs, 1, "failed", [{"begins": "ring on 2"}, {"error": ["rank 1 of 2", "is late"]}]),
        (is_wrong, 1, "wrong results", [{"wrong": ["ring"]}]),
    ],
)
def test_the_report_has_a_result_for_each_part(
    launched: object,
    status: int,
    result: str,
    events: list[Row],
    made_up: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A part that fails ends only itself."""
    monkeypatch.setattr(gpu_parts, "launch", launched)
    assert gpu_check.main([str(made_up.parent / "no" / "report.json")]) == 2, "it cannot be written"
    assert gpu_check.main([str(made_up)]) == status
    assert [*made_up.parent.iterdir()] == [made_up]
    expected = dict.fromkeys(gpu_check.PARTS, "ok") | dict.fromkeys(CHECKS, result)
    assert results(made_up) == expected | {"bandwidth": "skipped: one GPU"}
    report = json.loads(made_up.read_text())
    assert report["machine"] == {"gpus": "one"}
    assert report["algorithms"]["events"] == events
    assert report["cut"]["events"] == [{"cut": {"hosts": 4}}]


def test_what_measures_is_a_table_of_rows(made_up: Path) -> None:
    gpu_check.main([str(made_up)])
    rows = rows_of_report(made_up)
    slow = rows[(rows["where"] == "cluster:5ms,25MB/s") & (rows.backend == "nccl")]
    assert [*slow.algorithm] == ["Ring", "Tree", "default", "default"]
    assert [*slow.topology_file] == [None, None, None, "5ms,25MB/s"]
    assert {*rows.hosts} == {8, 2}
    assert [*rows[rows.hosts == 2]["where"].unique()] == ["cluster:5ms,25MB/s,4"]
    assert {*rows[rows["where"] == "loopback"].algorithm} == {
        "Ring",
        "Tree",
        "default",
        *gpu_parts.OURS,
    }


def test_a_part_that_cannot_run_gives_the_reason(
    made_up: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On two cores, without emulated hosts, and with NCCL 2.28."""
    monkeypatch.setattr(gpu_parts, "_no_hosts", lambda: "/dev/net/tun cannot be opened")
    assert gpu_check.main([str(made_up)]) == 0
    without = {
        name
        for name, result in results(made_up).items()
        if result == "skipped: /dev/net/tun cannot be opened"
    }
    assert without == {
        "slow_ring",
        "slow_tree",
        "slow_ours",
        "slow_choice",
        "slow_choice_told",
        "cut",
        "two_hosts",
    }
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(2))
    assert gpu_check.main([str(made_up)]) == 0
    few = {
        name
        for name, result in results(made_up).items()
        if "got 2, expected at most 1 on 2 cores" in result
    }
    assert few == {"ddp", "loopback", "horovod", *without} - {"two_hosts"}
    assert "got 4, expected at most 1 on 2 cores" in results(made_up)["two_hosts"]


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (SimpleNamespace(available=lambda: "it is not installed"), "it is not installed"),
        (
            SimpleNamespace(available=lambda: None, on_gpus=False),
            "Horovod is built without NCCL; `make horovod-nccl` builds it",
        ),
    ],
)
def test_horovod_without_nccl_is_left_out(
    found: SimpleNamespace, reason: str, made_up: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tensors would be on CPUs, and its times those of gloo."""
    monkeypatch.setattr(gpu_parts, "backend", lambda _: found)
    assert gpu_check.main([str(made_up)]) == 0
    assert results(made_up)["horovod"] == f"skipped: {reason}"


def test_all_parts_end_within_a_limit(made_up: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []
    monkeypatch.setattr(gpu_parts, "launch", lambda *_, timeout, **__: given.append(timeout))
    monkeypatch.setattr(gpu_check, "SECONDS", gpu_check.LEAST + 10)
    gpu_check.main([str(made_up)])
    assert max(given) <= gpu_check.LEAST + 10
    monkeypatch.setattr(gpu_check, "SECONDS", 0)
    assert gpu_check.main([str(made_up)]) == 0
    assert {*results(made_up).values()} == {"skipped: the 0 s of all parts are over"}
    assert sum(part.seconds for part in gpu_check.PARTS.values()) > gpu_check.SECONDS


@pytest.mark.parametrize("ranks", range(2, 9))
def test_a_slow_part_is_one_launch_on_any_number_of_hosts(
    ranks: int, made_up: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So its limit is the launch's; its settings are checked, too."""
    asked: list[Settings] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(2 * ranks + 1))
    monkeypatch.setattr(gpu_parts, "bench", lambda wanted, _: asked.extend(wanted))
    for typed in ("nccl:Ring", "nccl:Tree", "nccl", "p2p_nccl"):
        gpu_parts.slow(typed)(30, lambda _: None)
    assert [(each.ranks, each.timeout, len(group_by_launch([each]))) for each in asked] == [
        (ranks, 30, 1)
    ] * 4


@pytest.mark.integration
@HOSTS
def test_a_slow_part_measures_on_emulated_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our schedules on CPUs in place of those over NCCL: hosts, links, times and rows are real."""
    fake_gpus.install(tmp_path, monkeypatch)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(4))
    monkeypatch.setattr(gpu_parts, "SIZES", [4, 1 << 10])
    report = tmp_path / "report.json"
    part = gpu_check.Part(100, gpu_parts.slow("p2p"))
    report.write_text(json.dumps({"machine": {}, "slow_ours": gpu_check._timed(part, 100)}))
    rows = rows_of_report(report)
    assert [*zip(rows.algorithm, rows.bytes, strict=True)] == [
        (name, n) for n in (4, 1024) for name in gpu_parts.OURS
    ]
    assert {*rows.hosts} == {2}
    assert not rows.wrong.any()


@pytest.mark.integration
@HOSTS
def test_a_cut_cable_is_noted_with_what_ranks_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By gloo on CPUs: each rank fails by its limit, and the logs name a timeout."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    events: list[Row] = []
    cut_cable("gloo", 3, 90, events.append, limit=3)
    assert events[0] == {"cut": {"host": 2, "hosts": 3}}
    assert [(each["rank"], each["exit"]) for each in events if "exit" in each] == [
        (0, 1),
        (1, 1),
        (2, 1),
    ]
    (lines,) = (each["lines"] for each in events if "lines" in each)
    assert any(seconds > 1 and "Timed out waiting 3000ms" in line for seconds, _, line in lines)
    findings = [each["finding"] for each in events if "finding" in each]
    assert any(each["kind"] == "timeout" and each["at"][0].startswith("rank-") for each in findings)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.integration
@HOSTS
def test_ranks_that_do_not_come_to_the_cut_are_an_error() -> None:
    with pytest.raises(RuntimeError, match="no rank came to the call that was to be cut"):
        cut_cable("gloo", 2, 0.5, lambda _: None)


@pytest.mark.integration
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_streams_and_messages_to_itself_on_one_gpu() -> None:
    events = launch("gpu_cases", {"check": "one_gpu", "over": "nccl"}, 1, timeout=PATIENCE)
    assert [(event["check"], event["wrong"]) for event in events if "check" in event] == [
        ("to_itself", 0),
        ("on_two_streams", 0),
    ]
