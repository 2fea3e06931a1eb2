"""Results of benchmarks: every layout read alike, each planted fault found, healthy ones without, and hostile files."""

import gzip
import json
import re
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collectives.cli import main
from collectives.core.contracts import CONTRACTS
from collectives_logs.benchmark_tables import BenchmarkTable, printed_tables
from collectives_logs.benchmarks import begins, findings, tables_of
from collectives_logs.finding import Finding
from collectives_logs.sources import numbered
from logs import benchmark_logs as make
from logs.benchmark_logs import Run, text

FACTS = {"table", "fit", "knee", "preset"}
NODE: dict[str, Any] = {"ranks": 8, "hosts": ("n1",)}
H100 = "NVIDIA H100 80GB HBM3"
PAIR_SIZES = tuple(1 << power for power in range(10, 31))


def read(*logs: str) -> list[BenchmarkTable]:
    return [
        table for log in logs for table in printed_tables(numbered(log.splitlines(), "all.log"), [])
    ]


def faults(*logs: str) -> list[Finding]:
    return [one for one in findings(read(*logs)) if one.kind not in FACTS]


def only(kind: str, *logs: str) -> Finding:
    (one,) = [one for one in findings(read(*logs)) if one.kind == kind]
    return one


@pytest.mark.parametrize(
    "prefix", ["", "[1,0]<stdout>:", " 0: ", "2026-11-01T10:00:00.123Z ", "[pod/x] "]
)
@pytest.mark.parametrize("style", ["new", "old"])
def test_every_layout_is_read_alike(style: str, prefix: str) -> None:
    run = Run(style=style, prefix=prefix, wrong=(3,))
    (table,) = read(text(run))
    assert table.ranks == 16
    assert table.hosts == ("n1", "n2")
    assert table.devices == ("NVIDIA B200",)
    assert table.collective == "all_reduce"
    assert table.factor == 2 * 15 / 16
    assert table.nbytes.tolist() == list(run.sizes)
    np.testing.assert_allclose(table.times, run.times, rtol=0.03)
    assert table.wrong.sum() == (14 if style == "new" else 0)
    lines = text(run).splitlines()
    assert all(
        f" {int(n)} " in lines[place.line - 1]
        for n, place in zip(table.nbytes, table.places, strict=True)
    )


@pytest.mark.parametrize("collective", CONTRACTS)
def test_the_collective_is_named_or_follows_from_the_columns(collective: str) -> None:
    lines = text(Run(collective=collective)).splitlines()
    assert read("\n".join(lines))[0].collective == collective
    (table,) = read("\n".join(line for line in lines if "_perf" not in line))
    # They differ in nothing that is printed.
    is_alike = collective in ("scatter", "gather", "all_gather", "all_to_all")
    assert table.collective == ("" if is_alike else collective)


@pytest.mark.parametrize("written", [make.report, make.rccl_rows, make.our_rows])
def test_json_is_read_as_the_text(written: Callable[[Run], str], tmp_path: Path) -> None:
    run, path = Run(noise=0.0, wrong=(3, 5)), tmp_path / "a.json"
    path.write_bytes(gzip.compress(written(run).encode()))
    (table,) = tables_of(path)
    assert table.collective == "all_reduce"
    assert table.ranks == 16
    assert table.nbytes.tolist() == list(run.sizes)
    np.testing.assert_allclose(table.times, run.times[: len(table.times)])
    assert len(table.times) == (1 if written is make.our_rows else 2)
    assert "wrong elements at 64 B, 256 B" in next(
        one.found for one in findings([table]) if one.kind == "wrong"
    )


def test_a_report_that_was_cut_has_the_results_before(tmp_path: Path) -> None:
    path, data = tmp_path / "a.json", make.report(Run())
    path.write_text(data[: data.index('"size": 1048576')])
    (table,) = tables_of(path)
    assert table.hosts == ("n1", "n2")
    assert table.nbytes[-1] == 1 << 19
    assert [one.kind for one in findings([table]) if one.kind not in FACTS] == ["ends early"]


@pytest.mark.parametrize(
    "noise", ["n1:7:7 [0] NCCL INFO AllReduce: opCount 0 count 2097\n  12 kB\n", "[1,0]<stdout>:"]
)
def test_rows_that_are_cut(noise: str) -> None:
    """A row's root and its count of wrong elements are followed by lines of NCCL or a launcher's tag."""
    whole, table = read(
        text(Run()), re.sub("(sum      -1)(.{33})", rf"\1{noise}\2{noise}", text(Run()))
    )
    np.testing.assert_array_equal(table.times, whole.times)


def test_a_sweep_that_is_repeated_or_of_another_type_is_another_table() -> None:
    """As with -N 2 or -d all: the same heading, and rows from the smallest size on.

    Then another heading.
    """
    rows = [line for line in text(Run()).splitlines() if " float " in line]
    log = text(Run()).replace(
        "# Out", "\n".join([*rows, *(row.replace("float", " half") for row in rows), "# Out"])
    )
    log += text(Run(collective="all_gather", hosts=("b",)))
    found = [(table.collective, table.hosts, table.label) for table in read(log)]
    reduced = [("all_reduce", ("n1", "n2"), f"{dtype} sum") for dtype in ("float", "float", "half")]
    assert found == [*reduced, ("all_gather", ("b",), "float")]


def test_tables_of_processes_that_are_interleaved() -> None:
    """Without MPI each process prints a table of its own, of one rank."""
    lines = text(Run(ranks=1, hosts=("n1",), collective="broadcast")).splitlines()
    log = "\n".join(f"[1,{i}]<stdout>:{line}" for line in lines for i in range(2))
    assert [one.kind for one in faults(log)] == ["one rank"] * 2


def test_facts() -> None:
    found = [*findings(read(text(Run(noise=0.0))))]
    table, fit, knee = (f"{one.kind}: {one.found}" for one in found)
    assert (
        table
        == "table: all_reduce on 16 ranks of n1, n2 (NVIDIA B200), float sum: 31 sizes, 8 B to 8 GiB"
    )
    assert "fit: latency 20 µs and busbw 200 GB/s" in fit
    assert "knee: peak busbw 200 GB/s at 8 GiB, half of it from 4 MiB, 90% from 32 MiB" in knee
    assert "cost alike at 2 MiB" in knee  # 20 us * 200 GB/s / (2 * 15 / 16)
    assert {(one.follows, one.next) for one in found} == {("", "")}


def test_wrong_values_and_which_table_has_them_if_there_are_several() -> None:
    hosts = ("n1", "n2", "n3", "n4")
    logs = [text(Run(wrong=(4,), hosts=hosts)), text(Run(wrong=(4, 9)))]
    assert (
        "all_reduce on 16 ranks of n1, n2 and 2 more (NVIDIA B200)"
        in next(findings(read(*logs))).found
    )
    assert [one.found for one in faults(*logs)] == [
        "all_reduce on n1, n2 and 2 more: 14 wrong elements at 128 B",
        "all_reduce on n1, n2: 28 wrong elements at 128 B, 4 KiB",
    ]
    one, lines = only("wrong", logs[1]), logs[1].splitlines()
    assert one.found == "28 wrong elements at 128 B, 4 KiB"
    assert [lines[at.line - 1].split()[0] for at in one.at] == ["128", "4096"]
    assert only("wrong", text(Run(style="old", wrong=(1, 2, 3)))).found == "3 values out of bounds"
    assert faults(text(Run(is_checked=False))) == []


def test_a_run_that_ended_early() -> None:
    one = only("ends early", text(Run(sizes=PAIR_SIZES), last=1 << 33))
    assert "ends after 1 GiB, expected sizes to 8 GiB" in one.found
    assert "-b 2147483648 -e 2147483648" in one.next
    log = text(Run(), last=1 << 33).splitlines()
    assert (
        "before the first size"
        in only("ends early", "\n".join(line for line in log if " float " not in line)).found
    )
    failure = "n1: Test NCCL failure all_reduce.cu:44 'unhandled system error'"
    assert "unhandled system error" in only("failed", text(Run(), last=1 << 34) + failure).found


def test_the_heading_of_rccl_tests_and_a_run_that_failed_at_once() -> None:
    config = "# nThreads: 1 nGpus: 4 nRanks: 1 minBytes: 8 maxBytes: 64 step: 2(factor) warmupIters: 5 iters: 20"
    log = re.sub("# nThread 1 .*", config, text(Run()))
    assert read(log)[0].head.last == 64
    start = "\n".join(
        [config, *log.splitlines()[2:6], "n1: Test HIP failure common.cu:12 'out of memory'"]
    )
    assert begins(start.encode())
    failed = only("failed", start)
    assert failed.found == "Test HIP failure common.cu:12 'out of memory'"
    assert failed.follows == "the run ended before the first size"


def test_old_versions_print_busbw_as_algbw() -> None:
    run = Run(style="old", collective="all_gather", noise=0.0)
    rows = [line.split() for line in text(run).splitlines()]
    swapped = [
        " ".join([*row[:4], row[5], row[5], *row[6:]]) if len(row) == 11 else " ".join(row)
        for row in rows
    ]
    (table,) = read("\n".join(["./build/all_gather_perf -b 8", *swapped]))
    assert table.collective == "all_gather"
    assert table.factor == 15 / 16


@pytest.mark.parametrize("seed", range(5))
def test_a_dip_names_its_sizes(seed: int) -> None:
    def slow(times: np.ndarray, chance: np.random.Generator) -> None:
        times[:, 0] *= 3
        times[:, 19:] += 4 * times[:, 19:20]

    dip, first = faults(text(Run(seed=seed, fault=slow)))
    assert "at 2 MiB" in dip.found
    assert "at 4 MiB, and recovers" in dip.found
    assert "NCCL_PROTO=LL, LL128 and Simple: `all_reduce_perf -b 2097152" in dip.next
    assert first.kind == "disturbed"
    assert first.follows == ""
    assert "with more warm-ups (-w)" in first.next


@pytest.mark.parametrize(
    ("collective", "factor", "names"),
    [("all_reduce", 4, 1), ("all_reduce", 20, 0), ("all_to_all", 4, 0)],
)
def test_a_change_of_protocol_is_named_only_where_it_can_be(
    collective: str, factor: int, names: int
) -> None:
    def slow(times: np.ndarray, _: np.random.Generator) -> None:
        times[:, 19:] += factor * times[:, 19:20]

    (dip,) = faults(text(Run(seed=1, collective=collective, fault=slow)))
    assert dip.follows.count("protocol") == names
    assert dip.next.count("NCCL_PROTO") == names


def test_a_host_that_begins_with_digits_does_not_lengthen_a_number() -> None:
    log = text(Run(**NODE)).replace("n1", "38dc")
    glued = [
        f"{line}38dc:7:7 [0] NCCL INFO AllReduce: 8 Bytes -> Algo 1 proto 0"
        if line.rstrip().endswith(" 0")
        else line
        for line in log.splitlines()
    ]
    assert sum("NCCL" in line for line in glued) > 20
    assert faults("\n".join(glued)) == faults(log) == []


def test_a_node_against_its_preset() -> None:
    for rate, says in (
        (360e9, "preset"),
        (180e9, "half of the links"),
        (22e9, "another way than the fast links"),
    ):
        found = [*findings(read(text(Run(**NODE, device=H100, rate=rate))))][-1]
        assert says in f"{found.kind} {found.follows}"
        assert "GB/s of the preset dgx-h100, if no switch adds (simulated)" in found.found


def pairs(seed: int, slow: str = "", rate: float = 90e9, latency: float = 20e-6) -> list[str]:
    """A run for each pair of five hosts; those with one of them are slow."""
    pairs = [*combinations(("n1", "n2", "n3", "n4", "n5"), 2)]
    runs = [Run(seed=seed * 100 + i, hosts=pair, sizes=PAIR_SIZES) for i, pair in enumerate(pairs)]
    return [
        text(run._replace(rate=rate, latency=latency) if slow in run.hosts else run) for run in runs
    ]


def test_the_outlier_and_its_host() -> None:
    found = [
        (one.kind, "only these tables have n4" in one.follows)
        for one in faults(*pairs(1, "n4", rate=60e9))
    ]
    assert found == [("low rate", True)] * 4


def test_a_node_of_fewer_ranks_is_compared_with_no_larger_one() -> None:
    """More ranks may have a lower rate; fewer have no reason to."""
    many = text(Run(ranks=64, hosts=tuple(f"n{i}" for i in range(8)), rate=100e9))
    assert faults(text(Run()), many) == []
    (low,) = faults(text(Run(rate=50e9)), many)
    assert low.kind == "low rate"
    assert "half of the links, ports or lanes" in low.follows


def one(kind: str, **changes: object) -> tuple[str, Callable[[int], list[str]]]:
    return kind, lambda seed: [text(Run(seed=seed)._replace(**changes))]


# The kind of the one fault that logs have, "" for none; and logs, by seed.
LABELLED = [
    one(""),
    one("", style="old"),
    one("", collective="all_gather", rate=40e9),
    one("", collective="all_to_all", latency=90e-6),
    one("", **NODE, device=H100, rate=360e9),
    one("", **NODE, device="Tesla V100-SXM2-32GB", rate=130e9),
    one("", **NODE, device="NVIDIA A100 80GB PCIe", rate=20e9),
    one("", sizes=tuple((1 << 20) * i for i in range(1, 33))),
    one("", sizes=tuple(1 << power for power in range(3, 34, 2))),
    one("wrong", wrong=(3,)),
    one("wrong", wrong=(20, 21, 22)),
    one("disturbed", fault=make.disturbed),
    one("disturbed", fault=make.disturbed, noise=0.01, latency=100e-6),
    one("disturbed", fault=make.disturbed_twice),
    one("dip", fault=make.dip),
    one("dip", fault=make.dip, style="old", prefix="[1,0]<stdout>:"),
    one("dip", fault=make.dip, collective="reduce_scatter", rate=100e9),
    one("dip", fault=make.fall),
    one("in place", fault=make.slow_in_place),
    one("low rate", **NODE, device="NVIDIA A100-SXM4-80GB", rate=117e9),
    one("low rate", **NODE, device=H100, rate=22e9),
    ("", lambda seed: [text(Run(seed=100 * seed + i)) for i in range(6)]),
    ("", lambda seed: pairs(seed)),
    ("low rate", lambda seed: pairs(seed, slow="n3", rate=105e9)),
    ("low rate", lambda seed: pairs(seed, slow="n5", rate=130e9 if seed % 2 else 60e9)),
    ("straggler", lambda seed: pairs(seed, slow="n2", latency=45e-6, rate=200e9)),
    (
        "low rate",
        lambda seed: [
            text(Run(seed=seed)),
            text(Run(seed=seed + 1, rate=105e9, hosts=("n3", "n4"))),
        ],
    ),
]


@pytest.mark.integration  # seconds
@pytest.mark.parametrize("held_out", [False, True])
def test_labelled_logs(held_out: bool) -> None:
    """At least 97 % of all logs, and 3 of 4 seeds of each kind, have the one kind of finding they should."""
    right = [
        np.mean(
            [
                {one.kind for one in faults(*logs(seed))} == {kind} - {""}
                for seed in range(held_out, 10, 2)
            ]
        )
        for kind, logs in LABELLED
    ]
    assert min(right) >= 0.75, right
    assert np.mean(right) >= 0.97, right


@pytest.mark.integration  # seconds
def test_healthy_runs_with_noise_have_no_fault() -> None:
    assert [seed for seed in range(1000, 1100) if faults(text(Run(seed=seed)))] == []
    assert sum(bool(faults(text(Run(seed=seed, noise=0.06)))) for seed in range(1000, 1100)) < 10


def test_a_file_with_both_is_read_as_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.log"
    path.write_text(
        "n1:7:7 [0] NCCL INFO NCCL version 2.20.5\nn1:7:7 [0] NCCL WARN Out of memory\n"
        + text(Run())
    )
    assert main(["read", str(path), "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["source"] for row in rows} == {"benchmark", "log"}


def test_rows_that_were_quoted_without_their_titles_are_a_table(tmp_path: Path) -> None:
    whole = text(Run()).splitlines()
    rows = [line for line in whole if re.match(r"\s+\d+\s+\d+\s+\w+", line)]
    path = tmp_path / "all_reduce.txt"
    path.write_text("\n".join(["they measured:", *rows]))
    (quoted,) = tables_of(path)
    path.write_text("\n".join(whole))
    (table,) = tables_of(path)
    assert quoted.nbytes.tolist() == table.nbytes.tolist()
    assert quoted.times.tolist() == table.times.tolist()
    assert begins("\n".join(rows).encode())
    # No rate of this time.
    assert not begins(b"1048576 262144 float sum -1 105.9 50.00 17.33 0 106.0 9.89 17.31 0")
