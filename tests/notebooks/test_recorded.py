"""Recorded rows: where and when each is from, the table of runs, and a reader's rows beside the reference."""

import json
import re
import shutil
from pathlib import Path

import pytest

from collectives.bench.results import read, write
from collectives.machine import machine
from collectives_book import recorded
from collectives_book.measured_machines.predictions import node
from places import ROOT

pytestmark = pytest.mark.integration  # reads every recorded run: two seconds
RESULTS = ROOT / "experiments" / "results"
FITTED_ON = "waynehacking8/nccl-collectives-bench"


def test_every_reference_run_is_listed_with_its_pages() -> None:
    table = recorded.table(RESULTS, ROOT / "chapters")
    lines = {
        name.partition("<b>")[2].partition("</b>")[0]: row
        for name, *row in table.itertuples(index=False)
    }
    assert {
        stem.relative_to(RESULTS).as_posix() for stem in recorded.stems(RESULTS / "reference")
    } <= set(lines)
    when, on, pages = lines["reference/slow-motion/scaling"]
    date = json.loads((RESULTS / "reference" / "slow-motion" / "scaling.json").read_text())["date"]
    assert when.startswith(f"{date}, ")
    assert when.endswith(" ranks, 5 repetitions, 93.75% confidence intervals")
    assert " cores, " in on
    assert "cluster-in-slow-motion.html" in pages
    assert "data-parallel-training.html" in lines["reference/slow-motion/data-parallel"][-1]
    assert "data-parallel-training.html" not in lines["reference/slow-motion/model-parallel"][-1]


def test_a_run_of_this_build_leads_to_its_notebook(tmp_path: Path) -> None:
    for folder in ("reference", "quick"):
        (tmp_path / folder).mkdir()
        for suffix in ("json", "parquet"):
            shutil.copy(
                RESULTS / "reference" / "slow-motion" / f"straggler.{suffix}", tmp_path / folder
            )
    (tmp_path / "quick" / "straggler.ipynb").touch()
    shutil.copy(
        tmp_path / "quick" / "straggler.parquet", tmp_path / "quick" / "massive-scale.parquet"
    )
    record = json.loads((tmp_path / "quick" / "straggler.json").read_text())
    record["settings"][0]["ranks"] = [96, 24576]  # several numbers of ranks are simulated ones
    (tmp_path / "quick" / "massive-scale.json").write_text(json.dumps(record))
    simulated, *measured = recorded.table(tmp_path, ROOT / "chapters").itertuples(index=False)
    assert ", computed" in simulated.measured
    (quick, *_), (reference, *_) = measured
    assert quick.startswith(
        '<a href="../experiments/results/quick/straggler.html"><b>quick/straggler</b></a><br>'
    )
    assert reference.startswith("<b>reference/straggler</b><br><code>")
    assert '<span class="command-word">--backend</span> ' in reference


def test_own_rows_are_beside_those_of_the_same_points(tmp_path: Path) -> None:
    for folder in ("reference/slow-motion", "mine"):
        (tmp_path / folder).mkdir(parents=True)
        for suffix in ("json", "parquet"):
            shutil.copy(
                RESULTS / "reference" / "slow-motion" / f"straggler.{suffix}", tmp_path / folder
            )
            shutil.copy(
                RESULTS / "reference" / "slurm-cpu" / f"all-reduce-sweep.{suffix}",
                tmp_path / folder,
            )
    assert recorded.beside(tmp_path / "nothing").empty
    table = recorded.beside(tmp_path)
    assert set(table.index) == {"mine/all-reduce-sweep", "mine/straggler"}
    same = table.loc[["mine/all-reduce-sweep"]]
    assert {*same["yours over reference"]} == {"1.00"}
    assert {*same.result} == {"no difference"}


def test_own_rows_of_another_number_of_ranks_are_listed(tmp_path: Path) -> None:
    (tmp_path / "reference").mkdir()
    for suffix in ("json", "parquet"):
        shutil.copy(
            RESULTS / "reference" / "slurm-cpu" / f"all-reduce-sweep.{suffix}",
            tmp_path / "reference",
        )
    rows, record = read(tmp_path / "reference" / "all-reduce-sweep")
    own = (
        rows.astype(object)
        .where(rows.notna(), None)
        .assign(ranks=4, where="torchrun")
        .to_dict("records")
    )
    write(tmp_path / "mine" / "all-reduce-sweep", own, record)
    write(tmp_path / "mine" / "of-my-own", own, record)
    write(tmp_path / "mine" / "other", [{"loss": 0.5}], record)
    table = recorded.beside(tmp_path)
    counts = table.loc["mine/all-reduce-sweep"].result.value_counts()
    assert counts.to_dict() == {"only in yours": len(rows), "only in the reference": len(rows)}
    assert table.series[table.result == "only in yours"].str.contains("on 4 ranks").all()
    assert table.result["mine/of-my-own"] == "the reference has no run of this name"
    assert any(
        "where: torchrun; reference/all-reduce-sweep: slurm" in line
        for line in recorded.differences(tmp_path)
    )


def test_every_recorded_run_says_when_it_was_measured() -> None:
    stems = [path.with_suffix("") for path in (RESULTS / "reference").rglob("*.parquet")]
    assert stems
    assert all("date" in read(stem)[1] for stem in stems)


def test_every_row_of_an_h100_node_says_where_it_is_from_and_what_it_is_for() -> None:
    rows = node(machine("dgx-h100"))
    fit, held = ([row for row in rows if row["use"] == use] for use in ("fit", "held out"))
    assert len(fit) + len(held) == len(rows)
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}:\S+", row["source"]) for row in rows)
    assert {(row["gpus"], row["source"].partition("@")[0]) for row in fit} == {("4", FITTED_ON)}
    assert {row["gpus"] for row in held if row["source"].startswith(FITTED_ON)} == {"2", "6"}
    cells = [(row["source"], row["collective"], row["gpus"], row["bytes"]) for row in rows]
    assert len(set(cells)) == len(cells)
