"""Hosts with the links of a machine, slower: what is emulated, what cannot be, and packed trees on real ranks there."""

import pytest

from collectives.bench import Settings, bench
from collectives.launch import links, need_where
from collectives.launch.cluster import parse


def test_every_pair_has_the_rate_of_its_links() -> None:
    options = parse("dgx1,10000", 8)
    assert (options.latency, options.rate, len(options.pairs)) == ("7ms", "2.5MB/s", 28)
    rates = {(a, b): rate for a, b, rate in options.pairs}
    assert (rates[0, 1], rates[0, 2], rates[0, 7]) == (5e6, 2.5e6, 0.25e6)
    assert parse("dgx1", 8).rate == "25MB/s"
    assert parse("mesh:2x2,mpirun", 4).by_mpirun


def test_no_single_link_is_named_for_them() -> None:
    assert links("cluster:dgx1", 8) is None
    assert links("cluster:5ms,25MB/s", 8) == "5ms,25MB/s"


@pytest.mark.parametrize(
    ("where", "ranks", "says"),
    [
        ("cluster:dgx1", 4, "ranks of dgx1: got 4, expected 8"),
        (
            "cluster:a100",
            8,
            "emulated machine: got a100, expected one whose ranks have links to each other, as dgx1",
        ),
        ("cluster:textbook", 8, "emulated machine: got textbook"),
        ("cluster:dgx1,fast", 8, "invalid network: got 'dgx1,fast', expected MACHINE"),
        ("cluster:dgx1,0", 8, "invalid network: got 'dgx1,0'"),
        ("cluster:dgx1,10,2", 8, "invalid network: got 'dgx1,10,2'"),
        ("cluster:dgx7", 8, "unknown machine 'dgx7'"),
    ],
)
def test_what_cannot_be_emulated_is_refused(where: str, ranks: int, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        need_where(where, ranks)


@pytest.mark.extended
@pytest.mark.usefixtures("allowed")
def test_packed_trees_are_right_on_emulated_links() -> None:
    wanted = [
        Settings(
            collective=collective,
            algorithms=["packed_trees@mesh:2x2"],
            ranks=4,
            where="cluster:mesh:2x2,500",
            bytes=[4, 20, 100_000],
            segments=segments,
            repetitions=1,
            warmups=0,
        )
        for collective in ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce")
        for segments in (1, 3)
    ]
    rows = bench(wanted).rows
    assert len(rows) == 30
    assert {(row["wrong"], row["bound_us"]) for row in rows} == {(0, None)}
