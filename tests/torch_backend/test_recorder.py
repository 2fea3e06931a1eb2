"""A call that fails makes its ranks dump: our reader names the culprit, and torch's analyser reads the same files."""

import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed as dist

from collectives.launch import launch
from collectives.torch_backend import flight
from collectives_logs.finding import Finding
from collectives_logs.flight import findings_of
from command import finished
from places import PATIENCE
from sweep import each


def faults(folder: Path) -> list[Finding]:
    return [one for one in findings_of(sorted(folder.glob("rank_*"))) if one.follows]


def torchs(folder: Path, *cases: str) -> list[str]:
    """What torch's analyser says of the dumps of each case: in a process of its own, because it ends Python's gc."""
    said = finished([sys.executable, "-c", ANALYSE, str(folder), *cases], check=True)
    return (said.stdout + said.stderr).split("CASE")[1:]


ANALYSE = """
import sys
from torch.distributed.flight_recorder import fr_trace
for case in sys.argv[2:]:
    print("CASE", file=sys.stderr, flush=True)
    fr_trace.main([f"{sys.argv[1]}/{case}", "--prefix", "rank_", "--allow-incomplete-ranks"])
"""


@pytest.mark.integration
@pytest.mark.parametrize("p", each([2, 3, 5], few=[3]))
def test_dumps_of_ranks_name_the_culprit(p: int, tmp_path: Path) -> None:
    odd = random.Random(p).randrange(p)
    cases = [
        event["case"]
        for event in launch(
            "flight_cases", {"folder": str(tmp_path), "odd": odd}, p, timeout=PATIENCE
        )
    ]
    assert not [*tmp_path.glob("*.pipe")]
    assert {case: len([*(tmp_path / case).iterdir()]) for case in cases} == dict.fromkeys(
        cases, p
    ) | {
        "gone": p - 1,
        "no_receive": 2,
    }
    assert faults(tmp_path / "healthy") == []
    culprit = rf"rank {odd}\b"
    tie = culprit if p > 2 else "all ranks|rank"
    for case, kind, says in (
        ("another_size", "other sizes", tie),
        ("another_operation", "other operation", tie),
        ("late", "late", culprit),
        ("gone", "no dump", culprit),
        ("gone_and_asked", "never arrived", culprit),
        ("no_receive", "never arrived", culprit),
    ):
        first = faults(tmp_path / case)[0]
        assert (first.kind, bool(re.match(says, first.found))) == (kind, True), (case, first)
        assert "flight_cases.py:" in first.found
    healthy, size, operation, gone = torchs(
        tmp_path, "healthy", "another_size", "another_operation", "gone_and_asked"
    )
    assert "has errors" not in healthy
    assert "SIZE_OR_SYNTAX_MISMATCH" in size
    assert "COLLECTIVE_TYPE_MISMATCH" in operation
    assert f"missing ranks: {{{odd}}}" in gone


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    flight._calls.clear()
    monkeypatch.setenv(flight.FILE[0], str(tmp_path / "dump" / "rank_"))
    dist.init_process_group("collectives", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_an_entry_names_the_call_and_the_line_of_the_program() -> None:
    dist.all_reduce(torch.ones(2, 3, dtype=torch.bfloat16))
    (entry,) = flight.snapshot()["entries"]
    assert entry["profiling_name"] == "gloo:all_reduce"
    assert (entry["input_sizes"], entry["input_dtypes"], entry["state"]) == (
        [[2, 3]],
        ["BFloat16"],
        "completed",
    )
    assert [(frame["name"], Path(frame["filename"])) for frame in entry["frames"]] == [
        ("test_an_entry_names_the_call_and_the_line_of_the_program", Path(__file__))
    ]
    assert flight.snapshot()["pg_config"] == {
        "0": {"name": "0", "desc": "default_pg", "ranks": "[0]"}
    }


@pytest.mark.usefixtures("alone")
def test_the_recorder_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight, "_calls", type(flight._calls)(maxlen=3))
    for _ in range(5):
        dist.barrier()
    assert [entry["collective_seq_id"] for entry in flight.snapshot()["entries"]] == [3, 4, 5]


def test_nothing_is_kept_if_no_file_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in flight.FILE:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(flight, "_calls", type(flight._calls)(maxlen=3))
    dist.init_process_group("collectives", store=dist.HashStore(), rank=0, world_size=1)
    dist.barrier()
    dist.destroy_process_group()
    assert flight.snapshot()["entries"] == []


@pytest.mark.usefixtures("alone")
def test_no_file_appears_unasked_and_one_that_cannot_be_written_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in flight.FILE:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    flight.dump(0)
    assert not [*tmp_path.iterdir()]
    monkeypatch.setenv(flight.FILE[1], str(tmp_path / "trace_"))
    flight.dump(0)
    assert [path.name for path in tmp_path.iterdir()] == ["trace_0"]
    monkeypatch.setenv(flight.FILE[0], str(tmp_path / "nowhere" / "trace_"))
    with pytest.warns(RuntimeWarning, match="no dump of the flight recorder: .*No such file"):
        flight.dump(0)


@pytest.mark.parametrize("value", ["x", "-1", "1.5"])
def test_a_wrong_size_is_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", value)
    with pytest.raises(
        ValueError, match=f"TORCH_FR_BUFFER_SIZE: got '{value}', expected a number of calls"
    ):
        flight.size()
