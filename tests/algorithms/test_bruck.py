"""Bruck's all-to-all by digits to any base: right for every p, with the messages and bytes of its closed form."""

import numpy as np
import pytest

from collectives import verify
from collectives.algorithms import build
from collectives.algorithms.bruck import all_to_all_by_digits
from collectives.core.bounds import bruck_all_to_all
from collectives.core.interpret import run
from collectives.core.schedule import Schedule, ScheduleError, Step, digest
from collectives.core.traffic import traffic

RANKS = range(1, 18)


@pytest.mark.parametrize("p", RANKS)
def test_every_radix_is_proved_and_costs_its_closed_form(p: int) -> None:
    for radix in range(2, p + 2):
        schedule = all_to_all_by_digits(p, radix)
        verify(schedule)
        form, counted = bruck_all_to_all(p, radix), traffic(schedule, p)
        assert schedule.nsteps == form.steps
        assert set(counted.messages_sent.tolist()) == {form.steps}
        assert set(counted.sent.tolist()) == {round(form.sent * p)}


@pytest.mark.parametrize("p", [37, 61, 64, 100])
def test_radices_between_two_and_p_are_proved_for_more_ranks(p: int) -> None:
    for radix in (3, 4, 8, p - 1):
        verify(all_to_all_by_digits(p, radix))


@pytest.mark.parametrize("p", RANKS)
def test_bruck_and_pairwise_are_its_ends(p: int) -> None:
    assert digest(build("all_to_all", "bruck", p)) == digest(all_to_all_by_digits(p, 2))
    assert digest(build("all_to_all", "pairwise", p)) == digest(all_to_all_by_digits(p, p))


@pytest.mark.parametrize(
    ("p", "radix"),
    [
        (1, 2),
        (5, 3),
        (7, 4),
        (12, 5),
        (13, 12),
    ],
)
def test_each_element_arrives_in_parts_of_any_length(p: int, radix: int) -> None:
    """Each element is another number; parts differ in length, and some are empty."""
    schedule = all_to_all_by_digits(p, radix)
    for n in (1, p, 2 * p + 1, 7 * p + 3):
        edges = schedule.cut(n)
        data = np.arange(p * n) ** 2
        state = np.empty((p, p * p), dtype=object)
        for part in range(p * p):
            elements = data[edges[part] : edges[part + 1]]
            sender = part // p
            state[sender, part] = elements.tolist()
        sent = state.copy()
        run(schedule, state)
        for receiver in range(p):
            for sender in range(p):
                part = sender * p + receiver
                assert state[receiver, part] == sent[sender, part]


def test_a_part_that_leaves_from_its_first_rank_again_is_found_by_the_proof() -> None:
    right = all_to_all_by_digits(7, 3)

    def make(t: int) -> Step:
        """Send every part from the rank that it began at, also where it has moved on."""
        step = right.step(t)
        source = step.chunk // 7
        return Step(source, (source + step.dst - step.src) % 7, step.chunk)

    with pytest.raises(ScheduleError):
        verify(Schedule("all_to_all", 7, 49, right.nsteps, make, one_port=False))


def test_a_digit_too_few_is_found_by_the_proof() -> None:
    right = all_to_all_by_digits(17, 4)
    with pytest.raises(ScheduleError):
        verify(Schedule("all_to_all", 17, 289, right.nsteps - 1, right.step))
