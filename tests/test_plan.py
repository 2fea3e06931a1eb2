"""Plans of all ranks played in one process, with a network as unkind as the rules allow.

A message may be copied at any time between (sent and posted) and (one of its ends is waited for). The eager network
copies as soon as it may, which shows a receive posted into a place still in use; the lazy one copies as late as it
may, which shows a send whose data were overwritten too early. Both must give the right result, and nobody may be stuck.
"""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives import interpret
from collectives.algorithms import ALGORITHMS, build
from collectives.backends.plan import plan
from collectives.backends.program import Fold, Plan, Post, Send, Span, Wait
from collectives.schedule import Schedule, Step, parts


class Network:
    """Messages between ranks that read and write the ranks' own memory."""

    def __init__(self, tensors: list[np.ndarray], plans: list[Plan], eager: bool) -> None:
        self.tensors, self.eager = tensors, eager
        self.scratch = [np.full(p.scratch, -(10**9)) for p in plans]
        self.sent: dict[tuple[int, int, int], tuple[Span, ...]] = {}
        self.posted: dict[tuple[int, int, int], Span] = {}
        self.done: set[tuple[int, int, int]] = set()

    def view(self, rank: int, span: Span) -> np.ndarray:
        return (self.scratch if span.scratch else self.tensors)[rank][span.start : span.stop]

    def copy(self, key: tuple[int, int, int]) -> bool:
        """Copy a message if both ends are there; key = (sender, receiver, step)."""
        if key not in self.done and key in self.sent and key in self.posted:
            data = np.concatenate([self.view(key[0], span) for span in self.sent[key]])
            self.view(key[1], self.posted[key])[:] = data
            self.done.add(key)
        return key in self.done


def play(schedule: Schedule, tensors: list[np.ndarray], n: int, eager: bool) -> None:
    plans = [plan(schedule, rank, schedule.cut(n)) for rank in range(schedule.p)]
    network = Network(tensors, plans, eager)
    at, numbers = [0] * schedule.p, [{} for _ in plans]
    while any(at[r] < len(plans[r].program) for r in range(schedule.p)):
        moved = False
        for rank in range(schedule.p):
            while at[rank] < len(plans[rank].program) and execute(
                network, rank, plans[rank].program[at[rank]], numbers
            ):
                at[rank] += 1
                moved = True
        assert moved, "every rank waits for another"


def execute(network: Network, rank: int, do: object, numbers: list[dict[int, tuple[int, int, int]]]) -> bool:
    match do:
        case Send(number, peer, step, spans):
            numbers[rank][number] = key = rank, peer, step
            network.sent[key] = spans
            if network.eager:
                network.copy(key)
        case Post(number, peer, step, into):
            numbers[rank][number] = key = peer, rank, step
            network.posted[key] = into
            if network.eager:
                network.copy(key)
        case Wait(number):
            return network.copy(numbers[rank][number])
        case Fold(into, operands):
            network.view(rank, into)[:] = sum(network.view(rank, span).copy() for span in operands)
    return True


def program_of(schedule: Schedule, rank: int, n: int) -> Plan:
    return plan(schedule, rank, schedule.cut(n))


def contributions(schedule: Schedule, n: int) -> list[np.ndarray]:
    length = int(schedule.cut(n)[-1])
    return [(np.arange(length) * 7919 + rank * 104729) % 1009 for rank in range(schedule.p)]


def expected(schedule: Schedule, n: int, rank: int) -> tuple[slice, np.ndarray]:
    """Which elements of this rank are asked for, and what they must be."""
    p, x = schedule.p, np.array(contributions(schedule, n))
    everything, mine = slice(None), slice(rank * n // p, (rank + 1) * n // p)
    parts = np.arange(x.shape[1]) * p // max(1, x.shape[1])  # whose part each element is in, where there are parts
    match schedule.collective:
        case "all_reduce":
            return everything, x.sum(axis=0)
        case "reduce":
            return (everything if rank == schedule.root else slice(0)), x.sum(axis=0)[
                : n if rank == schedule.root else 0
            ]
        case "broadcast":
            return everything, x[schedule.root]
        case "scatter":
            return mine, x[schedule.root][mine]
        case "gather" if rank != schedule.root:
            return slice(0), x[0][:0]
        case "gather" | "all_gather":
            return everything, x[parts, np.arange(x.shape[1])]
        case "reduce_scatter":
            return mine, x.sum(axis=0)[mine]
    piece = n // p  # all_to_all: what rank s has for us lies at s * n + rank * piece
    where = (np.arange(p)[:, None] * n + rank * piece + np.arange(piece)).ravel()
    return where, x[where // max(1, n), where]  # type: ignore[return-value]


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "lazy"])
@pytest.mark.parametrize(("collective", "algorithm"), ALGORITHMS)
@settings(max_examples=25, deadline=None)
@given(p=st.integers(1, 13), n=st.integers(0, 60), segments=st.integers(1, 6))
def test_every_plan_comes_out_right(
    collective: str, algorithm: str, eager: bool, p: int, n: int, segments: int
) -> None:
    schedule = build(collective, algorithm, p, root=p // 2, segments=segments)
    n -= n % p if schedule.k % p == 0 and parts(collective, p) > 1 else 0
    tensors = contributions(schedule, n)
    play(schedule, tensors, n, eager)
    for rank, tensor in enumerate(tensors):
        where, asked = expected(schedule, n, rank)
        assert tensor[where].tolist() == asked.tolist()


def test_half_of_a_ring_lands_in_place() -> None:
    """What replaces goes straight into the tensor; what is added needs scratch memory."""
    program = program_of(build("all_reduce", "ring", 4), 0, 400).program
    landings = defaultdict(list)
    for do in program:
        if isinstance(do, Post):
            landings[do.into.scratch].append(do.step)
    assert landings == {True: [0, 1, 2], False: [3, 4, 5]}


def test_an_empty_buffer_sends_nothing() -> None:
    for key in ALGORITHMS:
        assert program_of(build(*key, 5, segments=2), 3, 0).program == ()


def test_scratch_memory_is_reused() -> None:
    many = program_of(build("all_reduce", "ring", 64), 0, 6400)
    assert many.scratch == 100


@st.composite
def any_schedule(draw: st.DrawFn) -> Schedule:
    """Steps that serve no purpose: in each, some ranks send some chunks to others, replacing or adding."""
    p, k = draw(st.integers(2, 5)), draw(st.integers(1, 4))
    ranks, chunks = st.integers(0, p - 1), st.integers(0, k - 1)
    steps = []
    for _ in range(draw(st.integers(1, 14))):
        rows, replaced = [], set()
        for src, dst, chunk, add in draw(st.lists(st.tuples(ranks, ranks, chunks, st.booleans()), max_size=6)):
            taken = {(d, c) for _, d, c, _ in rows}
            if src != dst and (dst, chunk) not in (replaced if add else taken):
                rows.append((src, dst, chunk, add))
                replaced |= set() if add else {(dst, chunk)}
        src, dst, chunk, add = zip(*rows, strict=True) if rows else ((), (), (), ())
        steps.append(Step(src, dst, chunk, np.ones(len(rows), dtype=int), add))
    return Schedule("all_reduce", p, k, len(steps), steps.__getitem__, one_port=False)


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "lazy"])
@settings(max_examples=400, deadline=None)
@given(schedule=any_schedule(), n=st.integers(0, 9))
def test_any_schedule_is_played_as_the_interpreter_plays_it(eager: bool, schedule: Schedule, n: int) -> None:
    edges = schedule.cut(n)
    tensors = contributions(schedule, n)
    widest = int(max(edges[1:] - edges[:-1]))
    state = np.zeros((schedule.p, schedule.k, widest), dtype=np.int64)
    for rank, tensor in enumerate(tensors):
        for c in range(schedule.k):
            state[rank, c, : edges[c + 1] - edges[c]] = tensor[edges[c] : edges[c + 1]]
    interpret.play(schedule, state)
    play(schedule, tensors, n, eager)
    for rank, tensor in enumerate(tensors):
        for c in range(schedule.k):
            assert tensor[edges[c] : edges[c + 1]].tolist() == state[rank, c, : edges[c + 1] - edges[c]].tolist()
