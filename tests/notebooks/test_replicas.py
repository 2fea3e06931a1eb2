"""Replicas take the steps of one process: by their gradients, by 50 losses on real ranks, and not if a sum is wrong."""

from dataclasses import asdict

import pytest
import torch
from torch.nn.functional import cross_entropy

from collectives.launch import launch
from collectives_book.digits import digits, perceptron, shard
from collectives_book.training.replicas import alone
from collectives_book.training.step import Training, begin, part_of_loss, step
from collectives_book.training.train import train
from places import PATIENCE
from sweep import each

TASK = "collectives_book.data_parallel.ranks"
TRAINING = Training(steps=50, batch=128)
# Losses of two ways to add up the same numbers, after 50 steps of rounding.
ROUNDING = 1e-4


def gradient(model: torch.nn.Module, loss: torch.Tensor) -> torch.Tensor:
    return torch.cat(
        [part.view(-1) for part in torch.autograd.grad(loss, list(model.parameters()))]
    )


@pytest.mark.parametrize("ranks", [2, 3, 7, 8, 64, 100])
def test_the_gradients_of_the_shards_sum_up_to_that_of_the_batch(ranks: int) -> None:
    """Also where shards differ, as those of 92 samples do, and where some of 100 ranks have none."""
    model, batch = perceptron(), digits()[0].take(torch.arange(92))
    whole = gradient(model, part_of_loss(model, batch, 0, 1))
    parts = [part_of_loss(model, batch, rank, ranks) for rank in range(ranks)]
    summed = sum(gradient(model, part) for part in parts)
    assert float((summed - whole).abs().max() / whole.abs().max()) < 1e-6
    mean = cross_entropy(model(batch.images), batch.labels).item()
    assert sum(part.item() for part in parts) == pytest.approx(mean, rel=1e-6)


def test_the_mean_of_the_shards_means_is_not_the_mean_of_the_batch() -> None:
    model, batch = perceptron(), digits()[0].take(torch.arange(92))
    whole = gradient(model, part_of_loss(model, batch, 0, 1))
    shards = [batch.take(shard(torch.arange(92), rank, 8)) for rank in range(8)]
    means = [gradient(model, cross_entropy(model(one.images), one.labels)) for one in shards]
    assert float((sum(means) / 8 - whole).abs().max() / whole.abs().max()) > 1e-4


def test_a_sum_that_forgets_a_rank_is_noticed() -> None:
    right = train(TRAINING, alone()).losses
    for wrong in (
        alone()._replace(ranks=2),
        alone()._replace(sum=lambda buffer: buffer[:-1].div_(2)),
    ):
        losses = train(TRAINING, wrong).losses
        assert max(abs(a - b) / b for a, b in zip(losses, right, strict=True)) > 100 * ROUNDING


def test_the_loss_that_a_step_returns_is_that_of_the_batch_before_it() -> None:
    batch, model = digits()[0].take(torch.arange(10)), perceptron()
    loss = step(begin(Training(), alone()), batch, alone())
    assert loss == pytest.approx(cross_entropy(model(batch.images), batch.labels).item(), rel=1e-6)


JOINED = [
    *(
        ["p2p", name]
        for name in ("ring", "two_tree", "tree", "recursive_doubling", "halving_doubling", "auto")
    ),
    ["gloo", "default"],
]


# 128 samples as 1 x 128, 2 x 64 and 8 x 16; on 3 ranks every batch is cut unevenly. An epoch ends
# with one of 92.
@pytest.mark.integration
@pytest.mark.parametrize("ranks", each([1, 2, 3, 8], few=[1, 3]))
def test_every_algorithm_has_the_losses_of_one_process(ranks: int) -> None:
    settings = {
        "training": asdict(TRAINING),
        "joined": [["one process", ""], *JOINED],
        "where": "loopback",
    }
    settings |= {"backends": ["p2p", "gloo"], "rates": None}
    events = launch(TASK, settings, ranks, timeout=PATIENCE)
    alone_, *rows = [row for event in events for row in event.get("rows", [])]
    # Other threads.
    assert alone_["losses"] == pytest.approx(train(TRAINING, alone()).losses, rel=ROUNDING)
    assert [[row["backend"], row["algorithm"], row["ranks"]] for row in rows] == [
        [*each, ranks] for each in JOINED
    ]
    for row in rows:
        assert len(row["losses"]) == 50
        differences = [abs(a - b) / b for a, b in zip(row["losses"], alone_["losses"], strict=True)]
        assert max(differences) < ROUNDING, row["algorithm"]
        assert (max(differences) == 0) == (ranks == 1), "rounding differs, or nothing was split"


@pytest.mark.extended
@pytest.mark.parametrize("threshold", ["0", "134217728"])
def test_horovod_s_optimizer_has_the_losses_of_one_process(threshold: str) -> None:
    """Under horovodrun itself; 3 ranks have uneven shards of every batch."""
    settings = {
        "training": asdict(TRAINING),
        "joined": [["horovod", "default"]],
        "where": "horovodrun",
    }
    settings |= {"backends": ["horovod"], "rates": None}
    environment = {"HOROVOD_FUSION_THRESHOLD": threshold}
    events = launch(
        TASK, settings, 3, where="horovodrun", timeout=PATIENCE, environment=environment
    )
    (row,) = [row for event in events for row in event.get("rows", [])]
    right = train(TRAINING, alone()).losses
    assert 0 < max(abs(a - b) / b for a, b in zip(row["losses"], right, strict=True)) < ROUNDING
