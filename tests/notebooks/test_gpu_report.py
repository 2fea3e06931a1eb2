"""Reports of `make gpu-check`: their rows as a table, what is printed of them, and files that are none."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from collectives_book import gpu_report, one_gpu
from places import ROOT

H200 = ROOT / "experiments/results/reference/one-gpu/gpu-check.json"

ROW = {
    "where": "cluster:5ms,25MB/s",
    "ranks": 8,
    "backend": "nccl",
    "algorithm": "Ring",
    "bytes": 4,
    "wrong": 0,
}
ROW |= {"samples": [70e3, 71e3, 72e3], "median_us": 71e3, "low_us": 70e3, "high_us": 72e3}


def part(*events: Any, result: str = "ok") -> dict[str, Any]:
    return {"result": result, "seconds": 1.5, "events": [*events]}


def written(folder: Path, **parts: Any) -> str:
    path = folder / "gpu-check.json"
    path.write_text(json.dumps({"machine": {"nccl": "2.28.9"}} | parts))
    return str(path)


def refused(path: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that the reader prints of a file that is no report."""
    assert gpu_report.main([path]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    return line


def test_an_earlier_report_has_no_times(capsys: pytest.CaptureFixture[str]) -> None:
    assert one_gpu.rows_of_report(H200).empty
    assert gpu_report.main([str(H200)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "GPU 0, NVIDIA H200, 143771 MiB, 580.159.04, Default" in lines
    assert "ddp           ok, 6.7 s" in lines
    assert lines[-1].startswith("The report has no times of all-reduces")


def test_rows_have_what_was_measured(tmp_path: Path) -> None:
    told = {
        "row": ROW | {"algorithm": "default", "predicted_us": 76.5},
        "hosts": 8,
        "topology_file": "5ms,25MB/s",
    }
    path = written(
        tmp_path, slow=part({"environment": {}}, {"row": ROW, "hosts": 8}), told=part(told)
    )
    first, second = one_gpu.rows_of_report(path).itertuples(index=False)
    assert first[:8] == (8, 8, "cluster:5ms,25MB/s", "nccl", "Ring", None, 4, 3)
    assert first[8:11] == (71e3, 70e3, 72e3)
    assert math.isnan(first.predicted_us)
    assert (second.topology_file, second.predicted_us, second.wrong) == ("5ms,25MB/s", 76.5, 0)


def test_a_report_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = ROW | {"algorithm": "Tree", "median_us": 31e3, "wrong": 2}
    path = written(
        tmp_path,
        slow_ring=part({"row": ROW, "hosts": 8}),
        slow_tree=part(
            {"row": tree, "hosts": 8}, {"error": ["rank 1 of 8", "is late"]}, result="failed"
        ),
        cut=part(
            {"rank": 1, "exit": -6, "seconds": 10.2},
            {"finding": {"kind": "timeout", "found": "rank 0 waited"}},
        ),
    )
    assert gpu_report.main([path]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "slow_tree failed, 1.5 s" in lines
    assert "{'error': ['rank 1 of 8', 'is late']}" in lines
    assert "rank 1 ended 10.2 s after the cut with exit code -6" in lines
    assert "timeout: rank 0 waited" in lines
    assert b"<svg" in (tmp_path / "gpu-check.svg").read_bytes()
    assert lines[-7:-2] == [
        "8 ranks as 8 hosts by cluster:5ms,25MB/s, median times:",
        "of nccl Ring nccl Tree",
        "size",
        "4 B 71 ms 31 ms",
        "2 elements were wrong",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "Invalid JSON"),
        ("[" * 100_000, "recursion limit"),
        ("1", "Input should be an object"),
        ("{}", "machine: Field required"),
        ('{"machine": {}, "ddp": 1}', "ddp: Input should be an object"),
        ('{"machine": {}, "ddp": {"result": "ok", "seconds": NaN, "events": []}}', "ddp.seconds"),
        ('{"machine": {}, "ddp": {"result": "ok", "seconds": 1, "events": [1]}}', "ddp.events.0"),
    ],
)
def test_what_is_no_report_is_refused_in_a_line(
    text: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "gpu-check.json"
    path.write_text(text)
    assert problem in refused(str(path), capsys)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"bytes": -4}, "bytes: Input should be greater than or equal to 0"),
        ({"samples": ["x"]}, "samples.0"),
        ({"median_us": 1e300}, "median_us"),
        ({"backend": "nccl\x1b[31m"}, "backend: String should match"),
        ({"where": "x" * 100}, "where: String should match"),
    ],
)
def test_a_row_without_sense_is_refused(
    wrong: dict[str, Any], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, slow=part({"row": ROW | wrong}))
    assert f"invalid row of slow: row.{problem}" in refused(path, capsys)


def test_a_truncated_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = H200.read_text().rstrip()
    path = tmp_path / "gpu-check.json"
    for length in range(1, len(text), len(text) // 20):
        path.write_text(text[:length])
        assert "Invalid JSON" in refused(str(path), capsys)


def test_a_file_and_its_rows_have_limits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, slow=part({"row": ROW}, {"row": ROW}))
    monkeypatch.setattr(one_gpu, "MAX_ROWS", 1)
    assert "got 2 rows, expected up to 1" in refused(path, capsys)
    monkeypatch.setattr(one_gpu, "MAX_BYTES", 100)
    assert "MiB, expected a report" in refused(path, capsys)
    assert "No such file" in refused(str(tmp_path / "absent"), capsys)


def test_no_control_character_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A terminal obeys them."""
    bad = "\x1b[31m\n\u202e"
    path = written(
        tmp_path,
        **{bad: part({"error": [bad]}, {"finding": {"kind": bad, "found": bad}}, result=bad)},
    )
    assert gpu_report.main([path]) == 0
    assert not {"\x1b", "\u202e"} & {*capsys.readouterr().out}
