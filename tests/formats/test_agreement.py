"""The proof and the independent executor agree: on right programs, in every order, and on programs with one edit."""

from itertools import cycle
from xml.etree import ElementTree

import pytest

from collectives.formats import msccl
from collectives.formats.prove import prove
from collectives.schedule import ScheduleError
from formats.executor import play, play_all
from formats.mutants import mutants
from formats.programs import PROGRAMS, all_pairs, gather_ring, ring


def judged(text: str) -> str:
    """What the proof says: right, wrong, or not a program."""
    try:
        prove(msccl.read(text.encode()))
    except ScheduleError:
        return "wrong"
    except ValueError:
        return "unreadable"
    return "right"


def first_fault(text: str, orders: int) -> str | None:
    return next((fault for seed in range(orders) if (fault := play(text, seed))), None)


def need_agreement(wanted: int, orders_of_right: int, orders_of_wrong: int) -> dict[str, int]:
    """Judge this many mutants that are programs at all, from all programs in turn."""
    tried = {"right": 0, "wrong": 0}
    sources = cycle([mutants(text, seed) for seed, text in enumerate(PROGRAMS.values())])
    seen = set()
    while sum(tried.values()) < wanted:
        text = next(next(sources))
        verdict = judged(text)
        if verdict == "unreadable" or text in seen:
            continue
        seen.add(text)
        fault = first_fault(text, orders_of_right if verdict == "right" else orders_of_wrong)
        assert (fault is None) == (verdict == "right"), f"the proof says {verdict}, an order ends with {fault}:\n{text}"
        tried[verdict] += 1
    return tried


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_right_program_is_right(name: str) -> None:
    assert judged(PROGRAMS[name]) == "right"
    assert first_fault(PROGRAMS[name], 20) is None


@pytest.mark.extended
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_right_program_ends_right_in_a_thousand_orders(name: str) -> None:
    assert first_fault(PROGRAMS[name], 1000) is None


@pytest.mark.parametrize("text", [all_pairs(2), ring(2), gather_ring(2)], ids=["all_pairs", "ring", "gather_ring"])
def test_a_small_program_ends_right_in_every_order(text: str) -> None:
    faults, states = play_all(text)
    assert faults == set()
    assert states > 20


def test_every_order_of_small_mutants_agrees() -> None:
    source = mutants(gather_ring(2), 7)
    tried = 0
    while tried < 20:
        text = next(source)
        verdict = judged(text)
        if verdict != "unreadable":
            assert bool(play_all(text)[0]) == (verdict == "wrong"), text
            tried += 1


def test_sixty_mutants_agree() -> None:
    tried = need_agreement(60, orders_of_right=30, orders_of_wrong=300)
    assert tried["wrong"] >= 30


@pytest.mark.extended
@pytest.mark.timeout(1800)
def test_five_hundred_mutants_agree() -> None:
    tried = need_agreement(540, orders_of_right=100, orders_of_wrong=3000)
    assert tried["wrong"] >= 300
    assert tried["right"] >= 20


def without_wait(text: str, number: int) -> str:
    """The program without the dependency of this step, counted over all steps."""
    top = ElementTree.fromstring(text)
    step = list(top.iter("step"))[number]
    step.set("depid", "-1")
    step.set("deps", "-1")
    return ElementTree.tostring(top, encoding="unicode")


def waits_of(text: str) -> list[int]:
    return [
        number for number, step in enumerate(ElementTree.fromstring(text).iter("step")) if step.get("depid") != "-1"
    ]


@pytest.mark.parametrize("name", ["all_pairs", "gather_ring", "reduce_scatter"])
def test_a_dependency_is_needless_exactly_if_the_program_is_right_without_it(name: str) -> None:
    source, more = mutants(PROGRAMS[name], 11), 0
    while more < 6:  # right programs with a dependency more
        text = next(source)
        if judged(text) != "right" or len(waits_of(text)) <= len(waits_of(PROGRAMS[name])):
            continue
        more += 1
        program = msccl.read(text.encode())
        right = [program.name(each) for each in waits_of(text) if judged(without_wait(text, each)) == "right"]
        assert sorted(right) == sorted(prove(program).needless)
