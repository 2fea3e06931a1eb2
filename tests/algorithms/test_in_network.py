"""A switch that adds: it contributes and owes nothing, and each rank sends and receives its buffer once."""

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from itertools import product

import numpy as np
import pytest

from collectives import verify
from collectives.algorithms import build, executable
from collectives.autotune import choose
from collectives.core import contracts
from collectives.core.bounds import busbw, lower_bound
from collectives.core.grid import grid
from collectives.core.interpret import run
from collectives.core.schedule import Schedule, ScheduleError, Step, on, parallel, reverse, then
from collectives.core.traffic import traffic
from collectives.figures.layout import layout
from collectives.figures.schedules import space_time, steps, walk
from collectives.machine import Link, Machine, machine
from collectives.simulator.simulation import simulate

IN_NETWORK = "all_reduce", "in_network"


def changed(schedule: Schedule, t: int, change: Callable[[Step], Step]) -> Schedule:
    return replace(
        schedule, make=lambda at: change(schedule.step(at)) if at == t else schedule.step(at)
    )


def rows(step: Step, kept: object) -> Step:
    return Step(*(getattr(step, name)[kept] for name in Step.__slots__))


@pytest.mark.parametrize("p", [2, 3, 7, 8, 31])
@pytest.mark.parametrize("segments", [1, 2, 5])
def test_a_rank_sends_and_receives_its_buffer_once(p: int, segments: int) -> None:
    schedule, n = build(*IN_NETWORK, p, segments=segments), 30 * segments
    counted = traffic(schedule, n)
    assert schedule.nsteps == segments + 1
    assert [each.tolist() for each in counted] == [
        *[[segments] * p + [p * segments]] * 2,
        *[[n] * p + [p * n]] * 2,
    ]


@pytest.mark.parametrize("p", [1, 2, 3, 8, 13])
def test_numbers_are_added_and_the_switch_adds_none_of_its_own(p: int) -> None:
    schedule = build(*IN_NETWORK, p, segments=3)
    state = np.zeros((p + 1, 3), dtype=np.int64)
    state[:p] = np.arange(3 * p).reshape(p, 3) ** 2 + 1
    total = state.sum(axis=0)
    assert (run(schedule, state)[:p] == total).all()
    if p > 1:
        state[:] = 1
        # A switch that holds something spoils the sum.
        assert (run(schedule, state)[:p] == p + 1).all()


def test_the_contract_asks_nothing_of_a_switch_and_gives_it_nothing() -> None:
    schedule = build(*IN_NETWORK, 3, segments=2)
    held = contracts.before(schedule)
    assert held.shape == (4, 2, 4)
    assert not held[3].any()
    assert contracts.where(schedule).tolist() == [[True] * 2] * 3 + [[False] * 2]


FAULTS = {
    "a member is left out": (
        0,
        lambda s: rows(s, s.src != 2),
        "rank 0 holds chunk 0 of rank 2 0 times, not 1",
    ),
    "a member is not told": (
        1,
        lambda s: rows(s, s.dst != 2),
        "rank 2 holds chunk 0 of rank 0 0 times, not 1",
    ),
    "the sum is added to what is there": (
        1,
        lambda s: Step(s.src, s.dst, s.chunk, s.count, True),
        "rank 0 holds chunk 0 of rank 0 2 times, not 1",
    ),
    "another's sum is told": (
        1,
        lambda s: Step(s.src, s.dst, 1 - s.chunk, s.count, s.add),
        "holds chunk",
    ),
    "a member replaces": (
        0,
        lambda s: Step(s.src, s.dst, s.chunk, s.count, s.src > 0),
        "replaced and written again",
    ),
    "a participant that is not there": (
        0,
        lambda s: Step(s.src, s.dst + 1, s.chunk, s.count, s.add),
        "5 ranks",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("p", [4, 200])
def test_a_fault_is_rejected(fault: str, p: int) -> None:
    t, change, message = FAULTS[fault]
    schedule = build(*IN_NETWORK, p, segments=2)
    message = message if p == 4 else r"by fingerprint|replaced and written again|201 ranks"
    with pytest.raises(ScheduleError, match=message):
        verify(changed(schedule, t, change))


def test_a_switch_that_contributes_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    def contributing(schedule: Schedule) -> contracts.Counts:
        held = contracts.before(schedule)
        held[schedule.p :, :, schedule.p] = 1  # as a rank that holds nothing yet
        return held

    def contributing_bits(schedule: Schedule, each: np.ndarray) -> np.ndarray:
        held: np.ndarray = bits_before(schedule, each)
        held[schedule.p :, :, : each.shape[1]] = each[schedule.p]
        return held

    module = import_module("collectives.core.verify")  # it keeps bits, and counts if they are wrong
    bits_before = module._bits_before
    monkeypatch.setattr(module, "before", contributing)
    monkeypatch.setattr(module, "_bits_before", contributing_bits)
    with pytest.raises(ScheduleError, match="rank 0 holds uninitialised data 1 times, not 0"):
        verify(build(*IN_NETWORK, 4))


def test_two_messages_of_a_rank_are_refused_and_many_of_a_switch_are_not() -> None:
    schedule = build(*IN_NETWORK, 3)
    assert schedule.one_port
    verify(schedule)
    twice = changed(schedule, 0, lambda s: Step([0, 0, 1, 2], [3, 1, 3, 3], 0, add=True))
    with pytest.raises(ScheduleError, match="step 0: rank 0 sends 2 messages at once"):
        verify(twice)


def test_switches_are_a_number_and_no_root() -> None:
    for wrong, message in (
        (-1, "got -1, expected 0 or more"),
        (1.5, "got 1.5, expected a whole number"),
    ):
        with pytest.raises(ScheduleError, match=f"switches of a schedule: {message}"):
            Schedule("all_reduce", 2, 1, 0, Step, switches=wrong)  # type: ignore[arg-type]
    with pytest.raises(ScheduleError, match="root 2 is not one of the ranks 0 to 1"):
        Schedule("broadcast", 2, 1, 0, Step, root=2, switches=1)


def test_combinators_keep_switches_or_refuse_them() -> None:
    up = replace(build(*IN_NETWORK, 3), nsteps=1)
    down = replace(up, make=lambda _: Step(3, [0, 1, 2], 0))
    verify(then(up, down, "all_reduce"))
    assert parallel(up, build("all_reduce", "one_shot", 3), "all_reduce").switches == 1
    assert repr(reverse(down, "reduce", add=True).step(0)) == "Step(0->3:+0, 1->3:+0, 2->3:+0)"
    with pytest.raises(ScheduleError, match="got 1, expected none for placing it on other ranks"):
        on(up, 6, 1, [[0, 1, 2], [3, 4, 5]], [0])


def test_it_takes_its_closed_form_and_exceeds_the_link_s_rate_as_bus_bandwidth() -> None:
    on_switch, n = Machine(name="x", network=Link(rate=100e9)), 1 << 30
    for p in (2, 8, 72):
        done = simulate(build(*IN_NETWORK, p, segments=64), on_switch, n)
        assert done.seconds == pytest.approx(n / 100e9 * 65 / 64)
        assert busbw("all_reduce", p, n, done.seconds) == pytest.approx(
            2 * (p - 1) / p * 100 * 64 / 65
        )
    assert done.seconds < lower_bound("all_reduce", 72, n, alpha=0, beta=1e-11)
    assert len(done.finish) == 72


def test_the_switch_is_inside_a_node_that_the_ranks_fill_and_else_in_the_network() -> None:
    h100 = machine("dgx-h100")
    inside, outside = (simulate(build(*IN_NETWORK, p), h100, 1 << 20) for p in (8, 16))
    assert inside.bytes == {"inside": 16 << 20, "network": 0} or inside.bytes == {
        "inside": 16 << 20
    }
    assert outside.bytes["network"] == 32 << 20
    assert inside.busiest[0] == "inside port of rank 0, sending"


def test_auto_never_chooses_it() -> None:
    """Neither by formulas nor by simulation."""
    for name, nbytes in product(("textbook", "dgx-h100"), (4, 1 << 28)):
        chosen = choose("all_reduce", 8, nbytes, on=machine(name))
        assert not build("all_reduce", chosen.algorithm, 8).switches
    assert IN_NETWORK not in executable()


@pytest.mark.integration  # seconds
def test_it_is_drawn_with_the_switch_in_the_middle_by_its_name() -> None:
    schedule = build(*IN_NETWORK, 4, segments=2)
    placed = layout(schedule)  # also without its name
    assert (placed.shape, placed.points[4].tolist()) == ("star", [0.5, 0.5])
    assert "sends chunk 0 to the switch, added" in steps(schedule, "in_network").alt
    assert b"switch" in steps(schedule, "in_network").light
    assert "every rank holds 2 complete chunks" in walk(schedule).alt
    assert b"switch" in space_time(schedule).light
    assert grid(schedule).splitlines()[0].endswith("| rank 3 | switch 4")
    two = layout(replace(schedule, switches=2))
    assert len({tuple(point) for point in two.points.tolist()}) == 6
