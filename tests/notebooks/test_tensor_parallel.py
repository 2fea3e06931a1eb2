"""Blocks divided among ranks equal one process, whatever the algorithm; faults are seen, and bytes are counted."""

import os
from math import isclose

import pytest
import torch

from collectives.algorithms import build
from collectives.backends import Performed
from collectives.launch import launch
from collectives.traffic import traffic
from collectives_book.model_parallel import volume
from collectives_book.model_parallel.split_steps import MeteredAllReduce, model
from collectives_book.model_parallel.tensor_parallel import Block, shard
from places import TASKS
from sweep import each


@pytest.mark.integration
@pytest.mark.parametrize("p", each([1, 2, 3, 4, 5], few=[1, 2, 3, 4]))
def test_divided_blocks_equal_one_process_bit_for_bit(p: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TASKS), prepend=os.pathsep)
    events = launch("split_cases", {"what": "tensor"}, p, timeout=60)
    assert [event["case"] for event in events if not event["ok"]] == []
    assert len(events) == 28 + 5 * (p > 1)


@pytest.mark.parametrize("p", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("hidden", [1, 4, 10])
def test_the_parts_put_together_are_the_whole(p: int, hidden: int) -> None:
    whole = Block(*(torch.arange(n).double().reshape(*shape) for n, shape in _shapes(hidden)))
    parts = [shard(whole, rank, p) for rank in range(p)]
    assert torch.equal(torch.cat([part.into for part in parts], dim=1), whole.into)
    assert torch.equal(torch.cat([part.into_bias for part in parts]), whole.into_bias)
    assert torch.equal(torch.cat([part.out for part in parts]), whole.out)
    assert all(torch.equal(part.out_bias, whole.out_bias) for part in parts)
    assert all(weight.is_leaf and weight.requires_grad for part in parts for weight in part)


def _shapes(hidden: int) -> list[tuple[int, tuple[int, ...]]]:
    return [(3 * hidden, (3, hidden)), (hidden, (hidden,)), (3 * hidden, (hidden, 3)), (3, (3,))]


def test_parameters_are_those_of_the_model() -> None:
    blocks = model(6, 3, torch.device("cpu"))
    assert volume.parameters(6, 3) == sum(weight.numel() for part in blocks for weight in part)


@pytest.mark.parametrize("p", [2, 3, 4, 8])
def test_the_closed_forms_are_what_the_ring_sends(p: int) -> None:
    width, batch, blocks = 16, 24, 2
    meter = MeteredAllReduce("p2p", "ring")
    meter.calls = [(Performed("ring", 1), volume.parameters(width))] * blocks
    assert isclose(volume.ELEMENT * (meter.elements_sent(p) or 0), volume.data_parallel(p, width, blocks))
    meter.calls = [(Performed("ring", 1), batch * width)] * 2 * blocks
    assert isclose(volume.ELEMENT * (meter.elements_sent(p) or 0), volume.tensor_parallel(p, width, batch, blocks))
    assert traffic(build("all_reduce", "ring", p), batch * width).sent.sum() == 2 * (p - 1) * batch * width


def test_what_a_library_sends_is_not_known() -> None:
    meter = MeteredAllReduce("gloo", "default")
    meter.calls = [(Performed("default"), 100)]
    assert meter.elements_sent(4) is None


@pytest.mark.parametrize("width", [1, 16, 1000])
def test_at_the_crossing_both_send_the_same(width: int) -> None:
    batch = volume.crossing(width)
    for p, blocks in ((2, 1), (5, 3)):
        data = volume.data_parallel(p, width, blocks)
        assert volume.tensor_parallel(p, width, int(batch), blocks) <= data
        assert volume.tensor_parallel(p, width, int(batch) + 1, blocks) > data
