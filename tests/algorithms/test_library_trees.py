"""The trees of NCCL, UCC and torchcomms: their published rules for children agree, all-reduce is proved and counted."""

import numpy as np
import pytest

from collectives import verify
from collectives.algorithms.binary_tree import NO_PARENT, second_tree
from collectives.algorithms.library_trees import (
    FIRST_TREES,
    all_reduce_on,
    in_order_tree,
    interior_in_both,
    library_trees,
)
from collectives.core.traffic import traffic

SIZES = [*range(1, 20), 31, 32, 33, 64, 65]


def busiest(library: str, p: int) -> float:
    """Bytes that the busiest rank sends, in buffers."""
    counted = traffic(all_reduce_on(library_trees(library, p)), 1000)
    assert counted.sent.max() == counted.received.max()
    return float(counted.sent.max() / 1000)


@pytest.mark.parametrize("library", FIRST_TREES)
@pytest.mark.parametrize("p", SIZES)
def test_all_reduce_through_both_trees_is_right(library: str, p: int) -> None:
    verify(all_reduce_on(library_trees(library, p), segments=2))


def largest_power(most: int) -> int:
    return 1 << (most.bit_length() - 1)


def ucc_children(p: int, rank: int) -> list[int]:
    """UCC's rule for children, which its trees state beside the rule for the parent."""
    below = ((rank + 1) & -(rank + 1)) // 2
    if not below:
        return []
    left = [rank - below]
    if rank == p - 1:
        return left
    near = rank + below
    return [
        *left,
        near if near < p and rank != largest_power(p) - 1 else rank + largest_power(p - rank - 1),
    ]


@pytest.mark.parametrize("p", [*range(1, 70), 127, 128, 129])
def test_uccs_rule_for_children_gives_the_same_tree(p: int) -> None:
    parent = in_order_tree(p)
    for rank in range(p):
        assert np.flatnonzero(parent == rank).tolist() == ucc_children(p, rank)


@pytest.mark.parametrize("p", SIZES)
def test_nccls_second_tree_is_the_one_of_the_library(p: int) -> None:
    assert library_trees("NCCL", p)[1].tolist() == second_tree(p).tolist()


@pytest.mark.parametrize("p", [4, 8, 16, 32, 64])
def test_for_powers_of_two_no_rank_is_interior_in_both_trees(p: int) -> None:
    for library in FIRST_TREES:
        assert not interior_in_both(library_trees(library, p)).size
        assert busiest(library, p) <= 2


@pytest.mark.parametrize("p", [9, 17, 33, 65])
def test_a_shifted_heap_leaves_half_of_the_ranks_interior_in_both_trees(p: int) -> None:
    parents = library_trees("torchcomms", p)
    leaves = [rank for rank in range(p) if rank not in parents[0] and rank not in parents[1]]
    assert (interior_in_both(parents).size, len(leaves)) == ((p - 3) // 2, (p - 1) // 2)
    assert busiest("torchcomms", p) == 3
    assert busiest("NCCL", p) == busiest("UCC", p) == 2
    assert interior_in_both(library_trees("NCCL", p)).tolist() == [0]
    assert not interior_in_both(library_trees("UCC", p)).size


def test_every_tree_has_one_root() -> None:
    for library in FIRST_TREES:
        for p in SIZES:
            assert (library_trees(library, p) == NO_PARENT).sum(axis=1).tolist() == [1, 1]
