"""Slots in shared memory: each read is ordered behind its write and before the next, and the sums are right."""

import os
import threading
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numba import carray  # type: ignore[attr-defined]
from torch import distributed as dist

from collectives.algorithms import build, executable
from collectives.compiled import compiled
from collectives.core import interpret
from collectives.core.contracts import COMPACT, CONTRACTS, IN_PLACE, REDUCING
from collectives.core.schedule import Schedule, Step
from collectives.engine import shm, system
from collectives.engine.program import compact, completed, stages
from collectives.engine.shm import shared_call
from collectives.engine.slots import ENTERED, FIRST_SLOT, SLOTS, SOURCE, TARGET, SlotPlan, slot_plan

ROOTED = {name for name, each in CONTRACTS.items() if each.rooted}
READABLE = range(FIRST_SLOT, FIRST_SLOT + SLOTS)  # places that peers read
BEGIN = -1  # the row in which a rank publishes what it has
Cell = tuple[int, int, int]  # rank, slot, chunk


def schedules(ranks: list[int]) -> Iterator[Schedule]:
    for collective, name in executable():
        for p in ranks:
            yield build(collective, name, p, root=p - 1 if collective in ROOTED else None)


def plans(schedule: Schedule) -> list[SlotPlan]:
    found = [slot_plan(schedule, rank, completed(schedule, rank)) for rank in range(schedule.p)]
    assert all(found)
    return [each for each in found if each]


def races(parts: list[SlotPlan]) -> list[str]:
    """Reads that may see another version than the one their step is meant to see."""
    rows = [each.steps[:-1, 0].tolist() for each in parts]
    # Per rank and row: rows seen as done.
    clocks = [[[0] * len(parts) for _ in range(len(each) + 1)] for each in rows]
    # (row, step) of the owner, in order.
    writes: dict[Cell, list[tuple[int, int]]] = defaultdict(list)
    reads: dict[Cell, list[tuple[int, int, int]]] = defaultdict(list)  # (reader, its row, step)
    # (rank, chunk) -> (step, slot).
    newest: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for rank, part in enumerate(parts):
        for chunk, slot in part.copies.tolist():
            if slot in READABLE:
                writes[rank, slot, chunk].append((BEGIN, BEGIN))
                newest[rank, chunk].append((BEGIN, slot))
    for step, rank, row in sorted(
        (step, rank, row) for rank, each in enumerate(rows) for row, step in enumerate(each)
    ):
        part, clock = parts[rank], clocks[rank][row]
        clock[:] = [*(clocks[rank][row - 1] if row else clock)]
        clock[rank] = row + 1
        for peer, count in part.waits[part.steps[row, 1] : part.steps[row + 1, 1]].tolist():
            # The row whose end this count tells.
            done = sum(ENTERED + each + 1 < count for each in rows[peer])
            seen = clocks[peer][done] if count > ENTERED else [0] * len(parts)
            assert count == ENTERED or rows[peer][done] < step, (
                "a wait for a step that is not before this one"
            )
            clock[:] = map(max, clock, seen)
            clock[peer] = max(clock[peer], done + 1 + (count > ENTERED))
        for op in range(part.steps[row, 2], part.steps[row + 1, 2]):
            chunk, slot, *_, first = part.ops[op].tolist()
            for owner, where in part.operands[first : part.ops[op + 1, 4]].tolist():
                if where in READABLE:
                    reads[owner, where, chunk].append((rank, row, step))
            if slot in READABLE:
                writes[rank, slot, chunk].append((row, step))
            newest[rank, chunk].append((step, slot))
    return list(_wrong(reads, writes, newest, clocks))


def _wrong(reads: dict, writes: dict, newest: dict, clocks: list) -> Iterator[str]:  # type: ignore[type-arg]
    for (owner, slot, chunk), all_of in reads.items():
        for reader, row, step in all_of:
            what = f"rank {reader} reads chunk {chunk} of rank {owner} in step {step}"
            if [each for each in newest[owner, chunk] if each[0] < step][-1][1] != slot:
                yield f"{what} from the wrong slot"
            before = [each for each in writes[owner, slot, chunk] if each[1] < step]
            after = [each for each in writes[owner, slot, chunk] if each[1] >= step]
            # A count of rows done: BEGIN is one, row 0 another.
            if reader != owner and clocks[reader][row][owner] < before[-1][0] + 2:
                yield f"{what} too early"
            if reader != owner and after and clocks[owner][after[0][0]][reader] < row + 2:
                yield f"{what} maybe too late"


@pytest.mark.parametrize(
    "ranks", [[1, 2, 3], [4, 5], [7, 8], pytest.param([13, 16], marks=pytest.mark.extended)]
)
def test_waits_order_every_read(ranks: list[int]) -> None:
    for schedule in schedules(ranks):
        assert not races(plans(schedule)), schedule


@pytest.mark.parametrize(
    "algorithm", ["one_shot", "ring", "two_shot", "recursive_doubling", "two_tree"]
)
def test_a_missing_wait_is_a_race(algorithm: str) -> None:
    parts = plans(build("all_reduce", algorithm, 4))
    found = total = 0
    for rank, part in enumerate(parts):
        for nth in range(len(part.waits)):
            kept = np.delete(part.waits, nth, axis=0)
            steps = part.steps.copy()
            steps[:, 1] -= steps[:, 1] > nth
            found += bool(
                races([*parts[:rank], part._replace(waits=kept, steps=steps), *parts[rank + 1 :]])
            )
            total += 1
    assert total
    assert found > 0.6 * total  # others follow from those that are there


def test_a_wrong_slot_is_a_race() -> None:
    parts = plans(build("all_reduce", "ring", 3))
    operands = parts[1].operands.copy()
    last = int(np.flatnonzero(operands[:, 0] != 1)[-1])
    operands[last, 1] = 3 - operands[last, 1]
    assert races([parts[0], parts[1]._replace(operands=operands), parts[2]])


@pytest.mark.parametrize(
    "ranks", [[1, 2, 3], [5, 8], pytest.param([7, 13], marks=pytest.mark.extended)]
)
@pytest.mark.parametrize("last_first", [False, True])
def test_plans_played_in_plain_python_keep_the_contract(ranks: list[int], last_first: bool) -> None:
    for schedule in schedules(ranks):
        state = np.random.default_rng(schedule.p).integers(1 << 40, size=(schedule.p, schedule.k))
        own, parts = state.copy(), plans(schedule)
        interpret.run(schedule, state)
        for rank, target in enumerate(played_in_python(parts, own, last_first)):
            wanted = np.flatnonzero(parts[rank].held[:, 1])
            assert [target[c] for c in wanted] == state[rank, wanted].tolist(), (schedule, rank)


def played_in_python(
    parts: list[SlotPlan], own: np.ndarray, last_first: bool
) -> list[dict[int, int]]:
    """Each rank as far as its waits let it, the last or the first rank first.

    What the ranks' targets hold then.
    """
    places = [{(SOURCE, c): value for c, value in enumerate(each.tolist())} for each in own]
    counts, rows = [ENTERED] * len(parts), [0] * len(parts)
    for rank, part in enumerate(parts):
        for chunk, place in part.copies.tolist():
            places[rank][place, chunk] = places[rank][SOURCE, chunk]
    while going := [rank for rank, part in enumerate(parts) if rows[rank] < len(part.steps) - 1]:
        free = [
            rank
            for rank in going
            if all(counts[peer] >= count for peer, count in waits_of(parts[rank], rows[rank]))
        ]
        assert free, "every rank waits for another"
        rank = max(free) if last_first else min(free)
        part, held = parts[rank], places[rank]
        (step, _, op), (_, _, last) = part.steps[rows[rank] : rows[rank] + 2].tolist()
        for (chunk, place, is_result, _, first), following in zip(
            part.ops[op:last].tolist(), part.ops[op + 1 :, 4], strict=False
        ):
            operands = part.operands[first:following].tolist()
            held[place, chunk] = sum(places[peer][where, chunk] for peer, where in operands)
            if is_result:
                held[TARGET, chunk] = held[place, chunk]
        counts[rank], rows[rank] = ENTERED + step + 1, rows[rank] + 1
    return [
        {chunk: value for (place, chunk), value in each.items() if place == TARGET}
        for each in places
    ]


def waits_of(part: SlotPlan, row: int) -> list[list[int]]:
    found: list[list[int]] = part.waits[part.steps[row, 1] : part.steps[row + 1, 1]].tolist()
    return found


def played(schedule: Schedule, data: list[np.ndarray], op: object = dist.ReduceOp.SUM) -> None:
    """Every rank's part on a thread, in two calls on the same memory.

    The second finds what the first has left.
    """
    p = schedule.p
    memory = np.zeros(p * (shm.HEADER + shm.REGION), dtype=np.uint8)
    ranks, parts = [shm.new_rank(memory.ctypes.data, p, rank) for rank in range(p)], plans(schedule)
    cut = schedule.cut(len(data[0]) if schedule.collective not in COMPACT else max(map(len, data)))
    longest = int(np.diff(cut).max(initial=0))

    def one(rank: int) -> None:
        edges = compact(schedule, rank, np.diff(cut)) if schedule.collective in COMPACT else cut
        in_place = schedule.collective in IN_PLACE
        own, target = (data[rank] if in_place else np.zeros_like(data[rank]) for _ in range(2))
        addresses = own.ctypes.data, data[rank].ctypes.data, target.ctypes.data
        call = shared_call(
            parts[rank], edges, longest, op, torch.from_numpy(data[rank]).dtype, b"same", p
        )
        assert call
        status = shm.run(ranks[rank].ctypes.data, call.at, *addresses, True, False)
        while status != shm.FINISHED:
            assert status == shm.PAUSE
            status = shm.run(ranks[rank].ctypes.data, call.at, *addresses, True, True)
        data[rank][: len(target)] = target

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(p)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.integration  # compiles
@pytest.mark.parametrize("n", [0, 1, 7, 1000, 700_001])
@pytest.mark.parametrize("p", [1, 2, 3, 5])
def test_every_all_reduce_adds_right(p: int, n: int) -> None:
    kinds = (np.float32, np.int64) if n < 10_000 else (np.float32,)
    for collective, name in executable():
        if collective not in REDUCING or collective in COMPACT or collective in ROOTED:
            continue
        for kind in kinds:
            data = [((np.arange(n) % 97) * (rank + 1)).astype(kind) for rank in range(p)]
            total = sum(data)
            played(build(collective, name, p), data)
            if collective == "all_reduce":
                assert all(np.array_equal(each, total) for each in data), (name, kind)


@pytest.mark.integration  # compiles
def test_a_rank_that_sleeps_is_woken() -> None:
    """Wake it by the peer, before its sleep ends.

    It does not sleep if the count has changed meanwhile.
    """
    memory, times = np.zeros(2, dtype=np.int64), np.zeros(2, dtype=np.int64)
    word, day = memory.ctypes.data, 86_400 * system.BILLION

    system.sleep(word, 1, day, times)  # the word is 0
    sleeper = threading.Thread(target=lambda: system.sleep(word, 0, day, times), daemon=True)
    sleeper.start()
    sleeper.join(0.2)
    assert sleeper.is_alive()
    while sleeper.is_alive():
        memory[0] = 1
        system.wake(word)
        sleeper.join(0.01)


@compiled
def counted_on(rank: int, count: int) -> bool:
    """Return True if the rank could count on: nobody has given up on it."""
    return shm._count_on(carray(shm.pointer(rank), 1, shm.RANK)[0], count) == shm.FINISHED


@pytest.mark.integration  # compiles
def test_either_a_rank_comes_or_its_peer_gives_up_on_it() -> None:
    """Two threads race for one word: compiled code holds no lock of Python's."""
    memory = np.zeros(2 * (shm.HEADER + shm.REGION), dtype=np.uint8)
    first, second = (shm.new_rank(memory.ctypes.data, 2, rank) for rank in range(2))
    one, other = first.ctypes.data, second.ctypes.data
    count, came, gave_up = memory[shm.HEADER :].view(np.int64), list[bool](), list[bool]()
    for mark in range(1, 2000):
        first["peer"], first["mark"], count[0] = 1, mark, mark - 1
        both = threading.Barrier(2)

        def come(mark: int = mark, both: threading.Barrier = both) -> None:
            both.wait()
            came.append(counted_on(other, mark))

        def give_up(both: threading.Barrier = both) -> None:
            both.wait()
            gave_up.append(shm.give_up(one))

        threads = [threading.Thread(target=each) for each in (come, give_up)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert count[0] == (mark if came[-1] else -1)
    assert all(here != gone for here, gone in zip(came, gave_up, strict=True))
    assert {*came} == {True, False}


# Ranks, and ranks of a host.
SHAPES = [(4, 2), (6, 2), (6, 3), (8, 2), (8, 4), (9, 3), (10, 5)]
IN_STAGES = {"hierarchical_ring", "recursive_doubling", "halving_doubling"}  # on hosts of 2 or 4


def on_hosts(p: int, each: int) -> dict[str, Schedule]:
    return {
        name: build(collective, name, p, ranks_per_node=each)
        for collective, name in executable()
        if collective == "all_reduce"
    }


@pytest.mark.parametrize(("p", "each"), SHAPES)
def test_stages_have_the_schedule_s_steps_in_their_order(p: int, each: int) -> None:
    for name, schedule in on_hosts(p, each).items():
        found = stages(schedule, each)
        rows = [str(step) for stage in found for step in stage.schedule.steps() if len(step.src)]
        assert rows == [str(step) for step in schedule.steps() if len(step.src)] or not found, name
        for stage in found:
            for step in stage.schedule.steps():
                assert ((step.src // each == step.dst // each) == stage.is_on_hosts).all(), name


def test_some_algorithms_have_stages() -> None:
    assert {name for name, each in on_hosts(8, 2).items() if stages(each, 2)} >= IN_STAGES
    assert {name for name, each in on_hosts(8, 4).items() if stages(each, 4)} >= IN_STAGES
    assert not stages(build("all_reduce", "ring", 8), 2)
    assert not stages(build("broadcast", "binomial", 8, root=0), 2)


def test_a_step_of_both_kinds_has_no_stage() -> None:
    inside, both = Step([0], [1], 0, add=True), Step([0, 1], [1, 2], 0, add=True)
    first = Schedule("all_reduce", 4, 1, 1, lambda _: inside)
    assert [each.is_on_hosts for each in stages(first, 2)] == [True]
    assert stages(Schedule("all_reduce", 4, 1, 1, lambda _: both), 2) == []


@pytest.mark.parametrize(("p", "each"), SHAPES)
def test_hosts_and_what_is_between_them_add_up(p: int, each: int) -> None:
    """Each host's part by itself, on its own ranks; all ranks' data are distinct."""
    for name, schedule in on_hosts(p, each).items():
        found = stages(schedule, each)
        values = np.arange(p)[:, None] * 100 + np.arange(schedule.k) + 1
        total = values.sum(axis=0)
        for stage in found:
            if not stage.is_on_hosts:
                for step in stage.schedule.steps():
                    interpret.apply(step, values)
                continue
            for first in range(0, p, each):
                for step in stage.on_host(range(first, first + each)).steps():
                    interpret.apply(step, values[first : first + each])
        assert (values == total).all() or not found, name


@pytest.mark.parametrize(("p", "each"), SHAPES)
def test_waits_order_every_read_on_a_host(p: int, each: int) -> None:
    for name, schedule in on_hosts(p, each).items():
        for stage in stages(schedule, each):
            if stage.is_on_hosts:
                host = stage.on_host(range(p - each, p))
                parts = [slot_plan(host, rank, {}) for rank in range(each)]
                assert not races([part for part in parts if part]), name
                assert all(parts)


@pytest.mark.integration  # compiles
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_rank_leaves_its_core_and_keeps_the_cores_on_which_it_may_run() -> None:
    may_run_on = os.sched_getaffinity(0)
    for core in sorted(may_run_on):
        os.sched_setaffinity(0, {core})
        system.leave_core(np.zeros(system.CORE_WORDS, dtype=np.int64))
        assert os.sched_getaffinity(0) == {core}, "there is no other"
    os.sched_setaffinity(0, may_run_on)
    left = [left_core() for _ in range(20)]
    # The system may move it back at once.
    assert sum(here != there for here, there in left) > len(left) // 2
    assert os.sched_getaffinity(0) == may_run_on


@compiled
def left_core() -> tuple[int, int]:
    """Return this thread's core before and after it has left it."""
    cores, before = np.zeros(system.CORE_WORDS, dtype=np.int64), system.sched_getcpu()
    system.leave_core(cores)
    return before, system.sched_getcpu()
