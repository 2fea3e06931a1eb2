"""The explorer's data are the library's closed forms, read back by the documented rule.

Tests/book has the page.
"""

import json
from math import isclose
from typing import Any

import numpy as np
import pytest

from collectives.algorithms import ALGORITHMS, COSTS, PIPELINES, names
from collectives.core.bounds import Pipeline, lower_bound
from collectives.figures.explorer import PRESETS, RANKS, explorer, explorer_data
from collectives.machine import machine

DATA = explorer_data(explorer())
FORMS = {each["name"]: each for each in DATA["algorithms"]}


def test_the_table_decides_which_algorithms_there_are() -> None:
    formed = [name for name in names("all_reduce") if {("all_reduce", name)} & {*COSTS, *PIPELINES}]
    # Latencies of a segmented ring overlap.
    assert list(FORMS) == [name for name in formed if name != "segmented_ring"]


def test_presets_have_the_links_of_their_machines_and_every_slider_offers_their_values() -> None:
    named = {"8 H100": "h100", "64 H100": "h100", "NVL72": "gb200-nvl72"}
    for preset in PRESETS:
        on = machine(named.get(preset.said, "ethernet"))
        few_bytes = on.protocols_for("ring", 1)[0]
        is_one_node = preset.p == on.ranks_per_node
        small, link = few_bytes.network, on.network
        if is_one_node:
            assert few_bytes.inside is not None
            assert on.inside is not None
            small, link = few_bytes.inside, on.inside
        assert preset.alpha == pytest.approx(small.latency + small.overhead)
        assert preset.rate == link.rate
        for name in ("p", "alpha", "rate", "ranks_per_node"):
            assert getattr(preset, name) in DATA[name]


def test_a_switch_that_adds_is_hidden_at_first_and_shown_where_one_joins_all_ranks() -> None:
    assert DATA["hidden"] == [
        name for name in FORMS if not ALGORITHMS["all_reduce", name].is_executable
    ]
    assert [preset.said for preset in PRESETS if preset.adds] == ["8 H100", "NVL72"]
    assert "in network" not in explorer().sentence()


@pytest.mark.parametrize("name", FORMS)
def test_coefficients_are_those_of_the_closed_form(name: str) -> None:
    known, form = ALGORITHMS["all_reduce", name], FORMS[name]
    for at, p in enumerate(DATA["p"]):
        if "pipeline" in form:
            assert Pipeline(*form["pipeline"][at]) == PIPELINES["all_reduce", name](p)
        if "cost" in form:
            assert read(form["cost"][at], p) == pytest.approx(
                COSTS["all_reduce", name](p), rel=1e-12
            )
        for g, rows in form.get("nodes", {}).items():
            assert known.cost is not None
            assert known.inside is not None
            if p % g or p <= g:
                assert rows[at] == 0
            else:
                outside, inside = (np.array(read(rows[at][i : i + 3], p)) for i in (0, 3))
                assert inside == pytest.approx(known.inside(p, g), rel=1e-12)
                assert outside + inside == pytest.approx(known.cost(p, g), rel=1e-12)


def read(counts: list[float], p: int) -> tuple[float, float, float]:
    steps, sent, added = counts
    return steps, sent / p, added / p


def test_the_longest_of_three_terms_is_the_bound() -> None:
    for at, p in enumerate(DATA["p"]):
        steps, sent, added = read(DATA["bound"][at], p)
        for n, gamma in ((8, 0.0), (1 << 20, 0.0), (1 << 34, 1e-9)):
            terms = (steps * 5e-6, sent * n * 4e-11, added * n * gamma)
            assert isclose(
                max(terms), lower_bound("all_reduce", p, n, 5e-6, 4e-11, gamma), rel_tol=1e-12
            )


def test_sliders_offer_what_they_start_with() -> None:
    data = json.loads(
        json.dumps(
            explorer_data(explorer(40, 1_200_000_000, alpha=3e-6, rate=6e9, ranks_per_node=5))
        )
    )
    assert data["at"] == {
        "p": 40,
        "n": 1_200_000_000,
        "alpha": 3e-6,
        "rate": 6e9,
        "adding": None,
        "ranks_per_node": 5,
    }
    for name, value in data["at"].items():
        assert value in data[name]
        numbers = [each for each in data[name] if each is not None]
        assert numbers == sorted(set(numbers))
    assert (data["p"][0], data["p"][-1], data["n"][0], data["n"][-1]) == (2, 24_576, 8, 1 << 34)
    ring = next(each for each in data["algorithms"] if each["name"] == "hierarchical_ring")[
        "nodes"
    ]["5"]
    assert [data["p"][at] for at, row in enumerate(ring) if row] == [
        p for p in RANKS if p % 5 == 0 and p > 5
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"p": 1}, "p: got 1, expected 2 to 24,576"),
        ({"n": 4}, "n: got 4, expected 8 to 17,179,869,184"),
        ({"alpha": 0.0}, "alpha: got 0.0, expected 1e-07 to 0.01"),
        ({"ranks_per_node": 32}, "ranks_per_node: got 32, expected 1 to 16"),
    ],
)
def test_a_value_outside_a_slider_fails_the_page(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        explorer(**options)
