"""Experts: copies of a token against closed forms, milliseconds by hand, and layers that cannot be."""

from math import comb

import pytest

from collectives_book import experts
from collectives_book.experts import Layer


@pytest.mark.parametrize(
    ("all_experts", "top", "nodes", "gpus"),
    [(256, 8, 8, 8), (64, 6, 4, 8), (60, 4, 3, 5), (128, 8, 16, 1)],
)
def test_copies_are_those_of_chance(all_experts: int, top: int, nodes: int, gpus: int) -> None:
    layer = Layer(
        experts=all_experts,
        top=top,
        nodes=nodes,
        gpus=gpus,
        limit=nodes,
    )
    counted = experts.copies(layer)

    def other_places(count: int, others: int) -> float:
        """Return how many of ``others`` among ``count`` places have one of a token's experts."""
        missed = comb(all_experts - all_experts // count, top) / comb(all_experts, top)
        return others * (1 - missed)

    all_gpus = nodes * gpus
    expected = {
        "for each expert": top * (nodes - 1) / nodes,
        "for each GPU": other_places(all_gpus, all_gpus - gpus),
        "for each node": other_places(nodes, nodes - 1),
    }
    for what, copies in expected.items():
        assert counted[what] == pytest.approx(copies, rel=0.02), what
    assert counted[f"of at most {nodes}"] == counted["for each node"]


def test_a_router_takes_experts_of_few_nodes() -> None:
    layer = Layer()
    for limit in (1, 3, 8):
        node = experts.choose(layer, limit) * layer.nodes // layer.experts
        assert max(len({*each}) for each in node.tolist()) == (limit if limit < 8 else 8)
    assert all(len({*each}) == layer.top for each in experts.choose(layer, 4).tolist())


def test_one_node_sends_nothing() -> None:
    table = experts.times(
        nodes=1,
        gpus=8,
        limit=1,
    )
    assert not table.copies.any()
    assert not table.exposed.any()


def test_times_are_bytes_over_a_rate() -> None:
    table = experts.times(
        tokens=1000, width=4000, dispatch=2, combine=2, port=1e9, hidden=500, rate=1e12
    )
    first = table.loc["for each expert"]
    assert first["dispatch"] == pytest.approx(first.copies * 8)  # 8 MB a copy by 1 GB/s
    assert first.experts == pytest.approx(1000 * 8 * 6 * 4000 * 500 / 1e12 * 1e3)
    assert first.exposed == pytest.approx(2 * first["dispatch"] - first.experts)


def test_equal_experts_are_even_and_hot_ones_are_not() -> None:
    loads = experts.loads()
    assert loads.loc["uniform"].max() < 1.2 < loads.loc["four hot"].min()
    assert (loads.loc[["Zipf", "four hot"], "busiest GPU ÷ mean"] > 3).all()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"experts": 100}, "experts: got 100, expected a multiple of 64 GPUs"),
        ({"top": 200}, "top: got 200, expected 1 to 128, the experts of limit nodes"),
        ({"top": 0}, "top: got 0, expected 1 to 128, the experts of limit nodes"),
    ],
)
def test_a_layer_that_cannot_be_is_refused(changed: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        experts.times(**changed)
