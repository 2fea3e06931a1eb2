"""The training that submissions have to equal: its gradients are those that finite differences give."""

from dataclasses import replace

import numpy as np
import pytest

from collectives_course.training import Model, Shard, random_model, random_shard


def loss(model: Model, shards: list[Shard]) -> float:
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


def model_of(random: np.random.Generator) -> Model:
    made = random_model(random, [3, 4, 4, 4, 2], [1.0] * 4, 1)
    return replace(made, factors=np.ones((1, 4)))


@pytest.mark.parametrize("is_tied", [False, True])
def test_gradient_is_that_of_finite_differences(is_tied: bool) -> None:
    random = np.random.default_rng(1)
    model = model_of(random)
    if is_tied:
        kept = tuple(each for index, each in enumerate(model.parameters) if index not in (4, 5))
        model = replace(model, parameters=kept, tied=((2, 1),))
    shards = [random_shard(random, model, samples, skip) for samples, skip in ((3, ()), (0, ()), (2, (1,)))]
    for index, found in enumerate(model.gradient(0, shards)):
        direction = random.standard_normal(found.shape)
        losses = []
        for sign in (1, -1):
            moved = list(model.parameters)
            moved[index] = moved[index] + sign * 1e-6 * direction
            losses.append(loss(replace(model, parameters=tuple(moved)), shards))
        assert (losses[0] - losses[1]) / 2e-6 == pytest.approx(float((found * direction).sum()), rel=1e-6, abs=1e-9)


def test_a_frozen_layer_has_no_gradient_and_no_bytes() -> None:
    random = np.random.default_rng(2)
    model = replace(model_of(random), frozen=(1,))
    found = model.gradient(0, [random_shard(random, model, 2)])
    assert [bool(each.any()) for each in found] == [True, True, False, False, True, True, True, True]
    assert model.sizes == [8 * n for n in (12, 4, 16, 4, 8, 2)]


def test_a_factor_scales_the_gradients_of_its_layer_and_of_those_before() -> None:
    random = np.random.default_rng(3)
    model = model_of(random)
    shards = [random_shard(random, model, 2)]
    scaled = replace(model, factors=np.array([[1.0, 2.0, 1.0, 1.0]]))
    ratios = [a / b for a, b in zip(scaled.gradient(0, shards), model.gradient(0, shards), strict=True)]
    assert [np.unique(np.round(each, 9)).tolist() for each in ratios] == [[2.0]] * 4 + [[1.0]] * 4


def test_computations_go_forward_and_back_and_leave_out_what_is_skipped() -> None:
    model = model_of(np.random.default_rng(4))
    found = [(each.step, each.layer, each.phase) for each in model.computations([(1, 2)])]
    assert found == [(0, 0, "forward"), (0, 3, "forward"), (0, 3, "backward"), (0, 0, "backward")]
