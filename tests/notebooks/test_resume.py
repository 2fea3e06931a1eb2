"""Experiments whose ranks die: no row that exists is lost, and the next run measures only what is missing."""

import importlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from test_asynchronous import GOOD as ASYNCHRONOUS
from test_data_parallel import GOOD as DATA_PARALLEL
from test_model_parallel import GOOD as MODEL_PARALLEL
from test_straggler import GOOD as STRAGGLER
from test_training_overlap import GOOD as OVERLAP
from test_training_overlap import SCALED

from collectives.bench.results import read
from collectives.bench.sweep import Keep
from collectives.emulator import allowed
from collectives.launch import RankError
from collectives_book import checked
from collectives_book.parameters import Parameters, resume
from places import TASKS
from sweep import each

Row = dict[str, Any]


class Counted(Parameters):
    """The parameters of an experiment without ranks."""

    ranks: int


class Measuring:
    """Measures two rows of each case, on another machine at each call, until it has measured some cases."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []

    def run(self, stem: Path, most: int, ranks: int = 2) -> None:
        def measure(left: Sequence[int], keep: Keep) -> None:
            self.calls.append([])
            keep({"environment": [{"processor": f"number {len(self.calls)}"}] * ranks})
            for nth, case in enumerate(left):
                if nth == most:
                    raise RankError("rank 1 of 2 was killed by SIGKILL")
                keep({"slow": case})
                keep({"rows": [{"case": case, "turn": turn} for turn in range(2)]})
                self.calls[-1].append(case)

        resume(Counted(output=str(stem), ranks=ranks), {"ranks": ranks}, [5, 6, 7], measure, _completed, str)


def _completed(row: Row) -> Row:
    return row | {"complete": True}


def test_a_failure_costs_no_row_and_the_next_call_measures_the_rest(tmp_path: Path) -> None:
    measuring, stem = Measuring(), tmp_path / "rows"
    with pytest.raises(RankError):
        measuring.run(stem, most=2)
    (path,) = tmp_path.iterdir()
    events = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["case"] for event in events for row in event.get("rows", [])] == [5, 5, 6, 6]
    measuring.run(stem, most=9)
    measuring.run(stem, most=9)
    assert measuring.calls == [[5, 6], [7]]
    rows, record = read(stem)
    assert list(zip(rows.case, rows.turn, strict=True)) == [(case, turn) for case in (5, 6, 7) for turn in (0, 1)]
    assert rows.complete.all()
    assert record["settings"] == [{"ranks": 2}]
    assert [rank["processor"] for rank in record["environment"]] == ["number 1"] * 2 + ["number 2"] * 2
    assert sorted(each.name for each in tmp_path.iterdir()) == ["rows.json", "rows.parquet"]


def test_ranks_that_fail_after_their_last_row_are_an_error_and_lose_no_row(tmp_path: Path) -> None:
    measuring, stem = Measuring(), tmp_path / "rows"
    with pytest.raises(RankError):
        measuring.run(stem, most=2)
    (path,) = tmp_path.iterdir()
    path.write_text(path.read_text() + json.dumps({"case": 7, "rows": [{"case": 7}]}) + "\n")
    measuring.run(stem, most=0)
    assert read(stem)[0].case.tolist() == [5, 5, 6, 6, 7]


@pytest.mark.parametrize(
    "damage",
    [
        b'{"case": 6, "rows": [{"ca',
        b"\xff\xfe\n",
        b'{"case": 6, "rows": 5}\n',
        b'{"rows": [{"case": 6}]}\n',
        b"[]\n",
        b"[" * 100_000,
        b"\n",
    ],
)
def test_what_a_damaged_line_held_is_measured_again(
    tmp_path: Path, damage: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    measuring, stem = Measuring(), tmp_path / "rows"
    with pytest.raises(RankError):
        measuring.run(stem, most=2)
    (path,) = tmp_path.iterdir()
    head, tail = path.read_bytes().split(b'{"case": 6, "rows": [{"case": 6')
    path.write_bytes(head + damage + tail)
    measuring.run(stem, most=9)
    assert f"{path}, line 3: damaged, so skipped" in capsys.readouterr().err
    assert measuring.calls == [[5, 6], [6, 7]]
    assert read(stem)[0].case.tolist() == [5, 5, 6, 6, 7, 7]


def test_other_rows_are_neither_overwritten_nor_taken(tmp_path: Path) -> None:
    measuring, stem = Measuring(), tmp_path / "rows"
    with pytest.raises(RankError):
        measuring.run(stem, most=2)
    measuring.run(stem, most=9, ranks=3)
    assert measuring.calls == [[5, 6], [5, 6, 7]]
    with pytest.raises(FileExistsError, match="got rows of other settings, expected none; name another output"):
        measuring.run(stem, most=9)


LOOPBACK = {"where": "loopback"}
TWO_RANKS = LOOPBACK | {"ranks": 2}

# Of each experiment: parameters, how many cases they are, and how many rows each of them has.
MEASURED = {
    "straggler": (STRAGGLER | {"factors": [1], "positions": [], "sizes": ["4K", "64K"]}, [2, 2]),
    "asynchronous": (ASYNCHRONOUS | {"modes": ["all_reduce", "stale"], "slow": ["nobody"], "repetitions": 1}, [1, 1]),
    "data-parallel": (DATA_PARALLEL | {"beside": [], "killed_at": 0}, [1, 1, 8]),
    "model-parallel": (
        MODEL_PARALLEL | TWO_RANKS | {"widths": [2], "batches": [4], "schedules": ["1f1b"], "micro_batches": [1, 2]},
        [2, 5, 9],
    ),
    "overlap": (OVERLAP | TWO_RANKS, [2, 2]),
    "weak-scaling": (SCALED | TWO_RANKS | {"computing": "20ms"}, [1, 1, 1, 1]),
}


@pytest.mark.integration
@pytest.mark.parametrize("name", each(MEASURED, few=["weak-scaling"]))
def test_a_killed_rank_costs_no_row_and_the_next_run_measures_the_rest(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "straggler" and (reason := allowed()):
        pytest.skip(reason)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TASKS), *sys.path]))
    given, cases = MEASURED[name]
    reported = _spied(monkeypatch, name)
    experiment = importlib.import_module(f"collectives_book.{name.replace('-', '_')}.experiment")
    asked = checked(experiment.Parameters, given | {"output": str(tmp_path / "rows")})
    with pytest.raises(RankError, match="was killed by SIGKILL"):
        experiment.run(asked)
    (path,) = tmp_path.iterdir()
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    first = [row for event in kept for row in event.get("rows", [])]
    assert len(first) == cases[0]
    experiment.run(asked)
    rows, record = read(tmp_path / "rows")
    assert reported == cases, "each case was measured once"
    assert len(rows) == sum(cases)
    assert list(rows.loc[: len(first) - 1, "samples" if "samples" in rows else "losses"].map(list)) == [
        row.get("samples", row.get("losses")) for row in first
    ]
    assert {"processor", "torch"} <= set(record["environment"][0])
    assert sorted(each.name for each in tmp_path.iterdir()) == ["rows.json", "rows.parquet"]


def _spied(monkeypatch: pytest.MonkeyPatch, name: str) -> list[int]:
    """The numbers of rows that ranks report, case by case; the first rank dies after its first case, once."""
    reported: list[int] = []
    where = {"weak-scaling": "overlap"}.get(name, name).replace("-", "_")
    experiment = importlib.import_module(f"collectives_book.{where}.experiment")
    starting = "launch_on" if name == "straggler" else "launch"
    start, place = getattr(experiment, starting), 1 if name == "straggler" else 0

    def dying(*given: Any, on_event: Callable[[Row], None], **more: Any) -> Any:
        def heard(event: Row) -> None:
            reported.extend([len(event["rows"])] if "rows" in event else [])
            on_event(event)

        job = {"task": given[place], "settings": given[place + 1], "dies": not reported}
        return start(*given[:place], "dying", job, *given[place + 2 :], on_event=heard, **more)

    monkeypatch.setattr(experiment, starting, dying)
    return reported
