"""One rank of two or three in the compiled loop of shared memory, turn by turn: nobody goes on before the others."""

import numpy as np
import pytest
import torch
from torch import distributed as dist

from collectives.algorithms import build
from collectives.engine import shm
from collectives.engine.slots import ENTERED, slot_plan

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120, method="thread")]

Host = list[shm.SharedCall]
N = 5
SUM = dist.ReduceOp.SUM


class Ranks:
    """Ranks of one host in one thread: a rank that has to wait returns PAUSE after a twentieth of a second."""

    def __init__(self, p: int) -> None:
        self.memory = np.zeros(p * (shm.HEADER + shm.REGION), dtype=np.uint8)
        self.ranks = [shm.new_rank(self.memory.ctypes.data, p, rank) for rank in range(p)]

    def calls(
        self, collective: str, name: str, signature: bytes = b"same", root: int | None = None
    ) -> Host:
        p = len(self.ranks)
        schedule = build(collective, name, p, root=root, segments=1)
        made = []
        for rank in range(p):
            plan = slot_plan(schedule, rank, {})
            assert plan
            op = None if collective == "broadcast" else SUM
            call = shm.shared_call(plan, schedule.cut(N), N, op, torch.float64, signature, p)
            assert call
            made.append(call)
        return made

    def run(
        self,
        rank: int,
        calls: Host,
        tensor: np.ndarray,
        goes_on: bool = False,
        has_barrier: bool = False,
    ) -> int:
        """Return the status of a call on a tensor."""
        at = tensor.ctypes.data
        return int(
            shm.run(self.ranks[rank].ctypes.data, calls[rank].at, at, at, at, has_barrier, goes_on)
        )

    def count(self, rank: int) -> int:
        """Return the count that a rank shows the others."""
        return int(self.memory[rank * shm.HEADER :][:8].view(np.int64)[0])


@pytest.fixture
def two() -> Ranks:
    return Ranks(2)


def data(value: float) -> np.ndarray:
    return np.arange(N) + 10.0 * value


def test_a_rank_that_is_ahead_overwrites_nothing_that_a_late_one_reads(two: Ranks) -> None:
    """Root 0 goes two calls ahead, the second in the other half of its slots, and no further."""
    calls = two.calls("broadcast", "flat", root=0)
    assert [two.run(rank, calls, data(0)) for rank in (0, 1)] == [shm.FINISHED] * 2
    assert [two.run(0, calls, data(call)) for call in (1, 2, 3)] == [
        shm.FINISHED,
        shm.FINISHED,
        shm.PAUSE,
    ]
    for call in (1, 2):
        late = np.zeros(N)
        assert two.run(1, calls, late) == shm.FINISHED
        assert late.tolist() == data(call).tolist()
    assert two.run(0, calls, data(3), goes_on=True) == shm.FINISHED


def test_a_rank_shows_no_step_before_it_is_done(two: Ranks) -> None:
    calls = two.calls("all_reduce", "ring")
    assert two.run(0, calls, data(1)) == shm.PAUSE
    assert two.count(0) == (1 << shm.STEP_BITS) + ENTERED
    assert two.run(1, calls, data(2)) == shm.PAUSE
    # Its first step; the second reads what rank 0 lacks yet.
    assert two.count(1) == (1 << shm.STEP_BITS) + ENTERED + 1


def test_a_step_waits_for_each_rank_that_it_reads() -> None:
    """Rank 2 adds the slots of ranks 0 and 1, which enter one after the other."""
    three = Ranks(3)
    calls, tensors = three.calls("all_reduce", "one_shot"), [data(rank) for rank in range(3)]
    assert three.run(2, calls, tensors[2]) == shm.PAUSE
    assert three.run(0, calls, tensors[0]) == shm.PAUSE
    assert three.run(2, calls, tensors[2], goes_on=True) == shm.PAUSE
    assert three.run(1, calls, tensors[1]) == shm.FINISHED
    assert [three.run(rank, calls, tensors[rank], goes_on=True) for rank in (0, 2)] == [
        shm.FINISHED
    ] * 2
    assert all(each.tolist() == (3 * np.arange(N) + 30.0).tolist() for each in tensors)


@pytest.mark.parametrize("first", [0, 1])
def test_a_rank_that_calls_differently_is_found_out(two: Ranks, first: int) -> None:
    calls, others = (
        two.calls("all_reduce", "one_shot"),
        two.calls("all_reduce", "one_shot", b"other"),
    )
    assert two.run(first, others, data(1)) == shm.PAUSE
    assert two.run(1 - first, calls, data(2)) == shm.DIFFERENT


def test_with_a_barrier_no_rank_leaves_before_all_have_come(two: Ranks) -> None:
    calls = two.calls("broadcast", "flat", root=0)
    assert two.run(0, calls, data(1), has_barrier=True) == shm.PAUSE
    assert two.run(1, calls, np.zeros(N), has_barrier=True) == shm.FINISHED
    assert two.run(0, calls, data(1), goes_on=True, has_barrier=True) == shm.FINISHED


def test_a_rank_that_was_given_up_does_not_go_on(two: Ranks) -> None:
    calls = two.calls("broadcast", "flat", root=0)
    assert two.run(1, calls, np.zeros(N)) == shm.PAUSE
    assert shm.give_up(two.ranks[1].ctypes.data)
    assert two.run(0, calls, data(1)) == shm.PAUSE
    assert two.count(0) == -2  # by rank 1


def test_each_call_is_on_its_own_tensors(two: Ranks) -> None:
    """A prepared call is performed on other memory than the call before it, and then on its own again."""
    calls, others = (
        two.calls("broadcast", "flat", root=0),
        two.calls("broadcast", "flat", b"other", root=1),
    )
    for turn in range(3):
        one, other = (data(turn), np.zeros(N)), (np.zeros(N), data(turn + 7))
        assert [two.run(rank, calls, one[rank]) for rank in (0, 1)] == [shm.FINISHED] * 2
        assert [two.run(rank, others, other[rank]) for rank in (1, 0)] == [shm.FINISHED] * 2
        assert [each.tolist() for each in one] == [data(turn).tolist()] * 2
        assert [each.tolist() for each in other] == [data(turn + 7).tolist()] * 2
