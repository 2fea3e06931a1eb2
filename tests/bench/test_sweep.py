"""A measurement that is cut off goes on where it was, and what fails becomes rows.

No ranks are started here.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from collectives.bench import Measurement, Settings
from collectives.bench import sweep as module
from collectives.bench.results import read
from collectives.bench.sweep import measure_missing, sweep, sweep_path
from collectives.launch import RankError
from collectives_book.figures.measured import failed

SETTINGS = Settings(
    algorithms=["ring", "tree"], backends=["p2p", "gloo"], bytes=[4, 64, 1024], repetitions=1
)


class Ranks:
    """Stand in for `bench`: measure sizes until one is to fail, each launch on another machine."""

    def __init__(self) -> None:
        self.launches: list[list[int]] = []
        self.failures: dict[int | str, BaseException] = {}
        self.at_the_end: BaseException | None = None

    def bench(
        self, wanted: list[Settings], on_event: Callable[[dict[str, Any]], None]
    ) -> Measurement:
        self.launches.append([nbytes for settings in wanted for nbytes in settings.bytes])
        if failure := self.failures.pop(-1, None) or self.failures.get(wanted[0].backends[0]):
            raise failure
        on_event({"environment": [{"processor": f"number {len(self.launches)}"}] * wanted[0].ranks})
        for settings in wanted:
            self.measure(settings, on_event)
        if self.at_the_end:
            raise self.at_the_end
        return Measurement([], [])

    def measure(self, settings: Settings, on_event: Callable[[dict[str, Any]], None]) -> None:
        same = {"collective": settings.collective, "where": settings.where, "ranks": settings.ranks}
        for nth, nbytes in enumerate(settings.bytes, start=1):
            if failure := self.failures.get(nbytes):
                raise failure
            measured = [same | {"bytes": nbytes, "wrong": 0} for _ in settings.configurations()]
            for row, (backend, algorithm) in zip(measured, settings.configurations(), strict=True):
                row.update(backend=backend, algorithm=algorithm)
            on_event({"rows": measured})
            on_event({"done": nth, "of": len(settings.bytes), **same})


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Ranks:
    ranks = Ranks()
    monkeypatch.setattr(module, "bench", ranks.bench)
    monkeypatch.setattr(module, "check_here", lambda _: None)
    return ranks


def series(stem: Path) -> list[tuple[int, str, bool]]:
    rows, _ = read(stem)
    return list(zip(rows.bytes, rows.algorithm, rows.error.notna(), strict=True))


def all_of(nbytes: int, failed: bool = False) -> list[tuple[int, str, bool]]:
    return [(nbytes, algorithm, failed) for algorithm in ("ring", "tree", "default")]


def test_a_measurement_that_is_done_is_not_done_again(ranks: Ranks, tmp_path: Path) -> None:
    for _ in range(2):
        sweep([SETTINGS], tmp_path / "rows")
    assert ranks.launches == [[4, 64, 1024]]
    assert series(tmp_path / "rows") == [*all_of(4), *all_of(64), *all_of(1024)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.json", "rows.parquet"]


def test_after_a_cut_only_what_is_missing_is_measured(ranks: Ranks, tmp_path: Path) -> None:
    ranks.failures = {64: KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        sweep([SETTINGS], tmp_path / "rows")
    assert [path.suffix for path in tmp_path.iterdir()] == [".jsonl"]
    with sweep_path([SETTINGS], tmp_path / "rows").open("a") as file:
        file.write('{"case": [0, 64], "rows": [{"bytes": 64, "algo')  # cut off while writing
    ranks.failures = {}
    sweep([SETTINGS], tmp_path / "rows")
    assert ranks.launches == [[4, 64, 1024], [64, 1024]]
    assert series(tmp_path / "rows") == [*all_of(4), *all_of(64), *all_of(1024)]
    assert [rank["processor"] for rank in read(tmp_path / "rows")[1]["environment"]] == [
        "number 1"
    ] * 4 + ["number 2"] * 4


def test_what_fails_becomes_rows_and_is_tried_again(ranks: Ranks, tmp_path: Path) -> None:
    ranks.failures = {64: RankError("rank 2 of 4 was killed by SIGKILL\nlast words")}
    sweep([SETTINGS], tmp_path / "rows")
    assert ranks.launches == [[4, 64, 1024], [1024]]
    assert series(tmp_path / "rows") == [*all_of(4), *all_of(64, failed=True), *all_of(1024)]
    lost = failed(read(tmp_path / "rows")[0])
    assert lost.to_dict() == {"why": {"64 B": "rank 2 of 4 was killed by SIGKILL"}}
    ranks.failures = {}
    sweep([SETTINGS], tmp_path / "rows")
    assert ranks.launches[2:] == [[64]]
    assert series(tmp_path / "rows") == [*all_of(4), *all_of(64), *all_of(1024)]
    assert failed(read(tmp_path / "rows")[0]) is None


def test_what_one_launch_has_measured_is_not_taken_for_the_next_one_s(
    ranks: Ranks, tmp_path: Path
) -> None:
    both = SETTINGS.model_copy(update={"backends": ["gloo", "nccl", "nccl:Ring"]})
    ranks.failures = {"nccl:Ring": KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        sweep([both], tmp_path / "rows")
    ranks.failures = {}
    sweep([both], tmp_path / "rows")
    assert ranks.launches == [[4, 64, 1024]] * 3  # the second begun once in vain
    rows, _ = read(tmp_path / "rows")
    named = list(zip(rows.backend, rows.algorithm, strict=True))
    assert named == [("gloo", "default"), ("nccl", "default"), ("nccl", "Ring")] * 3


def test_collectives_go_on_each_where_it_was(ranks: Ranks, tmp_path: Path) -> None:
    other = SETTINGS.model_copy(
        update={"collective": "reduce", "algorithms": ["flat"], "bytes": [8, 16]}
    )
    ranks.failures = {16: RankError("no")}
    sweep([SETTINGS, other], tmp_path / "rows")
    ranks.failures = {}
    sweep([SETTINGS, other], tmp_path / "rows")
    assert ranks.launches == [[4, 64, 1024, 8, 16], [16]]
    rows, record = read(tmp_path / "rows")
    assert list(rows.collective) == ["all_reduce"] * 9 + ["reduce"] * 4
    assert [settings["collective"] for settings in record["settings"]] == ["all_reduce", "reduce"]


def test_ranks_that_fail_after_their_last_row_are_an_error_and_lose_no_row(
    ranks: Ranks, tmp_path: Path
) -> None:
    ranks.at_the_end = RankError("rank 1 of 4 was killed by SIGKILL")
    with pytest.raises(RankError, match="rank 1 of 4 was killed by SIGKILL"):
        sweep([SETTINGS], tmp_path / "rows")
    ranks.at_the_end = None
    sweep([SETTINGS], tmp_path / "rows")
    assert ranks.launches == [[4, 64, 1024]]
    assert series(tmp_path / "rows") == [*all_of(4), *all_of(64), *all_of(1024)]


@pytest.mark.parametrize(
    "damage",
    [
        b"\xff\xfe",
        b'{"case": [0, 64], "rows": [{"bytes": 64, "algo',
        b"null",
        b'{"case": [0, 64], "rows": 5}',
        b'{"case": [0, 64], "rows": [5]}',
        b'{"rows": [{"bytes": 64}]}',
        b'{"environment": [3]}',
        b"[" * 100_000,
        b"",
    ],
    ids=range(9),
)
def test_a_damaged_line_is_named_and_its_size_measured_again(
    ranks: Ranks, tmp_path: Path, damage: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks.failures = {1024: KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        sweep([SETTINGS], tmp_path / "rows")
    path = sweep_path([SETTINGS], tmp_path / "rows")
    lines = path.read_bytes().split(b"\n")
    lines[2] = damage  # the rows of 64 bytes: after the environment and those of 4 bytes
    path.write_bytes(b"\n".join(lines))
    ranks.failures = {1024: KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        sweep([SETTINGS], tmp_path / "rows")
    assert f"{path}, line 3: damaged, so skipped" in capsys.readouterr().err
    ranks.failures = {}
    sweep([SETTINGS], tmp_path / "rows")
    assert "damaged" not in capsys.readouterr().err
    assert ranks.launches == [[4, 64, 1024], [64, 1024], [1024]]
    assert series(tmp_path / "rows") == [*all_of(4), *all_of(64), *all_of(1024)]


def test_rows_of_sizes_that_are_no_longer_asked_for_are_left_out(
    ranks: Ranks, tmp_path: Path
) -> None:
    ranks.failures = {1024: KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        sweep([SETTINGS], tmp_path / "rows")
    ranks.failures = {}
    sweep([SETTINGS.model_copy(update={"bytes": [64]})], tmp_path / "rows")
    assert ranks.launches == [[4, 64, 1024]]
    assert series(tmp_path / "rows") == all_of(64)


def test_ranks_that_do_not_start_are_an_error(ranks: Ranks, tmp_path: Path) -> None:
    ranks.failures = {-1: RankError("there is no such host")}
    with pytest.raises(RankError, match="no such host"):
        sweep([SETTINGS], tmp_path / "rows")
    assert not (tmp_path / "rows.parquet").exists()


def test_other_rows_are_not_overwritten(ranks: Ranks, tmp_path: Path) -> None:
    sweep([SETTINGS], tmp_path / "rows")
    with pytest.raises(
        FileExistsError, match="made with other parameters or other code; name another output"
    ):
        sweep([SETTINGS.model_copy(update={"ranks": 8})], tmp_path / "rows")
    assert len(ranks.launches) == 1


def test_rows_of_ranks_that_are_started_elsewhere_stand_with_the_others(
    ranks: Ranks, tmp_path: Path
) -> None:
    """Horovod's ranks on this machine are horovodrun's, and their rows say so."""
    sweep(
        [SETTINGS.model_copy(update={"backends": ["gloo", "horovod"], "bytes": [4, 64]})],
        tmp_path / "rows",
    )
    rows, _ = read(tmp_path / "rows")
    assert list(zip(rows.bytes, rows["where"], strict=True)) == [
        *((4, "loopback"), (4, "horovodrun")),
        *((64, "loopback"), (64, "horovodrun")),
    ]


def test_a_measurement_without_rows_is_an_error_and_not_repeated_for_ever(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="measuring 5: got no rows, expected one or more"):
        measure_missing(tmp_path / "rows", [{}], [5, 6], lambda left, keep: None)
