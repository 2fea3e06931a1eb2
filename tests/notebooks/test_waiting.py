"""Pictures of programs and of pairs of trees: they are drawn, and their alternative texts name what they show."""

import numpy as np
import pytest

from collectives.algorithms.library_trees import FIRST_TREES, library_trees
from collectives.figures.trees import side_by_side, x_positions
from collectives_book.proofs import Panel, waiting


def test_panels_are_drawn_and_named() -> None:
    blocks, steps = ["GPU 0, block 0", "GPU 1, block 0"], [["s i0>1"], ["r i0<0"]]
    messages = [((0, 0), (1, 0))]
    plain = Panel("Right", blocks, steps, messages, [], frozenset())
    wrong = Panel("Wrong", blocks, steps, messages, [], frozenset({(1, 0)}))
    drawn = waiting([plain, wrong])
    assert drawn.alt.startswith("Right; Wrong: ")
    assert b"<svg" in drawn.light


@pytest.mark.parametrize("library", FIRST_TREES)
def test_a_pair_of_trees_names_the_ranks_interior_in_both(library: str) -> None:
    drawn = side_by_side(library_trees(library, 9), library)
    inside = {
        "NCCL": "Interior in both: 0.",
        "UCC": "No rank is interior in both.",
        "torchcomms": "Interior in both: 1, 2, 3.",
    }
    assert drawn.alt.endswith(inside[library])
    assert b"<svg" in drawn.dark


def test_no_two_ranks_of_a_level_have_one_place() -> None:
    for library in FIRST_TREES:
        parent = library_trees(library, 33)[0]
        assert len(set(x_positions(parent))) >= np.count_nonzero(~np.isin(np.arange(33), parent))
