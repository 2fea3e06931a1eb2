"""The experiment about one slow link: its points on real emulated hosts, its table and its recorded rows."""

import os
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from collectives.algorithms import build
from collectives.emulator import Cluster
from collectives.machine import Link
from collectives.simulator.simulation import simulate
from collectives_book.straggler import figures
from collectives_book.straggler.experiment import Straggler

GOOD: dict[str, Any] = {
    "hosts": 2,
    "latency": "1ms",
    "rate": "100MB/s",
    "slow_host": 1,
    "factors": [1, 8],
    "positions": [0, 1],
    "position_factor": 8,
    "sizes": ["64K"],
    "algorithms": ["ring", "tree"],
    "repetitions": 1,
    "output": "out/rows",
}


@pytest.mark.integration
def test_each_point_is_measured_while_that_link_alone_is_slow(
    allowed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    rates: dict[int, str] = {}
    rates_of_points, change = [], Cluster.set

    def changed(self: Cluster, host: int, **how: str) -> None:
        change(self, host, **how)
        rates[host] = how["rate"]
        if host == self.hosts - 1:
            rates_of_points.append(dict(rates))

    monkeypatch.setattr(Cluster, "set", changed)
    asked = Straggler(**GOOD | {"output": str(tmp_path / "rows")})
    rows, record = asked.run()
    slow = "12.5MB/s"
    assert rates_of_points == [
        {0: "100MB/s", 1: "100MB/s"},
        {0: "100MB/s", 1: slow},
        {0: slow, 1: "100MB/s"},
    ]
    points = [(1, 1), (1, 8), (0, 8)]
    assert asked.points() == points
    expected = [(*point, algorithm) for point in points for algorithm in GOOD["algorithms"]]
    assert list(zip(rows.slow_host, rows.factor, rows.algorithm, strict=True)) == expected
    assert rows.wrong.sum() == 0
    assert len(record["environment"]) == 2


def rows() -> Any:
    """Rows of 8 hosts as the simulator would have measured them."""
    asked = Straggler(**GOOD | {"hosts": 8, "positions": [0, 4]})
    made = []
    for slow, factor in asked.points():
        for algorithm in GOOD["algorithms"]:
            took = simulate(build("all_reduce", algorithm, 8), asked.machine(slow, factor), 1 << 20).seconds * 1e6
            row = {"slow_host": slow, "factor": factor, "algorithm": algorithm, "bytes": 1 << 20, "ranks": 8}
            made.append(row | dict.fromkeys(("median_us", "low_us", "high_us", "simulated_us"), took))
    return pd.DataFrame(made)


def test_the_table_has_the_rows_numbers() -> None:
    table = rows()
    ring = table[(table.algorithm == "ring") & (table.slow_host == 1)].median_us.tolist()
    ratios = figures.as_if_all_were_slow(table, Link(latency=1e-3, rate=100e6))
    assert ratios.index.tolist() == ["1 MiB, 1×", "1 MiB, 8×"]
    assert ratios.ring.tolist() == [1.0, round(ring[1] * 1e-6 / (14 * (1e-3 + 8 * (1 << 17) / 100e6)), 2)]
    assert ratios.ring.iloc[1] < 1
