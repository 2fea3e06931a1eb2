"""Drawings of the book: what they show agrees with what they are about, in both themes."""

from collections.abc import Callable

import pytest

from collectives.figures.style import Picture
from collectives_book.figures import channel, grid, hang, nodes, pod


@pytest.mark.parametrize(
    "draw", [channel.channel, grid.grid, hang.hang, nodes.one_token, nodes.rails, pod.pod]
)
def test_a_drawing_has_both_themes_and_an_alternative_text(draw: Callable[[], Picture]) -> None:
    drawn = draw()
    assert b"<svg" in drawn.light
    assert drawn.light != drawn.dark
    assert 20 < len(drawn.alt.split()) <= 80


def test_only_the_missing_rank_does_not_make_the_last_call() -> None:
    last = {}
    ends = set()
    for rank in range(hang.RANKS):
        bars = hang._bars(rank)
        calls = [bar["text"] for bar in bars if "text" in bar]
        last[rank] = calls[-1]
        ends.add(bars[-1]["end"])
    assert last == {0: "6", 1: "6", 2: "5", 3: "6"}
    assert len(ends) == 1, "all stop at the timeout"


def crossing(dispatch: str) -> list[nodes.Copy]:
    copies = nodes.COPIES[dispatch]
    return [copy for copy in copies if copy.source.node != copy.target.node]


def test_a_copy_for_each_node_crosses_once_in_each_direction() -> None:
    by_expert, by_node, combine = map(crossing, nodes.COPIES)
    assert len(by_expert) == 2
    (there,) = by_node
    (back,) = combine
    assert there.source == back.target
    assert there.target == back.source
    assert there.source.gpu == there.target.gpu, "on one rail"


def test_experts_get_the_token_by_either_dispatch() -> None:
    for name in [*nodes.COPIES][:2]:
        assert {copy.target for copy in nodes.COPIES[name]} >= {*nodes.EXPERTS}


def test_a_gpu_keeps_what_the_text_says() -> None:
    assert f"{sum(pod.kept().values()) / 1e9:.1f}" == "33.5"
