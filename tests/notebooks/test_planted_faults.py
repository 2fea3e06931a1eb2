"""The recorded faults: each was named, and its dumps are read as then; one is planted again."""

from pathlib import Path

import pytest

from collectives.emulator import cluster
from collectives_book.faults import page, planting
from collectives_book.faults.cases import STEP

ROWS = page.rows()


def test_every_fault_was_planted_ten_times_and_named() -> None:
    assert {(row["fault"], row["run"]) for row in ROWS} == {(fault, str(run)) for fault in STEP for run in range(10)}
    assert [row for row in ROWS if row["named"] != "True"] == []
    assert len({row["culprit"] for row in ROWS}) == planting.HOSTS


@pytest.mark.parametrize("number", range(len(STEP)))
def test_its_dumps_are_read_as_then(number: int) -> None:
    row = next(row for row in ROWS if row["fault"] == [*STEP][number])
    said = page.answer(number)
    assert row["found"] in " ".join(said.split())
    assert max(map(len, said.splitlines())) <= page.WIDTH
    assert ("\n      so:" in said) == (row["fault"] != planting.HEALTHY)


def test_the_late_rank_waits_least() -> None:
    late = next(row for row in ROWS if row["fault"] == "late")
    told = page.waits().alt.partition(": ")[2].rstrip(".").split(", ")
    times = {" ".join(words[:2]): float(words[2]) / (1e3 if words[3] == "µs" else 1) for words in map(str.split, told)}
    assert len(times) == planting.HOSTS
    assert min(times, key=times.__getitem__) == f"rank {late['culprit']}"


def test_the_table_has_each_fault_once() -> None:
    lines = page.counts().splitlines()[2:]
    assert [line.split(" | ")[0][2:] for line in lines] == [*page.TITLES.values()]
    assert page.TITLES.keys() == STEP.keys()
    assert all(" | 10 | 10 | " in line for line in lines)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("rank 3 left no dump; ranks 0–2 wait", {3}),
        ("rank 1 to rank 2: slow", {1, 2}),
        ("ranks 0–1 wait", {0, 1}),
        ("all ranks are in call 1 with rank 2", set()),
    ],
)
def test_the_ranks_that_a_sentence_names_first(text: str, wanted: set[int]) -> None:
    assert planting.first_ranks(text) == wanted


@pytest.mark.extended
@pytest.mark.usefixtures("allowed")
@pytest.mark.parametrize("fault", ["healthy", "sizes", "stopped", "link"])
def test_a_fault_is_planted_and_named(fault: str, tmp_path: Path) -> None:
    with cluster(planting.HOSTS) as hosts:
        planting.play(hosts, fault, 2, tmp_path)
    dumps = [path for path in tmp_path.glob("rank*") if path.is_file()]
    assert len(dumps) == planting.HOSTS - (fault == "stopped")
    assert planting.outcome(fault, 0, 2, dumps).named
