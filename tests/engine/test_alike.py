"""Ranks that could choose or call differently: all choose alike, and what cannot be right is an error, never a sum."""

import re
from itertools import product
from typing import Any

import pytest

from collectives.algorithms import build, executable, names
from collectives.autotune import DEFAULT, STRAIGHT, choose
from collectives.bench import Settings, bench
from collectives.engine.program import is_straight
from collectives.launch import launch
from collectives.machine import machine, presets
from places import PATIENCE
from sweep import each

pytestmark = pytest.mark.integration

RANKS = (1, 2, 3, 5)


@pytest.fixture(scope="module", params=each(RANKS, few=[1, 3]))
def seen(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLLECTIVES_MACHINE", "textbook")
        settings = {"folder": str(tmp_path_factory.mktemp("machines"))}
        events = launch("alike_cases", settings, request.param, timeout=PATIENCE)
    assert all(len(event["seen"]) == request.param for event in events)
    return {event["case"]: event["seen"] for event in events}


@pytest.mark.parametrize(
    "case",
    [
        "splits_of_very_different_sizes",
        "splits_alike_on_one_rank_only",
        "splits_longer_than_a_block",
    ],
)
def test_an_all_to_all_with_any_splits_is_right(seen: dict[str, list[Any]], case: str) -> None:
    assert all(right is True for right in seen[case]), seen[case]


def test_what_is_chosen_does_not_depend_on_a_rank_s_own_splits(seen: dict[str, list[Any]]) -> None:
    assert {tuple(map(tuple, each)) for each in seen["what_splits_choose"]} == {
        (("direct", 1), ("direct", 1))
    }


def test_what_passes_on_pieces_is_refused_on_every_rank_alike(seen: dict[str, list[Any]]) -> None:
    said = seen["splits_with_an_algorithm_that_passes_on"]
    if len(said) <= 3:  # among so few nothing is passed on
        assert said == [True] * len(said)
    else:
        refused = (
            r"algorithm: got bruck, which passes on others' pieces, "
            r".* expected direct or pairwise with split sizes"
        )
        assert all(re.match(refused, each) for each in said)


@pytest.mark.parametrize("case", ["machines_named_differently", "files_of_different_content"])
def test_the_machine_of_rank_0_counts(seen: dict[str, list[Any]], case: str) -> None:
    found = seen[case]
    right = list(choose("all_reduce", len(found), 4 << 14, on=machine("1s,1GB/s"))[:2])
    assert found == [[right, right]] * len(found)


def test_a_machine_that_rank_0_has_not_is_an_error_on_every_rank(
    seen: dict[str, list[Any]],
) -> None:
    for said in seen["a_machine_that_is_not_there"]:
        assert all(
            each.startswith("COLLECTIVES_MACHINE on rank 0: unknown machine 'nosuch'")
            for each in said
        )


def test_two_threads_on_one_group_get_right_sums_or_an_error(seen: dict[str, list[Any]]) -> None:
    everything = [said for rank in seen["two_threads"] for thread in rank for said in thread]
    assert [said for said in everything if said.startswith("wrong")] == []
    if len(seen["two_threads"]) > 1:
        assert any(
            said.startswith("two threads use one process group at the same time")
            for said in everything
        )


def test_destroyed_groups_leave_no_descriptor_and_no_thread(seen: dict[str, list[Any]]) -> None:
    for before, after in seen["nothing_is_left"]:
        assert after == before


def test_with_splits_straight_algorithms_are_chosen_from_and_no_others() -> None:
    straight = [name for name in names("all_to_all") if is_straight(build("all_to_all", name, 5))]
    assert sorted(straight) == sorted(STRAIGHT)


@pytest.mark.parametrize(
    "collective", ["broadcast", "all_gather", "all_to_all", "reduce_scatter", "all_reduce"]
)
@pytest.mark.parametrize("p", each([1, 2, 3, 8, 13], few=[2, 13]))
def test_of_equal_times_the_first_in_the_table_is_taken(collective: str, p: int) -> None:
    order = names(collective).index
    for on, nbytes in product(map(machine, presets()), (0, 4, 1 << 12, 1 << 16, 1 << 24)):
        best = choose(collective, p, nbytes, on=on)
        for rival in names(collective, executable()):
            law = choose(collective, p, nbytes, rival, on=on)
            if law.seconds is not None and best.seconds is not None:
                assert law.seconds >= best.seconds * (1 - 1e-11)
                assert law.seconds > best.seconds * (1 + 1e-11) or order(rival) >= order(
                    best.algorithm
                )


def test_without_a_machine_the_law_is_that_of_the_default_one() -> None:
    for collective, nbytes in product(
        ("broadcast", "all_to_all", "all_reduce"), (4, 1 << 16, 1 << 24)
    ):
        assert choose(collective, 8, nbytes) == choose(collective, 8, nbytes, on=machine(DEFAULT))


def test_a_row_says_what_was_chosen() -> None:
    settings = Settings(
        ranks=2,
        algorithms=["auto"],
        bytes=[4, 1 << 16],
        repetitions=1,
        warmups=0,
        machine="1s,1GB/s",
    )
    rows = bench([settings]).rows
    for row in rows:
        chosen = choose("all_reduce", 2, row["bytes"], on=machine("1s,1GB/s"))
        assert (row["algorithm"], row["segments"], row["auto"]) == (*chosen[:2], True)
    assert len(rows) == 2
