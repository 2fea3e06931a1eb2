"""NCCL's pieces against a plain program of its rules, and what must hold of any rule."""

import pytest

from collectives.nccl.chunks import pieces
from collectives.nccl.formulas import Job, job

KIB = 1 << 10


def on(nodes: int, ranks: int = 8, ports: int = 8) -> Job:
    return job("all_reduce", nodes, ranks, "hopper", 370.8, ports, 50)


@pytest.mark.parametrize("nodes", [2, 3, 4, 32])
@pytest.mark.parametrize("algorithm", ["tree", "nvls_tree"])
@pytest.mark.parametrize("protocol", ["LL", "LL128", "Simple"])
def test_pieces_are_neither_tiny_nor_larger_than_a_channels_buffer(
    nodes: int, algorithm: str, protocol: str
) -> None:
    of = on(nodes)
    together = 16 * (8 if algorithm == "nvls_tree" else 1)
    for power in range(3, 34):
        nbytes = 1 << power
        count = pieces(of, algorithm, protocol, nbytes)
        chunk = nbytes / count / together
        assert count >= 1
        assert chunk <= 600 * KIB
        assert count == 1 or chunk > 8 * KIB


def test_a_tree_by_simple_is_cut_as_the_source_says() -> None:
    # 2 nodes of 8: depth 9. 16 MiB are 1 MiB for each of 16 channels: 8 chunks of 128 KiB are fewer
    # than 9 * 4, 16 of 64 KiB are not fewer than 9.
    assert pieces(on(2), "tree", "Simple", 16 << 20) == 16
    # 4 MiB: 256 KiB a channel, 8 chunks of 32 KiB, which is the least.
    assert pieces(on(2), "tree", "Simple", 4 << 20) == 8


def test_switches_have_fewer_pieces_of_a_small_buffer_and_smaller_ones_on_many_nodes() -> None:
    # 128 channels and heads: 16 MiB of 128 KiB each, 8 MiB of 64 KiB each.
    assert pieces(on(2), "nvls_tree", "Simple", 64 << 20) == 4
    assert pieces(on(4), "nvls_tree", "Simple", 64 << 20) == 8
    assert pieces(on(1), "nvls", "Simple", 1 << 30) == 64
    assert pieces(on(1), "nvls", "Simple", 1 << 20) == 1


def test_a_ring_is_not_cut() -> None:
    assert pieces(on(2), "ring", "Simple", 1 << 33) == 1
