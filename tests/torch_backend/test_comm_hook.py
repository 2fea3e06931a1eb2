"""DistributedDataParallel with our hook trains as one process does that sees the whole batch."""

from typing import Any

import pytest
import torch

from collectives.engine.codec import rounded
from collectives.launch import launch
from collectives.torch_backend import hook
from collectives.torch_backend.comm_hook import Residuals
from places import PATIENCE

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    return {event["case"]: event for event in launch("hook_cases", {}, 3, timeout=PATIENCE)}


@pytest.mark.parametrize("algorithm", ["auto", "two_tree", "ring"])
def test_the_hook_trains_as_one_process_does(seen: dict[str, Any], algorithm: str) -> None:
    assert seen[algorithm]["apart"] < 1e-6


def test_error_feedback_leads_nearer_to_what_one_process_learns(seen: dict[str, Any]) -> None:
    """Over four bits, to which the sum is rounded, too; infinite if replicas were not alike."""
    fed_back, not_fed_back = seen["feedback"]["apart"]
    assert fed_back < 0.9 * not_fed_back < float("inf")


def test_what_is_sent_and_what_is_left_out_are_the_gradients() -> None:
    residuals, sent, gradients = (
        Residuals(),
        torch.zeros(70),
        torch.randn(70, generator=torch.Generator().manual_seed(1)),
    )
    for _ in range(64):
        bucket = gradients.clone()
        residuals.add(0, [1], bucket, "mxfp4")
        sent += bucket
    assert torch.allclose(sent / 64, gradients, atol=0.02)
    # Other parameters: nothing is left of the first ones.
    residuals.add(0, [2], bucket := gradients.clone(), "mxfp4")
    assert torch.equal(bucket, rounded("mxfp4", gradients))
    assert not torch.allclose(bucket, gradients, atol=0.02)


def test_error_feedback_needs_a_codec() -> None:
    with pytest.raises(
        ValueError, match=r"algorithm with error feedback: got ring, expected one with a codec"
    ):
        hook("ring", error_feedback=True)


def test_an_error_names_its_bucket(seen: dict[str, Any]) -> None:
    assert "bucket 0: " in seen["rnig"]["said"]
    assert "no algorithm 'rnig'" in seen["rnig"]["said"]
