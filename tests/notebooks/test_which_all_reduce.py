"""The rule for choosing an all-reduce, and the map of the fastest: no candidate is faster."""

import pytest

from collectives.algorithms import candidates, executable, names
from collectives.machine import machine
from collectives.simulator.scaling import column
from collectives_book import which_all_reduce as which

SIZES = (8, 64 << 10, 16 << 20)


@pytest.mark.parametrize(
    ("name", "p", "n", "picked"),
    [
        ("dgx-h100", 64, 8, "recursive_doubling"),
        ("dgx-h100", 64, 256 << 20, "multi_channel_tree"),
        ("summit", 48, 256 << 20, "hierarchical_tree"),  # the ranks of a node share a port
        ("dgx-h100", 512, 1 << 20, "halving_doubling"),  # parts of 2 KiB are too small
        ("ethernet", 64, 8, "recursive_doubling"),
        ("ethernet", 8, 8, "one_shot"),
        ("ethernet", 7, 256 << 20, "swing"),
    ],
)
def test_the_rule_asks_three_questions(name: str, p: int, n: int, picked: str) -> None:
    assert which.rule(machine(name), p, n) == picked


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
    drawn = column(SIZES, candidates(collective), (machine(on), p), collective)
    for n in SIZES:
        best = which.best({each["algorithm"]: each for each in drawn if each["bytes"] == n})
        times = {name: which.seconds(on, collective, name, p, n) for name in candidates(collective)}
        assert times[best] <= 1.01 * min(times.values()), (n, times)
        assert best in names(collective, executable())


def test_of_nearly_equal_times_the_fewest_messages_count() -> None:
    field = {
        "a": {"seconds": 1.0, "messages": 9},
        "b": {"seconds": 1.005, "messages": 3},
        "c": {"seconds": 2.0, "messages": 1},
    }
    assert which.best(field) == "b"
