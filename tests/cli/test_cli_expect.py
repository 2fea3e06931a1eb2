"""``collectives expect``: what it prints, logs beside it, and what it says about wrong input."""

import csv
import io
import json
from pathlib import Path

import pytest

from command import Capture, run
from logs.benchmark_logs import Run, report, text

MACHINE = """\
name: two-h100
ranks_per_node: 8
inside: {latency: 3.4us, rate: 337GB/s}
network: {latency: 11us, overhead: 3us, rate: 50GB/s}
"""
SIZES = (8, 1 << 20, 1 << 30)
GOLDEN = """\
all_reduce on 16 ranks: 2 nodes of 8 GPUs, two-h100; busbw in GB/s
    size  NCCL 2.30.7              time  busbw  fastest schedule                       time  busbw    bound  limit
     8 B  Tree/LL (16)          25.2 µs   0.00  one_shot8/one_shot2                 17.4 µs   0.00   3.4 µs  latency
   1 MiB  Tree/LL128 (16)       62.7 µs   31.4  direct8/one_shot2                   28.9 µs   68.1  5.08 µs  latency
   1 GiB  NVLSTree/Simple (16)  4.43 ms    455  multi_channel_ring                  5.39 ms    373   5.2 ms  inside port
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a machine file, in which the command runs."""
    (tmp_path / "two-h100.yaml").write_text(MACHINE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def expect(capsys: Capture, more: str) -> tuple[int, str, str]:
    return run(capsys, *f"expect all_reduce --machine two-h100.yaml {more}".split())


@pytest.mark.usefixtures("here")
def test_the_text_of_one_call(capsys: Capture) -> None:
    code, out, err = expect(capsys, "--nodes 2 --bytes 8 1M 1G")
    assert (code, err) == (0, "")
    assert out == GOLDEN


@pytest.mark.parametrize("style", ["text", "json"])
def test_a_log_stands_beside_what_is_expected(here: Path, capsys: Capture, style: str) -> None:
    sweep = Run(rate=57e9, latency=30e-6, noise=0.0, sizes=SIZES)  # one port of eight
    log = here / "all_reduce.log"
    log.write_text(text(sweep) if style == "text" else report(sweep))
    code, out, _ = expect(capsys, "--rows all_reduce.log --json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [row["bytes"] for row in rows] == list(SIZES)
    assert [row["nodes"] for row in rows] == [2, 2, 2]  # of 16 ranks
    for row, seconds in zip(rows, sweep.times[0], strict=True):
        assert row["measured_seconds"] == pytest.approx(seconds, rel=1e-3)
        busbw = sweep.factor * row["bytes"] / seconds / 1e9
        assert row["measured_busbw"] == pytest.approx(busbw, rel=1e-3)
    assert rows[0]["checks"] == []  # 30 us, as expected
    assert "ports" in rows[-1]["checks"]


def test_what_to_check_is_said_once_below_the_table(here: Path, capsys: Capture) -> None:
    log = here / "all_reduce.log"
    log.write_text(text(Run(rate=57e9, noise=0.0, sizes=(1 << 28, 1 << 29, 1 << 30))))
    code, out, _ = expect(capsys, "--rows all_reduce.log --svg rates")
    assert code == 0
    assert out.count("short: ") == 3
    assert out.count("\nports: ") == 1
    assert "\nlatency: " not in out
    assert {path.name for path in here.glob("*.svg")} == {"rates-light.svg", "rates-dark.svg"}


@pytest.mark.usefixtures("here")
def test_csv_and_json_have_the_same_rows(capsys: Capture) -> None:
    asked = "--nodes 2 --gpus 4 --bytes 1M"
    row = json.loads(expect(capsys, f"{asked} --json")[1])
    (read,) = csv.DictReader(io.StringIO(expect(capsys, f"{asked} --csv")[1]))
    assert list(read)[: len(row)] == list(row)
    for name, value in row.items():
        written = "" if value is None else str(value)
        assert read[name] == written


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("--gpus 1 --nodes 1", "one alone sends nothing"),
        ("--nodes 3 --rows all_reduce.log", "ranks of all_reduce.log: got 12"),
        ("--rows all_reduce.log", "ranks of all_reduce.log: got 12"),  # nodes of 8
        ("--rows other.log", "tables of all_reduce in other.log: got 0 (tables: all_gather)"),
        ("--rows empty.log", "tables of all_reduce in empty.log: got 0 (tables: none)"),
        ("--rows missing.log", "there is no file missing.log"),
        ("--rows all_reduce.log --bytes 8", "--bytes"),
        ("--algorithms trees", "unknown algorithm of NCCL"),
        ("--csv --json", ""),
    ],
)
def test_wrong_input_is_refused_before_anything_is_printed(
    here: Path, capsys: Capture, arguments: str, told: str
) -> None:
    (here / "all_reduce.log").write_text(text(Run(ranks=12, sizes=SIZES)))
    (here / "other.log").write_text(text(Run(collective="all_gather", sizes=SIZES)))
    (here / "empty.log").write_text("# nothing\n")
    code, out, err = expect(capsys, arguments)
    assert (code, out) == (2, "")
    assert told in err
