"""Totals of all chunks at once, and values rounded to a wire without their bytes: the same bits as the long way."""

from itertools import product

import numpy as np
import pytest
import torch

from collectives.algorithms import build
from collectives.backends.coding import decode, encode, rounded
from collectives.bench import rounding
from collectives.bench.rounding import total
from collectives.summation import summation
from collectives.wire import WIRES

NAMES = ("ring", "two_tree", "two_shot", "recursive_doubling", "one_shot", "swing_doubling")


@pytest.mark.parametrize(("p", "n"), [(1, 7), (2, 64), (5, 333), (8, 5)])
def test_a_total_has_the_bits_of_each_chunk_s_own_sum(p: int, n: int) -> None:
    values = np.random.default_rng(p).normal(size=(p, n)).astype(np.float32)
    for name, wire, dtype in product(NAMES, ("", "/bfloat16", "/mxint8", "/mxfp4"), ("float32", "bfloat16")):
        if name.endswith("doubling") and p & (p - 1):
            continue
        schedule = build("all_reduce", name + wire, p)
        found = summation(schedule, once=dtype == "bfloat16" and not wire)
        edges = schedule.cut(n)
        given = np.pad(rounding.rounded(values, dtype), ((0, 0), (0, int(edges[-1]) - n)))
        chunks = [
            rounding._value(schedule, found.terms, int(term), dtype, given[:, edges[c] : edges[c + 1]])
            for c, term in enumerate(found.held[0])
            if edges[c] < edges[c + 1]
        ]
        assert total(schedule, values, dtype).tobytes() == np.concatenate(chunks)[:n].tobytes(), (name, wire, dtype)


@pytest.mark.parametrize("wire", WIRES)
def test_rounded_values_have_the_bits_of_encoded_and_decoded_ones(wire: str) -> None:
    made = torch.Generator().manual_seed(0)
    values = torch.randn(200, 32, generator=made) * 10.0 ** torch.randint(-45, 38, (200, 1), generator=made)
    values[0, 0], values[1, 1], values[2], values[3, ::2] = torch.inf, torch.nan, 0.0, -0.0
    values[4:20] = torch.arange(-256, 256).view(16, 32) / 64  # half way between two numbers, and numbers themselves
    given = values.flatten()
    both = rounded(wire, given), decode(wire, encode(wire, given))
    assert both[0].numpy().tobytes() == both[1].numpy().tobytes()
