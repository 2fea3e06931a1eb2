"""Plans by levels: every factorization is proved, known algorithms are members, and a wrong text is pointed at."""

import random
from collections.abc import Iterator
from math import prod

import numpy as np
import pytest

from collectives import verify
from collectives.algorithms import build, compose
from collectives.algorithms.levels import KINDS, is_plan, parse_plan
from collectives.core.interpret import run
from collectives.core.schedule import Schedule, ScheduleError, Step, digest
from collectives.core.traffic import traffic

MOST_RANKS = 64


def factorizations(p: int) -> Iterator[tuple[int, ...]]:
    """Every way to write p as a product of levels of two ranks or more, in every order."""
    if p == 1:
        yield ()
    for size in range(2, p + 1):
        if p % size == 0:
            for beyond in factorizations(p // size):
                yield (size, *beyond)


def plan_of(sizes: tuple[int, ...], collective: str, seed: int) -> str:
    """A plan with these sizes whose algorithms and segments follow from the seed."""
    chosen = random.Random(f"{sizes} {collective} {seed}")
    words = [f"{chosen.choice(KINDS[collective])}{size}" for size in sizes]
    if collective == "all_to_all":
        words = [
            f"{word}:{chosen.randint(2, size)}" if word.startswith("bruck") else word
            for word, size in zip(words, sizes, strict=True)
        ]
    return "/".join(words) + chosen.choice(["", "*2", "*3"])


def root_of(collective: str, p: int) -> dict[str, int]:
    """A root that is not the first rank, for a collective that has one."""
    return {"root": p * 2 // 3} if collective in ("broadcast", "reduce") else {}


@pytest.mark.integration
@pytest.mark.parametrize("collective", KINDS)
def test_every_factorization_is_proved(collective: str) -> None:
    most = 24 if collective == "all_to_all" else MOST_RANKS
    for p in range(2, most + 1):
        for seed, sizes in enumerate(factorizations(p)):
            text = plan_of(sizes, collective, seed)
            verify(build(collective, text, p, **root_of(collective, p)))


@pytest.mark.parametrize("collective", KINDS)
def test_every_algorithm_serves_as_near_middle_and_far_level(collective: str) -> None:
    for name in KINDS[collective]:
        other = KINDS[collective][0]
        for text in (
            f"{name}5",
            f"{name}3/{other}2",
            f"{other}2/{name}3",
            f"{other}2/{name}3/{other}2",
        ):
            p = parse_plan(text, collective).p
            verify(build(collective, text, p, **root_of(collective, p)))


def rows(schedule: Schedule) -> list[tuple[tuple[int, ...], ...]]:
    """The rows of every step, in one order."""
    return [
        tuple(sorted(zip(*(getattr(step, name).tolist() for name in Step.__slots__), strict=True)))
        for step in schedule.steps()
    ]


@pytest.mark.parametrize(
    ("collective", "name", "text"),
    [
        ("all_reduce", "ring", "ring7"),
        ("all_reduce", "two_shot", "direct6"),
        ("all_reduce", "one_shot", "one_shot5"),
        ("all_reduce", "circulant", "bruck12"),
        ("all_reduce", "recursive_doubling", "one_shot2/one_shot2/one_shot2"),
        ("all_reduce", "halving_doubling", "direct2/direct2/direct2"),
        ("all_gather", "bruck", "bruck9"),
        ("all_gather", "recursive_doubling", "direct2/direct2/direct2"),
        ("reduce_scatter", "pat", "direct2/direct2/direct2"),
        ("all_to_all", "pairwise", "pairwise5"),
        ("all_to_all", "pairwise", "bruck7:7"),
        ("broadcast", "binomial", "binomial8"),
    ],
)
def test_known_algorithms_are_members(collective: str, name: str, text: str) -> None:
    """As many bytes pass every port in as many steps; the order of parts in the buffer is the member's own."""
    p = parse_plan(text, collective).p
    known, member = build(collective, name, p), build(collective, text, p)
    assert member.nsteps == known.nsteps
    n = 1000 * known.k * member.k
    for column in ("sent", "received", "messages_sent", "messages_received"):
        of_known, of_member = (getattr(traffic(each, n), column) for each in (known, member))
        assert sorted(of_known.tolist()) == sorted(of_member.tolist()), column


def test_members_of_one_level_are_the_same_schedule() -> None:
    for collective, name, text in (
        ("all_reduce", "one_shot", "one_shot5"),
        ("all_reduce", "two_shot", "direct5"),
        ("all_gather", "ring", "ring5"),
        ("all_to_all", "bruck", "bruck5"),
        ("all_to_all", "bruck", "bruck5:2"),
        ("all_to_all", "pairwise", "bruck5:5"),
    ):
        assert digest(build(collective, name, 5)) == digest(build(collective, text, 5))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("recursive_doubling", "one_shot2/one_shot2/one_shot2/one_shot2"),
        ("halving_doubling", "direct2/direct2/direct2/direct2"),
    ],
)
def test_members_of_several_levels_have_the_same_messages(name: str, text: str) -> None:
    assert rows(build("all_reduce", name, 16)) == rows(build("all_reduce", text, 16))


def test_levels_of_two_and_three_ranks_need_no_fold() -> None:
    plan, folded = (
        build("all_reduce", name, 24)
        for name in ("one_shot2/one_shot2/one_shot2/one_shot3", "recursive_doubling")
    )
    verify(plan)
    assert (plan.nsteps, folded.nsteps) == (4, 6)


NEAR_FIRST = "/".join(["direct2"] * 6)


def leaving(collective: str, name: str) -> float:
    """Buffers that leave each of eight nodes of eight ranks."""
    n, g = 64_000, 8
    schedule = build(collective, name, 64)
    total = 0
    for step in schedule.steps():
        sent = step.messages(schedule.cut(n))
        total += int(sent.size[sent.src // g != sent.dst // g].sum())
    return total / n / 8


def test_near_ranks_exchange_the_long_messages() -> None:
    """A reduce-scatter that begins near leaves its node with a gth of the bytes, a halving with most of them."""
    verify(build("reduce_scatter", NEAR_FIRST, 64))
    assert leaving("reduce_scatter", NEAR_FIRST) == pytest.approx(7 / 8)
    assert leaving("reduce_scatter", "recursive_halving") == pytest.approx(7)
    for name in (NEAR_FIRST, "halving_doubling"):
        assert leaving("all_reduce", name) == pytest.approx(7 / 4)


def test_places_taken_for_ranks_are_found_by_counting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant the far digit first: every sum is right, but long messages leave the nodes."""
    monkeypatch.setattr(compose, "rank_of_part", lambda sizes: np.arange(prod(sizes)))
    verify(build("reduce_scatter", NEAR_FIRST, 64))
    assert leaving("reduce_scatter", NEAR_FIRST) == pytest.approx(7)
    assert leaving("all_reduce", "halving_doubling") == pytest.approx(14)


def test_a_ring_farther_out_passes_parts_on_inside_at_once() -> None:
    """Each part that comes round the ring is sent on one step later, and not at the end."""
    piped, in_turn = (build("all_gather", text, 12) for text in ("direct3/ring4", "direct3/bruck4"))
    inside = [
        [t for t, step in enumerate(each.steps()) if (step.src // 3 == step.dst // 3).any()]
        for each in (piped, in_turn)
    ]
    assert inside == [[0, 1, 2, 3], [2]]


def test_segments_follow_each_other_one_step_apart() -> None:
    whole, cut = (
        build("all_reduce", text, 6) for text in ("direct3/one_shot2", "direct3/one_shot2*3")
    )
    assert (cut.k, cut.nsteps) == (3 * whole.k, whole.nsteps + 2)
    assert [set((step.chunk // whole.k).tolist()) for step in cut.steps()][:4] == [
        {0},
        {0, 1},
        {0, 1, 2},
        {1, 2},
    ]


@pytest.mark.parametrize("text", ["direct3/ring2*2", "one_shot2/direct3", "bruck3/two_tree2"])
def test_sums_are_right_in_chunks_of_any_size(text: str) -> None:
    """Each element of each rank is another number; chunks differ in length, and some are empty."""
    schedule = build("all_reduce", text, 6)
    for n in (1, 5, 7, 36, 1001):
        data = np.arange(6 * n, dtype=np.int64).reshape(6, n) ** 2 % 997
        edges = schedule.cut(n)
        state = np.empty((6, schedule.k), dtype=object)
        for chunk in range(schedule.k):
            for rank in range(6):
                state[rank, chunk] = data[rank, edges[chunk] : edges[chunk + 1]]
        for sums in run(schedule, state):
            assert np.concatenate(sums).tolist() == data.sum(axis=0).tolist()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("direct8/rign12", ["column 9", "'rign'", "ring"]),
        ("direct8/ring", ["column 9", "'ring'", "ring12"]),
        ("direct8//ring2", ["column 9", "''"]),
        ("direct8/ring1", ["column 9", "1 ranks", "2 to"]),
        ("direct8/ring" + "9" * 5000, ["column 9", "2 to"]),
        ("direct8/ring2*0", ["column 15", "'0'", "1 to 64"]),
        ("direct8/ring2*x", ["column 15", "'x'"]),
        ("direct8/ring2*2*2", ["column 15", "'2*2'"]),
        ("ring1048576/ring2", ["2,097,152", "1,048,576"]),
        ("direct5000", ["column 1", "4,096"]),
        ("direct2/ring3", ["4 ranks", "2 x 3 = 6"]),
    ],
)
def test_a_wrong_plan_is_pointed_at(text: str, says: list[str]) -> None:
    assert is_plan(text)
    with pytest.raises(ValueError, match="plan") as refused:
        build("all_reduce", text, 4)
    assert all(word in str(refused.value) for word in says), refused.value
    assert not isinstance(refused.value, ScheduleError)


@pytest.mark.parametrize(
    ("collective", "text", "says"),
    [
        ("all_to_all", "direct2/bruck8:9", ["column 16", "'9'", "2 to 8"]),
        ("all_to_all", "bruck8:1*2", ["column 8", "'1'", "2 to 8"]),
        ("all_to_all", "bruck8:", ["column 8", "''"]),
        ("all_to_all", "bruck8:²", ["column 8", "'²'"]),
        ("all_to_all", "bruck8:2:2", ["column 8", "'2:2'"]),
        ("all_to_all", "bruck8:" + "9" * 5000, ["column 8", "2 to 8"]),
        ("all_to_all", "direct8:2", ["column 9", "direct", "bruck", "bruck17:4"]),
        ("all_to_all", "ring:8", ["column 1", "'ring:8'"]),
        ("all_reduce", "bruck8:4", ["column 8", "all_reduce", "only bruck of all_to_all"]),
    ],
)
def test_a_wrong_radix_is_pointed_at(collective: str, text: str, says: list[str]) -> None:
    assert is_plan(text)
    with pytest.raises(ValueError, match="plan") as refused:
        build(collective, text, 8)
    assert all(word in str(refused.value) for word in says), refused.value


def test_a_plan_with_a_radix_reads_back() -> None:
    for text in ("bruck17:4", "direct8/bruck12:5*2", "bruck17"):
        assert str(parse_plan(text, "all_to_all")) == text
    assert str(parse_plan("bruck17:2", "all_to_all")) == "bruck17"


def test_collectives_without_plans_say_which_have_them() -> None:
    with pytest.raises(ValueError, match="all_reduce, all_gather"):
        build("scatter", "direct8/ring12", 96)


@pytest.mark.parametrize(
    "name", ["ring", "two_tree", "packed_trees@dgx1", "my/own.py:ring8", "a*b/own.xml"]
)
def test_other_names_are_no_plans(name: str) -> None:
    assert not is_plan(name)
