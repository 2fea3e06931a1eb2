"""Bounds of topologies: published values as fractions, every cut tried by brute force, and what is refused."""

from fractions import Fraction
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from collectives.cli import main
from collectives.machine import Machine, machine
from collectives.topology.bound import BOUNDED, bound, seconds
from collectives.topology.graph import NO_LINKS, Graph, flow, graph, graph_of_ports, ways

# Algorithm bandwidth of all-gathers, GB/s: Zhao et al., ForestColl (arXiv 2402.06787); DGX-1: Cai
# et al. 2021, R/C.
PUBLISHED = {
    ("dgx1", 8): Fraction(1200, 7),
    ("mi250", 16): Fraction(2400, 7),
    ("mi250", 32): Fraction(5312, 15),
    ("a100", 8): Fraction(2400, 7),
    ("a100", 16): Fraction(1040, 3),
    ("a100", 32): Fraction(800, 3),
    ("ndv2", 16): Fraction(25),
    ("dgx2", 16): Fraction(160),
}


def of(name: str, p: int | None = None) -> Graph:
    return graph(machine(name), p)


def some(seed: int, p: int, switches: int = 0) -> Graph:
    """A connected graph with uneven links; at a switch as much comes in as leaves."""
    random = np.random.default_rng(seed)
    capacity = random.integers(0, 4, (p + switches, p + switches)) * random.integers(
        0, 2, (p + switches, p + switches)
    )
    capacity[range(p), [*range(1, p), 0]] += 1
    for switch in range(p, p + switches):
        capacity[switch], capacity[:, switch] = 0, 0
        ends = random.permutation(p)[: 1 + p // 2]
        capacity[switch, ends], capacity[np.roll(ends, 1), switch] = 2, 2
    np.fill_diagonal(capacity, 0)
    return Graph("some", p, capacity, Fraction(1), NO_LINKS)


@pytest.mark.parametrize(("name", "p"), PUBLISHED)
def test_published_bounds_are_met_as_fractions(name: str, p: int) -> None:
    assert bound("all_gather", of(name, p)).algbw == PUBLISHED[name, p] * 10**9


@pytest.mark.parametrize("p", [2, 3, 5, 6, 7])
@pytest.mark.parametrize("switches", [0, 2])
@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter", "broadcast", "reduce"])
def test_no_cut_is_worse_than_the_one_found(p: int, switches: int, collective: str) -> None:
    for seed in range(5):
        made = some(seed, p, switches)
        way = made.transposed() if collective.startswith("reduce") else made
        everyone = range(made.vertices)
        cuts = [np.array(cut) for size in everyone[1:] for cut in combinations(everyone, size)]
        if collective in ("broadcast", "reduce"):
            values = [
                Fraction(1, way.leaving(cut))
                for cut in cuts
                if 1 in cut and len([*filter(lambda v: v < p, cut)]) < p
            ]
        else:
            held = [(len([*filter(lambda v: v < p, cut)]), cut) for cut in cuts]
            values = [Fraction(ranks, p * way.leaving(cut)) for ranks, cut in held if 0 < ranks < p]
        found = bound(collective, made, root=1)
        assert found.units == max(values)
        assert way.leaving(np.array(found.cut)) == found.links


def test_dgx1_takes_seven_sixths_of_a_shard_over_one_link_and_more_with_a_link_less() -> None:
    made = of("dgx1")
    found = bound("all_gather", made)
    assert (found.per_shard, found.shards, found.links) == (Fraction(7, 6), 7, 6)
    made.capacity[1, 0] -= 1
    assert bound("all_gather", made).per_shard == Fraction(7, 5)


@pytest.mark.parametrize("p", [2, 3, 5, 8])
def test_rings_and_full_meshes_have_their_closed_forms(p: int) -> None:
    ring = of(f"torus:{p}")
    links = 2 if p > 2 else 1
    full = Graph(
        "full",
        p,
        np.ones((p, p), dtype=np.int64) - np.eye(p, dtype=np.int64),
        Fraction(1),
        NO_LINKS,
    )
    for made, degree in ((ring, links), (full, p - 1)):
        assert bound("all_gather", made).units == Fraction(p - 1, p * degree)
        assert bound("all_reduce", made).units == Fraction(2 * (p - 1), p * degree)
        assert bound("broadcast", made).units == Fraction(1, degree)
    assert bound("all_to_all", full).units == Fraction(1, p)
    hops = sum(min(i, p - i) for i in range(1, p))
    assert bound("all_to_all", ring).units == Fraction(hops, p * links)


def test_a_switch_does_not_copy() -> None:
    star = of("dgx2")
    assert bound("all_reduce", star).units == 2 * bound("all_gather", star).units == Fraction(15, 8)
    assert bound("all_to_all", star).units == Fraction(15, 16)


def test_an_all_reduce_need_not_have_two_phases() -> None:
    made = of("mesh:3x3")
    phases = bound("reduce_scatter", made).units + bound("all_gather", made).units
    # All ranks but one send the whole buffer once in either half: 16 buffers over 24 links.
    assert (phases, bound("all_reduce", made).units) == (Fraction(8, 9), Fraction(16, 24))


def test_a_machine_of_one_rank_needs_no_time() -> None:
    single = Graph("single", 1, np.zeros((1, 1), dtype=np.int64), Fraction(1), NO_LINKS)
    assert [bound(collective, single).units for collective in BOUNDED] == [0] * len(BOUNDED)
    assert seconds("gather", machine("dgx1"), 8, 1 << 20) == 0


@pytest.mark.parametrize("seed", range(5))
def test_a_minimum_cut_has_the_value_of_the_flow(seed: int) -> None:
    made = some(seed, 6, 1)
    for v in range(1, 6):
        value, side = flow(made.capacity, 0, v)
        assert made.leaving(side) == value
        assert 0 in side
        assert v not in side


def test_ways_are_short_and_wide() -> None:
    made, n = of("dgx1"), 8
    along = ways(made)
    assert along.between(0, 1, n).tolist() == []
    # Two links each; by 2 or 3 there is no way of two.
    assert along.between(0, 5, n).tolist() in ([1], [4])
    star = of("a100", 16)
    assert along.between(2, 2, n).tolist() == []
    assert ways(star).between(0, 1, star.vertices).tolist() == [16]
    # Over a rail, whichever is next to one end.
    assert ways(star).between(0, 9, star.vertices)[-1] >= 18


MATRIX = "matrix: [[0, 1, 0], [0, 0, 1], [1, 0, 0]]"
GIVEN = f"""
name: mine
ranks_per_node: 3
inside: {{latency: 1us, rate: 10GB/s}}
links:
  {MATRIX}
"""
SWITCHED = "switches: 1\n  pairs: [[0, 1, 1], [1, 2, 1], [2, 0, 1], [0, 3, 2], [3, 1, 1]]"


@pytest.mark.parametrize(
    ("was", "becomes", "says"),
    [
        (
            "[0, 1, 0]",
            "[0, -1, 0]",
            "links.matrix.0.1: Input should be greater than or equal to 0, got -1",
        ),
        ("[0, 1, 0]", "[0, 1.5, 0]", "links.matrix.0.1: Input should be a valid integer"),
        (
            "[0, 1, 0]",
            "[0, 99999999, 0]",
            "links.matrix.0.1: Input should be less than or equal to 1048576",
        ),
        ("[0, 1, 0]", "[0, 1]", "matrix of links: got rows and columns 2 and 3, expected 3"),
        ("[0, 1, 0]", "[1, 1, 0]", "link from 0 to itself: got 1, expected 0"),
        (
            "[1, 0, 0]",
            "[0, 0, 0]",
            "links of mine: got no way from rank 1 to rank 0, expected one between all ranks",
        ),
        ("[0, 0, 1]", "[0, 0, 0]", "links of mine: got no way from rank 0 to rank 2"),
        (MATRIX, "pairs: [[0, 5, 1]]", "link from 0 to 5: got no such rank or switch"),
        (MATRIX, "pairs: [[0, 1, 1], [0, 1, 2]]", "link from 0 to 1: got it twice"),
        (MATRIX, "rails: 1", "links: got neither, expected a matrix or pairs"),
        (
            "  matrix",
            "  pairs: [[0, 1, 1]]\n  matrix",
            "links: got both, expected a matrix or pairs",
        ),
        (
            "  matrix",
            "  egress: [0]\n  matrix",
            "egress and ingress of a network: got rails 0, expected 1 or more",
        ),
        (
            "  matrix",
            "  rails: 1\n  egress: [7]\n  matrix",
            "egress of the network: got rank 7, expected 0 to 2",
        ),
        (
            "  matrix",
            "  switches: 2000\n  matrix",
            "links: got 2,003 ranks and switches, expected at most 1,024",
        ),
        (
            "ranks_per_node: 3",
            "ranks_per_node: 2\nslower: {0: 2}",
            "a machine with links: got slower, expected none",
        ),
        (MATRIX, SWITCHED, "links of switch 3: got 2 in and 1 out, expected as many"),
        (
            "inside: {latency: 1us, rate: 10GB/s}",
            "network: {rate: 1GB/s}",
            "the link 'inside' is missing",
        ),
        ("  matrix", "  places: [[0, 0]]\n  matrix", "places: got 1, expected 3"),
    ],
)
def test_bad_links_get_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], was: str, becomes: str, says: str
) -> None:
    path = tmp_path / "mine.yaml"
    assert was in GIVEN
    path.write_text(GIVEN.replace(was, becomes))
    code, printed = main(["bound", "all_gather", "--machine", str(path)]), capsys.readouterr()
    assert (code, printed.out, len(printed.err.splitlines())) == (2, "", 1)
    assert says in printed.err


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (
            "all_gather --machine dgx-h100 -p 12",
            "ranks of dgx-h100: got 12, expected a multiple of 8, or fewer",
        ),
        (
            "all_gather --machine dgx-h100 -p 1024",
            "ranks and switches of dgx-h100: got 1,153, expected at most 1,024",
        ),
        ("all_gather --machine dgx1 -p 12", "ranks of dgx1: got 12, expected 8"),
        (
            "all_gather --machine mi250 -p 24",
            "ranks of mi250: got 24, expected a multiple of 16, or fewer",
        ),
        (
            "all_gather --machine mi250 -p 65536",
            "ranks and switches of mi250: got 65,537, expected at most 1,024",
        ),
        ("gather --machine dgx1", "bound of a collective: got gather, expected one of"),
        ("broadcast --machine dgx1 --root 8", "root: got 8, expected 0 to 7"),
        ("all_gather --machine mesh:4", ""),
        (
            "all_gather --machine mesh:4x",
            "size of a mesh: got '4x', expected such as 4x4, of 2 to 1,024 ranks",
        ),
        ("all_gather --machine torus:0x4", "size of a torus: got '0x4'"),
        ("all_gather --machine torus:99999x99999", "size of a torus: got '99999x99999'"),
        ("all_gather --machine mesh:2x2,1us", "inside.rate: invalid rate ''"),
        ("all_gather --machine dgx7", "unknown machine 'dgx7'"),
    ],
)
def test_wrong_arguments_get_one_line(
    typed: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = main(["bound", *typed.split()]), capsys.readouterr()
    assert says in said.err
    assert (code, len(said.err.splitlines())) == ((2, 1) if says else (0, 0))


def test_what_would_take_too_long_is_refused() -> None:
    digits = {"inside": {"rate": "50GB/s"}, "network": {"rate": "12.3456789GB/s"}}
    made = Machine.model_validate(machine("mi250").model_dump() | digits)
    with pytest.raises(
        ValueError, match="rates of links: got too many digits for exact flows, expected rates with"
    ):
        bound("all_gather", graph(made, 32))
    with pytest.raises(
        ValueError, match="flows over the links of mesh:8x8: got 28,672, expected at most 16,000"
    ):
        bound("all_reduce", of("mesh:8x8"))


@pytest.mark.parametrize(
    ("name", "collective", "p", "algbw"),
    [
        ("dgx-h100", "all_gather", 8, 337 * 8 / 7),
        ("dgx-h100", "all_gather", 4, 337 * 4 / 3),
        ("dgx-h100", "all_reduce", 8, 337 * 8 / 14),
        ("dgx-h100", "all_gather", 64, (337 + 50) * 64 / 63),  # a rank has both ports
        ("dgx-h100", "all_reduce", 16, (337 + 50) * 16 / 30),
        # 8 ranks a node have 24 pieces of n/32 for the others.
        ("dgx-h100", "all_to_all", 32, 8 * 50 * 32 / (8 * 24)),
        ("dgx-h100", "broadcast", 16, 337 + 50),
        ("summit", "all_gather", 12, 23 * 12 / 6),  # all ranks of a node share its ports
        ("textbook", "all_gather", 8, 25 * 8 / 7),
    ],
)
def test_a_machine_without_links_is_bound_by_its_ports(
    name: str, collective: str, p: int, algbw: float
) -> None:
    found = bound(collective, graph_of_ports(machine(name), p))
    assert float(found.algbw / 10**9) == pytest.approx(algbw)


def test_the_command_prints_a_rate_or_the_fraction_as_text(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bound", "all_gather", "--machine", "dgx-h100"]) == 0
    assert capsys.readouterr().out.startswith(
        "all_gather on 8 ranks of dgx-h100: algbw at most 385.14 GB/s"
    )
    assert main(["bound", "all_gather", "--machine", "dgx1", "--json"]) == 0
    printed = capsys.readouterr().out
    assert '"per_shard": "7/6"' in printed
    assert '"algbw_exact": "1200/7"' in printed


def test_a_mesh_has_the_link_that_is_asked_for() -> None:
    asked = machine("mesh:2x3,2us,10GB/s")
    assert isinstance(asked, Machine)
    assert (asked.inside, asked.ranks_per_node) == (asked.network, 6)
    assert asked.network.latency == 2e-6
    assert of("mesh:2x3,2us,10GB/s").unit == 10**10


@pytest.mark.parametrize(
    ("sizes", "wraps", "degrees"),
    [
        ((6,), True, {2}),
        ((6,), False, {1, 2}),
        ((3, 4), True, {4}),
        ((2, 2, 2), True, {3}),
        ((3, 3), False, {2, 3, 4}),
    ],
)
def test_a_lattice_has_one_link_to_each_neighbour(
    sizes: tuple[int, ...], wraps: bool, degrees: set[int]
) -> None:
    links = of(f"{'torus' if wraps else 'mesh'}:{'x'.join(map(str, sizes))}").capacity
    assert (links == links.T).all()
    assert {*links.sum(axis=0).tolist()} == degrees
    assert links.max() == 1


def test_a_cut_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bound", "all_gather", "--machine", "a100", "--svg", str(tmp_path / "cut")]) == 0
    told = capsys.readouterr().err
    assert (
        "a100: 8 ranks, 1 switch, and their links. The cut separates [1, 2, 3, 4, 5, 6, 7, 8]"
        in told
    )
    light, dark = ((tmp_path / f"cut-{name}.svg").read_text() for name in ("light", "dark"))
    assert light.count("#0072b2") > 2  # rank 0, and the links from the switch to it
    assert light != dark
    assert (
        main(["bound", "all_gather", "--machine", "mesh:9x9", "--svg", str(tmp_path / "no")]) == 2
    )
    assert "ranks and switches to draw: got 81, expected at most 64" in capsys.readouterr().err
    assert (
        main(["bound", "all_reduce", "--machine", "dgx1", "--svg", str(tmp_path / "no" / "where")])
        == 2
    )
    assert "cannot write" in capsys.readouterr().err
