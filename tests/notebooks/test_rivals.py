"""Rivals on one machine: what is launched, in which turn, and which of them a cell's table names."""

from itertools import product
from typing import Any

import pandas as pd
import pytest
import yaml

from collectives.backends import Presence
from collectives.bench.settings import group_by_launch
from collectives_book import rivals
from collectives_book.experiment import ExperimentError
from collectives_book.rivals import Rivals, everyone, places, side_by_side, table
from places import ROOT

PRESET = yaml.safe_load((ROOT / "experiments" / "presets" / "one-machine.yaml").read_text())
FULL = PRESET["rivals"] | {"output": "out/rows"}
SMALL = FULL | {"sizes": [4, "1M"], "rivals": ["gloo", "mpi", "mpi:sm"], "launches": 2}


def test_every_launch_comes_in_turn_and_rivals_that_poll_have_few() -> None:
    """Check that all measurements of a launch end before the next launch begins."""
    launches = group_by_launch(Rivals.given(FULL).measurements())
    numbers = [parts[0].launch for parts in launches]
    assert numbers == sorted(numbers)
    assert set(numbers) == {1, 2, 3, 4, 5}
    for polls in ("horovod", "mpich", "impi"):
        alone = [parts for parts in launches if parts[0].backends == [polls]]
        assert len(alone) == FULL["launches"] * len(FULL["ranks"])
    asked = [one for parts in launches for one in parts]
    cells = [
        (one.launch, one.ranks, tuple(one.bytes), one.back_to_back, one.persistent, name)
        for one in asked
        for name in one.backends
    ]
    assert len(cells) == len(set(cells))
    everyone = {name for *_, persistent, name in cells if not persistent}
    assert everyone == {"p2p", *FULL["rivals"]}


def test_large_buffers_have_a_tenth_of_the_calls() -> None:
    found = {
        (tuple(one.bytes), one.repetitions, one.warmups)
        for one in Rivals.given(SMALL).measurements()
    }
    assert found == {((4,), 200, 300), ((1 << 20,), 20, 30)}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"rivals": ["gloo", "p2p"]}, "rivals: got p2p, which is ours"),
        ({"rivals": ["mpi:tuned:9"]}, "unknown algorithm 'mpi:tuned:9'"),
        ({"rivals": ["intel"]}, "unknown backend 'intel'"),
        ({"ranks": [2, 2]}, "given twice"),
        ({"launches": 0}, "launches"),
        ({"warmups": -1}, "warmups"),
    ],
)
def test_wrong_parameters_are_named(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ExperimentError) as caught:
        Rivals.given(SMALL | wrong)
    assert said in str(caught.value)


def test_an_absent_rival_is_left_out_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        rivals, "presence", lambda name: Presence(name, absent="gone" if name == "mpi" else None)
    )
    experiment = Rivals.given(SMALL)
    assert experiment.left_out() == {"mpi": "gone", "mpi:sm": "gone"}
    assert {name for one in experiment.here() for name in one.backends} == {"p2p", "gloo"}


# Median microseconds of each launch: those of sm differ most, and one of its launches is the fastest of all.
TIMES = {
    ("p2p", "one_shot", False): [8, 9, 30],
    ("p2p", "one_shot", True): [3, 4, 5],
    ("gloo", "default", False): [80, 90, 100],
    ("mpi", "default", False): [7, 8, 9],
    ("mpi", "default", True): [2, 6, 7],
    ("mpi", "sm", False): [1, 5.5, 40],
}


def measured(times: dict[tuple[str, str, bool], list[float]], timing: str) -> list[dict[str, Any]]:
    same = {"ranks": 2, "bytes": 4, "timing": timing, "error": None}
    return [
        same | {"backend": name, "algorithm": algorithm, "persistent": prepared, "median_us": time}
        for (name, algorithm, prepared), launches in times.items()
        for time in launches
    ]


def test_a_cell_names_its_best_rival_by_the_medians_of_launches() -> None:
    """Beside ours prepared stands the best of ordinary and prepared calls; rows that failed do not count."""
    slower = {key: [time * 10 for time in times] for key, times in TIMES.items()}
    slower["mpi", "default", True] = [20, 21, 22]
    failed = [row | {"error": "lost", "median_us": 0.1} for row in measured(TIMES, "met")]
    rows = [
        *measured(TIMES, "met"),
        *failed,
        *measured(slower, "back_to_back"),
    ]
    found = table(pd.DataFrame(rows))
    columns = [
        "calls",
        "ours",
        "ours, us",
        "best rival",
        "its time, us",
        "place",
    ]
    shown = found[columns]
    lines = shown.itertuples(index=False)
    assert [tuple(line) for line in lines] == [
        ("after a barrier", "ordinary", 9, "mpi (sm)", 5.5, 2),
        ("after a barrier", "prepared", 4, "mpi (sm)", 5.5, 1),
        ("back to back", "ordinary", 90, "mpi (sm)", 55, 2),
        ("back to back", "prepared", 40, "mpi, prepared", 21, 2),
    ]
    assert found.ratio.tolist() == [5.5 / 9, 5.5 / 4, 55 / 90, 21 / 40]
    assert places(found) == "Ours is first in 1 of 4 cells, second in 3, third in 0 and later in 0."


def of_four_cells() -> pd.DataFrame:
    """Rows of two numbers of ranks and two sizes, whose times are equal."""
    rows = []
    for ranks, nbytes in product((2, 4), (4, 1 << 20)):
        cell = {"ranks": ranks, "bytes": nbytes}
        rows += [row | cell for row in measured(TIMES, "met")]
    return pd.DataFrame(rows)


def test_every_cell_of_a_table_stands_once() -> None:
    found = table(of_four_cells())
    wide = everyone(of_four_cells())
    assert len(found) == 8
    assert wide.shape == (4, len(TIMES))
    assert wide.loc[2, "4 B", "after a barrier"].to_dict() == {
        "p2p": 9,
        "p2p, prepared": 4,
        "gloo": 90,
        "mpi": 8,
        "mpi, prepared": 6,
        "mpi (sm)": 5.5,
    }
    columns = ["ranks", "size", "calls", "ours"]
    assert not found.duplicated(columns).any()


def test_a_page_shows_each_cell_in_the_column_of_its_size() -> None:
    compared = table(of_four_cells())
    shown = side_by_side(compared)
    assert [*shown.columns] == ["4 B", "1 MiB"]
    line = ("4 ranks, after a barrier", "ordinary")
    assert shown.loc[line, "1 MiB"] == "9.0 / 5.5<br>sm"
