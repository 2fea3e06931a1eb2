"""The golden recorder notices a change of each kind, and names it."""

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import collectives
from collectives import autotune
from collectives.algorithms import ALGORITHMS
from collectives.bench import results
from collectives.core.schedule import Schedule, Step
from collectives.figures import player
from collectives.simulator import simulation
from places import script

GOLDEN = script("golden")
RING = ("all_reduce", "ring")
Patch = pytest.MonkeyPatch


def changed(record: Callable[[], Any], plant: Callable[[], object]) -> list[str]:
    """The names of the entries that differ after the change."""
    before = dict(record())
    assert GOLDEN.differences(before, dict(record())) == []
    plant()
    return [line.split(": got")[0] for line in GOLDEN.differences(before, dict(record()))]


def test_the_order_of_a_step_s_rows(monkeypatch: Patch) -> None:
    """The same rows in another order are as correct, but another schedule."""
    ring = ALGORITHMS[RING]

    def other(p: int) -> Schedule:
        given = ring(p)
        return replace(
            given,
            make=lambda t: Step(*(getattr(given.step(t), name)[::-1] for name in Step.__slots__)),
        )

    lines = changed(
        lambda: GOLDEN.schedules(small=[1, 3], large=5),
        lambda: monkeypatch.setitem(ALGORITHMS, RING, other),
    )
    assert lines == ["all_reduce ring p=03", "all_reduce ring p=5 default"]


def test_what_a_schedule_says_of_itself_and_each_column_of_a_step() -> None:
    def made(**row: int) -> Schedule:
        given = {"src": 0, "dst": 1, "chunk": 2, "count": 1, "add": 0} | row
        return Schedule(
            "broadcast", 8, 8, 1, lambda _: Step([given["src"]], *list(given.values())[1:]), root=0
        )

    others = [made(**{column: 2}) for column in ("src", "dst", "count")] + [
        made(chunk=3),
        made(add=1),
    ]
    told = {
        "k": 4,
        "nsteps": 0,
        "root": 1,
        "one_port": False,
        "ranks_per_node": 2,
        "collective": "scatter",
    }
    others += [replace(made(), **{name: value}) for name, value in told.items()]
    digests = {GOLDEN.digest(*GOLDEN.serialised(each)) for each in [made(), *others]}
    assert len(digests) == 1 + len(others)


def test_a_simulated_time_that_is_one_rounding_later(monkeypatch: Patch) -> None:
    last = [1.0]

    def simulate(schedule: Schedule, on: Any, n: int, algorithm: str) -> Any:
        seconds = last[-1] if (algorithm, n) == ("bruck", 8) else 1.0
        return SimpleNamespace(seconds=seconds, finish=[seconds], messages=1, bytes=n, busiest=None)

    monkeypatch.setattr(simulation, "simulate", simulate)
    lines = changed(
        lambda: GOLDEN.simulated(ranks=[2]), lambda: last.append(math.nextafter(1.0, 2))
    )
    on = ("a100", "dgx1", "ethernet p=002", "textbook p=002", "uneven p=002")
    assert lines == [
        f"{collective} bruck {each}" for collective in ("all_gather", "all_to_all") for each in on
    ]


def test_what_auto_chooses_and_the_seconds_that_it_expects(monkeypatch: Patch) -> None:
    last = [("ring", 1.0)]

    def choose(collective: str, p: int, n: int, on: Any) -> Any:
        algorithm, seconds = last[-1] if (collective, n) == ("reduce", 1 << 26) else last[0]
        return SimpleNamespace(algorithm=algorithm, segments=1, seconds=seconds)

    monkeypatch.setattr(autotune, "choose", choose)
    on = sorted(("no machine", "measured", *(each.name for each in GOLDEN.machines())))
    assert changed(lambda: GOLDEN.chosen(ranks=[3]), lambda: last.append(("ring", 2.0))) == [
        f"reduce {name} seconds" for name in on
    ]
    assert changed(lambda: GOLDEN.chosen(ranks=[3]), lambda: last.append(("tree", 2.0))) == [
        f"reduce {name} p=03" for name in on
    ]


def test_what_the_player_reads(monkeypatch: Patch) -> None:
    lines = changed(
        lambda: GOLDEN.played(ranks=[4]), lambda: monkeypatch.setattr(player, "VERSION", 2)
    )
    assert lines == [f"{collective} {name} p=4" for collective, name in sorted(ALGORITHMS)]


def test_a_key_of_a_row(monkeypatch: Patch) -> None:
    printed = ['{"ranks": 2}\n{"ranks": 3}', '{"ranks": 2}\n{"ranks": 3, "us": 1}']
    monkeypatch.setattr(GOLDEN, "output", lambda _: printed[0])
    assert changed(lambda: GOLDEN.rows(["list"]), lambda: printed.pop(0)) == ["list"]
    assert dict(GOLDEN.rows(["list"])) == {"list": "[ranks] [ranks, us]"}


def test_a_public_name(monkeypatch: Patch) -> None:
    def verify(schedule: Schedule, how: int = 1) -> int:
        return 0

    assert changed(GOLDEN.public, lambda: monkeypatch.setattr(collectives, "verify", verify)) == [
        "verify"
    ]


def test_a_committed_row(tmp_path: Path) -> None:
    def write(samples: float, ranks: float, environment: str) -> None:
        results.write(
            tmp_path / "sweep",
            [{"samples": [samples], "ranks": ranks}],
            {"environment": [environment]},
        )

    write(0.2, 2, "here")
    for planted, kinds in (
        ((math.nextafter(0.2, 1), 2, "here"), ["rows"]),
        ((0.2, 2.0, "here"), ["rows", "types"]),
        ((0.2, 2.0, "there"), ["record"]),
    ):
        lines = changed(
            lambda: GOLDEN.references(tmp_path), lambda planted=planted: write(*planted)
        )
        assert lines == [f"sweep.parquet {kind}" for kind in kinds]


def test_the_check_prints_a_line_for_each_difference(monkeypatch: Patch, tmp_path: Path) -> None:
    entries = {"first": 1, "second": 2}
    monkeypatch.setattr(GOLDEN, "SECTIONS", {"rows": lambda: iter(entries.items())})
    monkeypatch.setattr(GOLDEN, "GOLDEN", tmp_path / "golden.json")
    monkeypatch.setattr(sys, "argv", ["golden.py"])
    assert GOLDEN.main() == 0
    assert GOLDEN.GOLDEN.read_text() == '{\n"rows: first": 1,\n"rows: second": 2\n}\n'
    monkeypatch.setattr(sys, "argv", ["golden.py", "--check"])
    assert GOLDEN.main() == 0
    entries["second"] = 4
    assert GOLDEN.main() == 1
    assert GOLDEN.differences({"a": 1, "b": 2}, {"b": 3, "c": 4}) == [
        "a: got none, expected 1",
        "b: got 3, expected 2",
        "c: got 4, expected none",
    ]
