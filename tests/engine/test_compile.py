"""Plans of all ranks played in one process, with a network as unkind as the rules allow.

A message may be copied at any time between (sent and posted) and (one of its ends is waited for).
The eager network copies as soon as it may, which shows a receive posted into a place still in use;
the lazy one copies as late as it may, which shows a send whose data were overwritten too early.
Ranks do their tasks in order, or the last that they may do first, which shows a tie between tasks
that is missing. Where a rank goes step by step, none of its messages is copied before those of
the earlier steps are. All must give the right result, and nobody may be stuck.
"""

import tracemalloc
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives.algorithms import build, executable
from collectives.core import interpret
from collectives.core.contracts import REDUCING
from collectives.core.schedule import Schedule, Step, parts
from collectives.engine import nccl
from collectives.engine.compile import in_pieces, overlap, plan
from collectives.engine.program import AHEAD, Average, Plan, Recv, Reduce, Send, Span, Task, Wait

# Of the four, `make test` takes the first; it and its opposite play every algorithm.
LAZY_AHEAD = pytest.param(False, True, id="lazy-ahead")
EAGER_IN_ORDER = pytest.param(True, False, id="eager-in order", marks=pytest.mark.extended)
EAGER_AHEAD = pytest.param(True, True, id="eager-ahead", marks=pytest.mark.extended)
LAZY_IN_ORDER = pytest.param(False, False, id="lazy-in order", marks=pytest.mark.extended)
OPPOSITES = [LAZY_AHEAD, EAGER_IN_ORDER]
NETWORKS = [*OPPOSITES, EAGER_AHEAD, LAZY_IN_ORDER]


@pytest.fixture(autouse=True, scope="module")
def short_pieces() -> Iterator[None]:
    """Messages of a few elements are long here, so that they are reduced piece by piece."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("collectives.engine.compile.PIECE", 3)
        yield


class Network:
    """Messages between ranks that read and write the ranks' own memory."""

    def __init__(self, tensors: list[np.ndarray], plans: list[Plan], eager: bool) -> None:
        self.tensors, self.eager = tensors, eager
        self.scratch = [np.full(p.scratch, -(10**9)) for p in plans]
        self.sent: dict[tuple[int, int, int], tuple[Span, ...]] = {}
        self.posted: dict[tuple[int, int, int], Span] = {}
        # The step in which a rank has last sent to another ….
        self.last: dict[tuple[int, int], int] = {}
        self.asked: dict[tuple[int, int], int] = {}  # … and for which that one has last asked
        self.done: dict[tuple[int, int, int], int] = {}
        self.by_step = [p.by_step for p in plans]
        # By sender: what it has yet to see off.
        self.leaving: dict[int, list[tuple[int, int, int]]] = defaultdict(list)

    def view(self, rank: int, span: Span) -> np.ndarray:
        return (self.scratch if span.scratch else self.tensors)[rank][span.start : span.stop]

    def copy(self, key: tuple[int, int, int], missing: int = 0) -> bool:
        """Copy a message, but for its last elements, if both ends are there.

        Key = (sender, receiver, step).
        """
        if key in self.sent and key in self.posted and all(map(self.copy, self.earlier(key))):
            data = np.concatenate([self.view(key[0], span) for span in self.sent[key]])
            done, now = self.done.get(key, 0), len(data) - missing
            if now > done:
                self.view(key[1], self.posted[key])[done:now] = data[done:now]
                self.done[key] = now
            if now == len(data) and key in self.leaving[key[0]]:
                self.leaving[key[0]].remove(key)
            return True
        return False

    def earlier(self, key: tuple[int, int, int]) -> list[tuple[int, int, int]]:
        """What the sender has to see off before this message."""
        return [each for each in self.leaving[key[0]] if self.by_step[key[0]] and each[2] < key[2]]


def play(schedule: Schedule, tensors: list[np.ndarray], n: int, eager: bool, ahead: bool) -> None:
    """Until all ranks are done, each in the order of its program or as far ahead as is allowed."""
    plans = [plan(schedule, rank, schedule.cut(n)) for rank in range(schedule.p)]
    network = Network(tensors, plans, eager)
    ranks = [Rank(made.program, ahead) for made in plans]
    while any(each.left for each in ranks):
        moved = False
        for rank, each in enumerate(ranks):
            while any(
                each.goes_on(
                    i, lambda do, rank=rank, each=each: execute(network, rank, do, each.numbers)
                )
                for i in each.open()
            ):
                moved = True
        assert moved, "every rank waits for another"


class Rank:
    """One rank's program and how far it is.

    ``ahead`` says in which order it looks for tasks that it can go on with.
    """

    def __init__(self, program: tuple[Task, ...], ahead: bool) -> None:
        self.program, self.ahead = program, ahead
        self.left = {i: list(task.instructions) for i, task in enumerate(program)}
        self.numbers: dict[int, tuple[int, int, int]] = {}

    def open(self) -> list[int]:
        """The tasks that may be done now: one after the other, or whatever is allowed, the last first."""
        if not self.left:
            return []
        first = min(self.left)
        free = [
            i
            for i in self.left
            if i < first + AHEAD and not any(j in self.left for j in self.program[i].after)
        ]
        return sorted(free, reverse=True) if self.ahead else [first]

    def goes_on(self, i: int, act: Callable[[object], bool]) -> bool:
        """Whether an instruction of the task could be carried out, or the task is done."""
        if self.left[i]:
            if not act(self.left[i][0]):
                return False
            del self.left[i][0]
        if not self.left[i]:
            del self.left[i]
        return True


def execute(
    network: Network, rank: int, do: object, numbers: dict[int, tuple[int, int, int]]
) -> bool:
    match do:
        case Send(number, peer, step, spans):
            numbers[number] = key = rank, peer, step
            assert network.last.get(key[:2], -1) < step, "a connection keeps the order of the steps"
            network.last[key[:2]] = step
            network.sent[key] = spans
            network.leaving[rank].append(key)
            if network.eager:
                network.copy(key)
        case Recv(number, peer, step, into):
            numbers[number] = key = peer, rank, step
            assert network.asked.get(key[:2], -1) < step, (
                "a connection keeps the order of the steps"
            )
            network.asked[key[:2]] = step
            network.posted[key] = into
            if network.eager:
                network.copy(key)
        case Wait(number, missing):
            return network.copy(numbers[number], missing)
        case Reduce(into, operands):
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
    # Whose part each element is in, where there are parts.
    parts = np.arange(x.shape[1]) * p // max(1, x.shape[1])
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


@pytest.mark.integration  # 35 algorithms take 20 seconds
@pytest.mark.parametrize(("eager", "ahead"), OPPOSITES)
@pytest.mark.parametrize(("collective", "algorithm"), executable())
@settings(max_examples=15)
@given(p=st.integers(1, 13), n=st.integers(0, 60), segments=st.integers(1, 6))
def test_every_plan_comes_out_right(
    collective: str, algorithm: str, eager: bool, ahead: bool, p: int, n: int, segments: int
) -> None:
    schedule = build(collective, algorithm, p, root=p // 2, segments=segments)
    n -= n % p if schedule.k % p == 0 and parts(collective, p) > 1 else 0
    tensors = contributions(schedule, n)
    play(schedule, tensors, n, eager, ahead)
    for rank, tensor in enumerate(tensors):
        where, asked = expected(schedule, n, rank)
        assert tensor[where].tolist() == asked.tolist()


@pytest.mark.parametrize(
    ("length", "pieces"), [(0, []), (1, [1]), (3, [3]), (4, [3, 1]), (6, [3, 3]), (7, [3, 3, 1])]
)
def test_pieces_are_no_longer_than_they_may_be_and_never_empty(
    length: int, pieces: list[int]
) -> None:
    whole = Reduce(Span(5, 5 + length), (Span(5, 5 + length), Span(40, 40 + length, scratch=True)))
    cut = list(in_pieces(whole))
    assert [each.into.stop - each.into.start for each in cut] == pieces
    assert [i for each in cut for i in range(each.into.start, each.into.stop)] == list(
        range(5, 5 + length)
    )
    assert all(
        [span.start - each.into.start for span in each.operands] == [0, 35]
        and {span.stop - span.start for span in each.operands} == {each.into.stop - each.into.start}
        and [span.scratch for span in each.operands] == [False, True]
        for each in cut
    )


@pytest.mark.parametrize(
    ("algorithm", "n"),
    [("ring", 64), ("recursive_doubling", 3), ("halving_doubling", 64), ("two_tree", 64)],
)
def test_a_send_whose_place_was_written_whole_is_waited_for_once(algorithm: str, n: int) -> None:
    do = list(program_of(build("all_reduce", algorithm, 8), 3, n).instructions())
    sends = {each.number for each in do if isinstance(each, Send)}
    waits = Counter(each.number for each in do if isinstance(each, Wait) and each.number in sends)
    assert waits == dict.fromkeys(sends, 1)


def test_whoever_overwrites_the_rest_of_a_send_waits_for_it_too() -> None:
    """Rank 2 sends both chunks and then gets each from another rank.

    The later one may arrive first.
    """
    steps = [Step(2, 3, [0, 1]), Step(0, 2, 0), Step(1, 2, 1)]
    schedule = Schedule("all_reduce", 4, 2, len(steps), steps.__getitem__)
    given, tensors = contributions(schedule, 4), contributions(schedule, 4)
    play(schedule, tensors, 4, eager=False, ahead=True)
    assert tensors[3].tolist() == given[2].tolist()
    assert tensors[2].tolist() == [*given[0][:2], *given[1][2:]]


def hazards(made: Plan) -> Iterator[object]:
    """Instructions that touch what a message has not read or written yet, because nothing has waited for it."""
    coming, going = dict[int, Span](), dict[int, tuple[Span, ...]]()
    for do in made.instructions():
        reads: tuple[Span, ...] = (
            do.spans if isinstance(do, Send) else do.operands if isinstance(do, Reduce) else ()
        )
        writes = (
            [do.into]
            if isinstance(do, Recv | Reduce)
            else [do.span]
            if isinstance(do, Average)
            else []
        )
        unread = [span for spans in going.values() for span in spans]
        if overlap([*reads, *writes], [*coming.values()]) or overlap(writes, unread):
            yield do
        match do:
            case Send(number, _, _, spans):
                going[number] = spans
            case Recv(number, _, _, into):
                coming[number] = into
            case Wait(number, missing) if missing:
                coming[number] = coming[number]._replace(start=coming[number].stop - missing)
            case Wait(number):
                coming.pop(number, going.pop(number, None))
    yield from [*coming, *going]  # the call ends


@pytest.mark.parametrize(
    "ranks", [[1, 2, 3, 5], [8], pytest.param([7, 13, 16], marks=pytest.mark.extended)]
)
def test_waits_come_before_what_needs_them(ranks: list[int]) -> None:
    for (collective, algorithm), p in product(executable(), ranks):
        schedule = build(collective, algorithm, p, root=p // 2, segments=3)
        for rank in range(p):
            assert not [*hazards(program_of(schedule, rank, 7 * p))], (schedule, rank)


@pytest.mark.parametrize(
    "algorithm", ["ring", "two_shot", "recursive_doubling", "halving_doubling", "two_tree"]
)
def test_each_missing_wait_is_a_hazard(algorithm: str) -> None:
    """A send may be waited for in several tasks, because these may change places: all of its waits go."""
    for rank in range(4):
        made = program_of(build("all_reduce", algorithm, 4, segments=2), rank, 37)
        waits = {do for do in made.instructions() if isinstance(do, Wait)}
        assert waits
        for wait in waits:
            program = [
                task._replace(instructions=tuple(do for do in task.instructions if do != wait))
                for task in made.program
            ]
            assert [*hazards(replace(made, program=tuple(program)))], (rank, wait)


def test_half_of_a_ring_lands_in_place() -> None:
    """What replaces goes straight into the tensor; what is added needs scratch memory."""
    program = program_of(build("all_reduce", "ring", 4), 0, 400).instructions()
    landings = defaultdict(list)
    for do in program:
        if isinstance(do, Recv):
            landings[do.into.scratch].append(do.step)
    assert landings == {True: [0, 1, 2], False: [3, 4, 5]}


@pytest.mark.integration  # seconds
@pytest.mark.parametrize(
    ("collective", "algorithm"), [key for key in executable() if key[0] in REDUCING]
)
@pytest.mark.parametrize("cells", [13, 1 << 24])
def test_a_sum_is_divided_where_its_last_contribution_is_added(
    collective: str, algorithm: str, cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole, or a few chunks at a time.

    And without an average the plan is the same but for the divisions.
    """
    monkeypatch.setattr("collectives.engine.program.MOST_CELLS", cells)
    for p in (1, 3, 8):
        schedule = build(collective, algorithm, p, root=p // 2, segments=3)
        edges = schedule.cut(5 * p + 2)
        counts = np.ones((p, schedule.k), dtype=int)
        done: list[set[tuple[int, int]]] = [set() for _ in range(p)]
        for step in schedule.steps():
            before = counts.copy()
            interpret.apply(step, counts)
            for row, c in zip(*step.cells(), strict=True):
                rank = int(step.dst[row])
                if (
                    step.add[row]
                    and before[rank, c] < counts[rank, c] == p
                    and edges[c] < edges[c + 1]
                ):
                    done[rank].add((int(edges[c]), int(edges[c + 1])))
        for rank in range(p):
            doing = list(plan(schedule, rank, edges).instructions())
            divided = [do.span for do in doing if isinstance(do, Average)]
            assert sorted(divided) == sorted(Span(*each) for each in done[rank])
            undivided = [do for do in doing if not isinstance(do, Average)]
            assert list(plan(schedule, rank, edges, finished={}).instructions()) == undivided


@pytest.mark.integration  # seconds
@pytest.mark.parametrize(("averages", "cells"), [(False, 1 << 24), (True, 1 << 15)])
def test_many_ranks_of_many_chunks_take_no_memory_for_each_other(
    averages: bool, cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collectives.engine.program.MOST_CELLS", cells)
    p = 1024
    schedule = build("all_reduce", "halving_doubling", p)
    edges = schedule.cut(4 * p)
    tracemalloc.start()
    plan(schedule, 5, edges, None if averages else {})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert schedule.k == p
    assert peak < p * schedule.k * 8 / 3


def test_an_empty_buffer_sends_nothing() -> None:
    for key in executable():
        assert program_of(build(*key, 5, segments=2), 3, 0).program == ()


def test_who_exchanges_or_fans_out_goes_step_by_step() -> None:
    exchanges = {
        "one_shot",
        "two_shot",
        "recursive_doubling",
        "halving_doubling",
        "swing",
        "swing_doubling",
        "circulant",
    }
    assert going_by_step("all_reduce", 8, all) == exchanges
    assert going_by_step("all_reduce", 7, all) == {
        "one_shot",
        "two_shot",
        "circulant",
    }
    # No step of pairwise waits for another.
    assert going_by_step("all_to_all", 7, all) == {"direct", "bruck"}
    # A rank of a pipeline sends to its peers again and again.
    assert "binomial" in going_by_step("broadcast", 8, any)
    assert not {"chain", "two_tree"} & going_by_step("broadcast", 8, any)
    assert "binomial" in going_by_step("scatter", 8, any)


def test_a_binomial_root_goes_step_by_step_and_its_leaves_need_not() -> None:
    tree = build("broadcast", "binomial", 8)
    goes_by_step = [program_of(tree, rank, 640).by_step for rank in range(8)]
    children = [sum(int(rank in step.src) for step in tree.steps()) for rank in range(8)]
    assert goes_by_step == [count > 1 for count in children]


def going_by_step(collective: str, p: int, how_many: Callable[[Iterator[bool]], bool]) -> set[str]:
    """Algorithms in which all ranks, or any, send a step's messages before those of a later one."""
    found = set()
    for each, name in executable():
        if each != collective:
            continue
        made = build(collective, name, p, segments=3)
        plans = [program_of(made, rank, 640) for rank in range(p)]
        if how_many(plan.by_step for plan in plans):
            found.add(name)
    return found


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
        for src, dst, chunk, add in draw(
            st.lists(st.tuples(ranks, ranks, chunks, st.booleans()), max_size=6)
        ):
            taken = {(d, c) for _, d, c, _ in rows}
            if src != dst and (dst, chunk) not in (replaced if add else taken):
                rows.append((src, dst, chunk, add))
                replaced |= set() if add else {(dst, chunk)}
        src, dst, chunk, add = zip(*rows, strict=True) if rows else ((), (), (), ())
        steps.append(Step(src, dst, chunk, np.ones(len(rows), dtype=int), add))
    return Schedule("all_reduce", p, k, len(steps), steps.__getitem__, one_port=False)


@pytest.mark.integration  # seconds
@pytest.mark.parametrize(("eager", "ahead"), NETWORKS)
@settings(max_examples=250)
@given(schedule=any_schedule(), n=st.integers(0, 9))
def test_any_schedule_is_played_as_the_interpreter_plays_it(
    eager: bool, ahead: bool, schedule: Schedule, n: int
) -> None:
    edges = schedule.cut(n)
    tensors = contributions(schedule, n)
    widest = int(max(edges[1:] - edges[:-1]))
    state = np.zeros((schedule.p, schedule.k, widest), dtype=np.int64)
    for rank, tensor in enumerate(tensors):
        for c in range(schedule.k):
            state[rank, c, : edges[c + 1] - edges[c]] = tensor[edges[c] : edges[c + 1]]
    interpret.run(schedule, state)
    play(schedule, tensors, n, eager, ahead)
    for rank, tensor in enumerate(tensors):
        for c in range(schedule.k):
            assert (
                tensor[edges[c] : edges[c + 1]].tolist()
                == state[rank, c, : edges[c + 1] - edges[c]].tolist()
            )


@pytest.mark.integration  # seconds
@pytest.mark.parametrize(("collective", "algorithm"), executable())
def test_batches_for_nccl_never_wait_in_a_circle(collective: str, algorithm: str) -> None:
    """A batch holds its rank's stream until the other end of each of its messages is in a batch that has been begun."""
    for p in (2, 3, 5, 8):
        schedule = build(collective, algorithm, p, root=p // 2, segments=3)
        edges = schedule.cut(60 * p)
        batches = [batches_of(plan(schedule, rank, edges), rank) for rank in range(p)]
        at, begun = [0] * p, set()
        while any(at[rank] < len(batches[rank]) for rank in range(p)):
            begun |= {
                end for rank in range(p) for batch in batches[rank][: at[rank] + 1] for end in batch
            }
            free = [
                rank
                for rank in range(p)
                if at[rank] < len(batches[rank])
                and all(
                    (peer, me, step, not is_sent) in begun
                    for me, peer, step, is_sent in batches[rank][at[rank]]
                )
            ]
            assert free, "every stream waits for another"
            for rank in free:
                at[rank] += 1


def batches_of(made: Plan, rank: int) -> list[list[tuple[int, int, int, bool]]]:
    """What a rank hands over together: (own rank, peer, step, is sent) of each message."""
    found = [do.messages for do in nccl.batches(made) if isinstance(do, nccl.Batch)]
    return [[(rank, do.peer, do.step, isinstance(do, Send)) for do in batch] for batch in found]
