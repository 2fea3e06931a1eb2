"""Measuring: settings that are refused, data that can fail, statistics, and the rows of real launches."""

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from collectives.bench import DTYPES, OPS, Settings, check_here
from collectives.bench import bench as measured
from collectives.bench import settings as bench_settings
from collectives.bench.data import BLOCK, reduced, values
from collectives.core.contracts import CONTRACTS, ROOTED
from collectives.errors import explain
from collectives.launch import launch
from collectives.statistics import covered, median_interval
from command import Capture, run
from places import PATIENCE
from sweep import each

ROW = {
    *(
        "collective",
        "algorithm",
        "backend",
        "where",
        "ranks",
        "bytes",
        "count",
        "dtype",
        "op",
        "samples",
    ),
    *("median_us", "low_us", "high_us", "algbw", "busbw", "wrong", "device"),
    *(
        "auto",
        "auto_by",
        "segments",
        "executor",
        "transport",
        "bound_us",
        "in_place",
        "timing",
        "slowest_rank",
    ),
    *("persistent", "launch", "predicted_us"),
}

TRANSPORT = "shared_memory" if sys.platform == "linux" else "tcp"  # of ranks on one host


def test_a_schedule_is_proved_once_before_the_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for each setting that has it, and on no rank.

    One of the user's own each time, as its file may change.
    """
    proved: list[int] = []
    monkeypatch.setattr(bench_settings, "verify", lambda schedule: proved.append(schedule.p))
    wanted = [Settings(algorithms=["ring", "tree"], ranks=13, bytes=[nbytes]) for nbytes in (4, 8)]
    assert proved == [13, 13]
    assert [Settings.from_launcher(json.loads(one.model_dump_json())) for one in wanted] == wanted
    assert proved == [13, 13]
    file = tmp_path / "own.py"
    file.write_text("from collectives.algorithms.ring import all_reduce as mine\n")
    for _ in range(2):
        Settings(algorithms=[f"{file}:mine"], ranks=11)
    for _ in range(2):
        Settings(algorithms=["packed_trees@dgx1"], ranks=8)
    assert proved == [13, 13, 11, 11, 8, 8]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rnaks": 4}, "rnaks: Extra inputs are not permitted, got 4"),
        ({"ranks": "4"}, "ranks: Input should be a valid integer, got '4'"),
        ({"ranks": 0}, "ranks: Input should be greater than or equal to 1, got 0"),
        ({"bytes": [4, -4]}, "bytes.1: Input should be greater than or equal to 0, got -4"),
        ({"bytes": [6]}, "6 bytes are no whole number of float32 (4 bytes each)"),
        ({"algorithms": ["rnig"]}, "no algorithm 'rnig' for 'all_reduce'; all_reduce has one_shot"),
        ({"backends": ["glue"]}, "unknown backend 'glue'"),
        ({"collective": "allreduce"}, "unknown collective 'allreduce'"),
        ({"dtype": "float8"}, "unknown dtype 'float8'"),
        ({"op": "mean"}, "unknown op 'mean'"),
        ({"collective": "reduce", "root": 4}, "root 4 is not one of the ranks 0 to 3"),
        ({"op": "avg", "backends": ["p2p", "gloo"]}, "gloo has no 'avg', expected one of sum"),
        (
            {"backends": ["mpi:rnig"]},
            "unknown algorithm 'mpi:rnig'; known are basic_linear, nonoverlapping",
        ),
        (
            {"backends": ["mpi:ring"], "collective": "reduce"},
            "mpi takes an algorithm for all_reduce only",
        ),
        ({"backends": ["nccl:Tree/LL12"]}, "unknown algorithm 'nccl:Tree/LL12'; it is Ring|Tree|"),
        (
            {"backends": ["gloo:ring"]},
            "gloo has no algorithms to choose from, so not 'gloo:ring'; mpi and nccl have",
        ),
        (
            {"backends": ["horovod"], "collective": "gather"},
            "horovod has no 'gather', expected one of broadcast",
        ),
        (
            {"backends": ["horovod"], "collective": "reduce_scatter", "op": "max"},
            "no 'reduce_scatter max'",
        ),
        ({"backends": ["p2p", "mpi"], "dtype": "bfloat16"}, "mpi has no 'bfloat16'"),
        (
            {"collective": "all_to_all", "in_place": True},
            "all_to_all in place: got p2p, expected out of place",
        ),
        (
            {"collective": "gather", "backends": ["mpi"], "in_place": True},
            "gather in place: got mpi, expected one that",
        ),
        ({"in_place": 1}, "in_place: Input should be a valid boolean, got 1"),
        ({"back_to_back": "yes"}, "back_to_back: Input should be a valid boolean, got 'yes'"),
        ({"persistent": True, "backends": ["mpi", "gloo"]}, "gloo has no persistent collectives; "),
        (
            {"persistent": True, "backends": ["mpi:ring"]},
            "mpi:ring has no persistent collectives; ",
        ),
        ({"where": "moon"}, "unknown where 'moon'; known are loopback"),
        ({"dtype": "bfloat16", "ranks": 300}, "bfloat16 counts exactly to 256 only"),
        ({"algorithms": ["ring/mxint8"]}, "plan ring/mxint8, column 1: got 'ring'"),
        ({"timeout": float("inf")}, "timeout: Input should be"),
        ({"timeout": float("nan")}, "timeout: Input should be"),
        ({"timeout": 604801}, "timeout: Input should be less than or equal to 604800"),
        ({"ranks": 16385}, "ranks: Input should be less than or equal to 16384"),
        (
            {"ranks": 16384, "where": "slurm", "algorithms": ["ring"]},
            "got 16,384 ranks x 16,384 chunks, expected",
        ),
        ({"bytes": [4, 1 << 39]}, "bytes.1: Input should be less than or equal to 274877906944"),
        ({"repetitions": 10_001}, "repetitions: Input should be less than or equal to 10000"),
        ({"warmups": 10_001}, "warmups: Input should be less than or equal to 10000"),
        ({"segments": 1025}, "segments: Input should be less than or equal to 1024"),
    ],
)
def test_bad_settings_say_what_is_wrong(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Settings(**given)
    assert message in explain(caught.value)


def test_what_this_machine_s_memory_cannot_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two ranks, and what they compare for a buffer of 1 MiB.
    least = 2 * ((64 << 20) + 4 * (1 << 20))
    wanted = Settings(ranks=2, bytes=[4, 1 << 20])
    monkeypatch.setattr(
        "collectives.bench.psutil.virtual_memory", lambda: SimpleNamespace(total=least)
    )
    check_here([wanted])
    monkeypatch.setattr(
        "collectives.bench.psutil.virtual_memory", lambda: SimpleNamespace(total=least - 1)
    )
    check_here([wanted.model_copy(update={"where": "slurm"})])
    with pytest.raises(
        ValueError, match="2 ranks and their buffers on this machine: got 136 MiB, expected 136 MiB"
    ):
        check_here([wanted])


@given(
    p=st.integers(1, 200),
    n=st.integers(1, 50),
    op=st.sampled_from(OPS),
    name=st.sampled_from(list(DTYPES)),
)
def test_data_stay_exact_in_every_order(p: int, n: int, op: str, name: str) -> None:
    exact = DTYPES[name][1]
    x = np.stack([values(rank, n, op, p, exact) for rank in range(p)])
    total = reduced(n, op, p, exact)
    plain = {"prod": np.prod, "max": np.max, "min": np.min}.get(op, np.sum)(x, axis=0)
    assert total.tolist() == plain.tolist()
    assert np.abs(x).sum(axis=0).max() <= exact or op not in ("sum", "avg")
    assert np.abs(total).max() <= exact


@given(
    p=st.integers(1, 5),
    first=st.integers(0, 2 * BLOCK),
    n=st.integers(0, 2 * BLOCK),
    op=st.sampled_from(OPS),
)
def test_a_part_of_the_data_is_a_part_of_the_whole(p: int, first: int, n: int, op: str) -> None:
    exact, whole = DTYPES["float32"][1], slice(first, first + n)
    assert np.array_equal(reduced(n, op, p, exact, first), reduced(first + n, op, p, exact)[whole])
    assert np.array_equal(
        values(p, n, op, p, exact, first), values(p, first + n, op, p, exact)[whole]
    )


@pytest.mark.parametrize("op", OPS)
def test_data_tell_ranks_and_elements_apart(op: str) -> None:
    """Counting a rank twice while dropping another, or moving an element, changes most results."""
    p, n, exact = 4, 4096, DTYPES["float32"][1]
    x = [values(rank, n, op, p, exact) for rank in range(p)]
    plain = {"prod": np.prod, "max": np.max, "min": np.min}.get(op, np.sum)
    right = plain(np.stack(x), axis=0)
    twice = plain(np.stack([x[0], x[0], x[2], x[3]]), axis=0)
    moved = plain(np.stack([x[0], np.roll(x[1], 1), x[2], x[3]]), axis=0)
    for wrong in (twice, moved):
        assert (wrong != right).mean() > 0.2


@pytest.mark.parametrize("n", range(1, 60))
def test_the_interval_covers_the_median_as_often_as_it_says(n: int) -> None:
    x = [float(i) for i in range(n)]
    low, median, high = median_interval(x)
    assert median == np.median(x)
    assert low + high == n - 1  # as far in from either end
    outside = 2 * sum(math.comb(n, i) for i in range(int(low) + 1)) / 2**n
    further_in = outside + 2 * math.comb(n, int(low) + 1) / 2**n
    assert outside <= 0.05 or n < 6
    assert further_in > 0.05
    assert covered(n) == pytest.approx(1 - outside)


@pytest.mark.integration
@pytest.mark.parametrize("ranks", each(["1 2 3 5", "4 8"], few=["1 2 3 5"]))
def test_rows_of_algorithms_and_back_ends_on_1_to_8_ranks(capsys: Capture, ranks: str) -> None:
    words = "bench all_reduce ring two_tree recursive_doubling --backend p2p gloo"
    sizes = f"--ranks {ranks} --bytes 0 4 4K --repetitions 7 --json"
    code, out, err = run(capsys, *words.split(), *sizes.split())
    assert code == 0, err
    rows = [json.loads(line) for line in out.splitlines()]
    assert len(rows) == len(ranks.split()) * 3 * 4
    for row in rows:
        assert set(row) == ROW
        assert row["wrong"] == 0
        assert len(row["samples"]) == 7
        assert row["low_us"] <= row["median_us"] <= row["high_us"]
        assert row["busbw"] == pytest.approx(row["algbw"] * 2 * (row["ranks"] - 1) / row["ranks"])
    assert "measured, 3 of 3" in err


@pytest.mark.integration
def test_rows_of_the_other_collectives(capsys: Capture) -> None:
    collectives = [name for name in CONTRACTS if name != "all_reduce"]
    words = f"bench {' '.join(collectives)} --backend p2p gloo -p 3 --bytes 4K --json"
    _, out, err = run(capsys, *words.split())
    rows = [json.loads(line) for line in out.splitlines()]
    for row in rows:
        parts = 1 if row["collective"] in ("broadcast", "reduce") else 3
        assert row["bytes"] == 4096 - 4096 % (4 * parts)
        assert row["count"] == 1024 // parts
        assert row["wrong"] == 0
        assert row["transport"] == (TRANSPORT if row["backend"] == "p2p" else None)
    expected = [(name, backend) for name in collectives for backend in ("p2p", "gloo")]
    assert [(row["collective"], row["backend"]) for row in rows] == expected, err


@pytest.mark.integration
@pytest.mark.parametrize("p", [1, 3])
def test_rows_of_ragged_sizes(p: int) -> None:
    """Every collective, with a number of elements that is no multiple of the ranks."""
    once = {"ranks": p, "backends": ["p2p"], "bytes": [0, 4, 4004], "repetitions": 2, "warmups": 1}
    rows = measured(
        [Settings(collective=collective, root=p - 1, **once) for collective in CONTRACTS]
    ).rows
    assert {(row["backend"], row["where"], row["ranks"], row["wrong"]) for row in rows} == {
        ("p2p", "loopback", p, 0)
    }
    assert [row["collective"] for row in rows[::3]] == list(CONTRACTS)
    assert all(row["segments"] >= 1 and row["auto"] for row in rows)


@pytest.mark.integration
def test_rows_in_and_out_of_place() -> None:
    """Buffers that are one, or of which one is a part of the other, give the same right results as two buffers."""
    once = {
        "ranks": 3,
        "backends": ["p2p", "gloo"],
        "bytes": [0, 12, 4092],
        "repetitions": 2,
        "warmups": 1,
    }
    asked = [
        (name, place)
        for name in CONTRACTS
        for place in (True, False)
        if (name, place) != ("all_to_all", True)
    ]
    roots = dict.fromkeys(ROOTED, 1)
    wanted = [
        Settings(collective=name, in_place=place, root=roots.get(name, 0), **once)
        for name, place in asked
    ]
    rows = measured(wanted).rows
    assert [(row["collective"], row["in_place"]) for row in rows[:: 2 * 3]] == asked
    assert [row for row in rows if row["wrong"]] == []


@pytest.mark.integration
def test_rows_of_calls_back_to_back_are_told_from_others(capsys: Capture) -> None:
    """Each back end has ranks of its own, so that its rows come together."""
    words = f"bench {' '.join(CONTRACTS)} --backend p2p gloo -p 3 --bytes 12 4K --json"
    code, out, err = run(capsys, *words.split(), "--back-to-back", "--repetitions", "30")
    assert code == 0, err
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["backend"] for row in rows] == ["p2p"] * 2 * len(CONTRACTS) + ["gloo"] * 2 * len(
        CONTRACTS
    )
    assert {
        (row["timing"], row["persistent"], len(row["samples"]), row["wrong"]) for row in rows
    } == {("back_to_back", False, 30, 0)}
    assert "2 launches, one after the other: p2p; gloo" in err


def test_more_calls_are_made_back_to_back_unless_the_settings_say_how_many() -> None:
    few, many = Settings(), Settings(back_to_back=True)
    assert [(each.repetitions, each.warmups) for each in (few, many)] == [(20, 3), (200, 20)]
    assert Settings(back_to_back=True, repetitions=5).repetitions == 5
    assert Settings(**many.model_dump()) == many


@pytest.mark.integration
def test_a_row_names_the_slowest_rank() -> None:
    """Rank 1 says a second more than it took (tests/ranks/slow_rank.py)."""
    settings = Settings(ranks=3, algorithms=["ring"], bytes=[4], repetitions=3, warmups=0)
    events = launch("slow_rank", {"measure": [settings.model_dump()]}, 3, timeout=PATIENCE)
    ((row,),) = (event["rows"] for event in events if "rows" in event)
    assert row["slowest_rank"] == 1
    assert row["low_us"] > 1e6


@pytest.mark.integration
@pytest.mark.parametrize(
    ("dtype", "op"), [("bfloat16", "avg"), ("int64", "prod"), ("float16", "min")]
)
def test_rows_of_other_dtypes_and_ops(capsys: Capture, dtype: str, op: str) -> None:
    words = f"bench all_reduce two_tree -p 3 --dtype {dtype} --op {op} --bytes 1K --json"
    _, out, err = run(capsys, *words.split())
    assert [json.loads(line)["wrong"] for line in out.splitlines()] == [0], err


@pytest.mark.integration
def test_a_wrong_result_is_counted() -> None:
    """A ring whose last step is dropped (tests/ranks/faulty.py) gives rows with wrong elements."""
    settings = Settings(
        ranks=4, algorithms=["ring", "tree"], bytes=[4096], repetitions=5, warmups=1
    )
    events = launch("faulty", {"measure": [settings.model_dump()]}, 4, timeout=PATIENCE)
    wrong = {row["algorithm"]: row["wrong"] for event in events for row in event.get("rows", [])}
    assert wrong["tree"] == 0
    # Each rank misses one chunk of 256 elements in each of 6 calls.
    assert wrong["ring"] > 4 * 6 * 200
    once = settings.model_copy(update={"back_to_back": True})
    events = launch("faulty", {"measure": [once.model_dump()]}, 4, timeout=PATIENCE)
    wrong = {row["algorithm"]: row["wrong"] for event in events for row in event.get("rows", [])}
    assert wrong["tree"] == 0
    assert 4 * 200 < wrong["ring"] <= 4 * 256  # in the one call that is checked


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--bytes 64Q", "invalid size '64Q'; expected for example 4, 64K, 1M or 2G"),
        ("--ranks none", "got 'none', expected a whole number from 0"),
        ("--backend p2p mpi:rnig", "unknown algorithm 'mpi:rnig'"),
        ("--persistent --backend mpi gloo", "collectives: gloo has no persistent collectives; "),
        ("--timeout 0", "--timeout: got '0', expected seconds: above 0, at most 604800"),
    ],
)
def test_bad_arguments_are_refused_before_anything_runs(
    capsys: Capture, arguments: str, message: str
) -> None:
    code, out, err = run(capsys, "bench", *arguments.split())
    assert code == 2
    assert out == ""
    assert message in err
