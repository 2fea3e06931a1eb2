"""The experiment about one slow link: its points on real emulated hosts, and its table."""

import os
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from collectives.emulator import Cluster
from collectives.machine import Link
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


def test_the_table_has_the_rows_numbers() -> None:
    """A ring of 8 hosts that are all as slow takes 14 · (1 ms + n / 8 / their rate)."""
    part, row = (
        (1 << 20) / 8 / 100e6,
        {"slow_host": 1, "algorithm": "ring", "bytes": 1 << 20, "ranks": 8},
    )
    made = [
        row | {"factor": factor, "median_us": 14e6 * share * (1e-3 + factor * part)}
        for factor, share in ((1, 1), (8, 0.6))
    ]
    ratios = figures.as_if_all_were_slow(pd.DataFrame(made), Link(latency=1e-3, rate=100e6))
    assert ratios.ring.to_dict() == {"1 MiB, 1×": 1.0, "1 MiB, 8×": 0.6}
