"""Public tests: `pytest` runs them, each rank a thread.

The grader has more cases, and counts and times collectives.
"""

import numpy as np
import pytest
import training
from variant import BUCKET_BYTES, SLOW, WIDTHS

from collectives_course.local import run
from collectives_course.training import TrainingWorld, random_model, random_shard


def trained(samples, seed=0):
    """One step at rate 1: the model before, its shards, and what came of it.

    ``samples`` has each rank's number.
    """
    random = np.random.default_rng(seed)
    seconds = [4e-3 if layer == SLOW else 1e-3 for layer in range(len(WIDTHS) - 1)]
    model = random_model(random, WIDTHS, seconds, 1)
    shards = [random_shard(random, model, each) for each in samples]
    network = {"widths": model.widths, "parameters": model.parameters}
    arguments = [
        [network, [[each.x, each.y, sum(samples), []]], BUCKET_BYTES, 1.0] for each in shards
    ]
    computations = [model.computations([()])] * len(samples)
    return (
        model,
        shards,
        run(training.run, arguments, world=TrainingWorld, computations=computations),
    )


def test_buckets_go_from_the_last_parameter_to_the_first():
    assert training.buckets([50, 10, 40, 30, 200], 100) == [[4], [3, 2, 1], [0]]


@pytest.mark.parametrize("samples", [[6], [3, 3], [3, 3, 3]])
def test_a_step_equals_one_process(samples):
    model, shards, played = trained(samples)
    expected = model.after(0, shards, 1.0).parameters
    for rank, found in enumerate(played.values):
        for name, got, right in zip(model.names, found, expected, strict=True):
            np.testing.assert_allclose(
                got, right, rtol=0, atol=1e-9, err_msg=f"rank {rank}: {name}"
            )


def test_communication_begins_before_backward_has_ended():
    model, _, played = trained([3, 3])
    computing = sum(each.seconds for each in model.computations([()]))
    first = next(each for each in played.collectives if each.kind == "all_reduce")
    begin = max(each.end for each in played.collectives if each.kind == "broadcast")
    assert first.begin < begin + computing
