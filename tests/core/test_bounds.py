"""Closed forms and bounds at their edges: one rank, no time, and each term that can be the largest."""

from math import sqrt

import numpy as np
import pytest

from collectives import simulate
from collectives.algorithms import ALGORITHMS, COSTS, PIPELINES, build
from collectives.autotune import bound
from collectives.core.bounds import (
    algbw,
    busbw,
    height,
    lower_bound,
    pipelined_seconds,
    reach_seconds,
    segmented_ring_seconds,
    star_seconds,
)
from collectives.core.contracts import CONTRACTS
from collectives.machine import Link, Machine, machine, presets

COLLECTIVES = list(CONTRACTS)


def test_one_rank_alone_takes_no_time() -> None:
    alone = [
        pipelined_seconds(1, 1e6, 4, 1e-6, 1e-9),
        segmented_ring_seconds(1, 1e6, 2, 1e-6, 1e-6, 1e-9),
        reach_seconds(1, 1e-6, 1e-6),
        *(star_seconds(cost(1), 2, 1e6, 1e-6, 1e-6, 1e-9) for cost in COSTS.values()),
        *(lower_bound(collective, 1, 1e6, 1e-6, 1e-9, 1e-9, 1e-6) for collective in COLLECTIVES),
        *(cost(1).seconds(1e6, 1e-6, 1e-9) for cost in COSTS.values()),
    ]
    assert alone == [0] * len(alone)


@pytest.mark.parametrize(
    ("collective", "factor"),
    [
        *((collective, 1.0) for collective in ("broadcast", "reduce")),
        *(
            (collective, 0.75)
            for collective in ("scatter", "gather", "all_gather", "reduce_scatter", "all_to_all")
        ),
        ("all_reduce", 1.5),
    ],
)
def test_busbw_counts_the_bytes_of_the_busiest_link(collective: str, factor: float) -> None:
    assert busbw(collective, 4, 2_000_000_000, 1.0) == 2 * factor
    assert lower_bound(collective, 4, 1e9, alpha=0, beta=1e-9) == factor


@pytest.mark.parametrize("p", [4, 64, 1024])
def test_the_best_number_of_segments_gives_the_time_that_the_chapter_states(p: int) -> None:
    n, alpha, beta, h = 1 << 28, 5e-6, 4e-11, height(p)
    for name, fixed, period in (("tree", 4 * h - 4, 4), ("overlapped_tree", 4 * h - 3, 3)):
        form = PIPELINES["all_reduce", name](p)
        least = period * n * beta + fixed * alpha + 2 * sqrt(fixed * period * n * alpha * beta)
        assert form.seconds(n, form.best(n, alpha, beta), alpha, beta) == pytest.approx(
            least, rel=1e-3
        )


def test_what_took_no_time_has_no_bandwidth() -> None:
    assert algbw(8, 0.0) == 0.0


@pytest.mark.parametrize(("collective", "adds"), [(each, "reduce" in each) for each in COLLECTIVES])
def test_the_largest_term_is_the_bound(collective: str, adds: bool) -> None:
    assert lower_bound(collective, 4, 0, alpha=5e-6, beta=1e-9, gamma=1e-9) == 1e-5
    assert lower_bound(collective, 4, 0, alpha=5e-6, beta=1e-9, latency=5e-6) == 5e-6
    assert lower_bound(collective, 4, 1e9, alpha=0, beta=0, gamma=1e-9) == (0.75 if adds else 0)


@pytest.mark.parametrize(("collective", "algorithm"), COSTS)
def test_what_is_added_is_what_the_closed_form_says(collective: str, algorithm: str) -> None:
    """In each step, what the busiest rank adds; over the steps, added up."""
    for p in (1, 2, 3, 4, 5, 6, 8, 12):
        schedule, added = build(collective, algorithm, p), 0
        for step in schedule.steps():
            per_rank = np.zeros(p, dtype=np.int64)
            np.add.at(per_rank, step.dst[step.add], step.count[step.add])
            added += int(per_rank.max())
        assert added == pytest.approx(COSTS[collective, algorithm](p).added * schedule.k), p


@pytest.mark.parametrize(("p", "g"), [(6, 2), (6, 3), (12, 4), (16, 8), (10, 5)])
def test_what_leaves_nodes_of_any_size_is_what_the_closed_forms_say(p: int, g: int) -> None:
    for (_, name), known in ALGORITHMS.items():
        if not known.inside:
            continue
        assert known.cost is not None
        assert known.inside is not None
        schedule, whole, inside = known(p, ranks_per_node=g), known.cost(p, g), known.inside(p, g)
        sent = np.zeros((2, p), dtype=np.int64)
        for step in schedule.steps():
            np.add.at(sent, ((step.src // g == step.dst // g).astype(int), step.src), step.count)
        assert sent[1].max() == pytest.approx(inside.sent * schedule.k)
        assert sent[0].max() == pytest.approx((whole.sent - inside.sent) * schedule.k)
        assert schedule.nsteps == whole.steps - (
            inside.steps if name == "multi_channel_ring" else 0
        )


@pytest.mark.parametrize(
    ("collective", "name"), [key for key, each in ALGORITHMS.items() if each.at_once]
)
def test_channels_count_the_longer_time_where_links_differ_and_both_where_they_share_a_port(
    collective: str, name: str
) -> None:
    known, slow, fast = ALGORITHMS[collective, name], (1e-6, 1e-10, 0.0), (5e-6, 4e-11, 0.0)
    assert known.cost is not None
    assert known.on_nodes(16, 4, 1 << 28, fast, fast) == pytest.approx(
        known.cost(16, 4).seconds(1 << 28, *fast)
    )
    on = Machine(
        name="nodes",
        ranks_per_node=4,
        inside=Link(overhead=1e-6, rate=1e10),
        network=Link(overhead=5e-6, rate=1 / 4e-11),
    )
    took = simulate(known(16, ranks_per_node=4), on, 1 << 28).seconds
    assert took == pytest.approx(known.on_nodes(16, 4, 1 << 28, slow, fast), rel=0.02)


@pytest.mark.parametrize("name", [name for name in presets() if not machine(name).links])
def test_no_algorithm_is_faster_than_the_bound_of_its_machine(name: str) -> None:
    on = machine(name)
    p = 2 * max(2, on.ranks_per_node)
    for (collective, algorithm), each in ALGORITHMS.items():
        if each.is_executable:
            schedule = build(collective, algorithm, p)
            for n in (8, 1 << 16, 1 << 26):
                assert simulate(schedule, on, n).seconds >= bound(on, collective, p, n) * (
                    1 - 1e-9
                ), (algorithm, n)


def test_a_rank_uses_the_links_of_both_classes_at_once() -> None:
    """A ring through each port takes less than a rank's bytes over its faster link alone."""
    on, n = machine("dgx-h100"), 1 << 30
    ring = ALGORITHMS["all_reduce", "multi_channel_ring"](64, ranks_per_node=8)
    took = simulate(ring, on, n).seconds
    assert (
        bound(on, "all_reduce", 64, n)
        <= took
        < lower_bound("all_reduce", 64, n, 0.0, on.inside.beta)
    )
