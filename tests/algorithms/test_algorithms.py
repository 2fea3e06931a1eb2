"""Every algorithm, for every p from 1 to 64: proved by exact counts, and its traffic held against the closed forms."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from collectives.algorithms import (
    ALGORITHMS,
    COSTS,
    NEUTRAL,
    PIPELINES,
    Algorithm,
    build,
    names,
    takes,
    variants,
)
from collectives.algorithms.binary_tree import (
    NO_PARENT,
    arrivals,
    binary_tree,
    edge_colours,
    exchanges,
    second_tree,
)
from collectives.autotune import MEASURED, choose
from collectives.bench import Settings
from collectives.bench.results import read, write
from collectives.core.bounds import height
from collectives.core.grid import grid
from collectives.core.schedule import Schedule, ScheduleError
from collectives.core.traffic import traffic
from collectives.core.verify import exact, verify
from collectives.figures.layout import layout
from collectives.figures.style import mark
from collectives.machine import Protocol, machine
from collectives.renamed import RENAMED
from collectives.torch_backend.options import Options
from sweep import sweep

RANKS = range(1, 65)
SWEEP = pytest.mark.parametrize("ranks", sweep(RANKS))
EACH = pytest.mark.parametrize(("collective", "algorithm"), ALGORITHMS)


@EACH
@SWEEP
def test_proved_for_1_to_64_ranks(collective: str, algorithm: str, ranks: list[int]) -> None:
    """A part of what `collectives verify --all` goes through: beyond 24 ranks a prime, powers of two, and neither."""
    proved = {*range(1, 25), 29, 32, 45, 64}
    for p in proved.intersection(ranks):
        for schedule in variants(collective, algorithm, p):
            assert (schedule.collective, schedule.p) == (collective, p)
            assert exact(schedule)
            verify(schedule)


@pytest.mark.integration
@EACH
@pytest.mark.parametrize("p", [130, 144])
def test_proved_by_fingerprints_beyond(collective: str, algorithm: str, p: int) -> None:
    schedule = build(collective, algorithm, p, segments=5)
    assert not exact(schedule)
    verify(schedule)


def in_lock_step(schedule: Schedule, n: int) -> tuple[int, int]:
    """Messages and bytes of the busiest port in each step, added up over the steps."""
    messages = size = 0
    for step in schedule.steps():
        counted = traffic(replace(schedule, nsteps=1, make=lambda _, step=step: step), n)
        messages += max(counted.messages_sent.max(), counted.messages_received.max())
        size += max(counted.sent.max(), counted.received.max())
    return messages, size


@SWEEP
@pytest.mark.parametrize(("collective", "algorithm"), COSTS)
def test_steps_and_bytes_are_what_the_closed_form_says(
    collective: str, algorithm: str, ranks: list[int]
) -> None:
    for p in ranks:
        schedule, cost = build(collective, algorithm, p), COSTS[collective, algorithm](p)
        n = 840 * p * schedule.k  # whole pieces, also where a rank's part is cut further
        assert in_lock_step(schedule, n) == (cost.steps, pytest.approx(cost.sent * n)), p


def test_totals_of_the_naive_all_reduces() -> None:
    for p in RANKS:
        exchange, root = (
            traffic(build("all_reduce", name, p), 100) for name in ("one_shot", "reduce_broadcast")
        )
        assert exchange.sent.sum() == p * (p - 1) * 100
        assert root.sent.sum() == 2 * (p - 1) * 100


@pytest.mark.parametrize("ranks", sweep(range(2, 200)))
@pytest.mark.parametrize("segments", [1, 2, 7])
def test_trees_take_no_more_steps_than_they_promise(segments: int, ranks: list[int]) -> None:
    for p in ranks:
        for algorithm in ("tree", "two_tree"):
            schedule = build("all_reduce", algorithm, p, segments=segments)
            saved = 2 if algorithm == "tree" else 0  # the root of one tree has a single child
            assert schedule.nsteps <= 2 * (2 * height(p) + 2 * segments - 2) - saved, p


def test_trees_begin_and_end_at_work() -> None:
    for p in range(2, 65):
        for algorithm in ("tree", "overlapped_tree", "two_tree"):
            schedule = build("all_reduce", algorithm, p, segments=3)
            assert len(schedule.step(0)), p
            assert len(schedule.step(schedule.nsteps - 1)), p


def test_an_overlapped_tree_takes_three_steps_a_segment() -> None:
    for p in range(2, 65):
        for s in (1, 2, 9):
            steps, pipeline = (
                table["all_reduce", "overlapped_tree"] for table in (ALGORITHMS, PIPELINES)
            )
            promised = pipeline(p).fixed + pipeline(p).period * s
            assert promised - steps(p, segments=s).nsteps == int(p & (p - 1) > 0), (p, s)
            assert p < 4 or promised == 4 * height(p) + 3 * s - 3
    assert [
        build("all_reduce", name, 64, segments=64).nsteps for name in ("tree", "overlapped_tree")
    ] == [274, 213]


def test_while_segments_go_up_others_go_down_through_the_same_ranks() -> None:
    """Away from both ends of the pipeline, an interior rank with two children sends and receives in every step."""
    busy = np.flatnonzero(np.bincount(binary_tree(32)[1:]) == 2)
    schedule = build("all_reduce", "overlapped_tree", 32, segments=20)
    for t in range(20, 60):
        step = schedule.step(t)
        assert {*step.src.tolist()} >= {*busy.tolist()}, t
        assert {*step.dst.tolist()} >= {*busy.tolist()}, t


@pytest.mark.parametrize("parent", [[-1, 0, 0], [-1, 0, 0, 0, 1, 1, 4], [1, 2, 3, -1], [-1]])
def test_both_ends_of_an_edge_take_turns_with_their_other_neighbours(parent: list[int]) -> None:
    up, down, period = exchanges(np.array(parent))
    for r in range(len(parent)):
        edges = [c for c, above in enumerate(parent) if above == r] + [r] * (parent[r] != NO_PARENT)
        assert (
            len({up[c] % period for c in edges})
            == len({down[c] % period for c in edges})
            == len(edges)
        )
        assert all((down[c] - up[c]) % period == 0 for c in edges)


@pytest.mark.integration  # seconds
def test_two_trees_halve_what_one_tree_sends() -> None:
    for p in range(3, 65):
        one, two = (
            traffic(build("all_reduce", name, p, segments=4), 800) for name in ("tree", "two_tree")
        )
        assert two.sent.max() <= 1600
        assert two.received.max() <= 1600
        assert one.sent.max() == (2400 if p > 3 else 1600), p


def interior(parent: np.ndarray) -> np.ndarray:
    return np.unique(parent[parent != NO_PARENT])


def test_the_binary_tree_is_nccls() -> None:
    """Children by NCCL's own other formula: r - low and r + low, halving low while that is no rank."""
    for p in range(2, 300):
        parent = binary_tree(p)
        for r in range(1, p):
            low = (r & -r) >> 1
            children = set()
            if low:
                children.add(r - low)
                while low and r + low >= p:
                    low >>= 1
                children |= {r + low} if low else set()
            assert set(np.flatnonzero(parent == r).tolist()) == children, (p, r)
        first_power = 1 << (p - 1).bit_length()
        assert np.flatnonzero(parent == 0).tolist() == [first_power >> 1]


def test_no_rank_is_interior_in_both_trees_but_rank_0_for_odd_p() -> None:
    for p in range(2, 1025):
        both = np.intersect1d(interior(binary_tree(p)), interior(second_tree(p)))
        assert both.tolist() == ([0] if p % 2 and p > 1 else []), p


def test_trees_are_as_high_as_the_logarithm() -> None:
    for p in range(1, 300):
        for parent in (binary_tree(p), second_tree(p)):
            assert np.sum(parent == NO_PARENT) == 1
            levels = (arrivals(parent, np.zeros_like(parent)) + 2) // 2
            assert levels.max() == height(p), p


def test_no_port_works_twice_in_one_colour() -> None:
    for p in range(2, 400):
        parents = np.stack([binary_tree(p), second_tree(p)])
        colours = edge_colours(parents)
        for colour in (0, 1):
            used = (parents != NO_PARENT) & (colours == colour)
            assert np.bincount(parents[used], minlength=p).max() <= 1, p
            assert used.sum(axis=0).max() <= 1, p


def test_mirroring_an_odd_number_is_refused() -> None:
    """It would leave half of all ranks interior in both trees: the bug of NCCL 2.4.2 to 2.7.8."""
    with pytest.raises(
        ValueError, match="a 'mirror' \\(for even p\\) or a 'shift', not 'mirror' for 9 ranks"
    ):
        build("all_reduce", "two_tree", 9, second="mirror")
    with pytest.raises(ValueError, match="not 'mirrored' for 8 ranks"):
        build("all_reduce", "two_tree", 8, second="mirrored")


def test_nodes_have_to_be_full() -> None:
    for algorithm in ("hierarchical_ring", "hierarchical_tree"):
        with pytest.raises(ValueError, match="8 ranks do not fill nodes of 3"):
            build("all_reduce", algorithm, 8, ranks_per_node=3)


def test_a_hierarchical_ring_sends_little_outside() -> None:
    """With g ranks on each of N nodes a rank sends 2 (g-1)/g n inside and 2 (N-1)/N n/g outside."""
    for nodes, g in ((2, 4), (3, 5), (8, 8), (7, 1), (1, 6)):
        schedule = build("all_reduce", "hierarchical_ring", nodes * g, ranks_per_node=g)
        n = 60 * schedule.p
        edges, outside = schedule.cut(n), np.zeros(schedule.p)
        for step in schedule.steps():
            crosses = step.src // g != step.dst // g
            size = edges[step.chunk + step.count] - edges[step.chunk]
            np.add.at(outside, step.src[crosses], size[crosses])
        assert (outside == 2 * (nodes - 1) / nodes * n / g).all()
        assert (traffic(schedule, n).sent - outside == 2 * (g - 1) / g * n).all()


def test_a_hierarchical_tree_keeps_its_promise_of_steps() -> None:
    for nodes, g, s in ((2, 4, 1), (3, 5, 4), (8, 8, 2), (7, 1, 3), (16, 6, 8)):
        schedule = build("all_reduce", "hierarchical_tree", nodes * g, ranks_per_node=g, segments=s)
        assert schedule.nsteps <= 2 * (2 * (height(nodes) + g - 1) + 2 * s - 2)


def test_a_broadcast_through_two_trees_keeps_its_promise_of_steps() -> None:
    for p in range(2, 130):
        for s in (1, 2, 9):
            assert (
                build("broadcast", "two_tree", p, segments=s).nsteps <= 2 * height(p - 1) + 2 * s
            ), p


def test_three_children_cannot_be_coloured() -> None:
    with pytest.raises(ScheduleError, match="more than two children"):
        edge_colours(np.array([[-1, 0, 0, 0]]))


def test_names_and_options() -> None:
    assert names("all_gather") == [name for of, name in ALGORITHMS if of == "all_gather"]
    assert build("all_reduce", "two_tree", 8, segments=3, root=5).k == 6
    with pytest.raises(
        ValueError, match=r"no algorithm 'rnig' for 'all_reduce'; all_reduce has .*, two_shot"
    ):
        build("all_reduce", "rnig", 8)
    with pytest.raises(ValueError, match="collectives with algorithms are broadcast, scatter"):
        build("all_the_things", "ring", 8)


def test_what_the_ranks_of_two_trees_send() -> None:
    for p in range(4, 65, 2):
        sent = traffic(build("all_reduce", "two_tree", p, segments=4), 800).sent
        assert (sent[[0, p - 1]] == 800).all()
        assert (sent[1 : p - 1] == 1600).all()


@pytest.mark.parametrize("ranks", sweep(range(2, 70)))
@pytest.mark.parametrize(("collective", "algorithm"), PIPELINES)
def test_pipelined_algorithms_take_the_steps_of_their_formula(
    collective: str, algorithm: str, ranks: list[int]
) -> None:
    for p in ranks:
        for segments in (1, 2, 9):
            schedule, pipeline = (
                build(collective, algorithm, p, segments=segments),
                PIPELINES[collective, algorithm](p),
            )
            assert schedule.k == segments * pipeline.share
            promised = pipeline.fixed + pipeline.period * segments
            assert schedule.nsteps <= promised
            assert schedule.nsteps == promised or algorithm not in ("chain", "circulant")
            adding = [
                bool(step.add[step.dst < p].any()) for step in schedule.steps() if step.src.size
            ]
            assert sum(adding) <= pipeline.adds * len(adding)
            assert sum(adding) == pipeline.adds * len(adding) or algorithm == "overlapped_tree"


@pytest.mark.parametrize(("collective", "algorithm"), PIPELINES)
def test_no_other_number_of_segments_is_better(collective: str, algorithm: str) -> None:
    """Rounded from a real number, the best may be a neighbour of the very best, which takes hardly less."""
    for p, n in ((3, 1e3), (8, 1e6), (64, 1e8), (1000, 1e9)):
        pipeline = PIPELINES[collective, algorithm](p)
        for gamma in (0, 1e-9):
            links = (5e-6, 1e-9, gamma)
            best = pipeline.seconds(n, pipeline.best(n, *links), *links)
            others = [
                pipeline.seconds(n, s, *links) for s in (*range(1, 200), *range(200, 20000, 50))
            ]
            assert best <= 1.01 * min(others)


@pytest.mark.parametrize("ranks", sweep(range(1, 200)))
def test_optimal_sends_the_fewest_blocks_in_the_fewest_rounds(ranks: list[int]) -> None:
    """Each rank sends and receives p-1 blocks, in ceil(log2 p) messages each way: Träff 2024, theorems 1 and 2."""
    for p in ranks:
        for collective, halves in (("reduce_scatter", 1), ("all_reduce", 2)):
            schedule = build(collective, "circulant", p)
            counted, rounds = traffic(schedule, p), height(p)
            assert schedule.nsteps == halves * rounds
            assert (np.stack([counted.sent, counted.received]) == halves * (p - 1)).all(), p
            assert (
                np.stack([counted.messages_sent, counted.messages_received]) == halves * rounds
            ).all(), p


def test_optimal_costs_as_halving_and_doubling_for_powers_of_two_and_less_for_all_else() -> None:
    for p in range(1, 300):
        circulant, folding = (
            COSTS["all_reduce", name](p) for name in ("circulant", "halving_doubling")
        )
        assert circulant.steps == folding.steps
        assert circulant == folding if p & (p - 1) == 0 else circulant.sent < folding.sent, p
    for p, most in ((6, 2.5), (96, 2.97)):  # the busiest rank folds in or out, not both
        counted = traffic(build("all_reduce", "halving_doubling", p), 960)
        assert round(counted.sent.max() / 960, 2) == most


def test_a_message_of_bruck_has_at_most_two_runs_of_chunks() -> None:
    """A row for each chunk would be p**2 / 2 rows in the last step: 300 million on 24,576 ranks."""
    for collective, algorithm in (
        ("all_gather", "bruck"),
        ("reduce_scatter", "circulant"),
        ("all_reduce", "circulant"),
    ):
        for step in build(collective, algorithm, 24_576).steps():
            assert 24_576 <= len(step) <= 2 * 24_576


def test_auto_takes_optimal_where_ranks_would_fold_and_the_node_where_links_differ() -> None:
    flat, nodes = (
        machine(name).model_copy(update={"name": MEASURED}) for name in ("textbook", "dgx-h100")
    )
    chosen = {p: choose("all_reduce", p, 1 << 20, on=flat).algorithm for p in (12, 16, 24, 96)}
    assert chosen == {12: "circulant", 16: "halving_doubling", 24: "circulant", 96: "circulant"}
    assert choose("reduce_scatter", 12, 1 << 20, on=flat).algorithm == "circulant"
    assert choose("all_reduce", 24, 1 << 20, on=nodes).algorithm == "hierarchical_ring"


def test_auto_counts_the_port_that_ranks_of_a_node_share() -> None:
    """Summit has one for six ranks: each has a sixth of it if all send far.

    In a tree few edges leave a node.
    """
    large = 256 << 20
    assert choose("broadcast", 24, large, on=machine("textbook")).algorithm == "circulant"
    assert choose("broadcast", 24, large, on=machine("summit")).algorithm in ("chain", "two_tree")
    assert choose("all_reduce", 30, large, on=machine("summit")).algorithm != "circulant"


def test_of_equal_costs_auto_takes_the_first_in_the_table() -> None:
    nbytes = 1 << 20
    on = machine("textbook").model_copy(update={"name": MEASURED})
    assert choose("all_reduce", 64, nbytes, on=on).algorithm == "halving_doubling"
    assert choose("reduce_scatter", 64, nbytes, on=on).algorithm == "recursive_halving"
    assert choose("all_gather", 64, nbytes, on=on).algorithm == "recursive_doubling"


def test_an_algorithm_needs_nothing_but_its_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a closed form the simulator's time counts; measured ranks leave it out.

    It is drawn in grey on a ring.
    """
    monkeypatch.setitem(
        ALGORITHMS, ("all_reduce", "mine"), Algorithm(ALGORITHMS["all_reduce", "two_tree"].make)
    )
    assert takes("all_reduce", "mine", "segments")
    assert build("all_reduce", "mine", 8, segments=3).k == 6
    measured = machine("ethernet").model_copy(update={"name": MEASURED})
    assert choose("all_reduce", 8, 1 << 22, "mine", on=measured) == ("mine", 4, None)
    assert choose("all_reduce", 8, 1 << 22, "mine") == choose(
        "all_reduce", 8, 1 << 22, "two_tree"
    )._replace(algorithm="mine")
    assert "mine" not in {
        choose("all_reduce", p, n, on=measured).algorithm for p in RANKS for n in (4, 1 << 26)
    }
    assert mark("mine") == ALGORITHMS["all_reduce", "mine"].mark
    assert (
        layout(build("all_reduce", "mine", 8), "mine").shape
        == ALGORITHMS["all_reduce", "mine"].shape
        == "ring"
    )


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_earlier_names_are_read_as_present_ones(old: str, new: str, tmp_path: Path) -> None:
    """Hold this for calls, settings, machine files, rows and figures.

    No algorithm has such a name now.
    """
    assert old not in {name for _, name in ALGORITHMS}
    schedule, present = (build("all_reduce", name, 5, root=1) for name in (old, new))
    assert grid(schedule) == grid(present)
    assert choose("all_reduce", 5, 8, old) == choose("all_reduce", 5, 8, new)
    assert Settings(algorithms=[old]).algorithms == [new]
    assert Options(old).of("all_reduce", 4) == new
    assert Protocol(name="LL", algorithms=(old,)).fits(new, 8)
    assert mark(old) == mark(new) != NEUTRAL
    write(
        tmp_path / "rows",
        [{"algorithm": old}, {"algorithm": None}],
        {"settings": [{"algorithms": [old]}]},
    )
    rows, record = read(tmp_path / "rows")
    assert rows.algorithm.dropna().tolist() == [new]
    assert record["settings"] == [{"algorithms": [new]}]
