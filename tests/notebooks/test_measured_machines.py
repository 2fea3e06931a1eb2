"""Rows of other people's samples: read from an archive made here, refused where it is odd, judged as the page says."""

import io
import re
import tarfile
from math import isnan
from pathlib import Path
from statistics import median

import pandas as pd
import pytest

from collectives.statistics import covered
from collectives_book import nccl_formulas as formula
from collectives_book.measured_machines import comparison, figures, predictions, samples
from collectives_book.measured_machines.samples import Run, nanoseconds, read_archive
from places import ROOT

RUN = Run("here", "of_ours", "2026_01_02___03_04_05", nodes=3, ranks_per_node=2)
NCCL = "256_allreduce_nccl_ring.csv"


def times(seed: int, count: int) -> list[int]:
    """Distinct nanoseconds in no order."""
    return [40_000 + (seed * 7919 + i * 104_729) % 65_537 for i in range(count)]


def nccl(values: list[int]) -> str:
    """A file as the program for NCCL writes it."""
    return (
        "\n".join(["highest", "0", *map(str, values), "-> Buffer: 256 byte - 1.9e-06 Gib"]) + "\n"
    )


def mpi(values: list[int]) -> str:
    """A file as the program for MPI writes it."""
    return "\n".join(["highest", *map(str, values)]) + "\n"


def archive(to: Path, files: dict[str, str], test: int = 0) -> Path:
    """An archive with these files of a test, and a list of nodes."""
    to.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(to, "w:gz") as whole:
        for name, text in {
            **{f"{test}/{name}": text for name, text in files.items()},
            "alloc.txt": "{0 : a - 0}",
        }.items():
            member = tarfile.TarInfo(f"{RUN.stamp}/{name}")
            member.size = len(text.encode())
            whole.addfile(member, io.BytesIO(text.encode()))
    return to


def test_a_row_has_the_median_the_interval_and_the_source_of_its_samples(tmp_path: Path) -> None:
    given = {NCCL: times(1, 99), "2048_allreduce_nccl_tree.csv": times(2, 100)}
    path = archive(tmp_path / "some.tar.gz", {name: nccl(values) for name, values in given.items()})
    first, second = read_archive(path, RUN)
    for cell, values, nbytes in zip((first, second), given.values(), (256, 2048), strict=True):
        assert (cell.median_us, cell.sample_count, cell.bytes) == (
            median(values) / 1e3,
            len(values),
            nbytes,
        )
        assert sum(cell.low_us <= value / 1e3 <= cell.high_us for value in values) < len(values) / 3
        assert cell.confidence == pytest.approx(covered(len(values)), abs=1e-4)
    assert (first.ranks, first.nodes, first.machine, first.algorithm) == (6, 3, "here", "ring")
    assert first.source.endswith(":results/of_ours/2026_01_02___03_04_05.tar.gz")
    assert re.fullmatch("[0-9a-f]{64}", first.sha256)
    parts = [median(times(1, 99)[10 * i : 10 * i + 10]) / 1e3 for i in range(9)]
    assert first.least_us <= min(parts) < max(parts) <= first.most_us


def test_mpi_files_say_how_many_numbers_and_keep_their_first_sample(tmp_path: Path) -> None:
    path = archive(
        tmp_path / "some.tar.gz", {"64_recursive_doubling_ompi_int32.csv": mpi(times(3, 7))}, test=2
    )
    (cell,) = read_archive(path, RUN._replace(test=2, collective="all_gather"))
    assert (cell.bytes, cell.library, cell.algorithm) == (256, "ompi", "recursive_doubling")
    assert (cell.collective, cell.sample_count) == ("all_gather", 7)
    assert cell.median_us == median(times(3, 7)) / 1e3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lowest\n1\n", "heading of .*: got 'lowest', expected 'highest'"),
        ("", "heading of .*: got ''"),
        ("highest\n0\n41000\n41", "end of .*: got '41', expected a line break: truncated?"),
        ("highest", "end of .*: got 'highest', expected a line break"),
        ("highest\n0\n41000\n4.1e4\n", "line 4 of .*: got '4.1e4', expected a whole number"),
        ("highest\n0\n-41000\n", "line 3 of .*: got '-41000'"),
        ("highest\n0\n41000\n\n42000\n", "line 4 of .*: got ''"),
        ("highest\n41000\n0\n42000\n", "samples of .*: got 0, expected times above 0"),
        ("highest\n0\n", "samples of .*: got none, expected"),
    ],
)
def test_an_odd_file_is_refused_and_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said.replace(".*", re.escape(NCCL))):
        read_archive(
            archive(
                tmp_path / "odd.tar.gz",
                {"2048_allreduce_nccl_ring.csv": nccl([41_000]), NCCL: text},
            ),
            RUN,
        )


def test_a_truncated_archive_and_one_without_samples_are_refused(tmp_path: Path) -> None:
    whole = archive(tmp_path / "whole.tar.gz", {NCCL: nccl(times(1, 9_999))}).read_bytes()
    for bad in (whole[: len(whole) // 2], b"", b"no archive"):
        (tmp_path / "bad.tar.gz").write_bytes(bad)
        with pytest.raises(
            ValueError, match=r"bad\.tar\.gz: got no whole archive .*, expected a \.tar\.gz"
        ):
            read_archive(tmp_path / "bad.tar.gz", RUN)
    with pytest.raises(ValueError, match=r"none\.tar\.gz: got no file of samples, expected some"):
        read_archive(archive(tmp_path / "none.tar.gz", {}), RUN)


def test_the_command_writes_the_table_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(samples, "RUNS", (RUN,))
    table = tmp_path / "out" / "samples.csv"
    with pytest.raises(SystemExit, match=r"archives missing in .*of_ours"):
        samples.main(tmp_path, table)
    archive(tmp_path / RUN.path, {NCCL: "highest\n0\n41000\n41"})
    with pytest.raises(SystemExit, match="truncated"):
        samples.main(tmp_path, table)
    assert not table.parent.exists()
    archive(tmp_path / RUN.path, {NCCL: nccl(times(1, 9))})
    samples.main(tmp_path, table)
    assert "1 rows from 1 tests" in capsys.readouterr().out
    assert pd.read_csv(table).median_us.tolist() == [median(times(1, 9)) / 1e3]


def test_every_committed_row_says_where_it_is_from() -> None:
    rows = pd.read_csv(samples.TABLE / "samples.csv")
    assert rows.columns.tolist() == list(samples.Cell._fields)
    paths = {f"{samples.REPOSITORY}@{samples.COMMIT}:{run.path}" for run in samples.RUNS}
    assert set(rows.source) == paths
    assert rows.sha256.str.fullmatch("[0-9a-f]{64}").all()
    assert len(set(zip(rows.source, rows.sha256, strict=True))) == len(paths)
    assert (rows.low_us <= rows.median_us).all()
    assert (rows.median_us <= rows.high_us).all()
    assert (rows.least_us <= rows.most_us).all()
    assert not rows.duplicated(["machine", *comparison.NAMES]).any()


@pytest.mark.integration
@pytest.mark.parametrize("name", predictions.PREDICTED)
def test_the_machine_still_predicts_what_was_written_down(name: str) -> None:
    written = pd.read_csv(samples.TABLE / f"{name}-predicted.csv")
    again = pd.DataFrame(predictions.predict(name), columns=list(predictions.COLUMNS))
    pd.testing.assert_frame_equal(written, again, rtol=1e-6)


@pytest.mark.parametrize("name", predictions.PREDICTED)
def test_what_was_fitted_and_what_was_held_out_are_apart(name: str) -> None:
    held, rows = predictions.PREDICTED[name], comparison.compared(name)
    assert not {*held.fitted} & {*held.held_out}
    assert {*rows.ranks[rows.held_out]} == {*held.held_out}
    assert {*rows.ranks[~rows.held_out]} == {*held.fitted}


def rows(*cells: tuple[str, int, float, float]) -> pd.DataFrame:
    """Rows by (algorithm, ranks, measured, predicted), with intervals of 1 us either way."""
    found = pd.DataFrame(cells, columns=["algorithm", "ranks", "median_us", "us"])
    found["error"] = found.us / found.median_us - 1
    return found.assign(
        low_us=found.median_us - 1, high_us=found.median_us + 1, bytes=8, collective="all_reduce"
    )


def test_a_score_counts_errors_and_only_decided_winners() -> None:
    score = comparison.score(
        rows(
            ("ring", 2, 100, 110), ("tree", 2, 50, 60),  # right
            ("ring", 4, 100, 100), ("tree", 4, 98, 150),  # intervals meet
            ("ring", 8, 100, 40), ("tree", 8, 50, 50),  # wrong
            ("ring", 16, 100, 100),  # alone
        )
    )  # fmt: skip
    assert (score.cells, score.decided, score.right, score.wrong) == (7, 2, 1, ((8, 8),))
    assert (score.median_error, score.worst_error) == (pytest.approx(0.1), pytest.approx(0.6))


def test_a_label_goes_with_the_algorithm_whose_times_it_has() -> None:
    ring, tree = {2: 100.0, 4: 200.0, 8: 400.0, 16: 101.0}, {2: 50.0, 4: 60.0, 8: 700.0, 16: 100.0}
    default = {2: 50.5, 4: 60.0, 8: 401.0, 16: 100.0}
    labels = {
        "ring": ring,
        "tree": tree,
        "nvlstree": ring,
        **dict.fromkeys(comparison.IGNORED, default),
    }
    labels["pat"] = default | {4: 160.0}  # disturbed
    found = comparison.sides(
        rows(*((label, p, us, us) for label, each in labels.items() for p, us in each.items()))
    )
    assert {p for p, _ in found.index} == {2, 4, 8}, "on 16 ranks the two are alike"
    nvlstree, pat, nvls = (
        comparison.behaviour(found, label) for label in ("nvlstree", "pat", "nvls")
    )
    assert (nvlstree.ring, nvlstree.tree, nvlstree.neither, nvlstree.expected) == (3, 0, 0, 3)
    assert (pat.ring, pat.tree, pat.neither, pat.expected) == (1, 1, 1, 2)
    assert (nvls.ring, nvls.tree, nvls.switches) == (1, 2, {2: 8, 4: 8, 8: None})


def test_the_default_is_judged_by_its_least_disturbed_run() -> None:
    cells = [
        ("ring", 4, 100.0, 0),
        ("tree", 4, 50.0, 0),
        ("ring", 8, 100.0, 0),
        ("tree", 8, 50.0, 0),
    ]
    cells += [
        (label, p, 99.0 if (label, p) != ("nvls", 8) else 51.0, 0)
        for label in comparison.IGNORED
        for p in (4, 8)
    ]
    (lost,) = comparison.by_default(rows(*cells))
    assert (lost["ranks"], lost["better"], lost["loss"]) == (4, "tree", pytest.approx(0.98))


def test_a_tie_and_a_missing_cell_have_no_winner() -> None:
    found = rows(
        ("ring", 2, 100, 0),
        ("tree", 2, 50, 0),
        ("ring", 4, 99, 0),
        ("tree", 4, 100, 0),
        ("ring", 8, 1, 0),
    )
    assert [*comparison.winners(found[found.ranks < 8]).algorithm] == ["tree", ""]
    more = comparison.winners(pd.concat([found, found[found.ranks == 2].assign(bytes=16)]))
    names = ["ranks", "bytes", "algorithm"]
    assert [*more[names].itertuples(index=False, name=None)] == [
        (2, 8, "tree"),
        (2, 16, "tree"),
        (4, 8, ""),
        (8, 8, "ring"),
    ]


def test_nccls_formula_gives_what_nccl_printed() -> None:
    """The 48 latencies and rates of a log of H100 nodes, four GPUs and four ports of 400 Gbit/s each."""
    log = pd.read_csv(samples.TABLE / "marenostrum5-nccl-log.csv")
    assert len(log) == 24
    for row in log.itertuples():
        latency, long = (
            formula.seconds(row.algorithm, row.protocol, n, 4 * row.nodes, 4, 4 * 48e9)
            for n in (0, 1 << 50)  # beyond the corrections, and so long that no latency counts
        )
        assert latency * 1e6 == pytest.approx(row.latency_us, abs=0.051)
        assert (1 << 50) / long / 1e9 == pytest.approx(row.rate_gb_s, abs=0.051)


def held(*cells: tuple[str, int, float, float]) -> pd.DataFrame:
    """Rows of which those on 2 and 8 ranks were in the fit."""
    found = rows(*cells)
    return found.assign(held_out=~found.ranks.isin([2, 8]), machine="here", library="here")


def test_a_line_goes_through_the_times_of_the_fit() -> None:
    found = held(
        ("ring", 2, 20, 0), ("ring", 8, 80, 0), ("ring", 16, 200, 0),
        ("tree", 2, 10, 0), ("tree", 8, 30, 0), ("tree", 16, 30, 0),
    )  # fmt: skip
    said = comparison.by_line(found).set_index("algorithm")
    assert said.us.to_dict() == pytest.approx({"ring": 160, "tree": 40})
    assert said.error.to_dict() == pytest.approx({"ring": -0.2, "tree": 1 / 3})


def test_one_who_always_says_the_same_is_scored_by_winners_alone() -> None:
    found = held(("ring", 4, 100, 0), ("tree", 4, 50, 0), ("ring", 16, 50, 0), ("tree", 16, 100, 0))
    score = comparison.score(comparison.always(found, "tree"))
    assert (score.right, score.decided, score.wrong) == (1, 2, ((16, 8),))
    assert isnan(score.median_error)


def test_the_figure_of_errors_has_each_prediction_of_the_held_out_cells() -> None:
    picture = figures.errors(comparison.compared("marenostrum5"))
    assert picture.alt.startswith("All-reduce on MareNostrum 5, the error of three predictions")
    assert [name for name in figures.LOOKS if f"{name} from " not in picture.alt] == []


def test_what_is_unchanged_are_the_times_of_the_nearest_size() -> None:
    said = comparison.unchanged("leonardo")
    (one,) = said[(said.algorithm == "ring") & (said.ranks == 512) & (said.bytes == 16 << 10)].us
    known = comparison.measured("leonardo")
    known = known[(known.library == "ompi") & (known.algorithm == "ring") & (known.ranks == 128)]
    assert known.set_index("bytes").median_us[8 << 10] == one


def test_the_readme_has_the_error_of_the_times() -> None:
    rows = comparison.compared("marenostrum5")
    error = comparison.score(rows[rows.held_out]).median_error
    assert f"within {error:.0%} in the median" in " ".join(
        (ROOT / "README.md").read_text("utf8").split()
    )


def test_samples_keep_their_order() -> None:
    assert nanoseconds(nccl([3, 1, 2]), NCCL) == [3, 1, 2]
