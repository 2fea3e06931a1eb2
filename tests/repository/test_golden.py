"""The golden recorder notices a change of each kind, names it, and leaves no half-written file."""

import json
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import collectives
from collectives import autotune
from collectives.algorithms import ALGORITHMS
from collectives.bench import results
from collectives.figures import player
from collectives.schedule import Schedule, Step
from collectives.simulator import simulation
from places import ROOT, script

SCRIPT = ROOT / ".ci" / "golden.py"
RING = ("all_reduce", "ring")


@pytest.fixture
def golden() -> ModuleType:
    return script("golden")


def changed(golden: ModuleType, record: Callable[[], Any], plant: Callable[[], None]) -> list[str]:
    """The names of the entries that differ after the change."""
    before = dict(record())
    assert golden.differences(before, dict(record())) == []
    plant()
    return [line.split(":")[0] for line in golden.differences(before, dict(record()))]


def other_order(schedule: Schedule) -> Schedule:
    """The same rows in another order: as correct, but another schedule."""

    def make(t: int) -> Step:
        step = schedule.step(t)
        return Step(*(getattr(step, name)[::-1] for name in Step.__slots__))

    return replace(schedule, make=make)


@pytest.mark.integration  # seconds
def test_a_schedule(golden: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = ALGORITHMS[RING]
    lines = changed(
        golden,
        lambda: golden.schedules(small=[1, 3], large=5),
        lambda: monkeypatch.setitem(ALGORITHMS, RING, lambda p: other_order(ring(p))),
    )
    assert lines == ["! all_reduce ring p=03", "! all_reduce ring p=5 default"]


@pytest.mark.parametrize(
    "other",
    [{"k": 4}, {"nsteps": 1}, {"root": 0}, {"one_port": False}, {"ranks_per_node": 2}, {"collective": "reduce"}],
)
def test_what_a_schedule_says_of_itself(golden: ModuleType, other: dict[str, Any]) -> None:
    one = ALGORITHMS[RING](2)
    assert golden.digest(*golden.serialised(one)) != golden.digest(*golden.serialised(replace(one, **other)))


@pytest.mark.parametrize("column", Step.__slots__)
def test_each_column_of_a_step(golden: ModuleType, column: str) -> None:
    given = {"src": 0, "dst": 1, "chunk": 2, "count": 1, "add": False}
    one, other = (
        Schedule("broadcast", 8, 8, 1, lambda t, row=row: Step([row["src"]], *list(row.values())[1:]), root=0)
        for row in (given, given | {column: given[column] + 1})
    )
    assert golden.digest(*golden.serialised(one)) != golden.digest(*golden.serialised(other))


@pytest.mark.integration  # seconds
def test_a_simulated_time(golden: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    real = simulation.simulate

    def later(schedule: Schedule, on: Any, n: int, algorithm: str) -> Any:
        """One rounding later, by one algorithm, for one size."""
        done = real(schedule, on, n, algorithm)
        return replace(done, seconds=math.nextafter(done.seconds, 1)) if (algorithm, n) == ("bruck", 8) else done

    lines = changed(
        golden, lambda: golden.simulated(ranks=[2]), lambda: monkeypatch.setattr(simulation, "simulate", later)
    )
    assert lines == sorted(
        f"! {collective} bruck {on}"
        for collective in ("all_gather", "all_to_all")
        for on in ("a100", "dgx1", "ethernet p=002", "textbook p=002", "uneven p=002")
    )


def test_what_auto_chooses(golden: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    real = autotune.choose

    def other(collective: str, p: int, n: int, on: Any) -> autotune.Choice:
        chosen = real(collective, p, n, on=on)
        if (collective, n) != ("reduce", 1 << 26):
            return chosen
        return chosen._replace(segments=chosen.segments + 1) if on is None else chosen._replace(seconds=1.0)

    lines = changed(golden, lambda: golden.chosen(ranks=[3]), lambda: monkeypatch.setattr(autotune, "choose", other))
    on = ("dgx-1v", "dgx-a100", "dgx-h100", "ethernet", "marenostrum5", "measured", "summit", "textbook", "uneven")
    assert lines == sorted([*(f"! reduce {name} seconds" for name in on), "! reduce no machine p=03"])


def test_what_the_player_reads(golden: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = changed(golden, lambda: golden.played(ranks=[4]), lambda: monkeypatch.setattr(player, "VERSION", 2))
    assert lines == [f"! {collective} {name} p=4" for collective, name in sorted(ALGORITHMS)]


@pytest.mark.integration
def test_a_key_of_a_row(golden: ModuleType, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text('print(\'{"ranks": 2}\\n{"ranks": 3}\')')
    lines = changed(
        golden,
        lambda: golden.rows(["list --json"], [sys.executable, str(program)]),
        lambda: program.write_text('print(\'{"ranks": 2}\\n{"ranks": 3, "us": 1}\')') and None,
    )
    assert lines == ["! list --json"]
    assert dict(golden.rows(["list"], [sys.executable, str(program)])) == {"list": "[ranks] [ranks, us]"}
    program.write_text("raise SystemExit('broken')")
    assert "broken" in dict(golden.rows(["list"], [sys.executable, str(program)]))["list"]


def test_a_public_name(golden: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = changed(
        golden, golden.public, lambda: monkeypatch.setattr(collectives, "verify", lambda schedule, how=1: 0)
    )
    assert lines == ["! verify"]


def test_a_committed_row(golden: ModuleType, tmp_path: Path) -> None:
    stem = tmp_path / "folder" / "sweep"
    results.write(stem, [{"samples": [0.1, 0.2], "ranks": 2}], {"environment": ["here"]})

    def entries(*kinds: str) -> list[str]:
        return [f"! folder/sweep.parquet {kind}" for kind in kinds]

    def plant(samples: list[float], ranks: float, record: str) -> Callable[[], None]:
        return lambda: results.write(stem, [{"samples": samples, "ranks": ranks}], {"environment": [record]})

    def record() -> Any:
        return golden.references(tmp_path)

    assert changed(golden, record, plant([0.1, math.nextafter(0.2, 1)], 2, "here")) == entries("rows")
    assert changed(golden, record, plant([0.1, 0.2], 2.0, "here")) == entries("rows", "types")
    assert changed(golden, record, plant([0.1, 0.2], 2.0, "there")) == entries("record")


@pytest.fixture
def three(golden: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, int]:
    """A recorder of three entries, which a test may change, and its file."""
    entries = {"first": 1, "second": 2, "third": 3}
    monkeypatch.setattr(golden, "SECTIONS", {"rows": lambda: iter(entries.items())})
    monkeypatch.setattr(golden, "GOLDEN", tmp_path / "golden.json")
    return entries


def run(golden: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["golden.py", *arguments])
    code: int = golden.main()
    return code


def test_the_check_prints_one_line_for_each_difference(
    golden: ModuleType, three: dict[str, int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(golden, monkeypatch, "--output", str(golden.GOLDEN))
    assert golden.GOLDEN.read_text() == '{\n"rows: first": 1,\n"rows: second": 2,\n"rows: third": 3\n}\n'
    assert run(golden, monkeypatch, "--check") == 0
    assert capsys.readouterr().out == "3 entries, none differs\n"
    del three["first"]
    three |= {"second": 4, "zeroth": 0}
    assert run(golden, monkeypatch, "--check") == 1
    assert capsys.readouterr().out.splitlines() == ["- rows: first: 1", "! rows: second: 2 -> 4", "+ rows: zeroth: 0"]
    assert "first" in golden.GOLDEN.read_text()


def test_a_section_that_fails_is_a_difference(
    golden: ModuleType, three: dict[str, int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(golden, monkeypatch, "--output", str(golden.GOLDEN))
    monkeypatch.setitem(golden.SECTIONS, "rows", lambda: iter([three["no such"]]))
    assert run(golden, monkeypatch, "--check") == 1
    assert capsys.readouterr().out.splitlines()[-1] == "+ rows: whole section: error: KeyError: 'no such'"


def test_the_file_is_written_whole_or_not_at_all(golden: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "golden.json"
    golden.write(path, {"a": 1})
    with pytest.raises(TypeError):
        golden.write(path, {"a": object()})
    assert [each.name for each in tmp_path.iterdir()] == ["golden.json"]
    assert json.loads(path.read_text()) == {"a": 1}


def test_the_committed_file_has_every_section_and_no_error(golden: ModuleType) -> None:
    entries = json.loads(golden.GOLDEN.read_text(encoding="utf8"))
    assert {name.split(":")[0] for name in entries} == set(golden.SECTIONS)
    assert [name for name, value in entries.items() if value.startswith("error: ")] == []
