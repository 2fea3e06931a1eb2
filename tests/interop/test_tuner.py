"""The tuner's file is read back as NCCL's plugin does: it says the fastest algorithm of every size."""

import re

import pytest

from collectives_interop.tuner import Time, known, nvls, tuner

SIZES = [256, 1024, 4096, 16384]


def times(nodes: int, crossing: int) -> list[Time]:
    """Tree is faster below the crossing."""
    return [
        Time(
            "all_reduce",
            name,
            "simple",
            nodes,
            8 * nodes,
            size,
            float(size < crossing if name == "ring" else 0.5),
        )
        for name in ("ring", "tree")
        for size in SIZES
    ]


def chosen(file: str, collective: str, size: int, nodes: int, ranks: int) -> str | None:
    """The first line that fits, as the plugin finds it."""
    for line in file.splitlines():
        if line.startswith("#"):
            continue
        names = line.split(",")
        low, high, n, p = (int(names[i]) for i in (1, 2, 6, 7))
        assert (names[5], names[8], names[9]) == ("-1", "-1", "-1")
        if names[0] == collective and low <= size <= high and n in (-1, nodes) and p in (-1, ranks):
            return names[3]
    return None


def test_every_size_has_its_fastest_algorithm() -> None:
    file = tuner(times(2, 1024) + times(4, 16384), "test")
    for nodes, crossing in ((2, 1024), (4, 16384)):
        for size in (256, 300, 1023, 1024, 4095, 4096, 16383, 16384):
            tested = max(each for each in SIZES if each <= size)
            wanted = "tree" if tested < crossing else "ring"
            assert chosen(file, "allreduce", size, nodes, 8 * nodes) == wanted


def test_nothing_is_said_beyond_what_was_tried() -> None:
    file = tuner(times(2, 1024), "test")
    unknown = [(8, 2, 16), (20000, 2, 16), (256, 3, 16), (256, 2, 8)]
    assert [chosen(file, "allreduce", *each) for each in unknown] == [None] * 4
    assert chosen(file, "broadcast", 256, 2, 16) is None


def test_where_nccl_s_own_choice_is_the_fastest_there_is_no_line() -> None:
    own = [
        each._replace(algorithm="", seconds=-1.0)
        for each in times(2, 0)[:4]
        if each.bytes in (1024, 16384)
    ]
    file = tuner(times(2, 4096) + own, "test")
    chosen_by = {
        size: chosen(file, "allreduce", size, 2, 16)
        for size in (256, 257, 1024, 4095, 4096, 4097, 16384)
    }
    assert chosen_by == {
        256: "tree",
        257: None,
        1024: None,
        4095: None,
        4096: "ring",
        4097: None,
        16384: None,
    }


def test_nvls_is_named_where_it_was_measured_and_otherwise_left_to_nccl() -> None:
    assert (known("NVLS/Simple"), known("NVLSTree"), known("default")) == (
        ("nvls", "simple"),
        ("nvls_tree", "simple"),
        ("", "simple"),
    )
    # In a node 23 us and the link's time; on four nodes two doublings, and what passes through the
    # ports.
    assert nvls(1, 8, 100_000_000, 100e9, 1.0).seconds == pytest.approx(23e-6 + 1e-3)
    assert nvls(4, 32, 100_000_000, 400e9, 100e9).seconds == pytest.approx(
        23e-6 + 2 * 28e-6 + 1.5e-3
    )


def test_a_protocol_has_its_own_lines() -> None:
    two = [
        Time("all_gather", "ring", name, -1, 8, size, 1.0)
        for name, size in (("ll", 256), ("simple", 1024))
    ]
    assert tuner(two, "test").splitlines()[2:] == [
        "allgather,256,1023,ring,ll,-1,-1,8,-1,-1",
        "allgather,1024,1024,ring,simple,-1,-1,8,-1,-1",
    ]


def test_a_single_tree_is_not_nccls() -> None:
    assert (known("tree"), known("hierarchical_ring")) == (None, None)
    assert (known("hierarchical_tree"), known("Ring/LL128")) == (
        ("tree", "simple"),
        ("ring", "ll128"),
    )


def test_no_times_are_an_error() -> None:
    with pytest.raises(ValueError, match="times: got none by ring or tree"):
        tuner([], "test")


def chosen_by_ncclx(file: str, nbytes: int, nodes: int, each: int) -> str | None:
    """The algorithm of the first line that fits, as NCCLX reads it: bytes for each rank, rounded down."""
    of_rank = nbytes // (nodes * each)
    for line in file.splitlines():
        if line.startswith("#"):
            continue
        names = re.split(r",(?![^\[]*\])", line)
        interval = names[1].strip("[]")
        low, _, high = interval.partition(",")
        where = (int(names[5]), int(names[6]))
        if where == (nodes, each) and int(low) <= of_rank <= int(high or low):
            return names[2]
    return None


@pytest.mark.parametrize("ranks", [16, 24])
def test_ncclx_finds_the_same_algorithm_by_the_bytes_of_a_rank(ranks: int) -> None:
    measured = [time._replace(ranks=ranks) for time in times(2, 4096)]
    file = tuner(measured, "test", "ncclx-tuner")
    same = tuner(measured, "test")
    for size in (256, 300, 1000, 4000, 4096, 10_000, 16384):
        by_nccl = chosen(same, "allreduce", size, 2, ranks)
        assert chosen_by_ncclx(file, size, 2, ranks // 2) == by_nccl
    assert chosen_by_ncclx(file, 4096, 4, ranks // 4) is None
    assert chosen_by_ncclx(file, 17_000, 2, ranks // 2) is None


@pytest.mark.parametrize("nodes", [-1, 3])
def test_ncclx_needs_nodes_that_the_ranks_fill(nodes: int) -> None:
    wrong = [time._replace(nodes=nodes, ranks=16) for time in times(2, 1024)]
    with pytest.raises(ValueError, match="--nodes"):
        tuner(wrong, "test", "ncclx-tuner")
