"""Schedules composed of near and far ones: right for one rank on either side, primes, and any kind of part."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from collectives import verify
from collectives.algorithms import build, compose, direct, ring, tree
from collectives.algorithms.bruck import all_gather as bruck_gather
from collectives.core.interpret import run
from collectives.core.schedule import Schedule, ScheduleError, Step

SIZES = [
    (1, 1),
    (1, 3),
    (3, 1),
    (2, 2),
    (2, 5),
    (5, 2),
    (3, 7),
    (4, 4),
]


@pytest.mark.parametrize(("near", "far"), SIZES)
def test_all_gathers_and_the_all_reduces_of_their_halves_are_proved(near: int, far: int) -> None:
    rank_of_part = compose.rank_of_part([near, far])
    makers = [direct.all_gather, ring.all_gather, bruck_gather]
    joins = [compose.all_gather, compose.all_gather_at_once]
    for inner, outer, join in product(makers, makers, joins):
        gather = join(inner(near), outer(far))
        verify(gather)  # places taken for ranks
        on_ranks = compose.on_ranks(gather, rank_of_part)
        verify(compose.scatter_and_gather(on_ranks))


@pytest.mark.parametrize(("near", "far"), SIZES)
def test_all_reduces_in_parts_and_whole_are_proved(near: int, far: int) -> None:
    scatter, gather = ring.reduce_scatter(near), ring.all_gather(near)
    for beyond in (direct.one_shot(far), ring.all_reduce(far), tree.all_reduce(far, segments=2)):
        verify(compose.all_reduce(scatter, beyond, gather))
        verify(replace(compose.all_reduce_whole(tree.two_tree(near), beyond), one_port=False))


@pytest.mark.parametrize(("near", "far"), SIZES)
def test_all_to_alls_and_broadcasts_are_proved(near: int, far: int) -> None:
    inner, outer = direct.pairwise_all_to_all(near), direct.all_to_all(far)
    verify(compose.all_to_all(inner, outer))
    verify(compose.all_to_all(inner, compose.all_to_all(outer, inner)))
    for root in range(near * far):
        down = tree.binomial_broadcast(near, root % near)
        between = tree.chain_broadcast(far, root // near, segments=2)
        verify(replace(compose.broadcast(down, between, root), one_port=False))


@pytest.mark.parametrize("segments", [1, 2, 5])
def test_segments_are_proved_where_parts_have_owners_and_where_they_have_none(
    segments: int,
) -> None:
    for p in (1, 2, 5, 7):
        for whole in (ring.all_gather(p), ring.all_reduce(p), direct.pairwise_all_to_all(p)):
            cut = compose.in_segments(whole, segments)
            verify(cut)
            assert cut.nsteps == (whole.nsteps + segments - 1 if p > 1 else 0)


NAMES = (
    "recursive_doubling",
    "halving_doubling",
    "hierarchical_ring",
    "two_shot",
    "circulant",
)


@pytest.mark.parametrize("p", [1, 2, 6, 7, 12])
@pytest.mark.parametrize("name", NAMES)
def test_names_that_are_composed_add_every_element_of_a_buffer_of_any_length(
    name: str, p: int
) -> None:
    schedule = build("all_reduce", name, p)
    for n in (1, p + 1, 5 * p + 3):
        data = np.arange(p * n, dtype=np.int64).reshape(p, n) ** 2 % 9973
        edges = schedule.cut(n)
        state = np.empty((p, schedule.k), dtype=object)
        for chunk in range(schedule.k):
            for rank in range(p):
                state[rank, chunk] = data[rank, edges[chunk] : edges[chunk + 1]]
        for sums in run(schedule, state):
            assert np.concatenate(sums).tolist() == data.sum(axis=0).tolist()


def test_parts_that_are_passed_on_before_they_came_are_found_by_the_proof() -> None:
    right = compose.all_gather_at_once(direct.all_gather(3), ring.all_gather(4))

    def make(t: int) -> Step:
        """Send inside a node in step t what comes to it in this step."""
        now, following = right.step(t), right.step(min(t + 1, right.nsteps - 1))
        outside = now.src // 4 == now.dst // 4
        inside = following.src // 4 != following.dst // 4
        columns = (
            np.concatenate([getattr(now, name)[outside], getattr(following, name)[inside]])
            for name in Step.__slots__
        )
        return Step(*columns)

    with pytest.raises(ScheduleError):
        verify(replace(right, make=make))


def test_far_ranks_of_one_place_only_are_found_by_the_proof(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If one rank of each node alone does what its place should, the others lack the far sums."""

    def first_only(one: Schedule, ranks: int, width: int) -> Schedule:
        chunks = np.arange(one.k) * width
        first = np.arange(one.p) * ranks
        return compose.on(one, one.p * ranks, one.k * width, first, chunks, width=width)

    monkeypatch.setattr(compose, "_side_by_side", first_only)
    for name in ("recursive_doubling", "halving_doubling"):
        with pytest.raises(ScheduleError):
            verify(build("all_reduce", name, 8))
