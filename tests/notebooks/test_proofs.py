"""A program as a picture: its arrows are those of the file, and the marked steps those of the verdict."""

import pytest

from collectives_book.proofs import arrows, marked, verdict, waiting
from collectives_interop import msccl
from places import ROOT

EXCHANGE = (ROOT / "examples" / "exchange.xml").read_text()


def test_the_example_is_right_and_nothing_is_marked() -> None:
    assert verdict(EXCHANGE) == ""
    messages, waits = arrows(msccl.read(EXCHANGE.encode()))
    assert sorted(messages) == [
        ((0, 0), (2, 1)),
        ((1, 0), (3, 1)),
        ((2, 0), (0, 1)),
        ((3, 0), (1, 1)),
    ]
    assert waits == [((0, 1), (1, 0)), ((2, 1), (3, 0))]
    assert marked(EXCHANGE) == set()


@pytest.mark.parametrize(
    ("old", "new", "said", "steps"),
    [
        ('depid="0" deps="1"', 'depid="-1" deps="-1"', "race", {(0, 1), (1, 0)}),
        ('type="rrc"', 'type="r"', "wrong result", {(0, 1)}),
        (
            'depid="-1" deps="-1" hasdep="0"',
            'depid="1" deps="0" hasdep="0"',
            "deadlock",
            {(0, 0), (0, 1), (1, 0)},
        ),
    ],
)
def test_the_marked_steps_are_those_of_the_verdict(
    old: str, new: str, said: str, steps: set
) -> None:
    text = EXCHANGE.replace(old, new, 1)
    if said == "deadlock":  # what is waited for says so
        text = text.replace('depid="0" deps="1" hasdep="0"', 'depid="0" deps="1" hasdep="1"', 1)
    assert verdict(text).startswith(said)
    assert marked(text) == steps
    drawn = waiting({"Right": EXCHANGE, said: text})
    assert drawn.alt.startswith(f"Right; {said}: ")
    assert b"<svg" in drawn.light
