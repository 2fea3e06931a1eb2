"""Drawings of the book: what they show agrees with what they are about, in both themes."""

from collections.abc import Callable

import pytest

from collectives.figures.style import Picture
from collectives_book.figures import channel, hang, nodes, pod


@pytest.mark.parametrize(
    "draw", [channel.channel, hang.hang, nodes.one_token, nodes.rails, pod.pod]
)
def test_a_drawing_has_both_themes_and_an_alternative_text(draw: Callable[[], Picture]) -> None:
    drawn = draw()
    assert b"<svg" in drawn.light
    assert drawn.light != drawn.dark
    assert 20 < len(drawn.alt.split()) <= 80


def test_only_the_missing_rank_does_not_make_the_last_call() -> None:
    bars = {rank: hang._bars(rank) for rank in range(hang.RANKS)}
    last = {
        rank: [bar["text"] for bar in of_rank if "text" in bar][-1]
        for rank, of_rank in bars.items()
    }
    assert last == {0: "6", 1: "6", 2: "5", 3: "6"}
    assert len({of_rank[-1]["end"] for of_rank in bars.values()}) == 1, "all stop at the timeout"


def test_a_copy_for_each_node_crosses_once_in_each_direction() -> None:
    crossing = {
        name: [copy for copy in copies if copy.source.node != copy.target.node]
        for name, copies in nodes.COPIES.items()
    }
    assert [len(copies) for copies in crossing.values()] == [2, 1, 1]
    (there,), (back,) = [*crossing.values()][1:]
    assert (there.source, there.target) == (back.target, back.source)
    assert there.source.gpu == there.target.gpu, "on one rail"


def test_experts_get_the_token_by_either_dispatch() -> None:
    for name in [*nodes.COPIES][:2]:
        assert {copy.target for copy in nodes.COPIES[name]} >= {*nodes.EXPERTS}


def test_a_gpu_keeps_what_the_text_says() -> None:
    assert f"{sum(pod.kept().values()) / 1e9:.1f}" == "33.5"
