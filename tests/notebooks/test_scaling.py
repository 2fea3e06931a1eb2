"""The experiment ``scaling``: what is measured, what auto chooses by, its figures and the goals, on made-up rows."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from collectives.algorithms import build
from collectives.autotune import choose
from collectives.bench import Settings
from collectives.bench.results import write
from collectives.machine import Link, Machine, machine
from collectives.simulator.simulation import simulate
from collectives_book.scaling import experiment, figures, targets
from collectives_book.scaling.experiment import Scaling

WHERE = "cluster:5ms,25MB/s"
GOOD: dict[str, Any] = {
    "hosts": [2, 4],
    "latency": "5ms",
    "rate": "25MB/s",
    "slower": 4,
    "sizes": [4, "1M"],
    "algorithms": ["ring", "two_tree"],
    "backends": ["gloo", "mpi"],
    "selectable": ["mpi:ring"],
    "repetitions": 2,
    "output": "somewhere/scaling",
}


def test_what_is_measured_where() -> None:
    plain, full, slower = Scaling(**GOOD).measurements()
    assert (plain.ranks, plain.backends, plain.algorithms) == (
        2,
        ["p2p", "gloo", "mpi"],
        ["auto", "ring", "two_tree"],
    )
    assert (full.ranks, full.backends[-1], full.where) == (4, "mpi:ring", WHERE)
    assert (slower.ranks, slower.backends, slower.algorithms) == (4, ["p2p"], ["auto"])
    assert slower.where == "cluster:20ms,6.25MB/s"
    assert len(Scaling(**GOOD | {"slower": 1}).measurements()) == 2


def test_ours_over_nccl_takes_the_place_of_ours() -> None:
    plain, full, slower = Scaling(
        **GOOD | {"backends": ["nccl", "p2p_nccl"], "selectable": ["nccl:Tree"]}
    ).measurements()
    assert [each.backends for each in (plain, slower)] == [["p2p_nccl", "nccl"], ["p2p_nccl"]]
    assert full.backends == ["p2p_nccl", "nccl", "nccl:Tree"]


@pytest.mark.parametrize(
    ("latency", "rate", "deeper"),
    [
        ("100us", "25MB/s", "400us,6.25MB/s"),
        ("300\u00b5s", "300KB/s", "1.2ms,75KB/s"),
        ("123.4567us", "1GB/s", "493.827us,250MB/s"),
    ],
)
def test_links_of_less_than_a_millisecond_can_be_slowed_down(
    latency: str, rate: str, deeper: str
) -> None:
    *_, slower = Scaling(**GOOD | {"latency": latency, "rate": rate}).measurements()
    assert slower.where == f"cluster:{deeper}"


def rows() -> list[dict[str, Any]]:
    """Ours, half as fast as simulated.

    Gloo ten times as slow as auto, Open MPI twice, its ring as fast as auto.
    """
    on, made = machine("5ms,25MB/s"), []

    def row(
        ranks: int, backend: str, algorithm: str, nbytes: int, us: float, auto: bool = False
    ) -> None:
        own = {
            "where": WHERE,
            "ranks": ranks,
            "backend": backend,
            "algorithm": algorithm,
            "bytes": nbytes,
        }
        times = {
            "median_us": us,
            "low_us": 0.9 * us,
            "high_us": 1.1 * us,
            "busbw": 1.75 * nbytes / us / 1e3,
        }
        segments = {"segments": 1 if backend == "p2p" else None}
        made.append(
            {"collective": "all_reduce", "error": None, "wrong": 0, "auto": auto}
            | own
            | times
            | segments
        )

    for ranks in (4, 8):
        for nbytes in (4, 1 << 20):
            law = (
                simulate(build("all_reduce", "recursive_doubling", ranks), on, nbytes).seconds * 1e6
            )
            for auto in (True, False):
                row(ranks, "p2p", "recursive_doubling", nbytes, 2 * law, auto)
            row(ranks, "gloo", "default", nbytes, 20 * law)
            row(ranks, "mpi", "default", nbytes, 4 * law)
            row(ranks, "mpi", "ring", nbytes, 2 * law)
            row(ranks, "nccl", "Tree", nbytes, 6 * law)
    return made


@pytest.fixture
def stem(tmp_path: Path) -> str:
    stem = str(tmp_path / "scaling")
    Path(f"{stem}.5ms,25MB-per-s.yaml").write_text(
        f"name: {WHERE}\nnetwork: {{latency: 5ms, overhead: 0us, rate: 25MB/s}}\n"
    )
    write(stem, rows(), {})
    return stem


def test_rows_are_held_against_the_simulator_and_the_libraries(stem: str) -> None:
    found, _ = experiment.results(stem)
    table = targets.ratios(found)
    assert table.index.tolist() == [4, 1 << 20]
    for column, ratio in {
        "gloo, Horovod": 10,
        "Open MPI": 2,
        "its best": 1,
        "NCCL": 3,
        "model": 2,
    }.items():
        assert table[column].tolist() == pytest.approx([ratio] * 2), column
    assert "4× slower" not in table
    # Ms on a link; at least one latency of 5 ms, at least 1.75 buffers through each port.
    buffer = (1 << 20) / 25e3
    assert table.bound.tolist() == pytest.approx(
        [2 * 3 * 5 / 5, 2 * 3 * (5 + buffer) / (1.75 * buffer)], rel=1e-3
    )
    assert {*targets.deviations(found).off.round(9)} == {1.0}
    assert targets.deviations(found[found.ranks == 4]).empty, "many hosts only"


def test_where_two_trees_win_a_tie_is_none() -> None:
    """Milliseconds at 4, 8, 16 and 32 B, with intervals of a tenth on either side."""
    made = [
        {
            "algorithm": name,
            "bytes": 4 << nth,
            "low_us": 900 * ms,
            "median_us": 1000 * ms,
            "high_us": 1100 * ms,
        }
        for name, times in {"two_tree": (1, 1, 2, 1), "chain": (2, 4, 1, 1.1)}.items()
        for nth, ms in enumerate(times)
    ]
    assert [size for size, _, _ in figures.two_trees_won(pd.DataFrame(made))] == [4, 8]


def test_auto_goes_by_the_machine_and_by_nothing_else() -> None:
    fast, slow = machine("1us,1MB/s"), machine("1s,1GB/s")
    assert choose("all_reduce", 32, 1 << 16, on=fast).algorithm == "segmented_ring"
    assert choose("all_reduce", 32, 1 << 16, on=slow).algorithm == "reduce_broadcast"
    assert choose("all_reduce", 32, 1 << 16, "tree", 3, on=slow)[:2] == ("tree", 3)
    # A port that is free while a message is on its way is worth a second segment, one that is not
    # is not.
    free, busy = (
        Machine(name="a test", network=Link(**{of: 5e-3}, rate=25e6))
        for of in ("latency", "overhead")
    )
    assert choose("all_reduce", 32, 16 << 20, on=free)[:2] == ("segmented_ring", 2)
    assert choose("all_reduce", 32, 16 << 20, on=busy).algorithm == "halving_doubling"
    # While latencies are long, one rank that does all may; not where its own work on many messages
    # takes longer.
    assert [choose("all_reduce", p, 4, on=free).algorithm for p in (4, 8, 32)] == [
        "recursive_doubling",
        "reduce_broadcast",
        "reduce_broadcast",
    ]
    assert choose("all_reduce", 32, 4, on=busy).algorithm == "recursive_doubling"
    assert choose("all_reduce", 32, 4, on=machine("5us,25GB/s")).algorithm == "recursive_doubling"
    assert [choose("gather", 8, 4, on=on).algorithm for on in (free, busy)] == ["flat", "binomial"]
    with pytest.raises(ValueError, match="unknown machine 'sumit': did you mean 'summit'"):
        Settings(machine="sumit")
    assert Settings(where=WHERE).variables() == {"COLLECTIVES_MACHINE": "5ms,25MB/s"}
    assert Settings(where=WHERE, machine="summit").variables() == {"COLLECTIVES_MACHINE": "summit"}
    assert Settings().variables() == {}
