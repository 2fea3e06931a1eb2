"""What was published, what NCCL expects, what we simulate: the accuracy that the chapter claims, and its figures."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from collectives.algorithms import candidates
from collectives.machine import machine
from collectives.simulator.scaling import Case, fastest, row, rows
from collectives_book import nccl_formulas as nccl
from collectives_book.experiment import ExperimentError
from collectives_book.massive_scale import figures, published
from collectives_book.massive_scale.experiment import MassiveScale

GOOD: dict[str, Any] = {
    "machine": "summit",
    "ranks": [12, 24],
    "algorithms": ["ring", "hierarchical_tree", "halving_doubling"],
    "small": 8,
    "large": "64K",
    "map_machines": ["summit", "dgx-h100"],
    "map_nodes": [2, 4],
    "map_sizes": [8, "1M"],
    "output": "out/rows",
}


def simulated(algorithm: str, ranks: int, nbytes: int) -> dict[str, Any]:
    summit = machine("summit")
    cut = nccl.segments(nbytes, 6, ranks // 6) if algorithm == "hierarchical_tree" else 1
    return row(Case("all_reduce", algorithm, ranks, nbytes, summit, cut))


POINTS = [
    *(("hierarchical_tree", point.ranks) for point in published.POINTS),
    *(("ring", point.ranks) for point in published.POINTS if point.ranks <= 3072),
]


@pytest.mark.integration
@pytest.mark.parametrize(("algorithm", "ranks"), POINTS)
def test_the_model_meets_the_published_points(algorithm: str, ranks: int) -> None:
    """Latency within 10%, bandwidth within 15%, as the chapter says."""
    both = [simulated(algorithm, ranks, nbytes) for nbytes in (published.SMALL, published.LARGE)]
    latency, bandwidth = published.compare(both)
    assert abs(latency["error"]) <= 0.10
    assert abs(bandwidth["error"]) <= 0.15


def test_the_ring_is_longer_by_so_much() -> None:
    """Two numbers of GPUs tell the ring's law.

    At 24,576 GPUs it gives the article's factor within 10%.
    """
    one, two = (simulated("ring", ranks, 8)["seconds"] for ranks in (384, 768))
    ring = one + (two - one) / 384 * (24576 - 384)
    tree = simulated("hierarchical_tree", 24576, 8)["seconds"]
    assert abs(ring / tree / published.IMPROVEMENT - 1) < 0.10


def test_trees_overtake_rings_where_the_article_says() -> None:
    ahead = {
        ranks: simulated("hierarchical_tree", ranks, 64 << 20)["busbw"]
        > simulated("ring", ranks, 64 << 20)["busbw"]
        for ranks in (96, 384)
    }
    assert ahead == {96: False, 384: True}


def test_published_points_are_those_of_the_figures() -> None:
    assert [point.ranks for point in published.POINTS] == [96, 384, 768, 3072, 24576]
    assert published.latencies("ring")[24576] / published.latencies("hierarchical_tree")[
        24576
    ] == pytest.approx(179, 1e-3)
    assert published.bandwidths("two_tree") == {}
    assert (
        list(published.compare([{"algorithm": "ring", "ranks": 192, "bytes": 8, "seconds": 1.0}]))
        == []
    )
    far = {"algorithm": "ring", "ranks": 96, "bytes": 64 << 20, "seconds": 1.0, "busbw": 19.07 / 2}
    assert [one["error"] for one in published.compare([far])] == [-0.5]
    assert list(published.compare([far | {"bytes": 64}])) == []


def test_nccls_formula_by_hand() -> None:
    """96 GPUs on 16 nodes of six: a ring has 160 hops inside and 30 outside, a tree 10 and 8."""
    rate, large = 20e9, 1 << 32  # beyond the corrections, and on the ring's plateau
    ring, tree = (14 + 160 * 1.9 + 30 * 4) / 1e6, (14 + 10 * 1.25 + 8 * 8.5) / 1e6
    assert nccl.seconds("ring", "LL128", 0, 96, 6, rate) == pytest.approx(ring)
    assert nccl.seconds("tree", "LL128", 0, 96, 6, rate) == pytest.approx(tree)
    assert nccl.seconds("ring", "Simple", large, 96, 6, rate) == pytest.approx(
        1.4 * (8.4 + 160 * 3.4 + 30 * 14) / 1e6 + large / rate * 190 / 96
    )
    assert nccl.seconds("tree", "Simple", large, 96, 6, rate) == pytest.approx(
        (8.4 + 10 * 4 + 8 * 14) / 1e6 + large / (rate * 0.92 / 2 * 0.85)
    )
    assert nccl.best("tree", 8, 96, 6, rate)[1] == "LL"


@pytest.mark.parametrize(
    ("n", "nodes", "expected"),
    # 6 GPUs a node: depth 10 for 16 nodes, 18 for 4,096; four channels of 512, 256, 128, 64 or 32
    # KiB
    [
        (64 << 20, 16, 128),
        (64 << 20, 4096, 128),
        (1 << 30, 16, 512),
        (4 << 20, 4096, 32),
        (1 << 20, 4096, 8),
        (0, 2, 1),
    ],
)
def test_nccl_cuts_into_chunks(n: int, nodes: int, expected: int) -> None:
    assert nccl.segments(n, 6, nodes) == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rnaks": [96]}, "unknown field 'rnaks': did you mean 'ranks'"),
        (
            {"ranks": [12, 13]},
            "ranks: got 13, expected a multiple of 6, the ranks of a node of summit",
        ),
        ({"ranks": []}, "ranks: List should have at least 1 item"),
        ({"ranks": 96}, "ranks: Input should be a valid list, got 96"),
        ({"machine": "sumit"}, "unknown machine 'sumit': did you mean 'summit'"),
        ({"machine": "mine.yaml"}, "there is no machine file mine.yaml"),
        ({"map_machines": ["dgx"]}, "unknown machine 'dgx'"),
        ({"algorithms": ["rnig"]}, "unknown algorithm 'rnig': did you mean 'ring'"),
        ({"map_algorithms": ["ring"]}, "unknown field 'map_algorithms'"),
        ({"large": "64Q"}, "invalid size '64Q'"),
        ({"map_sizes": [-8]}, "map_sizes.0: Input should be greater than or equal to 0, got -8"),
        ({"map_nodes": [1]}, "map_nodes.0: Input should be greater than or equal to 2, got 1"),
    ],
)
def test_wrong_parameters_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ExperimentError) as caught:
        MassiveScale.given(GOOD | given)
    assert message in str(caught.value)


@pytest.mark.integration
def test_the_notebook_simulates_and_writes(tmp_path: Path) -> None:
    found, record = MassiveScale.given(GOOD | {"output": str(tmp_path / "rows")}).run()
    figures, mapped = found[found.part == "figures"], found[found.part == "map"]
    assert len(figures) == 2 * 3 * 2
    assert set(mapped.machine) == {"summit", "dgx-h100"}
    assert set(mapped.algorithm) == {*candidates("all_reduce")}
    assert set(record["settings"][0]["machines"]) == {"summit", "dgx-h100"}
    assert len(fastest(mapped)) == 2 * 2 * 2
    assert record["settings"][0]["ranks"] == [12, 24]


@pytest.mark.integration
def test_no_candidate_beats_a_winner_of_the_map(tmp_path: Path) -> None:
    """Each winner is, to 1 %, the fastest of all all-reduces that ranks can run, and some simulations are saved."""
    fields = {
        "map_nodes": [2, 8],
        "map_sizes": [8, "256K", "32M"],
        "output": str(tmp_path / "rows"),
    }
    found = MassiveScale.given(GOOD | fields).run()[0]
    mapped, field = found[found.part == "map"], ["machine", "ranks", "bytes"]
    fields_of = [
        (name, machine(of), int(p), int(n))
        for of in GOOD["map_machines"]
        for name in candidates("all_reduce")
        for _, p, n in mapped[mapped.machine == of][field].drop_duplicates().itertuples(index=False)
    ]
    whole = pd.DataFrame(rows([Case("all_reduce", name, p, n, on) for name, on, p, n in fields_of]))
    named, least = fastest(mapped).set_index(field).seconds, whole.groupby(field).seconds.min()
    assert len(named) == 2 * 2 * 3
    assert {*named.index[named > 1.01 * least[named.index]]} == set()
    assert len(mapped) < len(whole)


def table(nbytes: int, on: str = "summit") -> pd.DataFrame:
    def one(algorithm: str, ranks: int, seconds: float) -> dict[str, Any]:
        return {
            "algorithm": algorithm,
            "machine": on,
            "ranks": ranks,
            "bytes": nbytes,
            "seconds": seconds,
            "busbw": 10 / seconds,
        }

    return pd.DataFrame(
        [
            one("ring", 96, 1.0),
            one("two_tree", 96, 2.0),
            one("ring", 192, 3.0),
            one("two_tree", 192, 2.5),
        ]
    )


def test_figures_say_what_is_simulated_and_what_is_published() -> None:
    latency, bandwidth = figures.latency(table(8)), figures.bandwidth(table(64 << 20))
    assert latency.alt.startswith(
        "Simulated all-reduce of 8 B on summit, time by GPUs, beside published points. "
    )
    assert (
        "ring from 1 s at 96 to 3 s at 192; two_tree from 2 s at 96 to 2.5 s at 192" in latency.alt
    )
    assert "ring from 10 at 96 to 3.33 at 192" in bandwidth.alt
    for picture in (latency, bandwidth):
        assert published.LABEL.encode() in picture.light
        assert picture.light != picture.dark


@pytest.mark.parametrize(("nbytes", "on"), [(8, "dgx-h100"), (16, "summit")])
def test_published_points_stand_only_beside_what_was_measured(nbytes: int, on: str) -> None:
    picture = figures.latency(table(nbytes, on))
    assert "published" not in picture.alt
    assert b"published" not in picture.light


def test_a_map_names_its_winners() -> None:
    best = fastest(pd.concat([table(8), table(64 << 20)]).reset_index(drop=True))
    assert figures.regime_map(best).alt.endswith("summit: ring in 2 of 4.")
    assert figures.regime_map(best) == figures.regime_map(best)
    two = figures.regime_map(
        fastest(pd.concat([table(8), table(8, "dgx-h100")]).reset_index(drop=True))
    )
    assert [on for on in ("summit: ", "dgx-h100: ") if two.alt.count(on) != 1] == []
