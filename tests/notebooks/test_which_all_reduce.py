"""The rule for choosing an all-reduce, and the map of the fastest: no candidate is faster."""

import pytest

from collectives import verify
from collectives.algorithms import build, candidates, executable, names
from collectives.algorithms.levels import is_plan
from collectives.machine import machine
from collectives.simulator.scaling import column
from collectives_book import which_all_reduce as which

SIZES = (8, 64 << 10, 16 << 20)


@pytest.mark.parametrize(
    ("name", "p", "n", "picked"),
    [
        ("dgx-h100", 64, 8, "one_shot8/one_shot2/one_shot4"),
        ("dgx-h100", 64, 256 << 20, "direct8/ring8*2"),
        ("dgx-h100", 512, 1 << 20, "direct8/direct4/direct4/one_shot4"),  # parts of 2 KiB are small
        ("dgx-h100", 4, 256 << 20, "direct4"),  # a part of a node
        ("summit", 24, 8 << 10, "direct6/one_shot4"),  # six ranks share a port: 48 KiB pass it
        ("ethernet", 64, 8, "one_shot4/one_shot4/one_shot4"),
        ("ethernet", 8, 8, "one_shot2/one_shot4"),
        ("ethernet", 7, 256 << 20, "direct7"),
    ],
)
def test_the_rule_asks_three_questions(name: str, p: int, n: int, picked: str) -> None:
    assert which.rule(machine(name), p, n) == picked


@pytest.mark.parametrize("p", [2, 3, 4, 6, 12, 18, 36, 48, 60, 62])
def test_what_the_rule_picks_is_an_all_reduce(p: int) -> None:
    """Also where ranks neither fill nodes of six nor are a part of one."""
    for n in (8, 64 << 10, 256 << 20):
        verify(build("all_reduce", which.rule(machine("summit"), p, n), p))


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
def test_no_candidate_beats_the_algorithm_that_the_map_names(
    on: str, collective: str, p: int
) -> None:
    """Also none of those that the map leaves out, because they take longer for fewer bytes."""
    where = machine(on)
    drawn = column(SIZES, candidates(collective), (where, p), collective)
    for n in SIZES:
        plans = which.fastest_by_plan(collective, p, n, where)
        here = [row for row in drawn if row["bytes"] == n] + plans
        times = {name: which.seconds(on, collective, name, p, n) for name in candidates(collective)}
        times |= {row["algorithm"]: row["seconds"] for row in plans}
        best = which.best({row["algorithm"]: row for row in here})
        assert times[best] <= 1.01 * min(times.values()), (n, times)
        assert is_plan(best) or best in names(collective, executable())


def test_of_nearly_equal_times_the_fewest_messages_count() -> None:
    field = {
        "a": {"seconds": 1.0, "messages": 9},
        "b": {"seconds": 1.005, "messages": 3},
        "c": {"seconds": 2.0, "messages": 1},
    }
    assert which.best(field) == "b"


def test_a_name_comes_before_a_plan_that_is_as_fast() -> None:
    field = {
        "direct8/one_shot2": {"seconds": 1.0, "messages": 3},
        "two_shot": {"seconds": 1.005, "messages": 9},
    }
    assert which.best(field) == "two_shot"
