"""Packed trees: right on every graph, no link above its capacity, as fast as the bound, and run on real ranks."""

from pathlib import Path

import numpy as np
import pytest

from collectives import simulate, verify
from collectives.algorithms import build, own
from collectives.core.schedule import ScheduleError
from collectives.figures.layout import layout
from collectives.machine import Machine, machine, text
from collectives.topology.bound import bound, seconds
from collectives.topology.graph import Graph, graph, ways
from collectives.topology.trees import COLLECTIVES, packed, packed_trees
from collectives_interop import msccl
from topology.test_bound import some

LARGE = pytest.mark.extended
PRESETS = [
    ("dgx1", 8),
    ("mi250", 16),
    ("a100", 8),
    ("ndv2", 16),
    ("mesh:3x4", 12),
    *(
        pytest.param(*given, marks=LARGE)
        for given in (("a100", 16), ("dgx2", 16), ("torus:3x3x3", 27))
    ),
]
SLOW = [pytest.param(name, 32, marks=LARGE) for name in ("mi250", "a100")]


def check_packed(collective: str, of: Graph, root: int) -> None:
    """Every tree spans all ranks from its root, and no link carries more than its share."""
    each, trees = packed(collective, of, root)
    carried, along, n = np.zeros(of.vertices**2), ways(of), of.vertices
    for tree in trees:
        reached = {tree.root}
        for parent, child in tree.links:
            assert parent in reached
            assert child not in reached
            reached.add(child)
            pair = parent * n + child
            carried[along.link[along.first[pair] : along.first[pair + 1]]] += tree.count
        assert len(reached) == of.p
    roots = [tree.root for tree in trees for _ in range(tree.count)]
    assert np.bincount(roots, minlength=of.p).max() == each
    units = bound(collective, of, root).units * (of.p if collective == "all_gather" else 1)
    assert (carried <= of.capacity.reshape(-1) * float(units * each) + 1e-9).all()


@pytest.mark.parametrize(("name", "p"), [*PRESETS, *SLOW])
def test_trees_of_presets_span_and_fit(name: str, p: int) -> None:
    for collective in ("all_gather", "broadcast"):
        check_packed(collective, graph(machine(name), p), p - 1)


@pytest.mark.parametrize("p", [2, 3, 5, 7])
def test_trees_of_any_graph_span_and_fit(p: int) -> None:
    """Between ranks alone the way of a message is the link that the tree takes."""
    for seed in range(8):
        made = some(seed, p)
        check_packed("all_gather", made, 0)
        check_packed("broadcast", made, p // 2)


@pytest.mark.integration  # seconds
@pytest.mark.parametrize(("name", "p"), PRESETS)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_schedules_are_proved(name: str, p: int, collective: str) -> None:
    for segments in (1, 3):
        verify(build(collective, f"packed_trees@{name}", p, segments=segments, root=p - 1))


def test_a_lost_row_is_noticed() -> None:
    whole = packed_trees("all_gather", machine("dgx1"), 8)
    step = whole.step(1)

    def make(t: int) -> object:
        return (
            type(step)(step.src[1:], step.dst[1:], step.chunk[1:], step.count[1:])
            if t == 1
            else whole.step(t)
        )

    with pytest.raises(ScheduleError):
        verify(type(whole)("all_gather", 8, whole.k, whole.nsteps, make, one_port=False))  # type: ignore[arg-type]


@pytest.mark.integration
@pytest.mark.parametrize(("name", "p"), PRESETS)
@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter", "all_reduce", "broadcast"])
def test_large_buffers_come_within_a_hundredth_of_the_bound(
    name: str, p: int, collective: str
) -> None:
    on, n = without_latency(machine(name)), 1 << 34
    depth = packed_trees(collective, on, p).nsteps
    segments = 200 * depth
    simulated = simulate(packed_trees(collective, on, p, segments), on, n).seconds
    phases = "reduce_scatter", "all_gather"
    least = sum(
        seconds(each, on, p, n)
        for each in (phases if collective == "all_reduce" else (collective,))
    )
    assert least <= simulated * (1 + 1e-9)
    assert simulated <= 1.01 * least


def without_latency(of: Machine) -> Machine:
    none = {"latency": 0.0}
    assert of.inside is not None
    return of.model_copy(
        update={
            "inside": of.inside.model_copy(update=none),
            "network": of.network.model_copy(update=none),
        }
    )


def test_links_that_differ_by_direction() -> None:
    ring = Machine(
        name="one-way",
        ranks_per_node=3,
        inside={"rate": "1GB/s"},  # type: ignore[arg-type]
        links={"pairs": [(0, 1, 2), (1, 2, 2), (2, 0, 2), (1, 0, 1)]},  # type: ignore[arg-type]
    )
    for collective in COLLECTIVES:
        verify(packed_trees(collective, ring, 3, segments=2))


def test_a_machine_s_text_is_read_back() -> None:
    assert "matrix" in text(machine("dgx1"))
    assert Machine.model_validate_json(machine("ndv2").model_dump_json()) == machine("ndv2")


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_they_become_programs_of_msccl(collective: str, tmp_path: Path) -> None:
    schedule = build(collective, "packed_trees@mesh:2x3", 6, root=0)
    path = tmp_path / "trees.xml"
    path.write_text(msccl.text(schedule, "trees", "msccl-tools"))
    verify(own(str(path))(6))


def test_ranks_are_drawn_in_their_places() -> None:
    placed = layout(build("all_gather", "packed_trees@dgx1", 8), "packed_trees@dgx1")
    assert placed.points.tolist() == [list(place) for place in machine("dgx1").links.places]  # type: ignore[union-attr]
    grid = layout(build("all_gather", "packed_trees@mesh:2x3", 6), "packed_trees@mesh:2x3").points
    assert grid.tolist() == [[0, 0], [0.5, 0], [1, 0], [0, 1], [0.5, 1], [1, 1]]
    assert layout(build("all_gather", "packed_trees@dgx2", 16), "packed_trees@dgx2").shape == "ring"


@pytest.mark.parametrize(
    ("collective", "name", "p", "says"),
    [
        ("all_to_all", "packed_trees@dgx1", 8, "collective of packed_trees: got all_to_all"),
        ("all_gather", "packed_trees@dgx1", 9, "ranks of dgx1: got 9, expected 8"),
        ("all_gather", "packed_trees@textbook", 8, "links of textbook: got none"),
        ("all_gather", "packed_trees@", 8, "unknown machine ''"),
        (
            "all_gather",
            "packed_trees",
            8,
            "packed_trees: got no machine, expected one after an @, as in packed_trees",
        ),
    ],
)
def test_what_cannot_be_packed_is_refused(collective: str, name: str, p: int, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        build(collective, name, p)
