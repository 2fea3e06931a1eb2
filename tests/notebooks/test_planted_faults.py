"""The recorded faults: their dumps are read as then, and some are planted again."""

from pathlib import Path

import pandas as pd
import pytest

from collectives.emulator import cluster
from collectives_book import faults
from collectives_book.faults import HEALTHY, HOSTS, STEP, Outcome
from places import ROOT

FOLDER = ROOT / "experiments/results/reference/slow-motion/faults"
RECORDED = pd.read_csv(FOLDER / "faults.csv", keep_default_na=False)
FIRST = [Outcome(*row) for row in RECORDED[RECORDED.run == 0].itertuples(index=False)]


@pytest.mark.parametrize(("number", "row"), [*enumerate(FIRST)], ids=STEP)
def test_its_dumps_are_read_as_then(number: int, row: Outcome) -> None:
    assert faults.outcome(row.fault, 0, row.culprit, [FOLDER / f"case-{number}.zip"]) == row
    assert row.named
    assert bool(row.kind) == (row.fault != HEALTHY)


@pytest.mark.extended
@pytest.mark.usefixtures("allowed")
@pytest.mark.parametrize("fault", ["healthy", "sizes", "stopped", "link"])
def test_a_fault_is_planted_and_named(fault: str, tmp_path: Path) -> None:
    with cluster(HOSTS) as hosts:
        dumps = faults.play(hosts, fault, 2, tmp_path)
    assert len(dumps) == HOSTS - (fault == "stopped")
    assert faults.outcome(fault, 0, 2, dumps).named
