"""The forms of the collectives, which tensors are whole and who has them, follow from what each promises."""

import numpy as np
import pytest

from collectives.algorithms import build, names
from collectives.core.contracts import CONTRACTS, cells, contract, where

P, ROOT = 5, 2


@pytest.mark.parametrize("collective", CONTRACTS)
def test_a_form_follows_from_the_contract(collective: str) -> None:
    form = CONTRACTS[collective]
    root = ROOT if form.rooted else None
    schedule = build(collective, names(collective)[0], P, root=root, segments=1)
    ranks = np.arange(P)[:, None]
    held = contract(schedule).before(cells(schedule, ranks))
    chunks_held = np.broadcast_to(held, (P, schedule.k)).sum(axis=1)
    chunks_asked = where(schedule).sum(axis=1)

    part = schedule.k // P
    if collective == "all_to_all":  # a rank's buffer is 1/p of the cells: its input, and its output
        assert {*chunks_held, *chunks_asked} == {part}
        assert not form.input_is_part
        assert not form.output_is_part
        return
    assert form.input_is_part == (chunks_held.max() == part < schedule.k)
    assert form.output_is_part == (chunks_asked.max() == part < schedule.k)
    has_input, has_output = np.flatnonzero(chunks_held), np.flatnonzero(chunks_asked)
    # Of a broadcast all ranks have the tensor that it writes, so none is the root's alone.
    assert (form.root_only == "input") == (has_input.tolist() == [ROOT] and not form.in_place)
    assert (form.root_only == "output") == (has_output.tolist() == [ROOT])
