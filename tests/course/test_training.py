"""A training: gradients as finite differences give them, sums, simulated times, and what ranks do wrong."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from collectives_course import training
from collectives_course.comm import TrainingComm
from collectives_course.local import run
from collectives_course.training import (
    MLP,
    Computation,
    Shard,
    TrainingResult,
    TrainingWorld,
    random_model,
    random_shard,
)
from collectives_course.verdict import Crashed, Failed
from collectives_course.world import Network

LAYERS = [Computation(0, 1, "backward", 3.0, 0.5), Computation(0, 0, "backward", 5.0, 2.0)]


def trained(
    function: Callable[..., Any], p: int, layers: list[list[Computation]] | None = None
) -> TrainingResult:
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


def test_a_collective_overlaps_with_computing_and_waits_for_the_last_rank_and_for_the_one_before() -> (
    None
):
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


def sizes(comm: TrainingComm) -> None:
    comm.all_reduce(np.zeros(2 + comm.rank)).wait()


def kinds(comm: TrainingComm) -> None:
    comm.all_reduce(np.zeros(2)).wait() if comm.rank else comm.broadcast(np.zeros(2), 0)


def missing(comm: TrainingComm) -> None:
    if comm.rank != 1:
        comm.all_reduce(np.zeros(2)).wait()


def asking(**question: Any) -> Callable[[TrainingComm], Any]:
    """Ask what no TrainingComm asks."""
    return lambda comm: comm._question(**question)


UNREADABLE = [
    asking(op="send", to=1, array=np.zeros(1)),
    asking(op="wait", number=0),
    asking(op="wait", number=float("inf")),
    asking(op="start", kind="all_reduce", array=[1.0], src=0),
    asking(op="start", kind="gather", array=np.zeros(1), src=0),
    asking(op="start", kind="broadcast", array=np.zeros(1), src=2),
    asking(op="compute"),
]


@pytest.mark.parametrize(
    ("function", "layers", "error", "message"),
    [
        (sizes, [[]] * 2, Failed, "collective 0: rank .*16 bytes.*all ranks start the same"),
        (
            kinds,
            [[]] * 2,
            Failed,
            "collective 0: rank .*broadcast of rank 0, 16 bytes.*all ranks start the same",
        ),
        (
            missing,
            [[]] * 3,
            Failed,
            "rank 0 waits .*collective 0, all_reduce.*rank 1 has returned after 0",
        ),
        (
            lambda comm: comm.compute(0, "backward"),
            [LAYERS],
            Failed,
            "layer 0 backward, expected layer 1 backward",
        ),
        (
            lambda comm: comm.compute(1, "backward"),
            [LAYERS],
            Failed,
            "rank 0 returned without layer 0 backward, step 0",
        ),
        (lambda comm: comm.compute(1, "backward"), [[]], Failed, "expected nothing more"),
        *((each, [[]] * 2, Crashed, "cannot read") for each in UNREADABLE),
        (
            lambda comm: [comm.all_reduce(np.zeros(1)) for _ in range(6)],
            [[]],
            Failed,
            "expected at most 5, and 100 b",
        ),
        (
            lambda comm: comm.all_reduce(np.zeros(13)),
            [[]],
            Failed,
            "expected at most 5, and 100 bytes",
        ),
        (lambda comm: comm.all_reduce([1.0]), [[]], Crashed, "CommError: buffer: got list"),
        (
            lambda comm: comm.broadcast(np.zeros(1), 2),
            [[]] * 2,
            Crashed,
            "src: got 2, expected a rank from 0 to 1",
        ),
    ],
)
def test_what_ranks_do_wrong(
    function: Any,
    layers: Any,
    error: type[Exception],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(training, "MAX_COLLECTIVES", 5)
    monkeypatch.setattr(training, "MAX_BYTES", 100)
    with pytest.raises(error, match=message):
        trained(function, len(layers), layers)


def loss(model: MLP, shards: list[Shard]) -> float:
    """Mean loss, without the factors that the grader multiplies gradients by."""
    total = 0.0
    for shard in shards:
        x = shard.x
        for layer in range(model.layers):
            if layer not in shard.skip:
                at = 2 * model.owners.index(dict(model.tied).get(layer, layer))
                x = x @ model.parameters[at].T + model.parameters[at + 1]
                x = x if layer == model.layers - 1 else np.tanh(x)
        total += float(((x - shard.y) ** 2).sum()) / 2
    return total / sum(len(shard.x) for shard in shards)


def model_of(random: np.random.Generator) -> MLP:
    made = random_model(random, [3, 4, 4, 4, 2], [1.0] * 4, 1)
    return replace(made, factors=np.ones((1, 4)))


@pytest.mark.parametrize("is_tied", [False, True])
def test_gradient_is_that_of_finite_differences(is_tied: bool) -> None:
    random = np.random.default_rng(1)
    model = model_of(random)
    if is_tied:
        kept = tuple(each for index, each in enumerate(model.parameters) if index not in (4, 5))
        model = replace(model, parameters=kept, tied=((2, 1),))
    shards = [
        random_shard(random, model, samples, skip)
        for samples, skip in ((3, ()), (0, ()), (2, (1,)))
    ]
    for index, found in enumerate(model.gradient(0, shards)):
        direction = random.standard_normal(found.shape)
        losses = []
        for sign in (1, -1):
            moved = list(model.parameters)
            moved[index] = moved[index] + sign * 1e-6 * direction
            losses.append(loss(replace(model, parameters=tuple(moved)), shards))
        assert (losses[0] - losses[1]) / 2e-6 == pytest.approx(
            float((found * direction).sum()), rel=1e-6, abs=1e-9
        )


def test_a_frozen_layer_has_no_gradient_and_no_bytes() -> None:
    random = np.random.default_rng(2)
    model = replace(model_of(random), frozen=(1,))
    found = model.gradient(0, [random_shard(random, model, 2)])
    assert [bool(each.any()) for each in found] == [
        True,
        True,
        False,
        False,
        True,
        True,
        True,
        True,
    ]
    assert model.sizes == [8 * n for n in (12, 4, 16, 4, 8, 2)]


def test_a_factor_scales_the_gradients_of_its_layer_and_of_those_before() -> None:
    random = np.random.default_rng(3)
    model = model_of(random)
    shards = [random_shard(random, model, 2)]
    scaled = replace(model, factors=np.array([[1.0, 2.0, 1.0, 1.0]]))
    ratios = [
        a / b for a, b in zip(scaled.gradient(0, shards), model.gradient(0, shards), strict=True)
    ]
    assert [np.unique(np.round(each, 9)).tolist() for each in ratios] == [[2.0]] * 4 + [[1.0]] * 4


def test_computations_go_forward_and_back_and_leave_out_what_is_skipped() -> None:
    model = model_of(np.random.default_rng(4))
    found = [(each.step, each.layer, each.phase) for each in model.computations([(1, 2)])]
    assert found == [(0, 0, "forward"), (0, 3, "forward"), (0, 3, "backward"), (0, 0, "backward")]
