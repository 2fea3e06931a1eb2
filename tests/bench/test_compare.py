"""Runs beside each other: ratios and intervals of rows made for it, what each name stands for, and two real runs."""

import csv
import io
import json
import shutil
from itertools import permutations
from pathlib import Path

import pytest

from collectives.bench import Row
from collectives.bench.compare import compare, differences, lines
from collectives.bench.results import record, write
from collectives.bench.runs import Run, find, read_run, read_runs
from collectives.statistics import median_interval
from command import Capture, run
from places import ROOT

REFERENCE = ROOT / "experiments" / "results" / "reference"
SPREAD = (0.9, 0.95, 0.98, 1.0, 1.02, 1.05, 1.1)  # seven samples, whose interval has all of them


def row(microseconds: float, nbytes: int = 4, **more: object) -> Row:
    samples = [microseconds * share for share in SPREAD]
    low, median, high = median_interval(samples)
    point = {
        "collective": "all_reduce",
        "ranks": 4,
        "backend": "p2p",
        "algorithm": "ring",
        "bytes": nbytes,
    }
    return point | {"samples": samples, "median_us": median, "low_us": low, "high_us": high} | more


def results(first: list[Row], second: list[Row]) -> dict[int, str]:
    return {each["bytes"]: each["result"] for each in compare(first, second)}


@pytest.mark.parametrize("factor", [0.25, 0.5, 3.0, 16.0])
def test_a_known_ratio_is_in_its_interval(factor: float) -> None:
    (found,) = compare([row(10.0)], [row(10.0 * factor)])
    assert found["ratio"] == pytest.approx(factor)
    assert (found["low"], found["high"]) == pytest.approx((factor * 0.9 / 1.1, factor * 1.1 / 0.9))
    assert found["result"] == ("slower" if factor > 1 else "faster")


@pytest.mark.parametrize(
    ("factor", "result"), [(1.2, "no difference"), (0.85, "no difference"), (1.3, "slower")]
)
def test_overlapping_intervals_are_no_difference(factor: float, result: str) -> None:
    """The intervals of 1 and 1.22 times touch: 1.1 times is in both."""
    assert results([row(10.0)], [row(10.0 * factor)]) == {4: result}


def test_with_few_samples_nothing_is_said() -> None:
    few = row(90.0) | {"samples": [89.0, 90.0, 91.0, 92.0], "low_us": 89.0, "high_us": 92.0}
    assert results([row(1.0)], [few]) == {4: "too few samples"}


def test_ragged_sizes_and_points_of_one_run_are_listed() -> None:
    first = [row(1.0, nbytes) for nbytes in (4, 20, 1000)]
    second = [row(1.0, nbytes) for nbytes in (20, 64)] + [row(1.0, 4, ranks=8)]
    found = {(each["ranks"], each["bytes"]): each["result"] for each in compare(first, second)}
    alone = {(4, 4): "only in A", (4, 1000): "only in A", (4, 64): "only in B", (8, 4): "only in B"}
    assert found == alone | {(4, 20): "no difference"}


def test_a_row_that_failed_or_was_wrong_has_no_ratio() -> None:
    failed: Row = row(1.0) | {
        "samples": [],
        "median_us": None,
        "low_us": None,
        "high_us": None,
        "error": "lost",
    }
    assert results([failed], [row(1.0)]) == {4: "failed in A"}
    assert results([row(1.0, wrong=3)], [row(1.0, wrong=1)]) == {4: "wrong in A, wrong in B"}
    assert results([row(0.0)], [row(1.0)]) == {4: "no time in A"}


def test_a_setting_is_of_the_point_only_where_a_run_has_several() -> None:
    """Loopback beside Slurm is compared.

    In place beside out of place of one run is not mixed up.
    """
    assert results([row(1.0, where="loopback")], [row(3.0, where="slurm")]) == {4: "slower"}
    both = [row(1.0, in_place=False), row(5.0, in_place=True)]
    for order in permutations(both):
        found = compare(both, [*order])
        assert [(each["in_place"], each["ratio"]) for each in found] == [(False, 1.0), (True, 1.0)]
    with pytest.raises(
        ValueError, match="rows of B for all_reduce, 4, p2p, ring, 4: got 2, expected one"
    ):
        compare([row(1.0)], [row(1.0), row(2.0)])


def test_what_was_not_the_same_is_named() -> None:
    """Name no machine of a file of JSON lines, because it has no record."""
    made = {
        "hosts": ["n1", "n2"],
        "environment": [{"torch": "2.13.0", "set": {"NCCL_ALGO": "Ring"}}],
    }
    other = {
        "hosts": ["n3", "n4"],
        "environment": [{"torch": "2.13.0", "set": {}}],
        "settings": [{"warmups": 9}],
    }
    runs = [
        Run("a", [row(1.0, timing="met")], made, []),
        Run("b", [row(1.0, timing="back_to_back")], other, []),
    ]
    assert differences(runs) == {
        "timing": ["met", "back_to_back"],
        "NCCL_ALGO": ["Ring", "-"],
        "hosts": ["n1, n2", "n3, n4"],
        "warmups": ["-", "9"],
    }
    assert differences([runs[0], Run("c", runs[0].rows, {}, [])]) == {}


def test_several_runs_are_each_beside_the_first_in_80_columns() -> None:
    """Names, sizes, times and ratios are as wide as they get."""
    wide = {
        "collective": "reduce_scatter",
        "algorithm": "hierarchical_multi_channel",
        "backend": "p2p_nccl",
    }
    runs = [
        Run(f"run {time}", [row(time, 1000 << 20, **wide)], {}, ["calibration"] * 9)
        for time in (1e-3, 2e5, 3e5)
    ]
    text = "\n".join(lines(runs)).splitlines()
    assert max(map(len, text)) <= 80
    found = [line.split() for line in text if line.lstrip().startswith("1000 MiB")]
    assert len(found) == 2
    assert [line for line in text if " against A: 1 slower." in line] == [
        f"{each} against A: 1 slower." for each in "BC"
    ]


def test_names_of_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "chapters")
    rows = REFERENCE / "slurm-cpu" / "all-reduce-sweep.parquet"
    stem = rows.with_suffix("")
    names = [
        "reference/slurm-cpu/all-reduce-sweep",
        "slurm-cpu/all-reduce-sweep",
        "slurm-cpu",
        str(stem),
        f"{stem}.json",
    ]
    assert {path.resolve() for name in names for path in find(name)} == {rows}
    with pytest.raises(
        ValueError,
        match="unknown run 'slurm-cpu/all-redcue-sweep': did you mean 'slurm-cpu/all-reduce-sweep'",
    ):
        find("slurm-cpu/all-redcue-sweep")
    with pytest.raises(ValueError, match=r"got 'slurm-cpu' and '.*expected different ones"):
        read_runs(["slurm-cpu", str(rows)])


def test_a_folder_is_all_its_files(tmp_path: Path) -> None:
    """The same points of two files stand apart, and a file of other rows is named."""
    for name, time in ("ring", 1.0), ("again", 2.0):
        write(tmp_path / name, [row(time)], {"environment": [record()]})
    write(tmp_path / "losses", [{"loss": 0.5}], {"environment": [record()]})
    folder = read_run("mine", find(str(tmp_path)))
    assert folder.skipped == ["losses"]
    found = compare(folder.rows, read_run("one", find(str(tmp_path / "ring"))).rows)
    assert [(each["experiment"], each["result"]) for each in found] == [
        ("again", "only in A"),
        ("ring", "no difference"),
    ]
    shutil.copy(tmp_path / "losses.json", tmp_path / "damaged.json")
    (tmp_path / "damaged.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=r"damaged\.parquet and \.json cannot be read"):
        read_run("mine", find(str(tmp_path)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "got no rows, expected NAME.parquet, or what `collectives bench --json` prints"),
        ("a,b\n1,2\n", "got no rows"),
        ("[1]\n", "got no rows"),
        (
            '{"loss": 1}\n',
            "got no measured rows of a collective, expected columns algorithm, backend",
        ),
        (json.dumps(row(1.0) | {"samples": 3}), "row 1: samples: Input should be a valid list"),
        (
            json.dumps(row(1.0) | {"bytes": -4}),
            "row 1: bytes: Input should be greater than or equal to 0",
        ),
    ],
)
def test_a_file_of_no_rows_is_refused(
    text: str, message: str, tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(text)
    code, printed, errors = run(capsys, "compare", str(path), str(REFERENCE / "slurm-cpu"))
    assert code == 2
    assert printed == ""
    assert message in errors


@pytest.mark.integration
def test_two_real_runs(tmp_path: Path, capsys: Capture) -> None:
    """Measured twice: same points, and one size that the second has alone.

    The figure is written.
    """
    for name, sizes in ("a", "4"), ("b", "4 1K"):
        words = f"bench all_reduce ring -p 2 --bytes {sizes} --repetitions 5 --json"
        code, printed, errors = run(capsys, *words.split())
        assert code == 0, errors
        (tmp_path / f"{name}.jsonl").write_text(printed)
    files = [str(tmp_path / f"{name}.jsonl") for name in "ab"]
    code, printed, errors = run(
        capsys, "compare", *files, "--csv", "--svg", str(tmp_path / "beside")
    )
    assert code == 0, errors
    same, alone = csv.DictReader(io.StringIO(printed))
    assert float(same["low"]) <= float(same["ratio"]) <= float(same["high"])
    assert alone["bytes"] == "1024"
    assert alone["ratio"] == ""
    assert alone["result"] == "only in B"
    assert {path.name for path in tmp_path.glob("*.svg")} == {"beside-light.svg", "beside-dark.svg"}
    assert "all_reduce on 2 ranks" in errors
