"""`bench --nccl-tests`: a strict parser of nccl-tests' tables takes what it prints, and so does `collectives read`."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from collectives.bench import Row, Settings
from collectives.bench import table as bench_table
from collectives.cli import measure, parser
from collectives.launch import RankError
from collectives_logs.benchmark_tables import printed_tables
from collectives_logs.sources import numbered
from command import Capture, run

# What each line of nccl-tests' output may be, after its printf formats; a row has thirteen columns.
NUMBER = r"\d+\.\d+|\d+|\d\.\de[-+]\d\d"
HALF = rf"\s+({NUMBER})\s+({NUMBER})\s+({NUMBER})\s+(\d+|N/A)"
NONE = r"(?:\s+N/A){4}"
ROW = re.compile(
    r" {2,}(\d+) +(\d+) +(half|bfloat16|float|double|int32|int64) +(sum|prod|max|min|avg|none) +(-1|\d+)"
    rf"{HALF}(?:{HALF}|{NONE})"
)
TITLES = "size count type redop root time algbw busbw #wrong time algbw busbw #wrong"
LINES = [
    r"# Collective test starting: (\w+)_perf",
    r"# nThread 1 nGpus 1 minBytes \d+ maxBytes \d+ step: \d+\((?:factor|bytes)\) warmup iters: \d+ iters: \d+ "
    r"agg iters: \d+ validation: 1 graph: 0(?: unalign: 0)?",
    r"# Using devices",
    r"#  Rank +\d+ Group +\d+ Pid +\d+ on +\S+ device +\d+ \[[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\] \S.*",
    r"# {14,}out-of-place +in-place +",
    rf"# +{TITLES.replace(' ', ' +')} ?",
    r"# +\(B\) +\(elements\) +\(us\) +\(GB/s\) +\(GB/s\) +\(us\) +\(GB/s\) +\(GB/s\) +",
    r"# Out of bounds values : \d+ (?:OK|FAILED)",
    r"# Avg bus bandwidth {4}: [\d.e+-]+ (?:OK|FAILED)?",
    r"# Collective test concluded: \w+_perf",
]


def parsed(text: str) -> dict[str, list[tuple[str, ...]]]:
    """The rows of each collective; AssertionError for a line that nccl-tests does not print."""
    found: dict[str, list[tuple[str, ...]]] = {}
    for line in text.splitlines():
        if begun := re.fullmatch(LINES[0], line):
            found[begun[1]] = []
        elif row := ROW.fullmatch(line):
            found[list(found)[-1]].append(row.groups(default=""))
        else:
            known = line == "#" or line.startswith("# collectives bench: ")
            assert known or any(re.fullmatch(each, line) for each in LINES), line
    return found


@pytest.mark.integration
def test_a_parser_of_nccl_tests_and_our_own_reader_take_the_table(capsys: Capture) -> None:
    words = "bench all_reduce all_to_all reduce_scatter --nccl-tests --root 0 -p 3 -b 12 -e 4K -f 4"
    code, out, err = run(capsys, *words.split(), "--repetitions", "3", "--dtype", "float16")
    assert code == 0, err
    found = parsed(out)
    assert list(found) == ["all_reduce", "alltoall", "reduce_scatter"]
    for name, rows in found.items():
        sizes = [12 * 4**i for i in range(5)]
        assert [row[0] for row in rows] == [str(size) for size in sizes]
        parts = 1 if name == "all_reduce" else 3
        assert [row[1] for row in rows] == [str(size // 2 // parts) for size in sizes]
        assert {row[2:5] for row in rows} == {
            ("half", "none" if name == "alltoall" else "sum", "-1")
        }
        assert {(row[8], row[12]) for row in rows} == {("0", "" if name == "alltoall" else "0")}
    read = list(printed_tables(numbered(out.splitlines(), "bench.log"), []))
    assert [(each.collective, each.ranks, len(each.nbytes)) for each in read] == [
        ("all_reduce", 3, 5),
        ("all_to_all", 3, 5),
        ("reduce_scatter", 3, 5),
    ]


def a_row(place: bool, nbytes: int, us: float, wrong: int = 0) -> Row:
    same = {
        "collective": "broadcast",
        "backend": "nccl",
        "algorithm": "default",
        "auto": False,
        "op": "sum",
    }
    rates = {"median_us": us, "algbw": nbytes / us / 1e3, "busbw": nbytes / us / 1e3}
    size = {"bytes": nbytes, "count": nbytes // 4, "dtype": "float32"}
    return same | size | rates | {"in_place": place, "wrong": wrong}


RANKS = [
    {
        "rank": rank,
        "host": f"n{rank // 2}",
        "gpu": "NVIDIA H100 80GB HBM3",
        "backends": ["nccl:Ring"],
    }
    for rank in range(4)
]


def test_hosts_devices_the_root_and_wide_numbers() -> None:
    wanted = Settings(collective="broadcast", ranks=4, bytes=[8, 1 << 33], root=2, where="slurm")
    rows = [
        a_row(place, nbytes, nbytes / 3e5 + 20)
        for place in (False, True)
        for nbytes in wanted.bytes
    ]
    text = "\n".join(bench_table.tables(wanted, [*rows, a_row(False, 8, 1.0, wrong=3)], RANKS))
    found = parsed(text)["broadcast"]
    assert [(row[0], row[3], row[4], row[5], row[12]) for row in found] == [
        ("8", "none", "2", "20.00", "0"),
        ("8589934592", "none", "2", "28653.1", "0"),
        ("8", "none", "2", "1.00", ""),
    ]
    devices = re.findall(
        r"Rank +(\d) .* on +(\S+) device +(\d) \[0000:00:00\] NVIDIA H100 80GB HBM3", text
    )
    assert devices == [("0", "n0", "0"), ("1", "n0", "1"), ("2", "n1", "0"), ("3", "n1", "1")]
    assert "# Out of bounds values : 3 FAILED" in text


@pytest.mark.parametrize(
    ("words", "sizes"),
    [
        ("-b 8 -e 128 -f 2", [8, 16, 32, 64, 128]),
        ("-b 8 -e 100 -f 4", [8, 32]),
        ("-b 1M", [1 << 20]),
        ("-b 1M -e 5M", [1 << 20, 1 << 21, 1 << 22]),
    ],
)
def test_sizes_as_nccl_tests_takes_them(words: str, sizes: list[int]) -> None:
    ((asked,),) = measure.settings(parser(["bench"]).parse_args(["bench", *words.split()]))
    assert asked.bytes == sizes


def test_what_was_measured_before_ranks_failed_is_printed(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(wanted: list[Settings], on_event: Callable[[Row], None]) -> None:
        assert [each.in_place for each in wanted] == [False, True]
        on_event({"environment": [each | {"backends": ["nccl"]} for each in RANKS]})
        on_event({"rows": [a_row(False, 8, 20.0)]})
        raise RankError("rank 3 is late")

    monkeypatch.setattr("collectives.bench.check_here", lambda _: None)
    monkeypatch.setattr("collectives.bench.bench", fails)
    words = "bench broadcast --nccl-tests --backend nccl -b 8 -e 64"
    code, out, err = run(capsys, *words.split())
    assert code == 1
    assert len(parsed(out)["broadcast"]) == 1
    assert "rank 3 is late" in err
