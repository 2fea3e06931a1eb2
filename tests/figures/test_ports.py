"""The drawing of the ports that two trees use: from the trees themselves, with a text that says the same."""

import numpy as np
import pytest

from collectives.algorithms import build
from collectives.figures.ports import filled_ports


@pytest.mark.parametrize("p", [3, 5, 8, 12, 13, 16])
def test_slots_are_those_of_the_schedule(p: int) -> None:
    """In full flow, each pair of steps of the reduce has every edge of both trees once."""
    drawn = filled_ports(p).used
    schedule = build("all_reduce", "two_tree", p, segments=8)
    pairs = [(schedule.step(t), schedule.step(t + 1)) for t in range(0, schedule.nsteps // 2, 2)]
    busiest = max(pairs, key=lambda pair: sum(step.src.size for step in pair))
    found = [
        [np.bincount(ends, minlength=p).tolist() for ends in (step.src, step.dst)] for step in busiest if step.src.size
    ]
    expected = [drawn[:, :, colour].sum(axis=0).tolist() for colour in (0, 1) if drawn[:, :, colour].any()]
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("p", range(2, 40))
def test_no_slot_is_used_twice_and_the_second_tree_fills_half_of_them(p: int) -> None:
    used = filled_ports(p).used
    assert used.sum(axis=0).max() <= 1
    assert used.sum(axis=(1, 2, 3)).tolist() == [2 * (p - 1)] * 2


def test_the_text_has_the_numbers() -> None:
    drawn = filled_ports(8)
    assert drawn.said[0].startswith("The first tree uses 14 of 32 slots")
    assert drawn.alt.endswith("In the first tree ranks 1, 3, 5, 7 receive nothing.")
    html = drawn._repr_html_()
    assert f'aria-label="{drawn.alt}"' in html
    assert html.count('<g class="second"') == 14 + 7 + 8
    assert "prefers-reduced-motion: reduce" in html
