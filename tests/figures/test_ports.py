"""Drawings of ports: those that two trees use, and messages of a step that share one and follow each other."""

import numpy as np
import pytest

from collectives.algorithms import build
from collectives.figures.layout import turns
from collectives.figures.ports import filled_ports
from collectives.figures.schedules import space_time


@pytest.mark.parametrize("p", range(3, 17))
def test_slots_are_those_of_the_schedule(p: int) -> None:
    """In full flow, each pair of steps of the reduce has every edge of both trees once, and no slot twice."""
    drawn = filled_ports(p).used
    assert drawn.sum(axis=0).max() <= 1
    schedule = build("all_reduce", "two_tree", p, segments=8)
    pairs = [(schedule.step(t), schedule.step(t + 1)) for t in range(0, schedule.nsteps // 2, 2)]
    busiest = max(pairs, key=lambda pair: sum(step.src.size for step in pair))
    found = [
        [np.bincount(ends, minlength=p).tolist() for ends in (step.src, step.dst)]
        for step in busiest
        if step.src.size
    ]
    expected = [
        drawn[:, :, colour].sum(axis=0).tolist() for colour in (0, 1) if drawn[:, :, colour].any()
    ]
    assert sorted(found) == sorted(expected)


def test_the_drawing_has_a_mark_for_each_slot_and_holds_still_for_who_asks() -> None:
    drawn = filled_ports(8)
    assert drawn.message[0].startswith("The first tree uses 14 of 32 slots")
    html = drawn._repr_html_()
    assert f'aria-label="{drawn.alt}"' in html
    assert html.count('<g class="second"') == 14 + 7 + 8
    assert "prefers-reduced-motion: reduce" in html


@pytest.mark.parametrize("p", [2, 3, 5, 8])
@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [
        ("all_reduce", "one_shot"),
        ("all_reduce", "two_shot"),
        ("all_to_all", "direct"),
        ("scatter", "flat"),
    ],
)
def test_a_port_serves_one_message_after_another(collective: str, algorithm: str, p: int) -> None:
    schedule = build(collective, algorithm, p)
    for step in schedule.steps():
        sent, turn = step.messages(), turns(schedule, step)
        for ranks in (sent.src.tolist(), sent.dst.tolist()):
            assert len({*zip(ranks, turn, strict=True)}) == len(turn)
        busiest = max(np.bincount(sent.src).max(), np.bincount(sent.dst).max())
        assert {*turn} == {*range(busiest)}, "no port waits that has a message"


def test_no_queue_where_none_is_and_at_no_switch() -> None:
    for name in ("two_tree", "in_network"):
        schedule = build("all_reduce", name, 6, segments=2)
        assert {turn for step in schedule.steps() for turn in turns(schedule, step)} == {0}
    assert "share a port" not in space_time(build("all_reduce", "two_tree", 6)).alt
    exchange, root = (build("all_reduce", name, 4) for name in ("one_shot", "reduce_broadcast"))
    assert space_time(exchange, root).alt.endswith("Up to 3 messages of a step share a port.")
