"""NCCL on one GPU: its predictions follow its formulas, its cuts explain its times, and other rows are left out."""

from xml.etree import ElementTree

import pandas as pd
import pytest

from collectives.nccl.topology_file import topology_file
from collectives_book import nccl_formulas as nccl
from collectives_book import one_gpu
from places import ROOT

TRIAL = one_gpu.trial(ROOT / "experiments/results/reference/one-gpu/nccl-slow-motion.csv")


def predicted_us(algorithm: str, nbytes: int, hosts: int, bus: float) -> float:
    return (
        min(nccl.seconds(algorithm, each, nbytes, hosts, 1, bus) for each in ("LL", "Simple")) * 1e6
    )


@pytest.mark.parametrize(
    "row", [*TRIAL.itertuples()], ids=lambda row: f"{row.hosts}-{row.algorithm}-{row.bytes}"
)
def test_nccls_own_prediction_follows_its_formulas(row: pd.Series) -> None:
    names = ["ring", "tree"] if row.algorithm == "default" else [row.algorithm.lower()]
    bus = nccl.SLOW_PORT if row.topology_file is None else nccl.NO_PATH
    assert min(predicted_us(name, row.bytes, row.hosts, bus) for name in names) == pytest.approx(
        row.predicted_us, 1e-3
    )


def test_told_of_the_link_the_formula_names_the_faster_algorithm() -> None:
    """Describe the link as the launcher does.

    With the file of the trial NCCL chose the ring from 1 KiB on.
    """
    net = ElementTree.fromstring(topology_file(5e-3, 25e6, "eth0", {})).find(".//net").attrib
    link = {"latency": float(net["latency"]) * 1e-6, "rate": float(net["speed"]) / 8e-6}
    for nbytes, rows in one_gpu.rings_and_trees(TRIAL).groupby("bytes"):
        told = {
            name: min(
                nccl.seconds(name.lower(), each, nbytes, 8, 1, **link) for each in ("LL", "Simple")
            )
            for name in ("Ring", "Tree")
        }
        measured = rows.set_index("algorithm").median_us
        assert measured[min(told, key=told.get)] <= 1.01 * measured.min(), nbytes
    assert float(net["times_as_fast"]) * told["Ring"] == pytest.approx(0.491, 1e-3)


def test_a_ring_or_a_tree_cut_as_nccl_cuts_it_takes_what_was_measured() -> None:
    rows = pd.concat([one_gpu.rings_and_trees(TRIAL, hosts) for hosts in (8, 16)])
    points = rows[["algorithm", "where", "ranks", "bytes"]].itertuples(index=False)
    off = rows.median_us / [one_gpu.as_nccl_cuts_us(*point) for point in points] - 1
    assert (len(off), off.abs().max() < 0.1, off.abs().median() < 0.03) == (17, True, True)


@pytest.mark.parametrize(
    ("algorithm", "nbytes", "ranks", "channels", "expected"),
    [
        ("ring", 4, 8, 2, nccl.Cut(1, 1, 2)),
        ("ring", 64 << 10, 8, 2, nccl.Cut(2, 1, 2)),
        ("ring", 256 << 10, 8, 2, nccl.Cut(2, 1, 1)),
        ("ring", 4 << 20, 8, 2, nccl.Cut(2, 2, 1)),
        ("tree", 1 << 10, 8, 2, nccl.Cut(1, 1, 2)),
        ("tree", 4 << 20, 8, 2, nccl.Cut(2, 4, 1)),
        ("tree", 1 << 20, 16, 1, nccl.Cut(1, 2, 1)),
    ],
)
def test_nccl_cuts_a_buffer(
    algorithm: str, nbytes: int, ranks: int, channels: int, expected: nccl.Cut
) -> None:
    assert nccl.cut(algorithm, nbytes, ranks, channels) == expected


def test_rows_that_no_line_belongs_to_are_left_out() -> None:
    ring = TRIAL[TRIAL.algorithm == "Ring"].iloc[[0]]
    others: list[dict[str, object]] = [
        {"where": "loopback"},
        {"ranks": 16},
        {"topology_file": "5ms,25MB/s"},
    ]
    others += [{"backend": "p2p_nccl"}, {"algorithm": "default"}, {"where": "cluster:5ms,25MB/s,2"}]
    rows = pd.concat([ring, *(ring.assign(**other) for other in others)], ignore_index=True)
    assert one_gpu.rings_and_trees(rows).index.tolist() == [0]
    assert "no rows" in one_gpu.times(one_gpu.rings_and_trees(rows[1:])).alt


def test_where_a_ring_becomes_faster_lies_between_the_sizes_around_it() -> None:
    times = {
        ("Ring", 1): 8.0,
        ("Ring", 4): 8.0,
        ("Ring", 16): 8.0,
        ("Tree", 1): 2.0,
        ("Tree", 4): 4.0,
        ("Tree", 16): 16.0,
    }
    rows = pd.DataFrame(
        [(*key, us) for key, us in times.items()], columns=["algorithm", "bytes", "median_us"]
    )
    assert one_gpu.crossing(rows) == pytest.approx(8)
