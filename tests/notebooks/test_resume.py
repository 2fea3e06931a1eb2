"""Experiments whose ranks die: no row that exists is lost, and the next run measures only what is missing."""

import json
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
from collectives_book import experiment as base
from collectives_book import load
from collectives_book.data_parallel import experiment as data_parallel
from collectives_book.experiment import Experiment
from sweep import each

Row = dict[str, Any]
CALLS: list[list[int]] = []  # the cases that each call measured


class Counted(Experiment):
    """Two rows of each case, on another machine at each call, until a rank dies."""

    def wanted(self) -> list[int]:
        return [5, 6, 7]

    def measure(self, left: Sequence[int], keep: Keep) -> None:
        CALLS.append([])
        keep({"environment": [{"processor": f"number {len(CALLS)}"}] * 2})
        for case in left:
            if CALLS == [[5, 6]]:
                raise RankError("rank 1 of 2 was killed by SIGKILL")
            keep({"slow": case})
            keep({"rows": [{"case": case, "turn": turn} for turn in range(2)]})
            CALLS[-1].append(case)

    def row(self, row: Row) -> Row:
        return row | {"complete": True}


def test_a_failure_costs_no_row_and_the_next_run_measures_the_rest(tmp_path: Path) -> None:
    CALLS.clear()
    counted = Counted(output=str(tmp_path / "rows"))
    with pytest.raises(RankError):
        counted.run()
    (path,) = tmp_path.iterdir()
    events = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["case"] for event in events for row in event.get("rows", [])] == [5, 5, 6, 6]
    for _ in range(2):
        rows, record = counted.run()
        assert CALLS == [[5, 6], [7]]
        assert list(zip(rows.case, rows.turn, strict=True)) == [
            (case, turn) for case in (5, 6, 7) for turn in (0, 1)
        ]
        assert rows.complete.all()
        assert record["settings"] == [{"output": counted.output}]
        assert [rank["processor"] for rank in record["environment"]] == ["number 1"] * 2 + [
            "number 2"
        ] * 2
        assert sorted(each.name for each in tmp_path.iterdir()) == ["rows.json", "rows.parquet"]


def test_rows_of_another_experiment_are_neither_overwritten_nor_taken(tmp_path: Path) -> None:
    CALLS[:] = [[]]
    Counted(output=str(tmp_path / "rows")).run()

    class Other(Counted):
        """Other parameters."""

        ranks: int

    other = Other(output=str(tmp_path / "rows"), ranks=3)
    assert not other.is_measured()
    with pytest.raises(
        FileExistsError, match="made with other parameters or other code; name another output"
    ):
        other.run()
    assert CALLS == [[], [5, 6, 7]]


LOOPBACK = {"where": "loopback"}
TWO_RANKS = LOOPBACK | {"ranks": 2}

# Of each experiment: parameters, how many cases they are, and how many rows each of them has.
MEASURED = {
    "straggler": (STRAGGLER | {"factors": [1], "positions": [], "sizes": ["4K", "64K"]}, [2, 2]),
    "asynchronous": (
        ASYNCHRONOUS | {"modes": ["all_reduce", "stale"], "slow": ["nobody"], "repetitions": 1},
        [1, 1],
    ),
    "data-parallel": (DATA_PARALLEL | {"beside": [], "killed_at": 0}, [1, 1, 8]),
    "model-parallel": (
        MODEL_PARALLEL
        | TWO_RANKS
        | {"widths": [2], "batches": [4], "schedules": ["1f1b"], "micro_batches": [1, 2]},
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
    given, cases = MEASURED[name]
    reported = dying_once(monkeypatch, name)
    asked = load(name).given(given | {"output": str(tmp_path / "rows")})
    with pytest.raises(RankError, match="was killed by SIGKILL"):
        asked.run()
    (path,) = tmp_path.iterdir()
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    first = [row for event in kept for row in event.get("rows", [])]
    assert len(first) == cases[0]
    rows, record = asked.run()
    assert reported == cases, "each case was measured once"
    assert len(rows) == sum(cases)
    assert list(
        rows.loc[: len(first) - 1, "samples" if "samples" in rows else "losses"].map(list)
    ) == [row.get("samples", row.get("losses")) for row in first]
    assert {"processor", "torch"} <= set(record["environment"][0])
    assert sorted(each.name for each in tmp_path.iterdir()) == ["rows.json", "rows.parquet"]
    assert read(tmp_path / "rows")[0].equals(asked.run()[0])


def dying_once(monkeypatch: pytest.MonkeyPatch, name: str) -> list[int]:
    """The numbers of rows that ranks report, case by case.

    The first rank dies after its first case, once.
    """
    reported: list[int] = []
    module = data_parallel if name == "data-parallel" else base
    starting = "launch_on" if name == "straggler" else "launch"
    start, place = getattr(module, starting), 1 if name == "straggler" else 0

    def dying(*given: Any, on_event: Callable[[Row], None], **more: Any) -> Any:
        def heard(event: Row) -> None:
            reported.extend([len(event["rows"])] if "rows" in event else [])
            on_event(event)

        job = {"task": given[place], "settings": given[place + 1], "dies": not reported}
        return start(*given[:place], "dying", job, *given[place + 2 :], on_event=heard, **more)

    monkeypatch.setattr(module, starting, dying)
    return reported
