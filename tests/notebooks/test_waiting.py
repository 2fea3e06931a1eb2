"""Pictures of pairs of trees: they are drawn, and their alternative texts name the ranks that are interior in both."""

import numpy as np
import pytest

from collectives.algorithms.library_trees import FIRST_TREES, library_trees
from collectives.figures.trees import side_by_side, x_positions


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
