"""The rule for choosing an all-reduce, its losses, and what busbw can show, on machines and rows made here."""

import pandas as pd
import pytest

from collectives.algorithms import ALGORITHMS, candidates, executable, names
from collectives.machine import machine
from collectives.simulator.scaling import Row, column
from collectives_book import which_all_reduce as which
from collectives_book.figures import kit

SIZES = (8, 64 << 10, 16 << 20)


@pytest.mark.parametrize(
    ("name", "p", "n", "picked"),
    [
        ("dgx-h100", 64, 8, "recursive_doubling"),
        ("dgx-h100", 64, 256 << 20, "multi_channel_tree"),
        ("summit", 48, 256 << 20, "hierarchical_tree"),  # the ranks of a node share a port
        ("dgx-h100", 512, 1 << 20, "halving_doubling"),  # parts of 2 KiB are too small
        ("ethernet", 64, 8, "recursive_doubling"),
        ("ethernet", 8, 8, "exchange"),
        ("ethernet", 7, 256 << 20, "swing"),
    ],
)
def test_the_rule_asks_three_questions(name: str, p: int, n: int, picked: str) -> None:
    assert which.rule(machine(name), p, n) == picked


def fields(on: str, collective: str, p: int) -> dict[int, dict[str, Row]]:
    found: dict[int, dict[str, Row]] = {n: {} for n in SIZES}
    for each in column(SIZES, candidates(collective), (machine(on), p), collective):
        found[each["bytes"]][each["algorithm"]] = each
    return found


def test_a_regret_is_the_time_over_the_least() -> None:
    times = {"ethernet": {6: fields("ethernet", "all_reduce", 6)}}
    least = [min(each["seconds"] for each in field.values()) for field in times["ethernet"][6].values()]
    ring = [which.seconds("ethernet", "all_reduce", "ring", 6, n) for n in SIZES]
    assert which.regrets(times, "ethernet", lambda *_: "ring") == [a / b for a, b in zip(ring, least, strict=True)]
    assert which.compared(times)["ethernet"]["always ring"].startswith("2.07")


@pytest.mark.integration  # seconds
@pytest.mark.parametrize(
    ("on", "collective", "p"),
    [
        ("dgx-h100", "all_reduce", 16),
        ("dgx-h100", "all_gather", 16),
        ("dgx-h100", "all_reduce", 8),
        ("summit", "all_reduce", 12),
        ("ethernet", "all_reduce", 6),
    ],
)
def test_no_candidate_beats_the_algorithm_that_the_map_names(on: str, collective: str, p: int) -> None:
    """Also none of those that the map leaves out, because they take longer for fewer bytes."""
    for n, field in fields(on, collective, p).items():
        times = {name: which.seconds(on, collective, name, p, n) for name in candidates(collective)}
        assert times[which.best(field)] <= 1.01 * min(times.values()), (n, times)
        assert which.best(field) in names(collective, executable())


def test_of_nearly_equal_times_the_fewest_messages_count() -> None:
    field = {
        "a": {"seconds": 1.0, "messages": 9},
        "b": {"seconds": 1.005, "messages": 3},
        "c": {"seconds": 2.0, "messages": 1},
    }
    assert which.best(field) == "b"


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


def test_a_different_winner_is_a_different_picture() -> None:
    field = {"title": "A machine", "ranks": 16, "bytes": 8}
    axes = kit.RANKS, kit.BYTES
    one, other, none = (
        kit.fields(pd.DataFrame([field | {"name": name}]), "ranks", "bytes", "name", axes, "Winners", facet="title")
        for name in ("ring", "optimal", "")
    )
    assert one.light != other.light
    assert none.light not in (one.light, other.light)
    assert one.alt == "Winners. A machine: ring in 1 of 1."


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
    assert call["fastest"] == "exchange"
    assert call["plain"] > 1
