"""A program as a panel: its arrows are those of the file, and the marked steps those of the verdict."""

import pytest

from collectives_book.proofs import panel, verdict
from places import ROOT

EXCHANGE = (ROOT / "examples" / "exchange.xml").read_text()
BLOCKS = ["GPU 0, block 0", "GPU 0, block 1", "GPU 1, block 0", "GPU 1, block 1"]


def test_the_example_is_right_and_nothing_is_marked() -> None:
    assert verdict(EXCHANGE) == ""
    made = panel(EXCHANGE, "exchange")
    assert made.blocks == BLOCKS
    assert made.steps[0] == ["s i1>1", "rrc i0<1"]
    assert sorted(made.messages) == [((0, 0), (2, 1)), ((1, 0), (3, 1)), ((2, 0), (0, 1)), ((3, 0), (1, 1))]
    assert made.waits == [((0, 1), (1, 0)), ((2, 1), (3, 0))]
    assert made.marked == set()


@pytest.mark.parametrize(
    ("old", "new", "said", "marked"),
    [
        ('depid="0" deps="1"', 'depid="-1" deps="-1"', "race", {(0, 1), (1, 0)}),
        ('type="rrc"', 'type="r"', "wrong result", {(0, 1)}),
        ('depid="-1" deps="-1" hasdep="0"', 'depid="1" deps="0" hasdep="0"', "deadlock", {(0, 0), (0, 1), (1, 0)}),
    ],
)
def test_the_marked_steps_are_those_of_the_verdict(old: str, new: str, said: str, marked: set) -> None:
    text = EXCHANGE.replace(old, new, 1)
    if said == "deadlock":  # what is waited for says so
        text = text.replace('depid="0" deps="1" hasdep="0"', 'depid="0" deps="1" hasdep="1"', 1)
    assert verdict(text).startswith(said)
    assert panel(text, said).marked == marked
