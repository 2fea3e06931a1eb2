"""Collectives of a training: sums, simulated times, and what ranks hear that do it wrong; ranks are threads here."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from collectives_course import training
from collectives_course.comm import CommError, TrainingComm
from collectives_course.local import run
from collectives_course.training import Computation, TrainingResult, TrainingWorld
from collectives_course.verdict import Crashed, Failed
from collectives_course.world import Network

LAYERS = [Computation(0, 1, "backward", 3.0, 0.5), Computation(0, 0, "backward", 5.0, 2.0)]


def trained(function: Callable[..., Any], p: int, layers: list[list[Computation]] | None = None) -> TrainingResult:
    network = Network(alpha=1.0, beta=0.25)
    made = run(function, [[]] * p, network, world=TrainingWorld, computations=layers or [[]] * p)
    assert isinstance(made, TrainingResult)
    return made


@pytest.mark.parametrize("p", [1, 2, 3, 5])
def test_all_reduce_sums_in_place_and_broadcast_copies(p: int) -> None:
    def both(comm: TrainingComm) -> list[Any]:
        summed, copied = np.arange(6.0).reshape(2, 3) + comm.rank, np.full(2, 10.0 + comm.rank)
        handle = comm.all_reduce(summed)
        handle.wait()
        handle.wait()
        comm.broadcast(copied, p - 1)
        return [summed, copied]

    for summed, copied in trained(both, p).values:
        assert summed.tolist() == (p * np.arange(6.0).reshape(2, 3) + p * (p - 1) / 2).tolist()
        assert copied.tolist() == [9.0 + p] * 2


def test_a_collective_overlaps_with_computing_and_waits_for_the_last_rank_and_for_the_one_before() -> None:
    def step(comm: TrainingComm) -> list[float]:
        factors = [comm.compute(1, "backward")]
        handles = [comm.all_reduce(np.zeros(2)), comm.all_reduce(np.zeros(1))]
        factors.append(comm.compute(0, "backward"))
        clocks = [comm.time()]
        for handle in handles:
            handle.wait()
            clocks.append(comm.time())
        return factors + clocks

    slow = [each._replace(seconds=each.seconds + 1) for each in LAYERS]
    made = trained(step, 2, [LAYERS, slow])
    assert [(each.begin, each.end) for each in made.collectives] == [(4.0, 9.0), (9.0, 12.0)]
    assert [each.bytes for each in made.collectives] == [16, 8]
    assert made.values == [[0.5, 2.0, 8.0, 9.0, 12.0], [0.5, 2.0, 10.0, 10.0, 12.0]]
    assert made.seconds == 12.0


def test_other_sizes_or_kinds_on_another_rank_are_named() -> None:
    def sizes(comm: TrainingComm) -> None:
        comm.all_reduce(np.zeros(2 + comm.rank)).wait()

    def kinds(comm: TrainingComm) -> None:
        comm.all_reduce(np.zeros(2)).wait() if comm.rank else comm.broadcast(np.zeros(2), 0)

    for function, sign in ((sizes, "16 bytes"), (kinds, "broadcast of rank 0, 16 bytes")):
        with pytest.raises(Failed, match=r"collective 0: rank . .*all ranks start the same") as failed:
            trained(function, 2)
        assert sign in str(failed.value)


def test_a_collective_that_a_rank_never_starts_is_a_deadlock() -> None:
    def missing(comm: TrainingComm) -> None:
        if comm.rank != 1:
            comm.all_reduce(np.zeros(2)).wait()

    with pytest.raises(Failed, match=r"deadlock: rank 0 waits .*collective 0, all_reduce.*rank 1 has returned after 0"):
        trained(missing, 3)


def test_gradients_cannot_be_had_out_of_order_or_left_out() -> None:
    with pytest.raises(Failed, match="computes layer 0 backward, expected layer 1 backward"):
        trained(lambda comm: comm.compute(0, "backward"), 1, [LAYERS])
    with pytest.raises(Failed, match="rank 0 returned without layer 0 backward, step 0"):
        trained(lambda comm: comm.compute(1, "backward"), 1, [LAYERS])
    with pytest.raises(Failed, match="expected nothing more"):
        trained(lambda comm: comm.compute(1, "backward"), 1)


def test_messages_past_the_collectives_and_unknown_numbers_end_it() -> None:
    questions: list[dict[str, Any]] = [
        {"op": "send", "to": 1, "array": np.zeros(1)},
        {"op": "wait", "number": 0},
        {"op": "wait", "number": float("inf")},
        {"op": "start", "kind": "all_reduce", "array": [1.0], "src": 0},
        {"op": "start", "kind": "gather", "array": np.zeros(1), "src": 0},
        {"op": "start", "kind": "broadcast", "array": np.zeros(1), "src": 2},
        {"op": "compute"},
    ]
    for question in questions:
        with pytest.raises(Crashed, match="cannot read"):
            trained(lambda comm, question=question: comm._question(**question), 2)


def test_collectives_without_end_are_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "MAX_COLLECTIVES", 5)
    with pytest.raises(Failed, match="too many collectives: expected at most 5"):
        trained(lambda comm: [comm.all_reduce(np.zeros(1)) for _ in range(6)], 1)
    monkeypatch.setattr(training, "MAX_BYTES", 100)
    with pytest.raises(Failed, match="and 100 bytes"):
        trained(lambda comm: comm.all_reduce(np.zeros(13)), 1)


def test_buffers_and_roots_are_checked_before_anything_is_sent() -> None:
    def wrong(comm: TrainingComm) -> None:
        with pytest.raises(CommError, match="buffer: got list"):
            comm.all_reduce([1.0])
        with pytest.raises(CommError, match="src: got 2, expected a rank from 0 to 1"):
            comm.broadcast(np.zeros(1), 2)

    assert trained(wrong, 2).collectives == []
