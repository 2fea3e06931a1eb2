"""The table of recorded runs, and a reader's rows beside the reference."""

import json
import shutil
from pathlib import Path

import pytest

from collectives_book import recorded
from places import ROOT

pytestmark = pytest.mark.integration  # reads every recorded run: two seconds
RESULTS = ROOT / "experiments" / "results"


def test_every_reference_run_is_listed_with_its_pages() -> None:
    table = recorded.table(RESULTS, ROOT / "chapters")
    assert {stem.relative_to(RESULTS).as_posix() for stem in recorded.stems(RESULTS / "reference")} <= set(table.index)
    scaling = table.loc["reference/slow-motion/scaling"]
    assert "cluster-in-slow-motion.html" in scaling.pages
    date = json.loads((RESULTS / "reference" / "slow-motion" / "scaling.json").read_text())["date"]
    assert (scaling.date, scaling["repetitions and confidence"]) == (date, "5 repetitions, 93.75% intervals")
    assert "data-parallel-training.html" in table.loc["reference/slow-motion/data-parallel"].pages
    assert "data-parallel-training.html" not in table.loc["reference/slow-motion/model-parallel"].pages
    assert scaling.command == "<code>collectives run experiments/scaling.ipynb --preset slow-motion</code>"


def test_a_run_of_this_build_leads_to_its_notebook(tmp_path: Path) -> None:
    for folder in ("reference", "quick"):
        (tmp_path / folder).mkdir()
        for suffix in ("json", "parquet"):
            shutil.copy(RESULTS / "reference" / "slow-motion" / f"straggler.{suffix}", tmp_path / folder)
    (tmp_path / "quick" / "straggler.ipynb").touch()
    page = recorded.html(tmp_path, ROOT / "chapters")
    assert '<a href="../experiments/results/quick/straggler.html"><b>quick/straggler</b></a>' in page
    assert "<td><b>reference/straggler</b><br><code>" in page
    assert '<span class="command-word">--ranks</span> ' in page


def test_own_rows_are_beside_those_of_the_same_points(tmp_path: Path) -> None:
    for folder in ("reference/slow-motion", "mine"):
        (tmp_path / folder).mkdir(parents=True)
        for suffix in ("json", "parquet"):
            shutil.copy(RESULTS / "reference" / "slow-motion" / f"straggler.{suffix}", tmp_path / folder)
            shutil.copy(RESULTS / "reference" / "slurm-cpu" / f"all-reduce-sweep.{suffix}", tmp_path / folder)
    assert recorded.beside(tmp_path / "reference").empty
    table = recorded.beside(tmp_path)
    assert set(table.index) == {"mine/all-reduce-sweep", "mine/straggler"}
    assert set(table["yours over reference"][["mine/all-reduce-sweep"]]) == {"1.00"}
