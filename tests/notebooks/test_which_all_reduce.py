"""The rule for choosing an all-reduce, its losses, and what busbw can show, on machines and rows made here."""

import pandas as pd
import pytest

from collectives.algorithms import ALGORITHMS
from collectives.machine import machine
from collectives_book import which_all_reduce as which

# By size, seconds of two algorithms on 16 ranks, with a known fastest one.
FIELD = {n: {"ring": 4.0, "recursive_doubling": 1.0, "hierarchical_ring": 2.0, "optimal": 3.0} for n in which.SIZES}


@pytest.mark.parametrize(
    ("name", "p", "n", "picked"),
    [
        ("dgx-h100", 64, 8, "recursive_doubling"),
        ("dgx-h100", 64, 256 << 20, "hierarchical_ring"),
        ("dgx-h100", 512, 1 << 20, "optimal"),  # parts of 2 KiB are too small
        ("ethernet", 64, 8, "recursive_doubling"),
        ("ethernet", 7, 256 << 20, "optimal"),
    ],
)
def test_the_rule_asks_three_questions(name: str, p: int, n: int, picked: str) -> None:
    assert which.rule(machine(name), p, n) == picked


def test_a_regret_is_the_time_over_the_least() -> None:
    times = {"dgx-h100": {16: FIELD}}
    assert which.regrets(times, "dgx-h100", lambda *_: "ring") == [4.0] * len(which.SIZES)
    picked = {which.rule(machine("dgx-h100"), 16, n): n for n in which.SIZES}
    assert sorted(set(which.regrets(times, "dgx-h100", which.rule))) == sorted(
        FIELD[n][name] for name, n in picked.items()
    )
    table = which.compared(times)
    assert table["dgx-h100"]["always optimal"] == "3.00, at worst 3.0"
    assert which.panels(times)[0].names[8] == ["recursive_doubling"]


def test_a_loss_is_the_measured_time_of_the_picked_algorithm_over_the_least() -> None:
    rows = pd.DataFrame(
        {
            "ranks": [16, 16, 16],
            "bytes": [32, 32, 1 << 30],
            "algorithm": ["recursive_doubling", "ring", "ring"],
            "median_us": [30.0, 20.0, 1.0],
        }
    )
    assert which.losses("lumi", rows) == [
        {"pick": "recursive_doubling", "times": 1.5, "better": "ring", "ranks": 16, "bytes": 32}
    ]


def test_what_busbw_can_show() -> None:
    assert which.visible("ring", 7) == which.visible("optimal", 7) == which.visible("halving_doubling", 64) == 1
    assert which.visible("two_tree", 64) == pytest.approx(2 * 63 / 64 / 2)
    assert which.busiest(ALGORITHMS["all_reduce", "root"](8)) == 7


def test_what_leaves_a_node() -> None:
    assert which.leaving(ALGORITHMS["all_reduce", "ring"](16), 8) == pytest.approx(2 * 15 / 16)
    assert which.leaving(ALGORITHMS["all_reduce", "hierarchical_ring"](32, ranks_per_node=8), 8) == pytest.approx(1.5)
    assert which.leaving(ALGORITHMS["all_reduce", "ring"](8), 8) == 0


def test_a_call_names_the_fastest_algorithms_and_the_plain_one_s_loss() -> None:
    call = which._call("all_reduce", 8, 4)
    assert call["calls"] == "all-reduce on 8"
    assert call["bytes"] == "4 B"
    assert "hierarchical" not in call["fastest"]
    assert call["plain"] > 1
