"""A schedule on hosts of several ranks: its stages do what it does, and each is on the hosts or between them."""

import numpy as np
import pytest

from collectives.algorithms import build, executable
from collectives.engine.publish import publish
from collectives.engine.stages import stages
from collectives.interpret import apply
from collectives.schedule import Schedule, Step
from engine.test_published import races

# Ranks, and ranks of a host.
SHAPES = [(4, 2), (6, 2), (6, 3), (8, 2), (8, 4), (9, 3), (10, 5)]
IN_STAGES = {"hierarchical_ring", "recursive_doubling", "halving_doubling"}  # on hosts of 2 or 4


def schedules(p: int, each: int) -> dict[str, Schedule]:
    return {
        name: build(collective, name, p, ranks_per_node=each)
        for collective, name in executable()
        if collective == "all_reduce"
    }


@pytest.mark.parametrize(("p", "each"), SHAPES)
def test_stages_have_the_schedule_s_steps_in_their_order(p: int, each: int) -> None:
    for name, schedule in schedules(p, each).items():
        found = stages(schedule, each)
        rows = [str(step) for stage in found for step in stage.schedule.steps() if len(step.src)]
        assert rows == [str(step) for step in schedule.steps() if len(step.src)] or not found, name
        for stage in found:
            for step in stage.schedule.steps():
                assert ((step.src // each == step.dst // each) == stage.is_on_hosts).all(), name


def test_some_algorithms_have_stages() -> None:
    assert {name for name, each in schedules(8, 2).items() if stages(each, 2)} >= IN_STAGES
    assert {name for name, each in schedules(8, 4).items() if stages(each, 4)} >= IN_STAGES
    assert not stages(build("all_reduce", "ring", 8), 2)
    assert not stages(build("broadcast", "binomial", 8, root=0), 2)


def test_a_step_of_both_kinds_has_no_stage() -> None:
    inside, both = Step([0], [1], 0, add=True), Step([0, 1], [1, 2], 0, add=True)
    first = Schedule("all_reduce", 4, 1, 1, lambda _: inside)
    assert [each.is_on_hosts for each in stages(first, 2)] == [True]
    assert stages(Schedule("all_reduce", 4, 1, 1, lambda _: both), 2) == []


@pytest.mark.parametrize(("p", "each"), SHAPES)
def test_hosts_and_what_is_between_them_add_up(p: int, each: int) -> None:
    """Each host's part by itself, on its own ranks; all ranks' data are distinct."""
    for name, schedule in schedules(p, each).items():
        found = stages(schedule, each)
        values = np.arange(p)[:, None] * 100 + np.arange(schedule.k) + 1
        total = values.sum(axis=0)
        for stage in found:
            if not stage.is_on_hosts:
                for step in stage.schedule.steps():
                    apply(step, values)
                continue
            for first in range(0, p, each):
                for step in stage.on_host(range(first, first + each)).steps():
                    apply(step, values[first : first + each])
        assert (values == total).all() or not found, name


@pytest.mark.parametrize(("p", "each"), SHAPES)
def test_waits_order_every_read_on_a_host(p: int, each: int) -> None:
    for name, schedule in schedules(p, each).items():
        for stage in stages(schedule, each):
            if stage.is_on_hosts:
                host = stage.on_host(range(p - each, p))
                parts = [publish(host, rank, {}) for rank in range(each)]
                assert not races([part for part in parts if part]), name
                assert all(parts)
