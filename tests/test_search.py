"""The search for the fastest plan: near the best of all plans, cheap, and only where plans apply."""

import itertools
from collections.abc import Iterator

import pytest

from collectives import search
from collectives.algorithms import build
from collectives.algorithms.levels import KINDS, Plan, PlanLevel, parse_plan
from collectives.autotune import choose
from collectives.machine import Machine, machine
from collectives.search import fastest_plan, promising
from collectives.simulator.simulation import simulate

pytestmark = pytest.mark.integration

# The seconds that a plan of a family composed by hand took, by machine, ranks and bytes: the search
# has to find one that is as fast.
COMPOSED = [
    ("dgx-h100", 16, 32 << 10, 11.1e-6),
    ("dgx-h100", 64, 256 << 10, 23.8e-6),
    ("dgx-h100", 64, 25 << 20, 258e-6),
    ("dgx-h100", 96, 8, 15.6e-6),
    ("dgx-h100", 96, 1 << 20, 49e-6),
    ("dgx-h100", 96, 4 << 20, 84.4e-6),
    ("summit", 24, 8 << 10, 12.1e-6),
    ("summit", 96, 1 << 20, 246e-6),
    ("ethernet", 12, 8 << 10, 108e-6),
    ("ethernet", 64, 64 << 10, 343e-6),
]


@pytest.mark.parametrize(("name", "p", "nbytes", "seconds"), COMPOSED)
def test_no_composition_by_hand_is_faster(name: str, p: int, nbytes: int, seconds: float) -> None:
    found = fastest_plan("all_reduce", p, nbytes, machine(name))
    assert found is not None
    assert found.simulation.seconds <= 1.01 * seconds


def test_digits_beat_one_bruck_for_pieces_of_a_middle_size() -> None:
    """A form in which Bruck sends each piece once would leave the faster plan out."""
    on = machine("textbook")
    found = fastest_plan("all_to_all", 64, 64 * (40 << 10), on)
    by_digits = simulate(build("all_to_all", "direct8/direct8", 64), on, 64 * (40 << 10))
    assert found is not None
    assert found.simulation.seconds <= 1.01 * by_digits.seconds


# The same for an all-to-all, with the bytes of a part for one rank.
COMPOSED_ALL_TO_ALL = [
    ("textbook", 64, 40 << 10, 254e-6),
    ("textbook", 64, 64 << 10, 364e-6),
    ("dgx-h100", 64, 8, 15.9e-6),
    ("dgx-h100", 64, 4 << 10, 28.5e-6),
    ("dgx-h100", 64, 64 << 10, 118e-6),
]


@pytest.mark.parametrize(("name", "p", "part", "seconds"), COMPOSED_ALL_TO_ALL)
def test_no_all_to_all_by_hand_is_faster(name: str, p: int, part: int, seconds: float) -> None:
    found = fastest_plan("all_to_all", p, p * part, machine(name))
    assert found is not None
    assert found.simulation.seconds <= 1.01 * seconds


@pytest.mark.parametrize(
    ("name", "p"),
    [
        ("textbook", 13),
        ("ethernet", 13),
        ("textbook", 37),
    ],
)
def test_the_radix_that_is_found_is_the_best_of_all(name: str, p: int) -> None:
    on = machine(name)
    for part in (8, 8_000, 40_000):
        found = fastest_plan("all_to_all", p, p * part, on)
        assert found is not None
        seconds = []
        for radix in range(2, p + 1):
            made = build("all_to_all", f"bruck{p}:{radix}", p)
            simulation = simulate(made, on, p * part)
            seconds.append(simulation.seconds)
        least = min(seconds)
        assert found.simulation.seconds <= 1.01 * least, (part, found.plan)


def test_forms_of_an_all_to_all_are_exact_where_no_latency_is_hidden() -> None:
    on = machine("textbook")
    for p in (17, 24):
        for seconds, plan in promising("all_to_all", p, p * 40_000, on):
            took = simulate(build("all_to_all", str(plan), p), on, p * 40_000).seconds
            if plan.segments == 1:
                assert seconds == pytest.approx(took, rel=0.1), str(plan)


def test_rows_of_an_all_to_all_are_its_moves() -> None:
    for text in ("bruck17:4", "direct4/bruck6:3", "bruck12"):
        plan = parse_plan(text, "all_to_all")
        steps = build("all_to_all", text, plan.p).steps()
        assert search.rows_of("all_to_all", plan) == sum(len(step) for step in steps)


def every_plan(p: int, on: Machine, nbytes: int) -> Iterator[Plan]:
    """All plans of an all-reduce whose levels split no node."""

    def sizes(block: int) -> Iterator[tuple[int, ...]]:
        if block == p:
            yield ()
        for following in range(2 * block, p + 1, block):
            node = on.ranks_per_node
            splits = node < p and node % following and following % node
            if p % following == 0 and not splits:
                for beyond in sizes(following):
                    yield (following // block, *beyond)

    scattered, whole = ("direct", "ring", "bruck"), ("one_shot", "recursive_doubling", "two_tree")
    for counts in sizes(1):
        for kinds in itertools.product((*scattered, *whole), repeat=len(counts)):
            is_scattered = [kind in scattered for kind in kinds]
            if is_scattered == sorted(is_scattered, reverse=True):
                for segments in search._cuts(p, nbytes):
                    yield Plan(tuple(map(PlanLevel, kinds, counts)), segments)


@pytest.mark.parametrize(("name", "p"), [("ethernet", 6), ("summit", 12)])
def test_the_search_finds_what_trying_all_plans_finds(name: str, p: int) -> None:
    on = machine(name)
    for nbytes in (8, 4 << 20):
        found = fastest_plan("all_reduce", p, nbytes, on)
        assert found is not None
        least = min(
            simulate(build("all_reduce", str(plan), p), on, nbytes).seconds
            for plan in every_plan(p, on, nbytes)
        )
        assert found.simulation.seconds <= 1.01 * least, (nbytes, found.plan)


def test_closed_forms_meet_the_simulation_where_levels_do_not_overlap() -> None:
    on = machine("dgx-h100")
    compared = 0
    for nbytes in (8, 8 << 10, 32 << 10):
        for seconds, plan in promising("all_reduce", 96, nbytes, on):
            if plan.segments == 1 and not any(level.algorithm == "ring" for level in plan.levels):
                took = simulate(build("all_reduce", str(plan), 96), on, nbytes).seconds
                assert seconds == pytest.approx(took, rel=0.05), (str(plan), nbytes)
                compared += 1
    assert compared > 20


@pytest.mark.parametrize("collective", KINDS)
def test_what_is_found_is_the_plan_and_its_time(collective: str) -> None:
    on = machine("dgx-h100")
    found = fastest_plan(collective, 32, 1 << 20, on)
    assert found is not None
    assert found.plan.p == 32
    again = simulate(build(collective, str(found.plan), 32), on, 1 << 20)
    assert again.seconds == found.simulation.seconds


@pytest.mark.parametrize(
    ("collective", "p", "name"),
    [
        ("scatter", 8, "ethernet"),
        ("all_reduce", 1, "ethernet"),
        ("all_reduce", 13, "summit"),
        ("all_reduce", 8, "dgx1"),
    ],
)
def test_there_is_no_plan_where_none_applies(collective: str, p: int, name: str) -> None:
    assert fastest_plan(collective, p, 1024, machine(name)) is None


def test_few_plans_are_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated: list[int] = []

    def counted(schedule: object, *arguments: object) -> object:
        simulated.append(sum(len(step) for step in schedule.steps()))  # type: ignore[attr-defined]
        return simulate(schedule, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(search, "simulate", counted)
    for nbytes in (8, 1 << 20, 64 << 20):
        simulated.clear()
        fastest_plan("all_reduce", 256, nbytes, machine("dgx-h100"))
        assert simulated, nbytes
        assert len(simulated) <= search.SIMULATED
        assert len(simulated) == 1 or sum(simulated) <= 2 * search.ROWS


def test_auto_takes_a_plan_where_it_is_faster_and_a_name_where_it_is_as_fast() -> None:
    on = machine("dgx-h100")
    assert choose("all_reduce", 96, 1 << 20, on=on).algorithm.startswith("direct8/")
    assert choose("all_reduce", 8, 8, on=on).algorithm == "one_shot"
    assert choose("all_reduce", 96, 1 << 20, "ring", on=on).algorithm == "ring"
    assert "/" not in choose("all_reduce", 16, 1 << 20, segments=2, on=on).algorithm
