"""``collectives simulate``: what it prints, and what it says about wrong input."""

import errno
import json
from pathlib import Path

import pytest

from collectives.algorithms import ALGORITHMS
from collectives.machine import Link, Machine, machine
from collectives.simulator.scaling import Case, row, rows
from collectives.simulator.trace import trace
from collectives.units import duration
from command import Capture, run


def test_simulate_prints_a_row_for_each_size(capsys: Capture) -> None:
    code, out, _ = run(
        capsys, "simulate", "all_reduce", "ring", "-p", "4", "--bytes", "8", "1M", "--json"
    )
    first, second = (json.loads(line) for line in out.splitlines())
    assert code == 0
    assert {
        name: first[name]
        for name in ("collective", "algorithm", "machine", "ranks", "bytes", "seconds")
    } == {
        "collective": "all_reduce",
        "algorithm": "ring",
        "machine": "textbook",
        "ranks": 4,
        "bytes": 8,
        "seconds": pytest.approx(6 * (5e-6 + 2 / 25e9)),
    }
    assert second["bytes"] == 1 << 20
    assert (
        "30 µs simulated"
        in run(capsys, "simulate", "all_reduce", "ring", "-p", "4", "--bytes", "8")[1]
    )


def test_an_algorithm_that_leaves_ports_idle_is_told_the_fastest(capsys: Capture) -> None:
    on = (
        "simulate",
        "all_reduce",
        "ring",
        "-p",
        "16",
        "--machine",
        "dgx-h100",
        "--bytes",
        "8",
        "64M",
        "--json",
    )
    code, out, err = run(capsys, *on)
    assert code == 0
    assert len(out.splitlines()) == 2
    said = "collectives: ring sends through 1 of the 8 network ports of a node; the fastest, "
    assert err.startswith(said)
    fastest = err.removeprefix(said).split(",")[0]
    better = json.loads(run(capsys, *on[:2], fastest, *on[3:7], "--bytes", "64M", "--json")[1])
    assert f"takes {duration(better['seconds'])}, busbw {better['busbw']:.3g} GB/s\n" in err
    assert better["seconds"] < json.loads(out.splitlines()[1])["seconds"]


@pytest.mark.parametrize(
    "line", ["ring -p 8 --machine dgx-h100", "multi_channel_ring -p 16 --machine dgx-h100", "ring"]
)
def test_where_no_port_is_idle_nothing_is_said(capsys: Capture, line: str) -> None:
    code, _, err = run(capsys, "simulate", "all_reduce", *line.split(), "--bytes", "1M")
    assert code == 0
    assert err == ""


def test_the_trees_on_all_of_summit(capsys: Capture) -> None:
    arguments = ("-p", "24576", "--machine", "summit", "--bytes", "8", "--json")
    code, out, _ = run(capsys, "simulate", "all_reduce", "two_tree", *arguments)
    assert code == 0
    assert json.loads(out)["ranks"] == 24_576
    assert 1e-4 < json.loads(out)["seconds"] < 1e-3


def test_a_pipeline_gets_the_segments_that_suit_it_unless_told(capsys: Capture) -> None:
    arguments = ("simulate", "all_reduce", "two_tree", "-p", "16", "--bytes", "16M", "--json")
    best = json.loads(run(capsys, *arguments)[1])
    assert best["segments"] > 8
    for segments in (best["segments"] // 2, best["segments"] * 2):
        other = json.loads(run(capsys, *arguments, "--segments", str(segments))[1])
        assert other["segments"] == segments
        assert other["seconds"] > 0.99 * best["seconds"]


def test_segments_that_cost_nothing_are_not_doubled_for_ever() -> None:
    free = Machine(name="free", network=Link(rate=1e9))
    assert row(Case("all_reduce", "two_tree", 8, 1 << 20, free))["segments"] <= 1024


def test_a_machine_and_a_schedule_of_ones_own(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "slow.yaml").write_text("name: slow\nnetwork: {overhead: 1s, rate: 1MB/s}\n")
    (tmp_path / "mine.py").write_text(
        "from collectives import Schedule, Step\n"
        "def swap(p):\n"
        "    return Schedule('all_reduce', p, 1, 1, lambda t: Step([0, 1], [1, 0], 0, add=True))\n"
    )
    own, slow = f"{tmp_path}/mine.py:swap", f"{tmp_path}/slow.yaml"
    arguments = ("-p", "2", "--machine", slow, "--bytes", "0", "4", "--json")
    code, out, _ = run(capsys, "simulate", "all_reduce", own, *arguments)
    assert code == 0
    assert [json.loads(line)["seconds"] for line in out.splitlines()] == [
        0,
        pytest.approx(1.000004),
    ]


def test_a_trace_is_written(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "ring.json"
    code, _, err = run(
        capsys, "simulate", "all_reduce", "ring", "-p", "4", "--bytes", "1K", "--trace", str(path)
    )
    assert code == 0
    assert "ui.perfetto.dev" in err
    assert len(json.loads(path.read_text())["traceEvents"]) == 4 + 2 * 24


def test_a_trace_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.json"
    path.write_text("before")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("collectives.simulator.trace.json.dump", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        trace(path, ALGORITHMS["all_reduce", "ring"](2), machine("textbook"), 8)
    assert caught.value.filename == str(path)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("x.json", "before")]


@pytest.mark.integration
def test_rows_come_in_the_order_of_their_cases() -> None:
    cases = [Case("all_reduce", "ring", p, 1000, machine("textbook")) for p in (2, 16, 4, 8)]
    seen = []
    made = rows(cases, on_row=seen.append)
    assert [one["ranks"] for one in made] == [2, 16, 4, 8]
    assert made == [row(case) for case in cases]
    assert sorted(one["ranks"] for one in seen) == [2, 4, 8, 16]
