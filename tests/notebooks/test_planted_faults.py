"""The recorded faults: each was named, and its dumps are read as then; one is planted again."""

from pathlib import Path

import pandas as pd
import pytest

from collectives.emulator import cluster
from collectives.logs.read import read
from collectives_book import faults
from collectives_book.faults import HEALTHY, HOSTS, STEP, Outcome
from places import ROOT

FOLDER = ROOT / "experiments/results/reference/slow-motion/faults"
ROWS = [Outcome(*row) for row in pd.read_csv(FOLDER / "faults.csv", keep_default_na=False).itertuples(index=False)]
FIRST = [row for row in ROWS if row.run == 0]


def test_every_fault_was_planted_ten_times_and_named() -> None:
    assert [(row.fault, row.run) for row in ROWS] == [(fault, run) for fault in STEP for run in range(10)]
    assert [row for row in ROWS if not row.named] == []
    assert len({row.culprit for row in ROWS}) == HOSTS


@pytest.mark.parametrize(("number", "row"), [*enumerate(FIRST)], ids=STEP)
def test_its_dumps_are_read_as_then(number: int, row: Outcome) -> None:
    assert faults.outcome(row.fault, 0, row.culprit, [FOLDER / f"case-{number}.zip"]) == row
    assert bool(row.kind) == (row.fault != HEALTHY)


def test_the_late_rank_waits_least() -> None:
    number, late = next((number, row) for number, row in enumerate(FIRST) if row.fault == "late")
    found = next(found for _, found in read([FOLDER / f"case-{number}.zip"]) if found.kind == "straggler")
    assert found.draw
    told = found.draw().alt.partition(": ")[2].rstrip(".").split(", ")
    times = {" ".join(words[:2]): float(words[2]) / (1e3 if words[3] == "µs" else 1) for words in map(str.split, told)}
    assert len(times) == HOSTS
    assert min(times, key=times.__getitem__) == f"rank {late.culprit}"


@pytest.mark.parametrize(
    ("text", "wanted"), [("ranks 0–1 wait", {0, 1}), ("all ranks are in call 1 with rank 2", set())]
)
def test_the_ranks_that_a_sentence_names_first(text: str, wanted: set[int]) -> None:
    assert faults.first_ranks(text) == wanted


@pytest.mark.extended
@pytest.mark.usefixtures("allowed")
@pytest.mark.parametrize("fault", ["healthy", "sizes", "stopped", "link"])
def test_a_fault_is_planted_and_named(fault: str, tmp_path: Path) -> None:
    with cluster(HOSTS) as hosts:
        dumps = faults.play(hosts, fault, 2, tmp_path)
    assert len(dumps) == HOSTS - (fault == "stopped")
    assert faults.outcome(fault, 0, 2, dumps).named
