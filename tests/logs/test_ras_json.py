"""Reports of NCCL's RAS as JSON: each rank's counts, status and errors, missing ranks, and no file that fails."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from collectives.cli import main
from collectives.logs.finding import Finding
from collectives.logs.ras.findings import begins, findings_of

Object = dict[str, Any]


def rank(number: int, launched: int = 64, **status: Any) -> Object:
    state = {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False}
    counts = {"Broadcast": 3, "Reduce": 0, "AllGather": 0, "ReduceScatter": 0, "AllReduce": launched}
    return {**process(number), "status": {**state, **status}, "collective_counts": counts}


def process(number: int) -> Object:
    place = {"host": f"10.0.0.{number // 4}", "pid": 1000 + 7 * number}
    return {"rank": number, **place, "cuda_dev": number % 4, "nvml_dev": number % 4}


def missing(number: int, is_dead: bool = False) -> Object:
    return {**process(number), "status": {"unresponsive": True, "considered_dead": is_dead}}


def write(folder: Path, ranks: list[Any], absent: list[Any] | None = None, size: Any = 8) -> Path:
    of = {"hash": "0xae94", "size": size, "ranks": ranks, "missing_ranks": absent or []}
    path = folder / "ras.json"
    head = {"nccl_version": "2.29.1", "cuda_runtime_version": 13000, "communicators_count": 1}
    path.write_text(json.dumps({**head, "communicators": [of], "ras": {"timeouts_count": 0}}, indent=2))
    return path


def said(path: Path) -> dict[str, Finding]:
    return {one.kind: one for one in findings_of([path])}


def test_a_healthy_report(tmp_path: Path) -> None:
    path = write(tmp_path, [rank(number) for number in range(8)])
    assert begins(path.read_bytes())
    found = said(path)
    assert [*found] == ["job", "communicator", "agree"]
    assert found["job"].found == "NCCL 2.29.1: 2 nodes, 8 GPUs"
    assert found["communicator"].found == "1 communicator of 8 ranks: RUNNING, OK"


def test_ranks_that_are_behind(tmp_path: Path) -> None:
    found = said(write(tmp_path, [rank(number, 60 if number in (2, 5) else 64) for number in range(8)]))["behind"]
    assert found.found == (
        "#0-0 (0xae94) launched AllReduce operations: ranks 2, 5 up to 60; ranks 0–1, 3–4, 6–7 up to 64"
    )
    assert "process 1014 on 10.0.0.0 (GPU 2), process 1035 on 10.0.0.1 (GPU 1)" in found.follows


def test_status_errors_and_missing_ranks(tmp_path: Path) -> None:
    ranks = [rank(0), rank(1, finalize_called=True), rank(2, abort_flag=True), rank(3, async_error=6)]
    found = said(write(tmp_path, [*ranks, rank(4, init_state=7)], [missing(5), missing(7, is_dead=True)]))
    assert found["communicator"].found == "1 communicator of 8 ranks: RUNNING, INCOMPLETE,ERROR,MISMATCH"
    assert found["status differs"].found.endswith("ranks 0, 3 RUNNING; rank 1 FINALIZE; rank 2 ABORT; rank 4 INIT")
    assert found["error"].found == "#0-0 (0xae94): rank 3 reported Remote process error"
    assert found["incomplete"].found == (
        "#0-0 (0xae94) lacks 2 ranks: ranks 5, 7 (process 1035 on 10.0.0.1 (GPU 1), "
        "process 1049 on 10.0.0.1 (GPU 3) considered dead)"
    )


@pytest.mark.parametrize(
    ("ranks", "absent", "size"),
    [
        ([7, None, [], "x"], [{}], "many"),
        ([{"rank": -1}, {"rank": 1 << 40}, {"rank": 0.5}], [missing(1), missing(1)], -3),
        ([{"rank": 0, "status": [], "collective_counts": {"AllReduce": "x", "y" * 9999: 1}}], None, 1 << 70),
        ([rank(0, float("nan")), rank(1, 1 << 80)], None, None),  # type: ignore[arg-type]
    ],
)
def test_hostile_reports(
    ranks: list[Any], absent: list[Any] | None, size: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, ranks, absent, size)
    assert main(["read", str(path)]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("NCCL RAS:\n  job: NCCL 2.29.1")
    assert max(map(len, said.out.splitlines())) < 500
    assert said.err == ""


@pytest.mark.integration  # seconds
@pytest.mark.parametrize("texts_made", [500, pytest.param(10_000, marks=pytest.mark.extended)])
def test_no_mutation_makes_it_fail(texts_made: int, tmp_path: Path) -> None:
    chance = random.Random(5)
    path = write(tmp_path, [rank(number, 60 + number) for number in range(3)], [missing(3)])
    whole = path.read_bytes()
    for number in range(texts_made):
        data = bytearray(whole)
        for _ in range(chance.randrange(1, 6)):
            a = chance.randrange(100, len(data) + 1)
            b = min(len(data), a + chance.choice((1, 5, 60, 900)))
            data[a:b] = chance.choice((b"", data[a:b] * 2, b"-1", b"null", b"[", b"{", b"1e999", bytes([number % 256])))
        path.write_bytes(data)
        assert all(isinstance(one, Finding) for one in findings_of([path]))
